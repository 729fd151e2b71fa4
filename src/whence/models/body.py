"""``Layer`` and ``Body``: the transformer layers that encoder and decoder share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whence import hook_outputs, shapes, torch_modes
from whence.attention import Attention, KVCache
from whence.attention.layout import resolve_key_mask
from whence.attention.token_positions import count_tokens
from whence.errors import usage_error
from whence.models.assign_positions import AssignedPositions
from whence.models.caches import Caches
from whence.models.spec import ModelSpec
from whence.position.base import Position

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, or three with a gate; dropout acts on the hidden units.

    With ``gated_ffn`` the activation acts on the gate, which multiplies the hidden units (Shazeer 2020, arXiv 2002.05202).
    """

    gate: nn.Linear | None

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.into = nn.Linear(spec.embed_dim, spec.ffn_dim, bias=spec.bias)
        self.gate = nn.Linear(spec.embed_dim, spec.ffn_dim, bias=spec.bias) if spec.gated_ffn else None
        self.activation = ACTIVATIONS[spec.activation]()
        self.dropout = nn.Dropout(spec.dropout)
        self.out = nn.Linear(spec.ffn_dim, spec.embed_dim, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.out(self.dropout(self.activation(self.into(x))))
        return self.out(self.dropout(self.activation(self.gate(x)) * self.into(x)))


def build_norm(spec: ModelSpec) -> nn.LayerNorm | nn.RMSNorm:
    """A norm over ``embed_dim``."""
    return (nn.RMSNorm if spec.norm_type == "rms" else nn.LayerNorm)(spec.embed_dim, eps=spec.norm_eps)


def build_attention(spec: ModelSpec, position: Position, backend: str, causal: bool) -> Attention:
    """An attention with the sizes of a model."""
    return Attention(
        spec.embed_dim,
        spec.heads,
        position,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        norm="rms" if spec.qk_norm else "none",
        norm_eps=spec.norm_eps,
        bias=spec.bias,
        causal=causal,
        dropout=spec.dropout,
        backend=backend,
    )


class Layer(nn.Module):
    """One transformer layer: attention, then a feed-forward network, each with a norm, dropout and a residual connection.

    Dropout acts on the attention weights, on the output of attention, on the hidden units of the feed-forward network and
    on its output. With ``norm="pre"`` the norm precedes a sublayer and the residual stream is not normalized; with
    ``"post"`` it follows the residual sum.
    """

    def __init__(
        self, spec: ModelSpec, position: Position, backend: str = "auto", *, causal: bool | None = None
    ) -> None:
        """``causal``: by default that of the spec."""
        super().__init__()
        self.norm = spec.norm
        self.attention = build_attention(spec, position, backend, spec.causal if causal is None else causal)
        self.feed_forward = FeedForward(spec)
        self.attention_norm = build_norm(spec)
        self.feed_forward_norm = build_norm(spec)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: KVCache | None = None,
        weights_into: list[Tensor] | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """x ``[B, T, embed_dim]`` to an output of the same shape. Attention weights are appended to ``weights_into``.

        ``between`` is applied between attention and the feed-forward network: the cross-attention of a ``DecoderLayer``.
        """
        attended = self.attention_norm(x) if self.norm == "pre" else x
        x = x + self._attention_output(attended, positions, key_mask, segment_ids, cache, weights_into)
        if self.norm == "post":
            x = self.attention_norm(x)
        if between is not None:
            x = between(x)
        if self.norm == "pre":
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))

    def _attention_output(
        self,
        x: Tensor,
        positions: Tensor | None,
        key_mask: Tensor | None,
        segment_ids: Tensor | None,
        cache: KVCache | None,
        weights_into: list[Tensor] | None,
    ) -> Tensor:
        return_weights = weights_into is not None
        out = self.attention(
            x,
            positions=positions,
            key_mask=key_mask,
            segment_ids=segment_ids,
            cache=cache,
            return_weights=return_weights,
        )
        if weights_into is not None:
            out, weights = out
            weights_into.append(weights)
        return self.dropout(out)


class Body(nn.Module):
    """Token embedding, the parts of position that act on it, dropout, the layers, and a final norm if the spec has one.

    With ``gradient_checkpointing = True`` a layer's activations are computed again in the backward pass instead of stored. It
    acts in training without a cache. The names are those of transformers, whose models set both attributes.
    """

    gradient_checkpointing: bool
    _gradient_checkpointing_func: Callable[..., Tensor]

    def __init__(
        self, spec: ModelSpec, positions: AssignedPositions, backend: str = "auto", *, causal: bool | None = None
    ) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)
        self.embedding = nn.Embedding(spec.vocab_size, spec.embed_dim)
        self.at_input = nn.ModuleList(positions.at_input)
        self.dropout = nn.Dropout(spec.dropout)
        self.layers = nn.ModuleList(Layer(spec, position, backend, causal=causal) for position in positions.layers)
        self.final_norm = build_norm(spec) if spec.has_final_norm else nn.Identity()

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        key_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cache: Caches | None = None,
        weights_into: list[Tensor] | None = None,
        states_into: list[Tensor] | None = None,
    ) -> Tensor:
        """Tokens ``[B, T]`` to vectors ``[B, T, embed_dim]``. A call that raises leaves the caches unchanged.

        ``positions`` ``[B, T]`` are counted by default. Attention weights of each layer are appended to ``weights_into``. The
        input of each layer, and the result, are appended to ``states_into``.
        """
        self.check_tokens(tokens)
        if cache is None:
            return self._run_layers(tokens, positions, key_mask, segment_ids, None, weights_into, states_into)
        self._check_caches(cache)
        before = cache.mark()
        try:
            return self._run_layers(tokens, positions, key_mask, segment_ids, cache, weights_into, states_into)
        except Exception:
            cache.restore(before)  # the layer that raised removes its own tokens only
            raise

    def stack(self) -> list[Layer]:
        """The layers with their own type; a ModuleList types them as modules."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def check_tokens(self, tokens: Tensor) -> None:
        """Raise unless tokens are integers of the vocabulary, ``[B, T]``."""
        if not shapes.is_integer(tokens) or tokens.ndim != 2 or 0 in tokens.shape:
            got = (
                f"{tokens.dtype} {shapes.format_shape(tokens)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            )
            raise usage_error(
                "model(tokens)",
                got,
                "tokens must be an integer tensor [batch, length] with at least one token",
                "add the missing axis, or convert tokens to torch.long",
            )
        # on a GPU reading the values would make every step wait
        if tokens.device.type != "cpu" or not torch_modes.can_read_values(tokens):
            return
        low, high = (int(end) for end in torch.aminmax(tokens))
        if low < 0 or high >= self.embedding.num_embeddings:
            raise usage_error(
                "model(tokens)",
                f"token {low if low < 0 else high}",
                f"the vocabulary has tokens 0 to {self.embedding.num_embeddings - 1}",
                "map unknown tokens to one of them, or build the model with a larger vocab_size",
            )

    def _run_layers(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        key_mask: Tensor | None,
        segment_ids: Tensor | None,
        cache: Caches | None,
        weights_into: list[Tensor] | None,
        states_into: list[Tensor] | None,
    ) -> Tensor:
        at_input = positions
        if at_input is None and len(self.at_input):
            at_input = self.count_positions(tokens, key_mask, segment_ids, cache)
        x = self._embed(tokens, at_input)
        for layer, layer_cache in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            if states_into is not None:
                states_into.append(x)
            x = self._run_layer(
                layer, x, layer_cache, positions=positions, key_mask=key_mask, segment_ids=segment_ids, weights_into=weights_into
            )  # fmt: skip
        x = self.final_norm(x)
        if states_into is not None:
            states_into.append(x)
        return x

    def _run_layer(self, layer: nn.Module, x: Tensor, cache: KVCache | None, **arguments: Any) -> Tensor:
        """The output of a layer, with gradient checkpointing if it is on."""
        is_stored = cache is not None or arguments.get("weights_into") is not None  # to be stored once
        if self.gradient_checkpointing and self.training and not is_stored:
            return self._gradient_checkpointing_func(functools.partial(layer, **arguments), x)
        return layer(x, cache=cache, **arguments)

    def _embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """The input of the first layer; the parts of position that act on embeddings need positions."""
        x = self.embedding(tokens.long())
        for part in self.at_input:
            assert isinstance(part, Position) and positions is not None
            name = type(part).__name__
            embedded = hook_outputs.call_on_tensors(f"{name}.embed", part.embed, x, positions)
            x = hook_outputs.require_like(name, "embed", embedded, x, "x")
        return self.dropout(x)

    def count_positions(
        self, tokens: Tensor, key_mask: Tensor | None, segment_ids: Tensor | None, cache: Caches | None
    ) -> Tensor:
        """The position of each token, counted as attention counts it in every layer."""
        batch, rows, device = tokens.shape[0], tokens.shape[1], tokens.device
        mask = resolve_key_mask(None, key_mask, batch, rows, device)
        segments = None if segment_ids is None else shapes.validate_segment_ids(segment_ids, batch, rows, device)
        if cache is None:
            return count_tokens(mask, segments, rows, device)
        return cache.layers[0].next_positions(mask, segments, batch, rows, device)

    def _check_caches(self, cache: Caches) -> None:
        if not isinstance(cache, Caches) or len(cache) != len(self.layers):
            raise usage_error(
                "model(cache=...)",
                f"caches for {shapes.format_count(len(cache), 'layer')}"
                if isinstance(cache, Caches)
                else type(cache).__name__,
                f"each of the {shapes.format_count(len(self.layers), 'layer')} must have its own cache",
                "build them with model.caches()",
            )
