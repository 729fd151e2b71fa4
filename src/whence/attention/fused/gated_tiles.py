"""Score terms by gated counts (``Position.gated_bias_table``) in the kernels: what the forward and backward kernels share.

The count at a key is the sum of the gates from this key to the latest visible one, so it grows from the right of a row to its left
and stops at ``largest``, the last entry of the table. There the term is one number per query, and no gate has an influence. Most
blocks of keys lie there, and kernels treat them as plain attention with a number added to each row. In the others they need
the count at the right edge of the block, and the gradient with respect to the counts left of it:

    p_j = count + sum of g_t over t >= j in the block          the count at key j, then clamped
    d g_t = passed + sum of d p_j over j <= t in the block     a gate counts for every key at its left

Such blocks are computed in small tiles of BLOCK_G keys or queries: there are few of them, and gates, counts, slopes and gradients
of a large one would not fit into the registers.

``KEY_AXIS`` is the axis of a tile along which the keys lie.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import load_f32
from whence.attention.fused.tile_ops import visible

NO_LIMIT = tl.constexpr(2**30)  # a key index beyond all keys


@triton.jit
def per_query(x, KEY_AXIS: tl.constexpr):
    """One number per query, for a tile."""
    if KEY_AXIS == 0:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def per_key(x, KEY_AXIS: tl.constexpr):
    """One number per key, for a tile."""
    if KEY_AXIS == 0:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def load_segments(SEGMENTS, b, start, length, ROWS: tl.constexpr, OTHER: tl.constexpr):
    """The segment ids of some tokens, ``[ROWS]``; OTHER beyond the last one."""
    rows = start + tl.arange(0, ROWS)
    return tl.load(SEGMENTS + b.to(tl.int64) * length + rows, mask=rows < length, other=OTHER)


@triton.jit
def tile_mask(
    start_m, start_n, q_offset, kv_len, window, q_segment, k_segment,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr, KEY_AXIS: tl.constexpr,
):  # fmt: skip
    """Which keys the queries of a tile attend to. ``q_segment`` and ``k_segment`` are vectors, read with segments."""
    queries = per_query(q_offset + start_m + tl.arange(0, BLOCK_M), KEY_AXIS)
    keys = per_key(start_n + tl.arange(0, BLOCK_N), KEY_AXIS)
    if HAS_SEGMENTS:
        q_ids = per_query(q_segment, KEY_AXIS)
        k_ids = per_key(k_segment, KEY_AXIS)
    else:
        q_ids = q_segment
        k_ids = k_segment
    return visible(queries - keys, keys, kv_len, window, q_ids, k_ids, CAUSAL, HAS_WINDOW, HAS_SEGMENTS)


@triton.jit
def table_rows(TABLE, batch_head, start_m, q_len, entries, BLOCK_M: tl.constexpr):
    """The tables of a block of queries: a pointer and the offset of each query. Queries of padding repeat the last one."""
    pointer = TABLE + (batch_head * q_len + start_m) * entries
    return pointer, tl.minimum(tl.arange(0, BLOCK_M), q_len - 1 - start_m) * entries


@triton.jit
def tile_gates(score, mask):
    """The gate of every pair of a tile; 0 where the query does not attend to the key."""
    return tl.where(mask, 1.0 / (1.0 + tl.exp(-score)), 0.0)


@triton.jit
def gated_terms(gates, mask, rows, count, largest, KEY_AXIS: tl.constexpr):
    """The count of every pair of a tile, its term, and the derivative of the term with respect to the count.

    ``rows`` are those of ``table_rows``; ``count`` is the sum of the gates at the right of the tile, one per query.
    """
    counts = tl.minimum(per_query(count, KEY_AXIS) + tl.cumsum(gates, KEY_AXIS, reverse=True), largest)
    floor = tl.floor(counts)
    offsets = per_query(rows[1], KEY_AXIS)
    # a masked pair reads nothing, so a count that was never computed does no harm
    low = tl.load(rows[0] + (offsets + floor.to(tl.int32)), mask=mask, other=0.0)
    slope = tl.load(rows[0] + (offsets + tl.ceil(counts).to(tl.int32)), mask=mask, other=0.0) - low
    return counts, low + slope * (counts - floor), slope


@triton.jit
def last_terms(rows, entries):
    """The term beyond the last count, one per query."""
    return load_f32(rows[0] + (rows[1] + (entries - 1)))
