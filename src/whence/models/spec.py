"""``ModelSpec``: everything about a model except what position does to it.

A spec is plain data: ``dataclasses.asdict`` gives what JSON can hold, and ``ModelSpec(**...)`` takes it back. Position is
left out on purpose, so that two models of one spec differ in position alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import usage_error

CHOICES = {
    "kind": ("encoder", "decoder"),
    "norm": ("pre", "post"),
    "activation": ("relu", "gelu"),
    "initial": ("torch", "scaled"),
}


@dataclass(frozen=True)
class ModelSpec:
    """A small transformer, validated when it is made.

    Args:
        kind: ``"encoder"`` (bidirectional, a class for each text) or ``"decoder"`` (causal, a next token).
        vocab_size: number of tokens.
        num_classes: number of classes; an encoder has them, a decoder has none.
        embed_dim: width of a token's vector.
        heads: query heads, a divisor of ``embed_dim``.
        num_kv_heads: key-value heads, a divisor of ``heads``; by default as many.
        layers: number of layers.
        ffn_dim: hidden units of each feed-forward network, and of an encoder's classifier.
        dropout: probability of dropping a number; ``layer.py`` and ``body.py`` say where.
        norm: ``"pre"`` normalises what a sublayer reads, ``"post"`` what the residual sum gives.
        activation: of the feed-forward networks; the classifier's is always ReLU.
        biases: whether the linear layers (attention, feed-forward, classifier, output) have a bias.
        tied: whether a decoder's output has the embedding's weights as its own.
        final_norm: whether the last layer's output is normalised; by default in a decoder and not in an encoder.
        initial: ``"torch"``, each module's own start, or ``"scaled"``, small normal numbers; see ``initial.py``.

    >>> from dataclasses import asdict
    >>> spec = ModelSpec("decoder", vocab_size=100, layers=2)
    >>> spec.head_dim, spec.ends_in_norm, ModelSpec(**asdict(spec)) == spec
    (32, True, True)
    """

    kind: str
    vocab_size: int
    num_classes: int | None = None
    embed_dim: int = 64
    heads: int = 2
    num_kv_heads: int | None = None
    layers: int = 4
    ffn_dim: int = 100
    dropout: float = 0.1
    norm: str = "pre"
    activation: str = "relu"
    biases: bool = True
    tied: bool = False
    final_norm: bool | None = None
    initial: str = "torch"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise usage_error(
                    f"ModelSpec({name}=...)",
                    repr(getattr(self, name)),
                    f"{name} is one of {', '.join(choices)}",
                    "choose one of them",
                )
        self._require_counts()
        self._require_divisors()
        self._require_switches()
        self._require_kind()
        number = isinstance(self.dropout, int | float) and not isinstance(self.dropout, bool)
        if not number or not 0 <= self.dropout < 1:
            raise usage_error(
                "ModelSpec(dropout=...)",
                repr(self.dropout),
                "dropout is a number of at least 0 and below 1",
                "give such a number",
            )

    @property
    def head_dim(self) -> int:
        """Width of a query, a key and a value."""
        return self.embed_dim // self.heads

    @property
    def causal(self) -> bool:
        """Whether a token sees only itself and what came before."""
        return self.kind == "decoder"

    @property
    def ends_in_norm(self) -> bool:
        """``final_norm`` with its default filled in."""
        return self.causal if self.final_norm is None else self.final_norm

    def _require_counts(self) -> None:
        optional = {"num_classes", "num_kv_heads"}
        for name in ("vocab_size", "num_classes", "embed_dim", "heads", "num_kv_heads", "layers", "ffn_dim"):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise usage_error(
                    f"ModelSpec({name}=...)",
                    repr(value),
                    f"{name} is a whole number of at least 1",
                    "give such a number",
                )

    def _require_divisors(self) -> None:
        if self.embed_dim % self.heads != 0:
            raise usage_error(
                "ModelSpec(embed_dim=..., heads=...)",
                f"{self.embed_dim} and {self.heads}",
                "heads divides width",
                "choose a divisor",
            )
        if self.num_kv_heads is not None and self.heads % self.num_kv_heads != 0:
            raise usage_error(
                "ModelSpec(num_kv_heads=...)",
                f"{self.num_kv_heads} for {self.heads} heads",
                "num_kv_heads divides heads",
                "choose a divisor",
            )

    def _require_switches(self) -> None:
        for name in ("biases", "tied", "final_norm"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name == "final_norm"):
                raise usage_error(
                    f"ModelSpec({name}=...)", repr(value), f"{name} is True or False", "choose one of them"
                )

    def _require_kind(self) -> None:
        if self.kind == "encoder" and self.num_classes is None:
            raise usage_error(
                "ModelSpec(kind='encoder')", "no classes", "an encoder ends in a classifier", "pass classes=2 or more"
            )
        if self.kind == "decoder" and self.num_classes is not None:
            raise usage_error(
                "ModelSpec(kind='decoder')",
                f"classes={self.num_classes}",
                "a decoder predicts tokens",
                "leave classes out, or choose kind='encoder'",
            )
        if self.kind == "encoder" and self.tied:
            raise usage_error(
                "ModelSpec(kind='encoder')",
                "tied=True",
                "an encoder has no output over the vocabulary to tie",
                "leave tied out, or choose kind='decoder'",
            )
