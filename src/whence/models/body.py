"""``Body``: what an encoder and a decoder share. Tokens become vectors, position acts at the input, the layers follow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whence import hook_outputs, shapes
from whence.attention.layout import count_tokens, resolve_key_mask
from whence.errors import usage_error
from whence.models.assign_positions import Placed
from whence.models.caches import Caches
from whence.models.layer import Layer
from whence.models.spec import ModelSpec
from whence.position.base import Position


class Body(nn.Module):
    """Embedding, the parts of position that act on it, dropout, the layers, and a final norm where the spec has one."""

    def __init__(self, spec: ModelSpec, placed: Placed, backend: str = "auto") -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab_size, spec.embed_dim)
        self.at_input = nn.ModuleList(placed.at_input)
        self.dropout = nn.Dropout(spec.dropout)
        self.layers = nn.ModuleList(Layer(spec, position, backend) for position in placed.layers)
        self.final_norm = nn.LayerNorm(spec.embed_dim) if spec.ends_in_norm else nn.Identity()

    def forward(
        self,
        tokens: Tensor,
        *,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Caches | None = None,
        weights_into: list[Tensor] | None = None,
    ) -> Tensor:
        """Tokens ``[B, T]`` give vectors ``[B, T, width]``; a call that is refused leaves nothing in the caches."""
        self.require_tokens(tokens)
        if cache is None:
            return self._through(tokens, key_mask, segment_ids, None, weights_into)
        self._require_caches(cache)
        held = cache.mark()
        try:
            return self._through(tokens, key_mask, segment_ids, cache, weights_into)
        except Exception:
            cache.restore(held)  # the layer that refused undoes its own tokens only
            raise

    def stack(self) -> list[Layer]:
        """The layers as what they are; a ModuleList knows them as modules only."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def require_tokens(self, tokens: Tensor) -> None:
        """Refuse what is not whole numbers of the vocabulary, ``[B, T]``."""
        if not shapes.is_whole(tokens) or tokens.ndim != 2 or 0 in tokens.shape:
            got = f"{tokens.dtype} {shapes.shape(tokens)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise usage_error(
                "model(tokens)",
                got,
                "tokens is an integer tensor [batch, length] with at least one token",
                "give it these axes",
            )
        # on a GPU the question would make every step wait for its answer
        if tokens.device.type != "cpu" or not shapes.readable(tokens):
            return
        low, high = (int(end) for end in torch.aminmax(tokens))
        if low < 0 or high >= self.embedding.num_embeddings:
            raise usage_error(
                "model(tokens)",
                f"token {low if low < 0 else high}",
                f"the vocabulary has tokens 0 to {self.embedding.num_embeddings - 1}",
                "map unknown tokens to one of them, or build the model with a larger vocabulary",
            )

    def _through(
        self,
        tokens: Tensor,
        key_mask: Tensor | None,
        segment_ids: Tensor | None,
        cache: Caches | None,
        weights_into: list[Tensor] | None,
    ) -> Tensor:
        x = self.embedding(tokens.long())
        if len(self.at_input):
            places = self._places(tokens, key_mask, segment_ids, cache)
            for part in self.at_input:
                assert isinstance(part, Position)
                x = hook_outputs.changed(type(part).__name__, "embed", part.embed(x, places), x, "x")
        x = self.dropout(x)
        for layer, held in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            x = layer(x, key_mask=key_mask, segment_ids=segment_ids, cache=held, weights_into=weights_into)
        return self.final_norm(x)

    def _places(
        self, tokens: Tensor, key_mask: Tensor | None, segment_ids: Tensor | None, cache: Caches | None
    ) -> Tensor:
        """Where each token stands: the numbers that attention counts for itself in every layer."""
        batch, rows, device = tokens.shape[0], tokens.shape[1], tokens.device
        real = resolve_key_mask(None, key_mask, batch, rows, device)
        docs = None if segment_ids is None else shapes.segment_ids(segment_ids, batch, rows, device)
        if cache is None:
            return count_tokens(real, docs, rows, device)
        return cache.each[0].count(real, docs, batch, rows, device)

    def _require_caches(self, cache: Caches) -> None:
        if not isinstance(cache, Caches) or len(cache) != len(self.layers):
            raise usage_error(
                "model(cache=...)",
                f"caches for {shapes.many(len(cache), 'layer')}" if isinstance(cache, Caches) else type(cache).__name__,
                f"each of the {shapes.many(len(self.layers), 'layer')} has a cache of its own",
                "make them with model.caches()",
            )
