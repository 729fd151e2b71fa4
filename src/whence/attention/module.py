"""``Attention``: the projections around ``attend``, for building models."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whence import hook_outputs, shapes
from whence.attention.attend import Arguments, Documents, attend
from whence.attention.cache import KVCache
from whence.attention.layout import count_tokens, key_mask
from whence.attention.rules import require_cache, require_settings
from whence.errors import refusal
from whence.position.base import Position, require_built
from whence.position.composition import Sum
from whence.position.no_position import NoPosition
from whence.validation import MOST_HEADS, require_choice, require_flag, require_integer, require_table, require_width


class Attention(nn.Module):
    """Multi-head attention with any Position.

    Args:
        width: width of the input and output.
        heads: query heads.
        position: what position does; parts that act on embeddings are applied to this layer's input. A model that
            applies them once at its own input gives its layers the rest: ``position=inner(position)``.
        key_heads: key-value heads, a divisor of ``heads``; by default as many.
        head_width: width of a query or key; ``width // heads`` by default.
        value_width: width of a value; ``head_width`` by default.
        norm: ``"none"``, or ``"rms"`` to normalise queries and keys over their width before the scores.
        bias: whether the projections have a bias.
        causal, window, scale, temperature, dropout, backend, skip_far: as in ``attend``; dropout acts in training mode
            only.

    >>> import torch
    >>> layer = Attention(32, 4)
    >>> layer(torch.ones(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        position: Position | None = None,
        *,
        key_heads: int | None = None,
        head_width: int | None = None,
        value_width: int | None = None,
        norm: str = "none",
        bias: bool = False,
        causal: bool = True,
        window: int | None = None,
        scale: float | None = None,
        temperature: float = 1.0,
        dropout: float = 0.0,
        backend: str = "auto",
        skip_far: bool = True,
    ) -> None:
        super().__init__()
        key_heads = heads if key_heads is None else key_heads
        require_width("Attention", "width", width)
        for name, count in (("heads", heads), ("key_heads", key_heads)):
            require_integer("Attention", name, count, high=MOST_HEADS)
        for name, size in (("head_width", head_width), ("value_width", value_width)):
            if size is not None:
                require_width("Attention", name, size)
        require_settings(
            "Attention", causal=causal, window=window, scale=scale, temperature=temperature, dropout=dropout,
            backend=backend, skip_far=skip_far,
        )  # fmt: skip
        require_flag("Attention", "bias", bias)
        require_choice("Attention", "norm", norm, ("none", "rms"))
        if position is not None and not isinstance(position, Position):
            raise refusal(
                "Attention(position=...)",
                type(position).__name__,
                "position is a whence.Position",
                "subclass whence.Position",
            )
        if position is not None:
            require_built(position)
        if heads % key_heads != 0:
            raise refusal(
                "Attention(key_heads=...)",
                f"{key_heads} for {heads} heads",
                "key_heads divides heads",
                "choose a divisor",
            )
        if head_width is None and width % heads != 0:
            raise refusal(
                "Attention(width, heads)",
                f"{width} and {heads}",
                "heads divides width",
                "choose a divisor or pass head_width",
            )
        self.heads, self.key_heads = heads, key_heads
        self.head_width = width // heads if head_width is None else head_width
        self.value_width = self.head_width if value_width is None else value_width
        self.position = NoPosition() if position is None else position
        self.causal, self.window, self.dropout = causal, window, dropout
        self.backend, self.skip_far = backend, skip_far
        self.scale, self.temperature = scale, temperature
        require_table("Attention", width, heads, max(self.head_width, self.value_width))
        self.queries = nn.Linear(width, heads * self.head_width, bias=bias)
        self.keys = nn.Linear(width, key_heads * self.head_width, bias=bias)
        self.values = nn.Linear(width, key_heads * self.value_width, bias=bias)
        self.out = nn.Linear(heads * self.value_width, width, bias=bias)
        self.query_norm = nn.RMSNorm(self.head_width) if norm == "rms" else nn.Identity()
        self.key_norm = nn.RMSNorm(self.head_width) if norm == "rms" else nn.Identity()

    _inside: Position

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "position" and isinstance(value, Position):
            # what attend gets, found once; kept beside the registered module, so that no parameter appears twice
            self.__dict__["_inside"] = inner(value)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        memory_positions: Tensor | None = None,
        lengths: Tensor | None = None,
        padding: Tensor | None = None,
        documents: Documents | None = None,
        cache: KVCache | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x ``[B, T, width]`` attends to itself, or to memory ``[B, S, width]``; an output like x.

        ``lengths``, ``padding`` and ``documents`` describe the keys, as in ``attend``.
        """
        shapes.require_sequences("Attention", "x", x, self.queries)
        if memory is not None:
            shapes.require_sequences("Attention", "memory", memory, self.keys)
        require_cache("Attention", cache)
        require_flag("Attention", "return_weights", return_weights)
        if memory is None and memory_positions is not None:
            raise refusal(
                "Attention(memory_positions=...)",
                "positions and no memory",
                "memory_positions are those of the tokens of memory",
                "pass memory, or positions for x",
            )
        if memory is not None and self.causal and (positions is None or memory_positions is None):
            raise refusal(
                "Attention(x, memory)",
                "causal=True and no positions",
                "a memory of other tokens has no order with x unless it is said",
                "build the layer with causal=False, or pass positions and memory_positions",
            )
        if positions is not None and memory is None:
            memory_positions = positions
        if self.position.at_input():
            x = self._embedded(x, memory, positions, lengths, padding, documents, cache)
        source = x if memory is None else memory
        q = self.query_norm(self._split(self.queries(x), self.heads))
        k = self.key_norm(self._split(self.keys(source), self.key_heads))
        v = self._split(self.values(source), self.key_heads)
        how: Arguments = {
            "position": self._inside, "causal": self.causal, "window": self.window, "q_positions": positions,
            "k_positions": memory_positions, "lengths": lengths, "padding": padding, "documents": documents,
            "scale": self.scale, "temperature": self.temperature, "dropout": self.dropout if self.training else 0.0,
            "cache": cache, "backend": self.backend, "skip_far": self.skip_far,
        }  # fmt: skip
        if return_weights:
            mixed, weights = attend(q, k, v, return_weights=True, **how)
            return self.out(mixed.transpose(1, 2).flatten(2)), weights
        mixed = attend(q, k, v, **how)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _embedded(
        self,
        x: Tensor,
        memory: Tensor | None,
        positions: Tensor | None,
        lengths: Tensor | None,
        padding: Tensor | None,
        documents: Documents | None,
        cache: KVCache | None,
    ) -> Tensor:
        if memory is not None:
            raise refusal(
                "Attention(x, memory)",
                "a position that acts on embeddings",
                "x and memory are embedded where they are made",
                "embed both outside and use inner(position)",
            )
        batch, rows, device = x.shape[0], x.shape[1], x.device
        if positions is not None:
            places = shapes.positions("positions", positions, batch, rows, device)
        else:
            real = key_mask(lengths, padding, batch, rows, device)
            docs = None if documents is None else shapes.documents(documents, batch, rows, device)  # type: ignore[arg-type]
            places = (
                count_tokens(real, docs, rows, device)
                if cache is None
                else cache.count(real, docs, batch, rows, device)
            )
        for part in self.position.at_input():
            x = hook_outputs.changed(type(part).__name__, "embed", part.embed(x, places), x, "x")
        return x

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, -1)).transpose(1, 2)


def inner(position: Position) -> Position:
    """A position without the parts that act on embeddings: what a layer inside a model needs."""
    if not isinstance(position, Position):
        got = type(position).__name__
        raise refusal("inner(position)", got, "position is a whence.Position", "subclass whence.Position")
    parts = [part for part in position.parts if "embed" not in part.effects]
    if len(parts) == len(position.parts):
        return position
    return NoPosition() if not parts else parts[0] if len(parts) == 1 else Sum(*parts)
