"""``select_heads``: a mechanism for some of its heads, for a process that holds only those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from whence.errors import usage_error
from whence.position.base import HookGradients, ParameterGradient, Position, Rows, Sum, require_position
from whence.validation import require_integer


class HeadSlice(Position):
    """Query heads ``start`` to ``end`` of a mechanism. The parameters are the mechanism's own and keep all heads.

    Build it with ``select_heads``, which also takes a sum.
    """

    def __init__(self, mechanism: Position, start: int, end: int) -> None:
        super().__init__(heads=end - start, length=mechanism.length, context=mechanism.context)
        self.mechanism = mechanism
        self.start, self.end = start, end
        self.relative, self.causal_only = mechanism.relative, mechanism.causal_only
        self.decays, self.rotates = mechanism.decays, mechanism.rotates
        self.widens, self.reads_rotated = mechanism.widens, mechanism.reads_rotated
        for name in ("head_dim", "value_dim", "embed_dim", "rotary_dim"):
            if hasattr(mechanism, name):
                setattr(self, name, getattr(mechanism, name))

    @property
    def effects(self) -> frozenset[str]:
        return self.mechanism.effects

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.mechanism.embed(x, positions)

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.mechanism.rotate(q, k, q_positions, k_positions)

    def score_scale(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._slice(self.mechanism.score_scale(distance, length))

    def bias(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._slice(self.mechanism.bias(distance, length))

    def content_bias(self, rows: Rows) -> Tensor | None:
        return self.mechanism.content_bias(rows)

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        return self.mechanism.value_bias(weights, rows)

    def sink(self, position: Tensor, length: Any) -> Tensor | None:
        return self._slice(self.mechanism.sink(position, length))

    def clock(self, x: Tensor) -> Tensor | None:
        steps = self.mechanism.clock(x)
        return None if steps is None else steps[:, self.start : self.end]

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients | None:
        whole = self.mechanism.parameter_gradients(distance, length)
        if whole is None:
            return None
        gradients = tuple(
            ParameterGradient(self._slice(item.value), item.hook, self._slice(item.derivative))  # type: ignore[arg-type]
            for item in whole.gradients
        )
        return HookGradients(self._slice(whole.score_scale), self._slice(whole.bias), gradients)

    def bias_slope(self) -> Tensor | None:
        return self._slice(self.mechanism.bias_slope())

    def score_scale_decay(self, length: Any) -> tuple[Tensor, Tensor, Tensor] | None:
        decay = self.mechanism.score_scale_decay(length)
        return None if decay is None else tuple(self._slice(x) for x in decay)  # type: ignore[return-value]

    def _slice(self, x: Tensor | None) -> Tensor | None:
        """The rows of these heads; what all heads share stays as it is."""
        return x if x is None or x.ndim < 2 or x.shape[0] == 1 else x[self.start : self.end]

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "mechanism", self.mechanism
        yield "start", self.start
        yield "end", self.end


def select_heads(position: Position, start: int, end: int) -> Position:
    """A mechanism, or a sum, for query heads ``start`` to ``end``. Parameters are shared with the whole one.

    >>> import torch
    >>> from whence import Alibi
    >>> whole = Alibi(4)
    >>> torch.equal(select_heads(whole, 2, 4).bias(torch.arange(3.0), None), whole.bias(torch.arange(3.0), None)[2:])
    True
    """
    require_position("select_heads(position)", position)
    require_integer("select_heads", "start", start, low=0)
    require_integer("select_heads", "end", end, low=start + 1)
    selected = [_select(part, start, end) for part in position.parts]
    return selected[0] if len(selected) == 1 else Sum(*selected)


def _select(part: Position, start: int, end: int) -> Position:
    by_key_head = (getattr(part, "num_kv_heads", None) or 1) > 1
    if part.heads is None and not by_key_head and not part.effects & {"score_scale", "bias", "sink", "clock"}:
        return part  # the same for every head
    name = type(part).__name__
    if part.heads is not None and end > part.heads:
        raise usage_error(
            f"select_heads({name})", f"heads {start} to {end}", f"it has {part.heads} heads", f"use end={part.heads}"
        )
    if by_key_head or (part.heads is not None and part.effects & {"content_bias", "value_bias", "rotate"}):
        raise usage_error(
            f"select_heads({name})",
            "parameters per head that act on queries, keys or values",
            "only score_scale, bias, sink and clock can be computed for some of the heads",
            "use method='all_gather', which keeps all heads together",
        )
    return HeadSlice(part, start, end)
