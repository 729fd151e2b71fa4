"""Block skipping: the largest distance per head at which a key can still change the result.

A query that sees its own key has a known logit. The logit of a key at distance d is at most
``|q| * max|k| * |score_scale(d)| + bias(d)``. If this bound is so far below the logit of the own key that all such keys
together weigh less than ``2 ** -SPARE_BITS`` of the row, blocks at this distance are skipped. The bound holds for every
query of every sequence that sees its own key, so one distance per head is enough.

Padding hides the own keys of padded queries, and segments may be numbered differently for queries and keys. Blocks with such
queries are not skipped (``tile_ops.limit_of_block``): forward and dq kernels compare a block of queries with the range of these
queries in its sequence, and the dk/dv kernel visits that range after the queries within the distance.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused.device_call import DeviceCall
from whence.attention.fused.packing import TABLE_PADDING, ceil_div, next_power_of_two
from whence.attention.fused.tile_ops import UNLIMITED, load_tile

SPARE_BITS = 24  # skipped keys weigh less than the last bit of a float32 row sum
BLOCK = 64
NORM_SLACK = tl.constexpr(1.001)  # for rounding in the norms


@triton.jit
def nan_to_inf(x):
    """Map NaN to infinity: a maximum would drop NaN, but nothing may be skipped in its presence."""
    return tl.where(x != x, float("inf"), x)


@triton.jit
def norms_kernel(
    Q, K, MAX_K_NORM, Q_NORMS, SELF_SCORES, q_len, kv_len, heads, GROUP_SIZE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr, q_offset,
):  # fmt: skip
    """For a block of queries: norms and scores with their own keys. Also the largest key norm of some blocks."""
    blocks = tl.cdiv(q_len, BLOCK)
    block = tl.program_id(0) % blocks
    rank = tl.program_id(0) // blocks
    b = rank // heads
    h = rank % heads
    h_kv = h // GROUP_SIZE
    offs_m = block * BLOCK + tl.arange(0, BLOCK)
    q = load_tile(Q, b, h, block * BLOCK, q_len, BLOCK, BLOCK_D).to(tl.float32)
    own_key = load_tile(K, b, h_kv, block * BLOCK + q_offset, kv_len, BLOCK, BLOCK_D).to(tl.float32)
    index = rank.to(tl.int64) * q_len + offs_m
    tl.store(Q_NORMS + index, tl.sqrt(tl.sum(q * q, 1)), mask=offs_m < q_len)
    tl.store(SELF_SCORES + index, tl.sum(q * own_key, 1), mask=offs_m < q_len)
    if h % GROUP_SIZE == 0:
        key_blocks = tl.cdiv(kv_len, BLOCK)
        for key_block in range(block, key_blocks, blocks):
            k = load_tile(K, b, h_kv, key_block * BLOCK, kv_len, BLOCK, BLOCK_D).to(tl.float32)
            # a maximum does not depend on the order of the atomics
            tl.atomic_max(
                MAX_K_NORM + b * (heads // GROUP_SIZE) + h_kv, tl.sqrt(tl.max(nan_to_inf(tl.sum(k * k, 1)), 0))
            )


@triton.jit(do_not_specialize=["batch", "heads", "q_len", "entries", "table_stride", "first_distance"])
def max_distance_kernel(
    MAX_K_NORM, Q_NORMS, SELF_SCORES, TABLE, SLOPE, MAX_DISTANCE, batch, heads, q_len, entries, table_stride,
    first_distance, sign, qk_scale, spare_bits,
    GROUP_SIZE: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_SLOPE: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, TABLE_PADDING: tl.constexpr,
):  # fmt: skip
    """The largest distance one head needs, given its slope or table. The last program sorts the heads by it."""
    h = tl.program_id(0)
    max_excess = 0.0  # max of |q| * max|k| - sign * (q . own key)
    max_product = 0.0  # max of |q| * max|k|
    for start in range(0, batch * q_len, BLOCK):  # sequences are concatenated, so short ones share a step
        entry = start + tl.arange(0, BLOCK)
        valid = entry < batch * q_len
        b = entry // q_len
        index = (b * heads + h).to(tl.int64) * q_len + entry % q_len
        max_k_norm = tl.load(MAX_K_NORM + b * (heads // GROUP_SIZE) + h // GROUP_SIZE, mask=valid, other=0.0)
        max_score = tl.load(Q_NORMS + index, mask=valid, other=0.0) * max_k_norm
        self_score = tl.load(SELF_SCORES + index, mask=valid, other=0.0)
        max_excess = tl.maximum(max_excess, tl.max(nan_to_inf(max_score - sign * self_score), 0))
        max_product = tl.maximum(max_product, tl.max(nan_to_inf(max_score), 0))
    max_excess = max_excess * qk_scale
    if HAS_SLOPE:
        slope = tl.load(SLOPE + h)
        distance = tl.ceil((max_excess + spare_bits) / tl.maximum(-slope, 1e-30))
        needed = tl.where((slope < 0) & (distance < UNLIMITED), distance, UNLIMITED).to(tl.int32)
    else:
        TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE else 1
        table = TABLE + (h.to(tl.int64) * table_stride + TABLE_PADDING) * TABLE_WIDTH
        zero = table - first_distance * TABLE_WIDTH  # the table's entry for distance 0
        self_bias = tl.load(zero + TABLE_WIDTH - 1)
        self_scale = nan_to_inf(tl.abs(tl.load(zero)))
        needed = 0
        for start in range(0, entries, BLOCK):
            entry = start + tl.arange(0, BLOCK)
            bound = tl.load(table + entry * TABLE_WIDTH + TABLE_WIDTH - 1, mask=entry < entries, other=0.0) - self_bias
            if HAS_SCORE_SCALE:  # the table includes the scale of q.k
                scale = nan_to_inf(tl.abs(tl.load(table + entry * TABLE_WIDTH, mask=entry < entries, other=0.0)))
                bound += 2 * max_product * NORM_SLACK * tl.maximum(scale, self_scale)
            else:
                bound += max_excess
            out_of_range = (bound <= -spare_bits) | (entry >= entries)  # NaN compares false: the distance is needed
            needed = tl.maximum(needed, tl.max(tl.where(out_of_range, 0, entry + first_distance), 0))
    tl.store(MAX_DISTANCE + h, needed)
    if tl.atomic_add(MAX_DISTANCE + 2 * heads, 1) == heads - 1:
        head = tl.arange(0, HEADS)
        max_distances = tl.load(MAX_DISTANCE + head, mask=head < heads, other=-1, volatile=True)
        others = tl.load(MAX_DISTANCE + head, mask=head < heads, other=-1, volatile=True)
        is_farther = (others[None, :] > max_distances[:, None]) | (
            (others[None, :] == max_distances[:, None]) & (head[None, :] < head[:, None])
        )
        tl.store(MAX_DISTANCE + heads + tl.sum(is_farther.to(tl.int32), 1), head, mask=head < heads)


def max_distances(call: DeviceCall) -> Tensor:
    """int32 ``[2 * heads + 1]``: the largest distance each head needs, the heads sorted by it, and a counter.

    Empty if blocks are not skipped. Two launches compute all of it, because for short sequences their host time is what
    skipping must save.
    """
    e, m = call.effects, call.mask
    if not (m.skip_blocks and (e.has_bias or e.slope is not None)):
        return call.q.new_empty(0, dtype=torch.int32)
    q, k = (call.describe(x, BLOCK, call.padded_d) for x in (call.q, call.k))
    max_k_norm = call.table.new_zeros(call.batch * call.kv_heads, dtype=torch.float32)
    q_norms, self_scores = call.table.new_empty(2, call.batch * call.heads * call.q_len, dtype=torch.float32)
    result = call.table.new_zeros(2 * call.heads + 1, dtype=torch.int32)
    norms_kernel[(call.batch * call.heads * ceil_div(call.q_len, BLOCK),)](
        q, k, max_k_norm, q_norms, self_scores, call.q_len, call.kv_len, call.heads, call.group_size, BLOCK,
        call.padded_d, m.q_offset,
    )  # fmt: skip
    max_distance_kernel[(call.heads,)](
        max_k_norm, q_norms, self_scores, call.table, call.table if e.slope is None else call.slope, result,
        call.batch, call.heads, call.q_len, call.table_entries, call.table_stride, e.first_distance,
        math.copysign(1.0, call.qk_scale), abs(call.qk_scale) * NORM_SLACK.value,
        SPARE_BITS + math.log2(max(2, call.kv_len)), call.group_size, e.has_score_scale, e.slope is not None, 4096,
        next_power_of_two(call.heads), TABLE_PADDING, num_warps=8,
    )  # fmt: skip
    return result
