"""Content effects that are tables, of distances, coordinates or gated counts, for backends that read tables."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whence import hook_outputs
from whence.attention.half_product import multiply_in_half
from whence.attention.layout import Layout
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.coordinate_table import require_coordinate_table
from whence.position.distance_table import DistanceTable, require_distance_table
from whence.position.gated_count import require_gated_table
from whence.position.head_network import HeadNetwork, require_head_network
from whence.position.head_slice import HeadSlice
from whence.position.hooks import OPTIONAL_CONTENT_HOOKS, TABLE_HOOKS
from whence.position.relative_keys import RelativeKeys, require_relative_keys

CONTENT = frozenset(TABLE_HOOKS.values())
MAX_GATED_HEAD_DIM = 128  # larger tiles do not fit beside the gates and counts
#: heads, and hidden units, of a network over heads, by the bytes of a number; more do not fit into registers and shared memory
MAX_NETWORK_WIDTH = {2: 64, 4: 32}


def why_no_content_tables(position: Position, scale: float, dropout: float, head_dim: int) -> str | None:
    """Why the content effects are not one table of score terms and one of value vectors, as a clause; None when they are."""
    for hook in sorted(CONTENT & position.effects):
        parts = [part for part in position.parts if hook in part.effects]
        without = [part for part in parts if not [name for name in _table_hooks(hook) if _has_table(part, name)]]
        if hook == "content_bias":
            without = [part for part in without if not any(_has_table(part, name) for name in OPTIONAL_CONTENT_HOOKS)]
        if without:
            return f"{type(without[0]).__name__} has no {' or '.join(_table_hooks(hook))}"
        if len(parts) > 1:
            return f"{len(parts)} parts have a table of {hook}"
        added = [name for name in ("coordinate_bias_table", "distance_slopes") if _has_table(parts[0], name)]
        # slopes depend on q and k, which may get a gradient where the mechanism gets none
        learns = parts[0].trainable or "distance_slopes" in added
        if added and learns and torch.is_grad_enabled() and torch.are_deterministic_algorithms_enabled():
            return f"the gradient of {added[0]} is added by atomics, and deterministic algorithms are on"
    counting = _tabulated_part(position, "content_bias")
    if counting is not None and _has_table(counting, "gated_bias_table"):
        return _why_not_gated(counting, position, dropout, head_dim)
    if counting is not None and _has_table(counting, "head_network"):
        return _why_not_network(counting, position, dropout)
    if "value_bias" in position.effects and dropout:
        return "a value_bias_table needs weights without dropout"
    if "value_bias" in position.effects and "clock" in position.effects:
        return "a value_bias_table is not combined with a clock"
    if "content_bias" in position.effects and not abs(scale) > 2.0**-64:
        return f"scores have the scale {scale}, and the table is divided by it"
    return None


def _why_not_gated(counting: Position, position: Position, dropout: float, head_dim: int) -> str | None:
    """Why the kernels with gated counts do not compute the call, as a clause; None if they do."""
    name, others = type(counting).__name__, position.effects - {"embed", "rotate", "content_bias"}
    if others:
        return f"{name} counts by gates, and its kernels do not combine that with {' and '.join(sorted(others))}"
    if dropout:
        return f"{name} counts by gates, and its kernels have no dropout"
    if head_dim > MAX_GATED_HEAD_DIM:
        return (
            f"{name} counts by gates, and its kernels have head dimensions up to {MAX_GATED_HEAD_DIM}, not {head_dim}"
        )
    return None


def _why_not_network(part: Position, position: Position, dropout: float) -> str | None:
    """Why the kernels with a network over heads do not compute the call, as a clause; None if they do."""
    name, answer = type(part).__name__, part.head_network()
    if answer is None:
        return f"{name}.head_network returns None"
    network = require_head_network(name, answer)
    for bias in () if network.bias is None else network.bias.parts:
        if bias.length is not None:
            described = f"{type(bias).__name__}, which has length={bias.length!r}"
            return f"{name} reads the bias of {described}, and its kernels read tables of distance alone"
    others = position.effects - {"embed", "rotate", "content_bias", "bias"}
    if others:
        return (
            f"{name} is a network over heads, and its kernels do not combine that with {' and '.join(sorted(others))}"
        )
    if dropout:
        return f"{name} is a network over heads, and its kernels have no dropout"
    return None


def network_width(position: Position) -> int:
    """The heads or the hidden units of a network over heads, whichever are more; 0 without one."""
    part = _tabulated_part(position, "content_bias")
    network = part.head_network() if part is not None and _has_table(part, "head_network") else None
    return max(network.last.shape) if isinstance(network, HeadNetwork) else 0


def head_network(position: Position, heads: int) -> HeadNetwork | None:
    """The network over all heads, if the only part with ``content_bias`` is one."""
    part = _tabulated_part(position, "content_bias")
    if part is None or not _has_table(part, "head_network"):
        return None
    return require_head_network(type(part).__name__, part.head_network(), heads)


def gated_bias_table(position: Position, q: Tensor, unrotated_q: Tensor, scale: float) -> Tensor | None:
    """The score terms of each query by gated count, ``[B, H, T, n]``, in at least float32; None when there are none."""
    part = _tabulated_part(position, "content_bias")
    if part is None or not _has_table(part, "gated_bias_table"):
        return None
    dtype = torch.promote_types(q.dtype, torch.float32)
    name = type(part).__name__
    table = hook_outputs.call_on_tensors(
        f"{name}.gated_bias_table", part.gated_bias_table, q.to(dtype), unrotated_q.to(dtype), scale
    )
    return require_gated_table(name, table, q.shape).to(dtype)


def _table_hooks(hook: str) -> list[str]:
    return [table for table, evaluated in TABLE_HOOKS.items() if evaluated == hook]


def content_bias_table(
    position: Position, q: Tensor, unrotated_q: Tensor, scale: float, q_input: Tensor | None
) -> DistanceTable | None:
    """The score terms of each query, ``[B, H, T, n]`` with n of at least 2, in at least float32; None when there are none."""
    part = _tabulated_part(position, "content_bias")
    if part is None or not _has_table(part, "content_bias_table"):
        return None
    dtype = torch.promote_types(q.dtype, torch.float32)
    name = type(part).__name__
    inputs = (None if q_input is None else q_input.to(dtype),) if part.reads_input else ()
    table = hook_outputs.call_on_tensors(
        f"{name}.content_bias_table", part.content_bias_table, q.to(dtype), unrotated_q.to(dtype), scale, *inputs
    )
    values = require_distance_table(name, "content_bias_table", table, (*q.shape[:3], -1)).values.to(dtype)
    if values.shape[-1] == 1 and table.clipped:  # the first and the last entry are two
        values = values.expand(-1, -1, -1, 2)
    return DistanceTable(values, table.first, table.clipped)


class RelativeTerms(NamedTuple):
    """``RelativeKeys`` at consecutive distances, from which blocks of queries get their tables."""

    relative: RelativeKeys
    keys: Tensor | None  # [heads or 1, n, D]; None for so few queries that their own products with W cost less
    first: int  # distance

    def table(self, q: Tensor, scale: float, first: int, end: int) -> DistanceTable:
        """The score terms of queries at the distances ``first`` to ``end - 1``, ``[B, H, T, n]`` in float32.

        Queries of half precision are multiplied in half precision with sums in float32.
        """
        if end <= self.first or first >= self.first + self.relative.vectors.shape[1]:
            first, end = self.first, self.first + 1  # these queries see no key, and no entry is read
        x = self.relative.shift(q.float(), self.relative.v)
        late = q.dtype == torch.float16  # where small numbers lose digits
        x = x if late else x * scale
        if self.keys is None and self.relative.projection is not None:
            x = x @ self.relative.projection.float()
        vectors = self.relative.vectors.float() if self.keys is None else self.keys
        vectors = vectors[:, first - self.first : end - self.first].mT
        if self.keys is None or q.dtype == torch.float32:
            terms = x @ vectors
        else:
            terms = multiply_in_half(x, vectors.expand(*x.shape[:2], -1, -1), q.dtype)
        return DistanceTable(terms * scale if late else terms, first, clipped=False)

    def shift_queries(self, q: Tensor) -> Tensor:
        """Queries plus u, so that their products with keys hold ``u . k``."""
        return self.relative.shift(q.float(), self.relative.u).to(q.dtype)


def relative_terms(position: Position, q: Tensor, first: int, end: int) -> RelativeTerms | None:
    """The relative keys of the distances ``first`` to ``end - 1``; None when the position has none."""
    part = _tabulated_part(position, "content_bias")
    if part is None or not _has_table(part, "relative_keys"):
        return None
    batch, heads, q_len, head_dim = q.shape
    name, distance = type(part).__name__, torch.arange(first, end, device=q.device, dtype=torch.float32)
    answer = hook_outputs.call_on_tensors(f"{name}.relative_keys", part.relative_keys, distance)
    relative = require_relative_keys(name, answer, end - first, heads, head_dim)
    few = batch * q_len < head_dim
    return RelativeTerms(relative, None if few else relative.keys().float(), first)


def distance_slopes(position: Position, q: Tensor, k: Tensor, unrotated: tuple[Tensor, Tensor]) -> Tensor | None:
    """The slopes of queries, then of keys, ``[B, H, T + S]`` in float32; None when the position has none."""
    part = _tabulated_part(position, "content_bias")
    if part is None or not _has_table(part, "distance_slopes"):
        return None
    q, k = (q, k) if part.reads_rotated else unrotated
    name, (batch, heads) = type(part).__name__, q.shape[:2]
    k = k if k.shape[1] == heads else k.repeat_interleave(heads // k.shape[1], 1)
    both = hook_outputs.call_on_tensors(f"{name}.distance_slopes", part.distance_slopes, q.float(), k.float())
    if not isinstance(both, tuple) or len(both) != 2:
        rule, remedy = (
            "it must return two slopes",
            "return (a, b), with None for slopes of 0; or do not define the method",
        )
        raise usage_error(f"{name}.distance_slopes", f"an output of type {type(both).__name__}", rule, remedy)
    slopes = [
        x.new_zeros(batch, heads, x.shape[2], dtype=torch.float32)
        if of_tokens is None
        else hook_outputs.require_shape(name, "distance_slopes", of_tokens, (batch, heads, x.shape[2])).float()
        for of_tokens, x in zip(both, (q, k), strict=True)
    ]
    return torch.cat(slopes, -1)


class Coordinates(NamedTuple):
    """A table of coordinates and the places that select from it."""

    values: Tensor  # [heads, n], float32; the difference 0 is in the middle
    q_places: Tensor  # [B, T], int32
    k_places: Tensor  # [B, S], int32


def coordinate_bias_table(position: Position, heads: int, batch: int, layout: Layout) -> Coordinates | None:
    """The score terms of each difference of coordinates; None when there are none."""
    part = _tabulated_part(position, "content_bias")
    if part is None or not _has_table(part, "coordinate_bias_table"):
        return None
    table = require_coordinate_table(type(part).__name__, part.coordinate_bias_table(torch.float32), heads)
    assert layout.offset is not None
    q_len, kv_len = layout.q_positions.shape[1], layout.k_positions.shape[1]
    values = table.extend(max(abs(layout.offset - kv_len + 1), abs(layout.offset + q_len - 1)))
    q_places = table.places(layout.q_positions).int().expand(batch, -1).contiguous()
    k_places = table.places(layout.k_positions).int().expand(batch, -1).contiguous()
    return Coordinates(values.float().expand(heads, -1), q_places, k_places)


def value_bias_table(position: Position, heads: int, value_dim: int) -> DistanceTable | None:
    """The value vectors of each distance, ``[heads or 1, n, E]`` with n of at least 2; None when there are none."""
    part = _tabulated_part(position, "value_bias")
    if part is None:
        return None
    name = type(part).__name__
    table = require_distance_table(name, "value_bias_table", part.value_bias_table(), (heads, -1, value_dim))
    values = table.values[None] if table.values.ndim == 2 else table.values
    if values.shape[1] == 1 and table.clipped:
        values = values.expand(-1, 2, -1)
    return DistanceTable(values, table.first, table.clipped)


def _has_table(part: Position, table_hook: str) -> bool:
    owner = part.mechanism if isinstance(part, HeadSlice) else part
    return getattr(type(owner), table_hook) is not getattr(Position, table_hook)


def _tabulated_part(position: Position, hook: str) -> Position | None:
    """The only part that has a content hook."""
    parts = [part for part in position.parts if hook in part.effects]
    if not parts:
        return None
    return parts[0].with_views() if isinstance(parts[0], HeadSlice) else parts[0]
