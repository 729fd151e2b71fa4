"""Content effects that are tables of distances (``content_bias_table``, ``value_bias_table``), for backends that read tables."""

from __future__ import annotations

import torch
from torch import Tensor

from whence import hook_outputs
from whence.errors import usage_error
from whence.position.base import TABLE_HOOKS, Position
from whence.position.distance_table import DistanceTable
from whence.position.head_slice import HeadSlice

CONTENT = frozenset(TABLE_HOOKS.values())


def why_no_content_tables(position: Position, scale: float, dropout: float) -> str | None:
    """Why the content effects are not one table of score terms and one of value vectors, as a clause; None when they are."""
    for table_hook, hook in TABLE_HOOKS.items():
        parts = [part for part in position.parts if hook in part.effects]
        without = [part for part in parts if not _has_table(part, table_hook)]
        if without:
            return f"{type(without[0]).__name__} has no {table_hook}"
        if len(parts) > 1:
            return f"{len(parts)} parts have a {table_hook}"
    if "value_bias" in position.effects and dropout:
        return "a value_bias_table needs weights without dropout"
    if "value_bias" in position.effects and "clock" in position.effects:
        return "a value_bias_table is not combined with a clock"
    if "content_bias" in position.effects and not abs(scale) > 2.0**-64:
        return f"scores have the scale {scale}, and the table is divided by it"
    return None


def content_bias_table(
    position: Position, q: Tensor, unrotated_q: Tensor, scale: float, q_input: Tensor | None
) -> DistanceTable | None:
    """The score terms of each query, ``[B, H, T, n]`` with n of at least 2, in at least float32; None when there are none."""
    part = _tabulated_part(position, "content_bias")
    if part is None:
        return None
    dtype = torch.promote_types(q.dtype, torch.float32)
    name = type(part).__name__
    inputs = (None if q_input is None else q_input.to(dtype),) if part.reads_input else ()
    table = hook_outputs.call_on_tensors(
        f"{name}.content_bias_table", part.content_bias_table, q.to(dtype), unrotated_q.to(dtype), scale, *inputs
    )
    values = _require_table(name, "content_bias_table", table).values
    entries = values.shape[-1] if values.ndim == 4 else 1
    values = hook_outputs.require_shape(name, "content_bias_table", values, (*q.shape[:3], entries)).to(dtype)
    if entries == 1 and table.clipped:  # the first and the last entry are two
        values = values.expand(-1, -1, -1, 2)
    return DistanceTable(values, table.first, table.clipped)


def value_bias_table(position: Position, heads: int, value_dim: int) -> DistanceTable | None:
    """The value vectors of each distance, ``[heads or 1, n, E]`` with n of at least 2; None when there are none."""
    part = _tabulated_part(position, "value_bias")
    if part is None:
        return None
    name = type(part).__name__
    table = _require_table(name, "value_bias_table", part.value_bias_table())
    values = table.values[None] if table.values.ndim == 2 else table.values
    entries, rows = (values.shape[1], values.shape[0]) if values.ndim == 3 else (1, 1)
    wanted = (1 if rows == 1 else heads, entries, value_dim)
    values = hook_outputs.require_shape(name, "value_bias_table", values, wanted)
    if entries == 1 and table.clipped:
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


def _require_table(name: str, hook: str, table: object) -> DistanceTable:
    if isinstance(table, DistanceTable) and isinstance(table.values, Tensor):
        return table
    rule, remedy = "it must return a whence.DistanceTable", "return DistanceTable(values, first, clipped)"
    raise usage_error(f"{name}.{hook}", f"an output of type {type(table).__name__}", rule, remedy)
