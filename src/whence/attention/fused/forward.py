"""Forward kernel: one program per block of queries of one head loops over blocks of keys with an online softmax.

Logits are in base 2: ``exp2`` and ``log2`` replace ``exp`` and ``log``, and the scales of scores and biases include
log2(e).
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.clock_terms import BY_BLOCK, EXACT, clock_stride, clock_tile, load_clock
from whence.attention.fused.diagonals import TABLE_PADDING
from whence.attention.fused.head_parts import (
    divide_parts,
    dot_heads,
    dot_weights,
    load_parts,
    multiply_parts,
    store_parts,
    zero_parts,
)
from whence.attention.fused.row_tables import add_rows, load_rows, store_ends, store_pairs, zero_sums
from whence.attention.fused.scaled_distance_kernels import head_table, move_table
from whence.attention.fused.tile_ops import (
    compute_logits,
    dropout_multiplier,
    key_bounds,
    limit_of_block,
    place_program,
    store_log_sum_exp,
    visible,
)


@triton.jit
def forward_step(
    q, K, V, K_SEGMENTS, acc, row_sum, row_max, low_sums, high_sums, b, h_kv, batch_head, start_m, start_n, q_offset,
    q_len, kv_len, window, table, content, slots, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest, q_segment, dropout, seed,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr, CLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    start_n = tl.multiple_of(start_n, BLOCK_N)
    distance0 = q_offset + start_m - start_n
    offs_n = tl.arange(0, BLOCK_N)
    k = load_parts(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
    k_base, k_rest = k_clock
    qk = dot_heads(q, k, INPUT_PRECISION)
    qk = add_rows(qk, content, distance0, start_n, BLOCK_M, BLOCK_N, False)
    key_bias = 0.0
    tile_bias = 0.0
    if HAS_SLOPE:  # slope * distance0 is the same for the whole tile: add it to the row maxima, not to every logit
        tile_bias = slope * distance0.to(tl.float32)
        key_bias = (slope * (0 - offs_n).to(tl.float32))[None, :]
    if CLOCK > 0:
        if CLOCK == BY_BLOCK:
            tile_bias = tile_bias + (q_base + k_base)
            key_bias = k_rest[None, :] + key_bias if HAS_SLOPE else k_rest[None, :]
        else:
            key_bias = clock_tile(q_base[:, None], q_rest[:, None], k_base[None, :], k_rest[None, :])
    TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    logits, _ = compute_logits(
        qk,
        move_table(table, distance0, TABLE_WIDTH),
        qk_scale,
        key_bias,
        BLOCK_M,
        BLOCK_N,
        1,
        HAS_SCORE_SCALE,
        HAS_BIAS,
        HAS_SLOPE or CLOCK > 0,
    )
    # of the next tile, into the registers of this one's: products hide the time of the loads
    next_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), start_n + BLOCK_N, BLOCK_N, CLOCK, True)
    if MASKED:
        offs_m = tl.arange(0, BLOCK_M)
        k_segment = 0
        if HAS_SEGMENTS:
            k_segment = tl.load(K_SEGMENTS + b * kv_len + start_n + offs_n, mask=start_n + offs_n < kv_len, other=-1)[
                None, :
            ]
        distance = distance0 + offs_m[:, None] - offs_n[None, :]
        mask = visible(
            distance,
            (start_n + offs_n)[None, :],
            kv_len,
            window,
            q_segment,
            k_segment,
            CAUSAL,
            HAS_WINDOW,
            HAS_SEGMENTS,
        )
        logits = tl.where(mask, logits, -float("inf"))
    new_max = tl.maximum(row_max, tl.max(logits, 1) + tile_bias)
    safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # no visible key so far: any finite value works
    p = tl.exp2(logits - (safe_max - tile_bias)[:, None])
    rescale = tl.exp2(row_max - safe_max)
    row_sum = row_sum * rescale + tl.sum(p, 1)
    if not isinstance(slots, tl.tensor):  # without a slope and with exact clocks, the logits of a tile are complete
        low_sums, high_sums = store_pairs(
            logits, p, slots, low_sums * rescale, high_sums * rescale, distance0, start_m, start_n, q_len, BLOCK_M,
            BLOCK_N,
        )  # fmt: skip
    acc = multiply_parts(acc, rescale[:, None])
    if HAS_DROPOUT:
        offs_m = start_m + tl.arange(0, BLOCK_M)
        p = p * dropout_multiplier(
            seed, batch_head, offs_m[:, None], (start_n + offs_n)[None, :], q_len, kv_len, dropout
        )
    v = load_parts(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
    acc = dot_weights(p, v, acc, INPUT_PRECISION)
    return acc, row_sum, new_max, low_sums, high_sums, next_clock


@triton.jit(
    do_not_specialize=[
        "batch",
        "heads",
        "q_len",
        "lse_stride",
        "kv_len",
        "q_offset",
        "first_distance",
        "window",
        "table_stride",
        "sink_b",
        "sink_h",
        "sink_t",
        "SEED",
    ]
)
def forward_kernel(
    Q, Q_REST, K, K_REST, V, V_REST, OUT, OUT_REST, LSE, TABLE, SLOPE, Q_CLOCK, K_CLOCK, SINK, Q_SEGMENTS, K_SEGMENTS,
    SEGMENT_RANGES, MAX_DISTANCE, CONTENT, SLOTS, batch, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window, table_stride, qk_scale, logit_scale,
    sink_b, sink_h, sink_t, dropout, SEED,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr,
    CLOCK: tl.constexpr, HAS_SINK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr, SKIP_BLOCKS: tl.constexpr, HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    seed = 0
    if HAS_DROPOUT:
        seed = tl.load(SEED)
    Q, K, V, OUT = (Q, Q_REST), (K, K_REST), (V, V_REST), (OUT, OUT_REST)
    blocks = tl.cdiv(q_len, BLOCK_M)
    rank, place = place_program(
        blocks, kv_len, BLOCK_D + BLOCK_DV, GROUP_SIZE, CAUSAL and not (HAS_WINDOW or SKIP_BLOCKS)
    )
    block = blocks - 1 - place  # blocks with the most visible keys start first
    if SKIP_BLOCKS:
        h = tl.load(MAX_DISTANCE + heads + rank // batch)  # heads with the largest max_distance start first
        b = rank % batch
    else:
        h = rank % heads
        b = rank // heads
    batch_head = (b * heads + h).to(tl.int64)
    h_kv = h // GROUP_SIZE
    start_m = block * BLOCK_M
    offs_m = tl.arange(0, BLOCK_M)
    in_range = start_m + offs_m < q_len
    q = load_parts(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
    acc = zero_parts(BLOCK_M, BLOCK_DV)
    TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    table_offset = (h.to(tl.int64) * table_stride + TABLE_PADDING - first_distance) * TABLE_WIDTH
    table = head_table(TABLE, table_offset, b, h, heads, start_m + offs_m, q_len)
    content = load_rows(CONTENT, batch_head, start_m, q_len, BLOCK_M)
    slots = load_rows(SLOTS, batch_head, start_m, q_len, BLOCK_M)
    low_sums = zero_sums(slots, BLOCK_M)
    high_sums = zero_sums(slots, BLOCK_M)
    slope = 0.0
    if HAS_SLOPE:
        slope = tl.load(SLOPE + h)
    q_base, q_rest = load_clock(Q_CLOCK, batch_head, lse_stride, start_m, BLOCK_M, CLOCK)
    if HAS_SINK:
        sink_pointers = SINK + b.to(tl.int64) * sink_b + h * sink_h + (start_m + offs_m) * sink_t
        row_max = tl.load(sink_pointers, mask=in_range, other=0.0).to(tl.float32) * logit_scale
        if HAS_SLOPE:
            row_max = row_max - slope * offs_m.to(tl.float32)
        if CLOCK == BY_BLOCK:
            row_max = row_max - q_rest
        row_sum = tl.where(row_max == -float("inf"), 0.0, 1.0)
    else:
        row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
    q_segment = 0
    segment_low = 0
    segment_high = 0
    if HAS_SEGMENTS:
        q_segment = tl.load(Q_SEGMENTS + b * q_len + start_m + offs_m, mask=in_range, other=0)[:, None]
        segment_low = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2)
        segment_high = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2 + 1)
    max_distance = 0
    if SKIP_BLOCKS:
        max_distance = tl.load(MAX_DISTANCE + h)
        if HAS_SEGMENTS:
            max_distance = limit_of_block(max_distance, SEGMENT_RANGES + (batch * blocks + b) * 2, start_m, BLOCK_M)
    low, high, full_low, full_high = key_bounds(
        start_m,
        q_offset,
        kv_len,
        window,
        max_distance,
        segment_low,
        segment_high,
        BLOCK_M,
        BLOCK_N,
        CAUSAL,
        HAS_WINDOW,
        SKIP_BLOCKS,
        HAS_SEGMENTS,
    )
    if HAS_WINDOW and not HAS_SEGMENTS:
        k_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), low, BLOCK_N, CLOCK, True)
        for start_n in tl.range(low, full_low, BLOCK_N, num_stages=NUM_STAGES):
            acc, row_sum, row_max, low_sums, high_sums, k_clock = forward_step(
                q, K, V, K_SEGMENTS, acc, row_sum, row_max, low_sums, high_sums, b, h_kv, batch_head, start_m, start_n,
                q_offset, q_len, kv_len, window, table, content, slots, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest,
                q_segment, dropout, seed, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_BIAS, HAS_SLOPE, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, HAS_DROPOUT, INPUT_PRECISION, True,
            )  # fmt: skip
    if not HAS_SEGMENTS:
        k_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), full_low, BLOCK_N, CLOCK, True)
        for start_n in tl.range(full_low, full_high, BLOCK_N, num_stages=NUM_STAGES):
            acc, row_sum, row_max, low_sums, high_sums, k_clock = forward_step(
                q, K, V, K_SEGMENTS, acc, row_sum, row_max, low_sums, high_sums, b, h_kv, batch_head, start_m, start_n,
                q_offset, q_len, kv_len, window, table, content, slots, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest,
                q_segment, dropout, seed, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_BIAS, HAS_SLOPE, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, HAS_DROPOUT, INPUT_PRECISION, False,
            )  # fmt: skip
    else:
        full_high = low
    k_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), full_high, BLOCK_N, CLOCK, True)
    for start_n in tl.range(full_high, high, BLOCK_N, num_stages=NUM_STAGES):
        acc, row_sum, row_max, low_sums, high_sums, k_clock = forward_step(
            q, K, V, K_SEGMENTS, acc, row_sum, row_max, low_sums, high_sums, b, h_kv, batch_head, start_m, start_n,
            q_offset, q_len, kv_len, window, table, content, slots, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest,
            q_segment, dropout, seed, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_BIAS, HAS_SLOPE, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS,
            HAS_DROPOUT, INPUT_PRECISION, True,
        )  # fmt: skip
    sees_nothing = row_sum == 0.0
    lse = row_max + tl.log2(row_sum)
    if HAS_SLOPE:
        lse = lse + slope * offs_m.to(tl.float32)
    if CLOCK == BY_BLOCK:
        lse = lse + q_rest
    lse_pointers = LSE + batch_head * lse_stride + start_m + offs_m
    factor_offset = (batch * heads).to(tl.int64) * lse_stride
    store_log_sum_exp(
        lse_pointers, factor_offset, row_max, row_sum, lse, sees_nothing | ~in_range, HAS_BIAS or CLOCK == EXACT
    )
    if not isinstance(slots, tl.tensor):
        store_ends(slots, row_max + tl.log2(low_sums), row_max + tl.log2(high_sums), in_range & ~sees_nothing)
    out = divide_parts(acc, tl.where(sees_nothing, 1.0, row_sum)[:, None])
    store_parts(OUT, b, h, start_m, q_len, out, BLOCK_M, BLOCK_DV)
