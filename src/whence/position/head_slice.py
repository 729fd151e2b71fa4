"""``select_heads``: a mechanism for some of its heads, for a process that holds only those (tensor parallelism).

The slice has no parameters of its own: it holds the whole mechanism and shares its parameters. A backward pass through the
slice adds to the gradients of the whole what these heads contribute. With one slice on each device, the sum of the gradients
over all devices (one all-reduce) is therefore the gradient of the whole, for numbers per head and for shared ones alike,
and a checkpoint does not depend on the number of devices.

Functions of distance are evaluated for all heads and sliced, which costs little. ``rotate``, ``content_bias`` and ``value_bias``
see queries and keys of the slice only, so they run with views of the parameters that a class lists in ``head_axes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position, require_position
from whence.position.hook_types import HookGradients, PairFunction, ParameterGradient, Rows
from whence.position.relative_keys import RelativeKeys
from whence.validation import require_integer

ON_CONTENT = frozenset({"rotate", "content_bias", "value_bias"})
#: what the rest of whence reads from a mechanism besides its hooks
COPIED = (
    "relative", "causal_only", "decays", "rotates", "widens", "reads_rotated", "reads_input", "head_dim", "value_dim", "embed_dim",
    "rotary_dim",
)  # fmt: skip


def select_heads(position: Position, start: int, end: int) -> Position:
    """A mechanism, or a sum, for query heads ``start`` to ``end - 1``. Parameters are shared with the whole one.

    >>> import torch
    >>> from whence.position.alibi import Alibi
    >>> whole = Alibi(4)
    >>> torch.equal(select_heads(whole, 2, 4).bias(torch.arange(3.0), None), whole.bias(torch.arange(3.0), None)[2:])
    True
    """
    require_position("select_heads(position)", position)
    return position.select_heads(start, end)


def require_range(name: str, heads: int | None, start: int, end: int) -> None:
    """Raise unless a mechanism with ``heads`` heads, or any number of them, has the heads ``start`` to ``end - 1``."""
    require_integer("select_heads", "start", start, low=0)
    require_integer("select_heads", "end", end, low=start + 1)
    if heads is not None and end > heads:
        raise usage_error(
            f"select_heads({name})", f"heads {start} to {end}", f"it has {heads} heads", f"use end={heads}"
        )


def select_heads_of_part(part: Position, start: int, end: int) -> Position:
    """The same for a mechanism that is no sum."""
    name, on_content = type(part).__name__, part.effects & ON_CONTENT
    require_range(name, part.heads, start, end)
    if (getattr(part, "num_kv_heads", None) or 1) > 1:
        raise usage_error(
            f"select_heads({name})",
            f"num_kv_heads={part.num_kv_heads}",
            "its parameters belong to key heads, and a selection counts query heads",
            "build it for the key heads of this process, or leave num_kv_heads out",
        )
    if part.heads is None and not part.effects & {"score_scale", "bias", "sink", "clock"}:
        return part  # the same for every head
    if part.heads is not None and on_content and not part.head_axes:
        raise usage_error(
            f"select_heads({name})",
            f"the hook {min(on_content)}",
            "such a hook is computed for some heads with the tensors that head_axes lists, and there are none",
            f"list them in the class {name}, or use method='all_gather', which keeps all heads together",
        )
    return HeadSlice(part, start, end)


class HeadSlice(Position):
    """Query heads ``start`` to ``end - 1`` of a mechanism. The parameters are the mechanism's own and keep all heads.

    Build it with ``select_heads``, which also takes a sum.
    """

    def __init__(self, mechanism: Position, start: int, end: int) -> None:
        super().__init__(heads=end - start, length=mechanism.length, context=mechanism.context)
        self.mechanism, self.start, self.end = mechanism, start, end
        for name in COPIED:
            if hasattr(mechanism, name):
                setattr(self, name, getattr(mechanism, name))

    @property
    def effects(self) -> frozenset[str]:
        return self.mechanism.effects

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.mechanism.embed(x, positions)

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.with_views().rotate(q, k, q_positions, k_positions)

    def score_scale(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._select(self.mechanism.score_scale(distance, length))

    def bias(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._select(self.mechanism.bias(distance, length))

    def sink(self, position: Tensor, length: Any) -> Tensor | None:
        return self._select(self.mechanism.sink(position, length))

    def content_bias(self, rows: Rows) -> Tensor | None:
        return self.with_views().content_bias(rows)

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        return self.with_views().value_bias(weights, rows)

    def clock(self, x: Tensor) -> Tensor | None:
        steps = self.mechanism.clock(x)
        return None if steps is None else steps[:, self.start : self.end]

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients | None:
        own = self.mechanism.parameter_gradients(distance, length)
        if own is None:
            return None
        gradients = (
            ParameterGradient(self._rows(item.value), item.hook, self._select(item.derivative))
            for item in own.gradients
        )
        return HookGradients(self._select(own.score_scale), self._select(own.bias), tuple(gradients))

    def bias_slope(self) -> Tensor | None:
        return self._select(self.mechanism.bias_slope())

    def score_scale_decay(self, length: Any) -> tuple[Tensor, Tensor, Tensor] | None:
        decay = self.mechanism.score_scale_decay(length)
        if decay is None:
            return None
        floor, span, rate = map(self._rows, decay)
        return floor, span, rate

    def pair_function(self, hook: str) -> PairFunction | None:
        own = self.mechanism.pair_function(hook)
        return None if own is None else PairFunction(self._rows(own.numbers), own.evaluate, own.form)

    def relative_keys(self, distance: Tensor) -> RelativeKeys | None:
        return self.with_views().relative_keys(distance)

    def distance_slopes(self, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        return self.with_views().distance_slopes(q, k)

    def _select(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else self._rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        """The rows of these heads; what all heads share stays as it is."""
        return x if x.ndim < 2 or x.shape[0] == 1 else x[self.start : self.end]

    def with_views(self) -> Position:
        """The whole mechanism with views of the heads of the slice as its parameters, for one call."""
        whole = self.mechanism
        return whole if whole.heads is None else view_heads(whole, whole.head_axes, whole.heads, self.start, self.end)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "mechanism", self.mechanism
        yield "start", self.start
        yield "end", self.end


def view_heads(module: Any, axes: Mapping[str, int], heads: int, start: int, end: int) -> Any:
    """A module like another, whose tensors named in ``axes`` are views of some heads along these axes.

    A name of a module stands for all its own tensors, and ``network.2`` for those of a module inside another.
    """
    view = object.__new__(type(module))
    view.__dict__.update(module.__dict__)
    modules = dict(module.__dict__["_modules"])
    for group in ("_parameters", "_buffers"):
        tensors = dict(module.__dict__[group])
        for name, axis in axes.items():
            if tensors.get(name) is not None:
                size = tensors[name].shape[axis] // heads
                tensors[name] = tensors[name].narrow(axis, start * size, (end - start) * size)
        view.__dict__[group] = tensors
    for name, axis in axes.items():
        outer, _, inner = name.partition(".")
        child = modules.get(outer)
        if isinstance(child, nn.Module):
            names = (inner,) if inner else (*child._parameters, *child._buffers)
            modules[outer] = view_heads(child, dict.fromkeys(names, axis), heads, start, end)
    view.__dict__["_modules"] = modules
    if isinstance(module, Position):
        view.__dict__["heads"] = end - start
    return view
