"""``PointerGeneratorSpec``: the sizes of a pointer-generator and which of its parts it has."""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import usage_error
from whence.validation import require_integer

CHOICES = {"attention": ("additive", "coverage"), "output": ("pointer", "generator")}


@dataclass(frozen=True)
class PointerGeneratorSpec:
    """Plain data, validated when it is made.

    Args:
        vocab_size: number of words, the special ones included.
        embedding: width of a word's vector, which source and summary share.
        hidden_size: units of the decoder and of each direction of the encoder.
        attention_dim: of the network that scores; by default twice ``hidden_size``, the width of an encoder state.
        attention: ``"additive"``, or ``"coverage"``, which knows what it has looked at.
        output: ``"pointer"``, which copies or generates, or ``"generator"``, which can only generate.
        coverage_loss: what the coverage loss weighs; 0 leaves it out.

    The source has a vocabulary of 50,000, embeddings of 128, 256 units and a coverage loss of weight 1.

    >>> PointerGeneratorSpec(vocab_size=50, embedding=8, hidden_size=16).scoring
    32
    """

    vocab_size: int
    embedding: int = 128
    hidden_size: int = 256
    attention_dim: int | None = None
    attention: str = "coverage"
    output: str = "pointer"
    coverage_loss: float = 1.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "embedding", "hidden_size", "attention_dim"):
            value = getattr(self, name)
            if not (value is None and name == "attention_dim"):
                require_integer("PointerGeneratorSpec", name, value)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise usage_error(
                    f"PointerGeneratorSpec({name}=...)",
                    repr(getattr(self, name)),
                    f"{name} is one of {', '.join(choices)}",
                    "choose one of them",
                )
        number = isinstance(self.coverage_loss, int | float) and not isinstance(self.coverage_loss, bool)
        if not number or not 0 <= self.coverage_loss < float("inf"):
            raise usage_error(
                "PointerGeneratorSpec(coverage_loss=...)",
                repr(self.coverage_loss),
                "coverage_loss is a finite number of at least 0",
                "use 1, as the source does, or 0 for none",
            )

    @property
    def scoring(self) -> int:
        """``attention_dim`` with its default filled in."""
        return 2 * self.hidden_size if self.attention_dim is None else self.attention_dim
