"""``PointerGeneratorSpec``: the sizes of a pointer-generator and which of its parts it has."""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import refusal
from whence.validation import require_integer

CHOICES = {"attention": ("additive", "coverage"), "output": ("pointer", "generator")}


@dataclass(frozen=True)
class PointerGeneratorSpec:
    """Plain data, validated when it is made.

    Args:
        vocabulary: number of words, the special ones included.
        embedding: width of a word's vector, which source and summary share.
        hidden: units of the decoder and of each direction of the encoder.
        attention_width: of the network that scores; by default twice ``hidden``, the width of an encoder state.
        attention: ``"additive"``, or ``"coverage"``, which knows what it has looked at.
        output: ``"pointer"``, which copies or generates, or ``"generator"``, which can only generate.
        coverage_loss: what the coverage loss weighs; 0 leaves it out.

    The source has a vocabulary of 50,000, embeddings of 128, 256 units and a coverage loss of weight 1.

    >>> PointerGeneratorSpec(vocabulary=50, embedding=8, hidden=16).scoring
    32
    """

    vocabulary: int
    embedding: int = 128
    hidden: int = 256
    attention_width: int | None = None
    attention: str = "coverage"
    output: str = "pointer"
    coverage_loss: float = 1.0

    def __post_init__(self) -> None:
        for name in ("vocabulary", "embedding", "hidden", "attention_width"):
            value = getattr(self, name)
            if not (value is None and name == "attention_width"):
                require_integer("PointerGeneratorSpec", name, value)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise refusal(
                    f"PointerGeneratorSpec({name}=...)",
                    repr(getattr(self, name)),
                    f"{name} is one of {', '.join(choices)}",
                    "choose one of them",
                )
        number = isinstance(self.coverage_loss, int | float) and not isinstance(self.coverage_loss, bool)
        if not number or not 0 <= self.coverage_loss < float("inf"):
            raise refusal(
                "PointerGeneratorSpec(coverage_loss=...)",
                repr(self.coverage_loss),
                "coverage_loss is a finite number of at least 0",
                "use 1, as the source does, or 0 for none",
            )

    @property
    def scoring(self) -> int:
        """``attention_width`` with its default filled in."""
        return 2 * self.hidden if self.attention_width is None else self.attention_width
