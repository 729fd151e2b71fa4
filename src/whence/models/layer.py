"""One layer of a transformer: attention and a feed-forward network, each with its norm, its dropout and a way around it."""

from __future__ import annotations

from torch import Tensor, nn

from whence.attention import Attention, KVCache
from whence.models.spec import ModelSpec
from whence.position.base import Position

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them; dropout acts on the hidden units."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.into = nn.Linear(spec.embed_dim, spec.ffn_dim, bias=spec.biases)
        self.activation = ACTIVATIONS[spec.activation]()
        self.dropout = nn.Dropout(spec.dropout)
        self.out = nn.Linear(spec.ffn_dim, spec.embed_dim, bias=spec.biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(self.activation(self.into(x))))


class Layer(nn.Module):
    """Attention, then feed-forward.

    Dropout acts on the attention weights, on what attention adds, on the feed-forward network's hidden units and on what
    it adds. With ``norm="pre"`` the norm stands before a sublayer and its way around stays clean; with ``"post"`` it
    stands after the sum.
    """

    def __init__(self, spec: ModelSpec, position: Position, backend: str = "auto") -> None:
        super().__init__()
        self.norm = spec.norm
        self.attention = Attention(
            spec.embed_dim,
            spec.heads,
            position,
            num_kv_heads=spec.num_kv_heads,
            bias=spec.biases,
            causal=spec.causal,
            dropout=spec.dropout,
            backend=backend,
        )
        self.feed_forward = FeedForward(spec)
        self.attention_norm = nn.LayerNorm(spec.embed_dim)
        self.feed_forward_norm = nn.LayerNorm(spec.embed_dim)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: KVCache | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Tensor:
        """x ``[B, T, width]`` gives an output like it; the attention weights join ``weights_into``, if it is given."""
        if self.norm == "pre":
            x = x + self._attended(self.attention_norm(x), key_mask, segment_ids, cache, weights_into)
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self._attended(x, key_mask, segment_ids, cache, weights_into))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))

    def _attended(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        segment_ids: Tensor | None,
        cache: KVCache | None,
        weights_into: list[Tensor] | None,
    ) -> Tensor:
        wanted = weights_into is not None
        answer = self.attention(x, key_mask=key_mask, segment_ids=segment_ids, cache=cache, return_weights=wanted)
        if weights_into is not None:
            answer, weights = answer
            weights_into.append(weights)
        return self.dropout(answer)
