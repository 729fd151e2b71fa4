"""Content tables of many distances: the kernels run on a block of query rows at a time, so memory stays linear in length.

A table ``[B, H, T, n]`` of all distances has as many numbers as the scores. ``attend_in_blocks`` makes it for some rows, runs the
kernels on them, and does both again in the backward pass. A block has so many rows that its table has at most ``MAX_NUMBERS``
numbers, but at least ``MIN_ROWS``, with fewer of which the kernels leave a GPU idle, and otherwise a multiple of that. Inside
torch.compile, where the graph holds every block, there are at most ``recomputed_rows.COMPILED_BLOCKS`` larger blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from whence.attention.call import Call
from whence.attention.content_tables import RelativeTerms, content_bias_table, gated_bias_table, value_bias_table
from whence.attention.fused.packing import distance_range
from whence.attention.recomputed_rows import run_in_blocks

MAX_NUMBERS = 1 << 26  # 256 MiB of float32, and as much for the gradient
MIN_ROWS = 64


def visible_distances(call: Call) -> tuple[int, int]:
    """The smallest visible distance and one past the largest."""
    layout = call.layout
    assert layout.offset is not None
    return distance_range(layout.offset, layout.causal, layout.window, call.q.shape[2], call.k.shape[2])


def rows_per_block(call: Call, relative: RelativeTerms | None) -> int:
    """How many query rows one call of the kernels takes: all if their tables are small."""
    batch, heads, q_len = call.q.shape[:3]
    first, end = visible_distances(call)
    if batch * heads * q_len * (end - first) <= MAX_NUMBERS:
        return q_len
    per_row = batch * heads * (_count_entries(call) if relative is None else end - first)
    if per_row * q_len <= MAX_NUMBERS:
        return q_len
    whole_tiles = MAX_NUMBERS // per_row // MIN_ROWS * MIN_ROWS
    return min(max(whole_tiles, MIN_ROWS), q_len)


def _count_entries(call: Call) -> int:
    """The entries of the longest table of one query, of distances or gated counts; 0 without tables."""
    with torch.no_grad():
        one = select_rows(call, slice(0, 1))
        unrotated_q = one.q if one.projected_q is None else one.projected_q
        tables = (
            content_bias_table(one.position, one.q, unrotated_q, one.scale, one.q_input),
            value_bias_table(one.position, one.q.shape[1], one.v.shape[3]),
        )
        gated = gated_bias_table(one.position, one.q, unrotated_q, one.scale)
    counts = 0 if gated is None else gated.shape[3]
    return max([counts, *[table.entries for table in tables if table is not None]])  # torch.compile traces no default=


def attend_in_blocks(call: Call, rows: int, attend_rows: Callable[[Call], Tensor]) -> Tensor:
    """The outputs of ``attend_rows`` for blocks of that many query rows."""
    # gradients of blocks are summed in float32, whatever the dtype of k and v
    k, v = call.k.float(), call.v.float()

    def block(part: slice) -> Tensor:
        return attend_rows(replace(select_rows(call, part), k=k.to(call.k.dtype), v=v.to(call.v.dtype)))

    return run_in_blocks(call, rows, block)


def select_rows(call: Call, rows: slice) -> Call:
    """The call of some query rows and all keys. Positions are consecutive, and no mask is of single pairs."""
    layout, clock = call.layout, call.clock
    assert layout.offset is not None and layout.pair_mask is None
    segment_ids = layout.q_segment_ids
    return replace(
        call,
        q=call.q[:, :, rows],
        projected_q=None if call.projected_q is None else call.projected_q[:, :, rows],
        layout=replace(
            layout,
            q_positions=layout.q_positions[:, rows],
            offset=layout.offset + rows.start,
            q_segment_ids=None if segment_ids is None else segment_ids[:, rows],
        ),
        clock=None if clock is None else replace(clock, q=clock.q[:, :, rows]),
        q_input=None if call.q_input is None else call.q_input[:, rows],
    )
