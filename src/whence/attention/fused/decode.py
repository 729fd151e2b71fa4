"""Split-k decode: attention of a few queries over many keys.

The keys are split over programs; each program handles all query heads that share its key head, so that keys and values
are read once. A second kernel combines the partial softmax results. The time is bound by memory bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused import tile_configs
from whence.attention.fused.clock_terms import clock_stride, clock_tile
from whence.attention.fused.device_call import DeviceCall
from whence.attention.fused.diagonals import TABLE_PADDING, load_f32, load_f32x2
from whence.attention.fused.packing import ceil_div, next_power_of_two, num_multiprocessors, padded_length
from whence.attention.fused.row_tables import add_entries
from whence.attention.fused.scaled_distance_kernels import head_table, row_function_logits
from whence.attention.fused.tile_ops import dropout_multiplier, load_tile, store_log_sum_exp, visible

PROGRAMS_PER_SM = 2


@triton.jit(
    do_not_specialize=[
        "heads",
        "q_len",
        "kv_len",
        "q_offset",
        "first_distance",
        "window",
        "table_stride",
        "low",
        "high",
        "keys_per_split",
        "splits",
        "SEED",
    ]
)
def split_k_kernel(
    Q, K, V, PARTIAL_OUT, PARTIAL_MAX, PARTIAL_SUM, TABLE, SLOPE, Q_CLOCK, K_CLOCK, Q_SEGMENTS, K_SEGMENTS, CONTENT,
    heads, q_len, kv_len, q_offset, first_distance, window, table_stride, qk_scale, q_b, q_h, q_t, head_dim, low, high,
    keys_per_split, splits, dropout, SEED,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr,
    CLOCK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    seed = 0
    if HAS_DROPOUT:
        seed = tl.load(SEED)
    split = tl.program_id(0) % splits
    rank = tl.program_id(0) // splits
    kv_heads = heads // GROUP_SIZE
    h_kv = rank % kv_heads
    b = rank // kv_heads
    group_row = tl.arange(0, BLOCK_M)
    # padding rows are masked; they use the last head's addresses, which are loaded anyway
    h = h_kv * GROUP_SIZE + tl.minimum(group_row // q_len, GROUP_SIZE - 1)
    offs_m = group_row % q_len
    in_range = group_row < GROUP_SIZE * q_len
    offs_d = tl.arange(0, BLOCK_D)
    q_pointers = Q + b.to(tl.int64) * q_b + h.to(tl.int64)[:, None] * q_h + offs_m[:, None] * q_t + offs_d[None, :]
    q = tl.load(q_pointers, mask=in_range[:, None] & (offs_d < head_dim)[None, :], other=0.0)
    TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    distance0 = q_offset + offs_m
    table_offset = ((h.to(tl.int64) * table_stride + TABLE_PADDING - first_distance + distance0) * TABLE_WIDTH)[:, None]
    function = head_table(TABLE, table_offset, b, h[:, None], heads, offs_m, q_len)
    table = function if isinstance(TABLE, tl.tensor) else function[0]
    slope = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SLOPE:
        slope = tl.load(SLOPE + h, mask=in_range, other=0.0)
    clock_row = (b * heads + h).to(tl.int64) * 2
    q_clock = (Q_CLOCK + clock_row * clock_stride(q_len) + offs_m)[:, None]
    k_clock = (K_CLOCK + clock_row * clock_stride(kv_len))[:, None]
    q_base = 0.0
    q_rest = 0.0
    if CLOCK > 0:
        q_base = load_f32(q_clock)
        q_rest = load_f32(q_clock + clock_stride(q_len))
    q_segment = 0
    if HAS_SEGMENTS:
        q_segment = tl.load(Q_SEGMENTS + b * q_len + offs_m)[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    split_start = low + split * keys_per_split
    for start_n in tl.range(
        split_start, tl.minimum(high, split_start + keys_per_split), BLOCK_N, num_stages=NUM_STAGES
    ):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        # issue the table loads before waiting for the keys; a block exceeds the table by less than its padding
        score_scale = 1.0
        bias = 0.0
        if not isinstance(TABLE, tl.tensor):
            bias = load_f32(table - offs_n[None, :])  # the table of the function
        elif HAS_SCORE_SCALE and HAS_BIAS:
            score_scale, bias = load_f32x2(table - offs_n[None, :] * 2)
        elif HAS_SCORE_SCALE:
            score_scale = load_f32(table - offs_n[None, :])
        elif HAS_BIAS:
            bias = load_f32(table - offs_n[None, :])
        if CLOCK > 0:
            k_base = load_f32(k_clock + offs_n[None, :])
            k_rest = load_f32(k_clock + clock_stride(kv_len) + offs_n[None, :])
        k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
        qk = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION)
        distance = q_offset + offs_m[:, None] - offs_n[None, :]
        if not isinstance(CONTENT, tl.tensor):
            qk = add_entries(qk, CONTENT, (b * heads + h).to(tl.int64), offs_m, q_len, start_n, distance, BLOCK_N)
        k_segment = 0
        if HAS_SEGMENTS:
            k_segment = tl.load(K_SEGMENTS + b * kv_len + offs_n, mask=offs_n < kv_len, other=-1)[None, :]
        mask = (
            visible(distance, offs_n[None, :], kv_len, window, q_segment, k_segment, CAUSAL, HAS_WINDOW, HAS_SEGMENTS)
            & in_range[:, None]
        )
        if not isinstance(TABLE, tl.tensor):
            logits = row_function_logits(qk, function, bias, qk_scale)
        elif HAS_SCORE_SCALE:
            logits = qk * score_scale
        else:
            logits = qk * qk_scale
        if HAS_BIAS and isinstance(TABLE, tl.tensor):
            logits += bias
        if HAS_SLOPE:
            logits += slope[:, None] * distance.to(tl.float32)
        if CLOCK > 0:
            logits += clock_tile(q_base, q_rest, k_base, k_rest)
        logits = tl.where(mask, logits, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(logits, 1))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)
        p = tl.exp2(logits - safe_max[:, None])
        rescale = tl.exp2(row_max - safe_max)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None]
        if HAS_DROPOUT:
            p = p * dropout_multiplier(
                seed, (b * heads + h)[:, None], offs_m[:, None], offs_n[None, :], q_len, kv_len, dropout
            )
        v = load_tile(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=INPUT_PRECISION)
        row_max = new_max
    # partial results: [B, H, q_len, splits, ...]
    index = ((b * heads + h).to(tl.int64) * q_len + offs_m) * splits + split
    tl.store(PARTIAL_MAX + index, row_max, mask=in_range)
    tl.store(PARTIAL_SUM + index, row_sum, mask=in_range)
    offs_dv = tl.arange(0, BLOCK_DV)
    tl.store(PARTIAL_OUT + index[:, None] * BLOCK_DV + offs_dv[None, :], acc, mask=in_range[:, None])


@triton.jit(do_not_specialize=["splits"])
def combine_kernel(
    PARTIAL_OUT, PARTIAL_MAX, PARTIAL_SUM, SINK, OUT, LSE, heads, q_len, lse_stride, splits, logit_scale, sink_b,
    sink_h, sink_t, o_b, o_h, o_t, head_dim,
    HAS_SINK: tl.constexpr, HAS_FACTORS: tl.constexpr, FILL_LSE: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
    BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """One query of one head. ``FILL_LSE``: also fill the padding rows of the log-sum-exp with infinity, which gives p = 0."""
    index = tl.program_id(0).to(tl.int64)
    query = index % q_len
    h = index // q_len % heads
    b = index // q_len // heads
    split = tl.arange(0, BLOCK_SPLITS)
    offs_dv = tl.arange(0, BLOCK_DV)
    valid = split < splits
    partial_max = tl.load(PARTIAL_MAX + index * splits + split, mask=valid, other=-float("inf"))
    partial_sum = tl.load(PARTIAL_SUM + index * splits + split, mask=valid, other=0.0)
    row_max = tl.max(partial_max, 0)
    sink = -float("inf")
    if HAS_SINK:
        sink = tl.load(SINK + b * sink_b + h * sink_h + query * sink_t).to(tl.float32) * logit_scale
        row_max = tl.maximum(row_max, sink)
    safe_max = tl.where(row_max == -float("inf"), 0.0, row_max)
    weight = tl.exp2(partial_max - safe_max)
    row_sum = tl.sum(partial_sum * weight, 0)
    if HAS_SINK:
        row_sum += tl.exp2(sink - safe_max)
    partial_out = tl.load(
        PARTIAL_OUT + (index * splits + split)[:, None] * BLOCK_DV + offs_dv[None, :], mask=valid[:, None], other=0.0
    )
    sees_nothing = row_sum == 0.0
    out = tl.sum(partial_out * weight[:, None], 0) / tl.where(sees_nothing, 1.0, row_sum)
    tl.store(OUT + b * o_b + h * o_h + query * o_t + offs_dv, out.to(OUT.dtype.element_ty), mask=offs_dv < head_dim)
    lse_pointer = LSE + index // q_len * lse_stride + query
    factor_offset = (tl.num_programs(0) // q_len).to(tl.int64) * lse_stride
    lse = row_max + tl.log2(row_sum)
    store_log_sum_exp(lse_pointer, factor_offset, row_max, row_sum, lse, sees_nothing, HAS_FACTORS)
    if FILL_LSE:
        row = 1 + tl.arange(0, 128)  # few queries: they and the padding are 128 rows
        tl.store(lse_pointer + row, float("inf"), mask=(query == q_len - 1) & (query + row < lse_stride))


@dataclass(frozen=True)
class Splits:
    """How the keys low to high are divided among programs."""

    low: int
    high: int
    keys: int  # of one split, whole blocks
    count: int


def split_keys(
    q_len: int, kv_len: int, q_offset: int, causal: bool, window: int | None, block_n: int, max_splits: int
) -> Splits:
    low, high = 0, kv_len
    if causal:
        high = max(0, min(high, q_offset + q_len))
    if window is not None:
        low = max(0, q_offset - window + 1)
        high = min(high, max(0, q_offset + q_len - 1 + window))
    if low >= high:  # no visible key: low is rounded down below, and not even one block may be read
        low = high = 0
    low = low // block_n * block_n
    blocks = max(1, ceil_div(high - low, block_n))
    keys = ceil_div(blocks, min(max_splits, blocks, 256)) * block_n
    return Splits(low, high, keys, ceil_div(blocks * block_n, keys))


def max_splits(device: torch.device, batch: int, kv_heads: int) -> int:
    """So many that all multiprocessors have programs."""
    return max(1, ceil_div(num_multiprocessors(device) * PROGRAMS_PER_SM, batch * kv_heads))


def decode(call: DeviceCall, out: Tensor, lse: Tensor) -> None:
    """Fill the output and the log-sum-exp of a call with few queries."""
    m = call.mask
    rows = max(16, next_power_of_two(call.q_len * call.group_size))
    tile = tile_configs.decode_config(rows, call.max_block_d, call.q.element_size())
    most = max_splits(call.q.device, call.batch, call.kv_heads)
    splits = split_keys(call.q_len, call.kv_len, m.q_offset, m.causal, m.window, tile.block_n, most)
    partial_out = lse.new_empty(call.batch, call.heads, call.q_len, splits.count, call.padded_dv)
    partial_max, partial_sum = (lse.new_empty(call.batch, call.heads, call.q_len, splits.count) for _ in range(2))
    arguments: tuple[Any, ...] = (
        call.q, call.describe(call.k, tile.block_n, call.padded_d), call.describe(call.v, tile.block_n, call.padded_dv),
        partial_out, partial_max, partial_sum, call.table_argument, call.slope, *call.clocks, *call.segment_ids,
        call.content_table, call.heads, call.q_len, call.kv_len, m.q_offset, call.effects.first_distance, m.window or 0, call.table_stride,
        call.qk_scale,
        *call.q.stride()[:3], call.head_dim, splits.low, splits.high, splits.keys, splits.count, call.softmax.dropout,
        call.seed,
    )  # fmt: skip
    constants = {
        **call.flags, "BLOCK_M": rows, "BLOCK_N": tile.block_n, "BLOCK_D": call.padded_d, "BLOCK_DV": call.padded_dv,
        "NUM_STAGES": tile.num_stages,
    }  # fmt: skip
    call.launch(split_k_kernel, call.batch * call.kv_heads * splits.count, arguments, constants, tile)
    arguments = (
        partial_out, partial_max, partial_sum, call.sink, out, lse, call.heads, call.q_len, padded_length(call.q_len),
        splits.count, call.logit_scale, *call.sink_strides, *out.stride()[:3], call.value_dim,
    )  # fmt: skip
    constants = {
        "HAS_SINK": call.effects.sink is not None, "HAS_FACTORS": call.has_factors, "FILL_LSE": call.has_padding_rows,
        "BLOCK_SPLITS": max(2, next_power_of_two(splits.count)), "BLOCK_DV": call.padded_dv,
    }  # fmt: skip
    call.launch(combine_kernel, call.batch * call.heads * call.q_len, arguments, constants)
