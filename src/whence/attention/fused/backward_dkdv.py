"""Backward kernel for dk and dv: one program per block of keys loops over the queries of every head that shares them.

Query heads of one group accumulate in registers in a fixed order, so the result is deterministic.

Two effects factor into a query part and a key part, which makes them cheaper here. A score scale that decays
exponentially to a floor is ``floor + span * 2 ** -(rate * query) * 2 ** (rate * key)``: no table is loaded. A slope
contributes one weight per key, ``2 ** -(slope * key)``, by which dk and dv are multiplied once at the end; so does a clock in half
precision without grouped heads and up to 64 dimensions. ``KEY_BIAS`` adds their part of the key to every logit instead, where
these weights would differ by too many bits.

With a clock, the kernel also sums the gradients of the logits over the queries of each key and head.

Accumulators of dk and dv with 256 dimensions fill the registers at 64 keys. ``PART`` then computes one of them in each of two
passes with 128 keys, which repeats one of four matrix products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused import tile_configs
from whence.attention.fused.clock_terms import BY_BLOCK, clock_stride, clock_tile, load_base, load_clock
from whence.attention.fused.diagonals import TABLE_PADDING, add_row_sums, finish_row_sums, zero_row_sums
from whence.attention.fused.head_parts import (
    dot_heads,
    dot_weights,
    load_parts,
    multiply_parts,
    store_parts,
    zero_parts,
)
from whence.attention.fused.row_tables import add_rows, load_rows
from whence.attention.fused.scaled_distance_kernels import head_table, move_table
from whence.attention.fused.tile_ops import (
    compute_logits,
    dropout_multiplier,
    place_program,
    query_bounds,
    visible,
)

LOG2E = tl.constexpr(1.4426950408889634)
ONLY_DV = tl.constexpr(tile_configs.ONLY_DV)
ONLY_DK = tl.constexpr(tile_configs.ONLY_DK)


@triton.jit
def dkdv_step(
    k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, Q_SEGMENTS, dk, dv, key_sums, b, h, start_m, start_n, heads, q_len, lse_stride, kv_len,
    q_offset, first_distance, window, table_stride, qk_scale, slope, floor, span, rate, Q_CLOCK, q_base, k_base, k_rest,
    k_segment, dropout, seed,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    HAS_SCORE_SCALE: tl.constexpr, HAS_DECAY: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr,
    KEY_BIAS: tl.constexpr, CLOCK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr, HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr, PART: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    start_m = tl.multiple_of(start_m, BLOCK_M)
    batch_head = (b * heads + h).to(tl.int64)
    row_stats = batch_head * lse_stride
    distance0 = q_offset + start_m - start_n
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    q = load_parts(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
    grad_out = load_parts(GRAD_OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
    lse = tl.load(LSE + row_stats + start_m + offs_m)
    delta = tl.load(DELTA + row_stats + start_m + offs_m)
    next_base = 0.0
    if CLOCK == BY_BLOCK:
        bases = q_base + k_base
        # of the next tile: this one's products hide the time of the load
        next_base = load_base(Q_CLOCK, batch_head, lse_stride, start_m + BLOCK_M)
    qk = dot_heads(k, q, INPUT_PRECISION)  # [BLOCK_N, BLOCK_M]
    content = load_rows(CONTENT, batch_head, start_m, q_len, BLOCK_M)
    qk = add_rows(qk, content, distance0, start_n, BLOCK_M, BLOCK_N, True)
    distance = distance0 + offs_m[None, :] - offs_n[:, None]
    key_bias = 0.0
    if HAS_SLOPE:  # the part that depends on the query is subtracted from lse
        # split slopes: key weights are relative to the middle of the block
        row_offset = offs_m if KEY_BIAS else offs_m - BLOCK_N // 2
        lse = lse - slope * (distance0 + row_offset).to(tl.float32)
        key_bias = (slope * (0 - offs_n).to(tl.float32))[:, None]
    if CLOCK > 0:
        if CLOCK == BY_BLOCK:
            lse = lse - bases  # the dq kernel subtracted the rest of the query
            key_bias = k_rest[:, None] + key_bias if HAS_SLOPE else k_rest[:, None]
        else:
            bases, rests = load_clock(Q_CLOCK, batch_head, lse_stride, start_m, BLOCK_M, CLOCK, True)
            key_bias = clock_tile(bases[None, :], rests[None, :], k_base[:, None], k_rest[:, None])
    if HAS_DECAY:
        if MASKED:  # masked keys after the query must not overflow
            score_scale = floor + span * tl.exp2(-rate * tl.maximum(distance, 0).to(tl.float32))
        else:
            key_factor = span * tl.exp2(-rate * (distance0 - offs_n).to(tl.float32))
            score_scale = floor + key_factor[:, None] * tl.exp2(-rate * offs_m.to(tl.float32))[None, :]
        logits = qk * score_scale
        if KEY_BIAS:
            logits = logits + key_bias
    else:
        TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
        table_offset = (h.to(tl.int64) * table_stride + TABLE_PADDING - first_distance) * TABLE_WIDTH
        table = head_table(TABLE, table_offset, b, h, heads, start_m + offs_m, q_len)
        table = move_table(table, distance0, TABLE_WIDTH)
        logits, score_scale = compute_logits(
            qk, table, qk_scale, key_bias, BLOCK_N, BLOCK_M, -1, HAS_SCORE_SCALE, HAS_BIAS, KEY_BIAS
        )
    p = tl.exp2(logits - lse[None, :])
    if MASKED:
        q_segment = 0
        if HAS_SEGMENTS:
            q_segment = tl.load(Q_SEGMENTS + b * q_len + start_m + offs_m, mask=start_m + offs_m < q_len, other=0)[
                None, :
            ]
        mask = visible(
            distance,
            (start_n + offs_n)[:, None],
            kv_len,
            window,
            q_segment,
            k_segment,
            CAUSAL,
            HAS_WINDOW,
            HAS_SEGMENTS,
        )
        p = tl.where(mask, p, 0.0)
    p_dropped = p
    multiplier = 1.0
    if HAS_DROPOUT:
        multiplier = dropout_multiplier(
            seed, batch_head, (start_m + offs_m)[None, :], (start_n + offs_n)[:, None], q_len, kv_len, dropout
        )
        p_dropped = p * multiplier
    # dv before dp: the other order needs more registers and was measured slower
    if PART != ONLY_DK:
        dv = dot_weights(p_dropped, grad_out, dv, INPUT_PRECISION)
    if PART != ONLY_DV:
        dp = dot_heads(v, grad_out, INPUT_PRECISION)
        sums_grad = load_rows(SUMS_GRAD, batch_head, start_m, q_len, BLOCK_M)
        dp = add_rows(dp, sums_grad, distance0, start_n, BLOCK_M, BLOCK_N, True)
        if HAS_DROPOUT:
            dp = dp * multiplier
        dlogits = p * (dp - delta[None, :])
        if CLOCK > 0:
            key_sums = add_row_sums(dlogits, key_sums, BLOCK_N, BLOCK_M)
        if HAS_SCORE_SCALE:
            dlogits = dlogits * score_scale
        dk = dot_weights(dlogits, q, dk, INPUT_PRECISION)
    return dk, dv, key_sums, next_base


@triton.jit
def accumulate_query_range(
    k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b, h_kv, low,
    high, start_n, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window, table_stride, qk_scale,
    k_segment, dropout, seed,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_DECAY: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_SLOPE: tl.constexpr, KEY_BIAS: tl.constexpr, CLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    NUM_STAGES: tl.constexpr, PART: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Queries low to high of all heads that share these keys, in a single loop that the compiler can pipeline.

    No other program adds to the sums of these keys, so their order is fixed.
    """
    k_stride = clock_stride(kv_len)
    key_sums = tl.zeros([1], tl.float32)
    if CLOCK > 0:  # before the loops, which cannot change its shape
        key_sums = zero_row_sums(BLOCK_N)
    if GROUP_SIZE == 1:
        row = (b * heads + h_kv).to(tl.int64)
        k_base, k_rest = load_clock(K_CLOCK, row, k_stride, start_n, BLOCK_N, CLOCK)
        q_base = load_base(Q_CLOCK, row, lse_stride, low) if CLOCK > 0 else 0.0
        slope, floor, span, rate = load_head_effects(SLOPE, DECAY, h_kv, qk_scale, HAS_SLOPE, HAS_DECAY)
        for start_m in tl.range(low, high, BLOCK_M, num_stages=NUM_STAGES):
            dk, dv, key_sums, q_base = dkdv_step(
                k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, Q_SEGMENTS, dk, dv, key_sums, b, h_kv, start_m, start_n, heads, q_len,
                lse_stride, kv_len, q_offset, first_distance, window, table_stride, qk_scale, slope, floor, span, rate,
                Q_CLOCK, q_base, k_base, k_rest, k_segment, dropout, seed, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE,
                HAS_DECAY, HAS_BIAS, HAS_SLOPE, KEY_BIAS, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS, HAS_DROPOUT,
                INPUT_PRECISION, PART, MASKED,
            )  # fmt: skip
        if CLOCK > 0 and PART != ONLY_DV:
            sums = finish_row_sums(key_sums, BLOCK_N)
            add_key_sums(CLOCK_SUMS, row, k_stride, start_n, sums if KEY_BIAS else sums * tl.exp2(k_rest), BLOCK_N)
    elif CLOCK > 0:  # a loop for each head, because each has sums of its own
        for member in tl.range(0, GROUP_SIZE):
            h = h_kv * GROUP_SIZE + member
            row = (b * heads + h).to(tl.int64)
            key_sums = zero_row_sums(BLOCK_N)
            k_base, k_rest = load_clock(K_CLOCK, row, k_stride, start_n, BLOCK_N, CLOCK)
            q_base = load_base(Q_CLOCK, row, lse_stride, low)
            slope, floor, span, rate = load_head_effects(SLOPE, DECAY, h, qk_scale, HAS_SLOPE, HAS_DECAY)
            for start_m in tl.range(low, high, BLOCK_M, num_stages=NUM_STAGES):
                dk, dv, key_sums, q_base = dkdv_step(
                    k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, Q_SEGMENTS, dk, dv, key_sums, b, h, start_m, start_n, heads, q_len,
                    lse_stride, kv_len, q_offset, first_distance, window, table_stride, qk_scale, slope, floor, span, rate,
                    Q_CLOCK, q_base, k_base, k_rest, k_segment, dropout, seed, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE,
                    HAS_DECAY, HAS_BIAS, HAS_SLOPE, KEY_BIAS, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS, HAS_DROPOUT,
                    INPUT_PRECISION, PART, MASKED,
                )  # fmt: skip
            if PART != ONLY_DV:
                add_key_sums(CLOCK_SUMS, row, k_stride, start_n, finish_row_sums(key_sums, BLOCK_N), BLOCK_N)
    else:
        count = tl.maximum(tl.cdiv(high - low, BLOCK_M), 0)
        divisor = tl.maximum(count, 1)  # the pipeliner computes the first addresses even if the loop is empty
        for step in tl.range(0, count * GROUP_SIZE, num_stages=NUM_STAGES):
            h = h_kv * GROUP_SIZE + step // divisor
            slope, floor, span, rate = load_head_effects(SLOPE, DECAY, h, qk_scale, HAS_SLOPE, HAS_DECAY)
            dk, dv, key_sums, _ = dkdv_step(
                k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, Q_SEGMENTS, dk, dv, key_sums, b, h, low + step % divisor * BLOCK_M, start_n,
                heads, q_len, lse_stride, kv_len, q_offset, first_distance, window, table_stride, qk_scale, slope,
                floor, span, rate, Q_CLOCK, 0.0, 0.0, 0.0, k_segment, dropout, seed, BLOCK_M, BLOCK_N, BLOCK_D,
                BLOCK_DV, HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, KEY_BIAS, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, HAS_DROPOUT, INPUT_PRECISION, PART, MASKED,
            )  # fmt: skip
    return dk, dv


@triton.jit
def add_key_sums(CLOCK_SUMS, row, k_stride, start_n, sums, BLOCK_N: tl.constexpr):
    """The bias is ``C_i - C_j``, so the gradient of a key's clock has the opposite sign."""
    pointers = CLOCK_SUMS + row * k_stride + start_n + tl.arange(0, BLOCK_N)
    tl.atomic_add(pointers, 0 - sums, sem="relaxed")


@triton.jit
def load_head_effects(SLOPE, DECAY, h, qk_scale, HAS_SLOPE: tl.constexpr, HAS_DECAY: tl.constexpr):
    """The slope of a head, and floor, span and rate of its decay, for base-2 logits."""
    slope = 0.0
    floor = 0.0
    span = 0.0
    rate = 0.0
    if HAS_SLOPE:
        slope = tl.load(SLOPE + h)
    if HAS_DECAY:
        floor = tl.load(DECAY + h * 3) * qk_scale
        span = tl.load(DECAY + h * 3 + 1) * qk_scale
        rate = tl.load(DECAY + h * 3 + 2) * LOG2E
    return slope, floor, span, rate


@triton.jit
def accumulate_all_queries(
    k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b, h_kv, low,
    full_low, full_high, high, start_n, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window,
    table_stride, qk_scale, k_segment, dropout, seed,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_DECAY: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_SLOPE: tl.constexpr, KEY_BIAS: tl.constexpr, CLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, SKIP_BLOCKS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, NUM_STAGES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """All queries that see these keys: masked blocks, blocks without a mask, then the far edge of a window or, with segments
    and skipped blocks, queries from full_high on that do not see their own key."""
    if CAUSAL or HAS_WINDOW or HAS_SEGMENTS:
        dk, dv = accumulate_query_range(
            k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b,
            h_kv, low, full_low, start_n, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window,
            table_stride, qk_scale, k_segment, dropout, seed, GROUP_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, KEY_BIAS, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS,
            HAS_DROPOUT, INPUT_PRECISION, NUM_STAGES, PART, True,
        )  # fmt: skip
    if not HAS_SEGMENTS:
        dk, dv = accumulate_query_range(
            k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b,
            h_kv, full_low, full_high, start_n, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window,
            table_stride, qk_scale, k_segment, dropout, seed, GROUP_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, KEY_BIAS, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS,
            HAS_DROPOUT, INPUT_PRECISION, NUM_STAGES, PART, False,
        )  # fmt: skip
    if (HAS_WINDOW and not HAS_SEGMENTS) or (SKIP_BLOCKS and HAS_SEGMENTS):
        dk, dv = accumulate_query_range(
            k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b,
            h_kv, full_high, high, start_n, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window,
            table_stride, qk_scale, k_segment, dropout, seed, GROUP_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, KEY_BIAS, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS,
            HAS_DROPOUT, INPUT_PRECISION, NUM_STAGES, PART, True,
        )  # fmt: skip
    return dk, dv


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
        "SEED",
    ]
)
def backward_dkdv_kernel(
    Q, Q_REST, K, K_REST, V, V_REST, GRAD_OUT, GRAD_OUT_REST, DK, DK_REST, DV, DV_REST, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD,
    SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, K_SEGMENTS, SEGMENT_RANGES, MAX_DISTANCE, batch, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window,
    table_stride, qk_scale, qk_grad_scale, dropout, SEED,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_DECAY: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_SLOPE: tl.constexpr, CLOCK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr, SKIP_BLOCKS: tl.constexpr, HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    NUM_STAGES: tl.constexpr, SPLIT_BITS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    seed = 0
    if HAS_DROPOUT:
        seed = tl.load(SEED)
    Q, K, V, GRAD_OUT = (Q, Q_REST), (K, K_REST), (V, V_REST), (GRAD_OUT, GRAD_OUT_REST)
    blocks = tl.cdiv(kv_len, BLOCK_N)
    kv_heads = heads // GROUP_SIZE
    rank, block = place_program(  # the first keys are visible to the most queries, so they start first
        blocks, q_len, (BLOCK_D + BLOCK_DV) * GROUP_SIZE, 1, CAUSAL and not (HAS_WINDOW or SKIP_BLOCKS)
    )
    if SKIP_BLOCKS and GROUP_SIZE == 1:
        h_kv = tl.load(MAX_DISTANCE + heads + rank // batch)
        b = rank % batch
    else:
        h_kv = rank % kv_heads
        b = rank // kv_heads
    start_n = block * BLOCK_N
    offs_n = tl.arange(0, BLOCK_N)
    k = load_parts(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
    v = load_parts(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
    dk = zero_parts(BLOCK_N, BLOCK_D)
    dv = zero_parts(BLOCK_N, BLOCK_DV)
    k_segment = 0
    segment_low = 0
    segment_high = 0
    if HAS_SEGMENTS:
        k_segment = tl.load(K_SEGMENTS + b * kv_len + start_n + offs_n, mask=start_n + offs_n < kv_len, other=-1)[
            :, None
        ]
        segment_low = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2)
        segment_high = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2 + 1)
    max_distance = 0
    if SKIP_BLOCKS:
        for member in tl.static_range(GROUP_SIZE):
            max_distance = tl.maximum(max_distance, tl.load(MAX_DISTANCE + h_kv * GROUP_SIZE + member))
    low, high, full_low, full_high = query_bounds(
        start_n,
        q_offset,
        q_len,
        window,
        max_distance,
        segment_low,
        segment_high,
        BLOCK_N,
        BLOCK_M,
        CAUSAL,
        HAS_WINDOW,
        SKIP_BLOCKS,
        HAS_SEGMENTS,
    )
    if SKIP_BLOCKS and HAS_SEGMENTS:  # then the queries that do not see their own key, at any distance
        hidden = SEGMENT_RANGES + (batch * blocks + b) * 2
        full_high = tl.maximum(tl.load(hidden) // BLOCK_M, tl.cdiv(high, BLOCK_M)) * BLOCK_M
        high = tl.minimum(tl.load(hidden + 1), segment_high)
    if SPLIT_BITS > 0:
        if CLOCK > 0:
            _, rests = load_clock(
                K_CLOCK, (b * heads + h_kv).to(tl.int64), clock_stride(kv_len), start_n, BLOCK_N, CLOCK
            )
            bits = tl.max(tl.abs(rests), 0) * 2
        else:
            slope = tl.load(SLOPE + h_kv)
            bits = tl.abs(slope) * BLOCK_N
        if bits <= SPLIT_BITS:
            dk, dv = accumulate_all_queries(
                k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b,
                h_kv, low, full_low, full_high, high, start_n, heads, q_len, lse_stride, kv_len, q_offset,
                first_distance, window, table_stride, qk_scale, k_segment, dropout, seed, GROUP_SIZE, BLOCK_M, BLOCK_N,
                BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, False, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, SKIP_BLOCKS, HAS_DROPOUT, INPUT_PRECISION, NUM_STAGES, PART,
            )  # fmt: skip
            if CLOCK > 0:
                weight = tl.exp2(rests)[:, None]
            else:
                weight = tl.exp2(slope * (BLOCK_N // 2 - offs_n).to(tl.float32))[:, None]
            dk = multiply_parts(dk, weight)
            dv = multiply_parts(dv, weight)
        else:
            dk, dv = accumulate_all_queries(
                k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b,
                h_kv, low, full_low, full_high, high, start_n, heads, q_len, lse_stride, kv_len, q_offset,
                first_distance, window, table_stride, qk_scale, k_segment, dropout, seed, GROUP_SIZE, BLOCK_M, BLOCK_N,
                BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, True, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, SKIP_BLOCKS, HAS_DROPOUT, INPUT_PRECISION, NUM_STAGES, PART,
            )  # fmt: skip
    else:
        dk, dv = accumulate_all_queries(
            k, v, Q, GRAD_OUT, LSE, DELTA, TABLE, CONTENT, SUMS_GRAD, SLOPE, DECAY, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, dk, dv, b,
            h_kv, low, full_low, full_high, high, start_n, heads, q_len, lse_stride, kv_len, q_offset, first_distance,
            window, table_stride, qk_scale, k_segment, dropout, seed, GROUP_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV,
            HAS_SCORE_SCALE, HAS_DECAY, HAS_BIAS, HAS_SLOPE, HAS_SLOPE or CLOCK > 0, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS,
            SKIP_BLOCKS, HAS_DROPOUT, INPUT_PRECISION, NUM_STAGES, PART,
        )  # fmt: skip
    if PART != ONLY_DK:
        store_parts((DV, DV_REST), b, h_kv, start_n, kv_len, dv, BLOCK_N, BLOCK_DV)
    if PART != ONLY_DV:
        dk = multiply_parts(dk, qk_grad_scale)
        store_parts((DK, DK_REST), b, h_kv, start_n, kv_len, dk, BLOCK_N, BLOCK_D)
