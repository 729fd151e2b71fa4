"""``Attention``: the projections around ``attend``, for building models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence import hook_outputs, shapes
from whence.attention.argument_validation import require_cache, require_settings
from whence.attention.arguments import Arguments, MaskFunction, SegmentIds
from whence.attention.attend import compute
from whence.attention.backends import require_backend_name
from whence.attention.cache import KVCache
from whence.attention.keywords import CONSTRUCTOR, FORWARD, explain_keywords
from whence.attention.layout import resolve_key_mask
from whence.attention.token_positions import count_tokens
from whence.errors import usage_error
from whence.position.base import Position, require_position
from whence.position.evaluate import evaluate_clock
from whence.position.no_position import NoPosition
from whence.position.sum import Sum
from whence.validation import (
    MAX_HEADS,
    require_choice,
    require_dim,
    require_flag,
    require_integer,
    require_number,
    require_table,
)


@dataclass(frozen=True)
class ProjectedMemory:
    """The keys and values of a memory, projected once for all queries; ``Attention.project_memory`` computes them."""

    k: Tensor  # [B, num_kv_heads, S, head_dim], not rotated
    v: Tensor  # [B, num_kv_heads, S, value_dim]

    def select(self, rows: Tensor) -> ProjectedMemory:
        """The memory of some rows, in any order and with repetition, as in beam search."""
        return ProjectedMemory(self.k[rows], self.v[rows])


class HeadNorm(nn.RMSNorm):
    """RMSNorm of a query or a key over its dimension, in the dtype of the input: under autocast the weight may have another."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Multi-head attention with any Position.

    Args:
        embed_dim: dimension of the input and output.
        heads: query heads.
        position: how position changes attention; parts that act on embeddings are applied to this layer's input. A
            model that applies them once at its own input gives its layers the rest:
            ``position=without_embedding(position)``.
        num_kv_heads: key-value heads, a divisor of ``heads``; ``heads`` by default.
        head_dim: dimension of a query or key head; ``embed_dim // heads`` by default.
        value_dim: dimension of a value head; ``head_dim`` by default.
        norm: ``"none"``, or ``"rms"`` to normalize queries and keys over head_dim (QK-norm). It comes before any rotation,
            and a cache stores normalized keys.
        norm_eps: the number added to the mean square in that norm; by default the machine epsilon of the input's dtype.
        bias: whether the projections have a bias.
        causal, window, scale, temperature, dropout, backend, skip_blocks: as in ``attend``. ``causal`` is False by
            default, as in ``attend`` and in torch; a decoder passes True. Dropout acts in training mode only.

    >>> import torch
    >>> layer = Attention(32, 4, causal=True)
    >>> layer(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    @explain_keywords("Attention", CONSTRUCTOR, "pass the arguments after position by name")
    def __init__(
        self,
        embed_dim: int,
        heads: int,
        position: Position | None = None,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        norm: str = "none",
        norm_eps: float | None = None,
        bias: bool = False,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        temperature: float = 1.0,
        dropout: float = 0.0,
        backend: str = "auto",
        skip_blocks: bool = True,
    ) -> None:
        super().__init__()
        num_kv_heads = heads if num_kv_heads is None else num_kv_heads
        require_dim("Attention", "embed_dim", embed_dim)
        for name, count in (("heads", heads), ("num_kv_heads", num_kv_heads)):
            require_integer("Attention", name, count, high=MAX_HEADS)
        for name, size in (("head_dim", head_dim), ("value_dim", value_dim)):
            if size is not None:
                require_dim("Attention", name, size)
        self.causal, self.window, self.dropout = causal, window, dropout
        self.scale, self.temperature = scale, temperature
        self.backend, self.skip_blocks = backend, skip_blocks
        require_backend_name("Attention", backend)
        require_settings("Attention", self)
        require_flag("Attention", "bias", bias)
        require_choice("Attention", "norm", norm, ("none", "rms"))
        if norm_eps is not None:
            require_number("Attention", "norm_eps", norm_eps, above=0, remedy="pass 1e-6, for example, or leave it out")
        if position is not None:
            require_position("Attention(position=...)", position)
        if heads % num_kv_heads != 0:
            raise usage_error(
                "Attention(num_kv_heads=...)",
                f"{num_kv_heads} for {heads} heads",
                "num_kv_heads divides heads",
                "choose a divisor",
            )
        if head_dim is None and embed_dim % heads != 0:
            raise usage_error(
                "Attention(embed_dim, heads)",
                f"{embed_dim} and {heads}",
                "heads divides embed_dim",
                "choose a divisor or pass head_dim",
            )
        self.heads, self.num_kv_heads = heads, num_kv_heads
        self.head_dim = embed_dim // heads if head_dim is None else head_dim
        self.value_dim = self.head_dim if value_dim is None else value_dim
        self.position = NoPosition() if position is None else position
        require_table("Attention", embed_dim, heads, max(self.head_dim, self.value_dim))
        self.queries = nn.Linear(embed_dim, heads * self.head_dim, bias=bias)
        self.keys = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=bias)
        self.values = nn.Linear(embed_dim, num_kv_heads * self.value_dim, bias=bias)
        self.out = nn.Linear(heads * self.value_dim, embed_dim, bias=bias)
        self.query_norm = HeadNorm(self.head_dim, eps=norm_eps) if norm == "rms" else nn.Identity()
        self.key_norm = HeadNorm(self.head_dim, eps=norm_eps) if norm == "rms" else nn.Identity()

    _inside: Position

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "position" and isinstance(value, Position):
            # what attend receives, derived once; outside the registered modules, so that no parameter appears twice
            self.__dict__["_inside"] = without_embedding(value)

    @explain_keywords(
        "Attention.forward", FORWARD, "call layer(x) or layer(x, memory), which project q, k and v themselves"
    )
    def forward(
        self,
        x: Tensor,
        memory: Tensor | ProjectedMemory | None = None,
        *,
        positions: Tensor | None = None,
        memory_positions: Tensor | None = None,
        lengths: Tensor | None = None,
        key_mask: Tensor | None = None,
        segment_ids: SegmentIds | None = None,
        attn_mask: Tensor | None = None,
        mask_fn: MaskFunction | None = None,
        cache: KVCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x ``[B, T, embed_dim]`` attends to itself, or to memory ``[B, S, embed_dim]``; an output like x.

        The memory may be projected before, by ``project_memory``. Its tokens have positions of their own: the distance
        of a pair is the position of the token of x minus the position of the token of memory.

        ``lengths``, ``key_mask``, ``segment_ids``, ``attn_mask`` and ``mask_fn`` are those of ``attend``.
        """
        shapes.require_sequences("Attention", "x", x, self.queries)
        if memory is not None and not isinstance(memory, ProjectedMemory):
            shapes.require_sequences("Attention", "memory", memory, self.keys)
        require_cache("Attention", cache)
        if cache is not None and not torch.compiler.is_compiling():
            cache.claim(self)
        require_flag("Attention", "return_weights", return_weights)
        if memory is None and memory_positions is not None:
            raise usage_error(
                "Attention(memory_positions=...)",
                "positions and no memory",
                "memory_positions are those of the tokens of memory",
                "pass memory, or positions for x",
            )
        if memory is not None and self.causal and (positions is None or memory_positions is None):
            raise usage_error(
                "Attention(x, memory)",
                "causal=True and no positions",
                "the tokens of memory have no order relative to x without positions",
                "build the layer with causal=False, or pass positions and memory_positions",
            )
        if positions is not None and memory is None:
            memory_positions = positions
        if self.position.at_input():
            x = self._embed_input(x, memory, positions, lengths, key_mask, segment_ids, cache)
        q, k, v = self.project(x, memory)
        clock = self._steps(x, memory) if "clock" in self._inside.effects else None
        q_input = x if self._inside.reads_input else None
        mixed, weights = compute(Arguments(
            q, k, v, position=self._inside, clock=clock, q_input=q_input, causal=self.causal, window=self.window, q_positions=positions,
            k_positions=memory_positions, lengths=lengths, key_mask=key_mask, segment_ids=segment_ids, attn_mask=attn_mask,
            mask_fn=mask_fn, scale=self.scale, temperature=self.temperature,
            dropout=self.dropout if self.training else 0.0, cache=cache, backend=self.backend, skip_blocks=self.skip_blocks, return_weights=return_weights,
        ))  # fmt: skip
        out = self.out(mixed.transpose(1, 2).flatten(2))
        return out if weights is None else (out, weights)

    def _steps(self, x: Tensor, memory: Tensor | ProjectedMemory | None) -> Tensor | None:
        """The steps of the position's clock at each token of the keys, ``[B, heads, S]``."""
        if isinstance(memory, ProjectedMemory):
            raise usage_error(
                "Attention(x, memory)",
                "a projected memory and a position with a clock",
                "the steps of the clock come from the memory before its projection",
                "pass the memory itself",
            )
        return evaluate_clock(self._inside, x if memory is None else memory, self.heads)

    def project(self, x: Tensor, memory: Tensor | ProjectedMemory | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of memory or of x, as ``attend`` takes them: normalized, before any rotation."""
        q = self.query_norm(self._split_heads(self.queries(x), self.heads))
        if isinstance(memory, ProjectedMemory):
            k, v = memory.k, memory.v
        else:
            k, v = self._project(x if memory is None else memory)
        return q.to(v.dtype), k, v

    def project_memory(self, memory: Tensor) -> ProjectedMemory:
        """The keys and values of memory ``[B, S, embed_dim]``, for several calls with the same memory.

        >>> import torch
        >>> layer, x, memory = Attention(32, 4), torch.ones(1, 2, 32), torch.ones(1, 5, 32)
        >>> torch.equal(layer(x, layer.project_memory(memory)), layer(x, memory))
        True
        """
        shapes.require_sequences("Attention.project_memory", "memory", memory, self.keys)
        return ProjectedMemory(*self._project(memory))

    def _project(self, source: Tensor) -> tuple[Tensor, Tensor]:
        k = self.key_norm(self._split_heads(self.keys(source), self.num_kv_heads))
        v = self._split_heads(self.values(source), self.num_kv_heads)
        return k.to(v.dtype), v  # autocast computes norms in float32 on a GPU

    def _embed_input(
        self,
        x: Tensor,
        memory: Tensor | ProjectedMemory | None,
        positions: Tensor | None,
        lengths: Tensor | None,
        key_mask: Tensor | None,
        segment_ids: SegmentIds | None,
        cache: KVCache | None,
    ) -> Tensor:
        if memory is not None:
            raise usage_error(
                "Attention(x, memory)",
                "a position that acts on embeddings",
                "a layer embeds its own input only, and memory is the input of another",
                "embed both outside and use without_embedding(position)",
            )
        batch, rows, device = x.shape[0], x.shape[1], x.device
        if positions is not None:
            x_positions = shapes.validate_positions("positions", positions, batch, rows, device)
        else:
            real = resolve_key_mask(lengths, key_mask, batch, rows, device)
            segments = None if segment_ids is None else shapes.validate_segment_ids(segment_ids, batch, rows, device)  # type: ignore[arg-type]
            x_positions = (
                count_tokens(real, segments, rows, device)
                if cache is None
                else cache.next_positions(real, segments, batch, rows, device)
            )
        for part in self.position.at_input():
            name = type(part).__name__
            embedded = hook_outputs.call_on_tensors(f"{name}.embed", part.embed, x, x_positions)
            x = hook_outputs.require_like(name, "embed", embedded, x, "x")
        return x

    def _split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, -1)).transpose(1, 2)


def without_embedding(position: Position) -> Position:
    """A position without the parts that act on embeddings: what a layer inside a model needs."""
    require_position("without_embedding(position)", position)
    parts = [part for part in position.parts if "embed" not in part.effects]
    if len(parts) == len(position.parts):
        return position
    return NoPosition() if not parts else parts[0] if len(parts) == 1 else Sum(*parts)
