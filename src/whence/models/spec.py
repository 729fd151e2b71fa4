"""``ModelSpec``: everything about a model except its Position.

A spec is plain data: ``dataclasses.asdict`` gives JSON values, and ``ModelSpec(**values)`` restores it. Position is not part
of it, so two models with one spec differ in position alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import usage_error
from whence.validation import require_number

CHOICES = {
    "kind": ("encoder", "decoder", "encoder-decoder"),
    "norm": ("pre", "post"),
    "norm_type": ("layer", "rms"),
    "activation": ("relu", "gelu", "silu"),
    "init": ("torch", "scaled"),
}


@dataclass(frozen=True)
class ModelSpec:
    """A small transformer, validated on construction.

    Args:
        kind: ``"encoder"`` (bidirectional, one class per sequence), ``"decoder"`` (causal, next-token prediction) or
            ``"encoder-decoder"`` (a decoder that also attends to an encoded source).
        vocab_size: number of tokens.
        num_classes: number of classes; required for an encoder, not allowed for the others.
        embed_dim: dimension of a token's vector.
        heads: number of query heads, a divisor of ``embed_dim`` unless ``head_dim`` is given.
        num_kv_heads: number of key-value heads, a divisor of ``heads``; by default equal to ``heads``.
        head_dim: dimension of a query, a key and a value; ``embed_dim // heads`` by default.
        layers: number of layers, in each stack of an encoder-decoder.
        ffn_dim: hidden units of each feed-forward network, and of an encoder's classifier.
        dropout: dropout probability; ``Layer`` and ``Body`` document where it acts.
        norm: ``"pre"`` normalizes the input of a sublayer, ``"post"`` the residual sum.
        norm_type: ``"layer"`` for LayerNorm, ``"rms"`` for RMSNorm, which has no mean and no bias.
        norm_eps: the number that norms add to a variance or a mean square.
        qk_norm: whether queries and keys are normalized by an RMSNorm over ``head_dim`` before any rotation, as in Qwen3.
        activation: of the feed-forward networks; the classifier's is always ReLU.
        gated_ffn: whether a third linear layer gates the hidden units: ``activation(gate(x)) * into(x)``. With ``"silu"``
            it is SwiGLU, with ``"gelu"`` GEGLU.
        bias: whether the linear layers (attention, feed-forward, classifier, output) have a bias.
        tie_embeddings: whether a decoder's output layer shares the embedding's weights.
        final_norm: whether the output of the last layer is normalized; by default not in an encoder, and otherwise yes, in
            both stacks of an encoder-decoder.
        init: initialization: ``"torch"``, the default of each module, or ``"scaled"``, that of GPT-2; see ``build.py``.

    >>> from dataclasses import asdict
    >>> spec = ModelSpec("decoder", vocab_size=100, layers=2)
    >>> spec.effective_head_dim, spec.has_final_norm, ModelSpec(**asdict(spec)) == spec
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
    bias: bool = True
    tie_embeddings: bool = False
    final_norm: bool | None = None
    init: str = "torch"
    head_dim: int | None = None
    norm_type: str = "layer"
    norm_eps: float = 1e-5
    qk_norm: bool = False
    gated_ffn: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise usage_error(
                    f"ModelSpec({name}=...)",
                    repr(getattr(self, name)),
                    f"{name} must be one of {', '.join(choices)}",
                    f"pass {name}={choices[0]!r} or another of them",
                )
        self._check_counts()
        self._check_divisors()
        self._check_flags()
        self._check_kind()
        is_number = isinstance(self.dropout, int | float) and not isinstance(self.dropout, bool)
        if not is_number or not 0 <= self.dropout < 1:
            raise usage_error(
                "ModelSpec(dropout=...)",
                repr(self.dropout),
                "dropout must be a number of at least 0 and below 1",
                "pass dropout=0.0 for none",
            )
        require_number("ModelSpec", "norm_eps", self.norm_eps, above=0, remedy="pass 1e-5 or 1e-6, for example")

    @property
    def effective_head_dim(self) -> int:
        """``head_dim`` with its default filled in."""
        return self.embed_dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def causal(self) -> bool:
        """Whether a predicted token sees only itself and earlier tokens of its sequence."""
        return self.kind != "encoder"

    @property
    def has_final_norm(self) -> bool:
        """``final_norm`` with its default filled in."""
        return self.causal if self.final_norm is None else self.final_norm

    def _check_counts(self) -> None:
        optional = {"num_classes", "num_kv_heads", "head_dim"}
        for name in (
            "vocab_size",
            "num_classes",
            "embed_dim",
            "heads",
            "num_kv_heads",
            "head_dim",
            "layers",
            "ffn_dim",
        ):
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise usage_error(
                    f"ModelSpec({name}=...)",
                    repr(value),
                    f"{name} must be an integer of at least 1",
                    f"pass a positive integer for {name}",
                )

    def _check_divisors(self) -> None:
        if self.head_dim is None and self.embed_dim % self.heads != 0:
            raise usage_error(
                "ModelSpec(embed_dim=..., heads=...)",
                f"{self.embed_dim} and {self.heads}",
                "heads must divide embed_dim",
                "choose a divisor for heads, or pass head_dim",
            )
        if self.num_kv_heads is not None and self.heads % self.num_kv_heads != 0:
            raise usage_error(
                "ModelSpec(num_kv_heads=...)",
                f"{self.num_kv_heads} for {self.heads} heads",
                "num_kv_heads must divide heads",
                "choose a divisor for num_kv_heads",
            )

    def _check_flags(self) -> None:
        for name in ("bias", "tie_embeddings", "final_norm", "qk_norm", "gated_ffn"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name == "final_norm"):
                raise usage_error(
                    f"ModelSpec({name}=...)", repr(value), f"{name} must be True or False", f"pass {name}=True or False"
                )

    def _check_kind(self) -> None:
        if self.kind == "encoder" and self.num_classes is None:
            raise usage_error(
                "ModelSpec(kind='encoder')",
                "no num_classes",
                "an encoder ends in a classifier",
                "pass num_classes=2 or more",
            )
        if self.kind != "encoder" and self.num_classes is not None:
            raise usage_error(
                f"ModelSpec(kind={self.kind!r})",
                f"num_classes={self.num_classes}",
                "a decoder predicts tokens",
                "omit num_classes, or pass kind='encoder'",
            )
        if self.kind == "encoder" and self.tie_embeddings:
            raise usage_error(
                "ModelSpec(kind='encoder')",
                "tie_embeddings=True",
                "an encoder has no output layer over the vocabulary",
                "omit tie_embeddings, or pass kind='decoder'",
            )
