"""Backward kernel for dq, which also computes the gradients of the score scale and the bias.

One program per block of queries of one head loops over the keys once. It computes ``delta = sum(grad_out * out)`` per
row (the dk/dv kernel reads it later), dq and, depending on the compile-time flags:

* nothing else;
* gradients of a few parameters per head: the tile of logit gradients is contracted with each parameter's derivative
  table in registers. An amplitude, which multiplies the whole score scale, needs no table: its gradient is ``q . dq``
  divided by the amplitude. The derivative table of a slope is the distance itself;
* dense table gradients: the sums along the tile's diagonals are added to a table in memory with atomics;
* with a clock, the sum of each row. Without a sink it is 0 up to rounding, mostly that of delta. The same rounding is in the
  sums of the keys, over many rows; the steps of the clock get the difference, where it cancels;
* the gradient of the tables of single queries (``row_tables``).

Where rows have factors, ``scale_rows_kernel`` runs first: it multiplies grad_out by them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.clock_terms import BY_BLOCK, EXACT, clock_stride, clock_tile, load_clock
from whence.attention.fused.diagonals import (
    TABLE_PADDING,
    add_diagonal_sums,
    add_distance_weighted_sum,
    add_row_sums,
    atomic_add_diagonals,
    contract_derivatives,
    finish_row_sums,
    zero_row_sums,
)
from whence.attention.fused.head_parts import (
    dot_heads,
    dot_rows,
    dot_weights,
    load_parts,
    multiply_parts,
    store_parts,
    zero_parts,
)
from whence.attention.fused.row_tables import add_rows, load_rows, store_ends, store_pairs, zero_sums
from whence.attention.fused.scaled_distance_kernels import (
    add_function_gradients,
    add_piece_sums,
    head_table,
    move_table,
)
from whence.attention.fused.tile_ops import (
    compute_logits,
    dropout_multiplier,
    key_bounds,
    limit_of_block,
    load_tile,
    place_program,
    store_tile,
    visible,
)


@triton.jit(do_not_specialize=["heads", "q_len", "lse_stride"])
def scale_rows_kernel(X, SCALED, FACTOR, heads, q_len, lse_stride, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr):
    """Multiply a block of rows of one head by their factors ``[B, H, padded_length]``."""
    blocks = tl.cdiv(q_len, BLOCK_M)
    batch_head = tl.program_id(0) // blocks
    b = batch_head // heads
    h = batch_head % heads
    start_m = tl.program_id(0) % blocks * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    factor = tl.load(FACTOR + batch_head.to(tl.int64) * lse_stride + offs_m, mask=offs_m < q_len, other=1.0)
    x = load_tile(X, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
    scaled = x.to(tl.float32) * factor[:, None]
    store_tile(SCALED, b, h, start_m, q_len, scaled, BLOCK_M, BLOCK_DV)


@triton.jit
def dq_step(
    q, grad_out, K, V, K_SEGMENTS, acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums,
    high_sums, b, h_kv, batch_head, start_m, start_n, q_offset, q_len, kv_len, window, table, content, content_grad,
    sums_grad, derivatives, scale_table_grad, bias_table_grad, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest, lse, delta, q_segment, dropout, seed,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr, CLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, HAS_DROPOUT: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, DENSE_SCALE_GRAD: tl.constexpr, DENSE_BIAS_GRAD: tl.constexpr,
    NUM_SCALE_DERIVS: tl.constexpr, NUM_BIAS_DERIVS: tl.constexpr, DERIV_WIDTH: tl.constexpr, SLOPE_GRAD: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    start_n = tl.multiple_of(start_n, BLOCK_N)
    distance0 = q_offset + start_m - start_n
    offs_n = tl.arange(0, BLOCK_N)
    k = load_parts(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
    v = load_parts(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
    if CLOCK == EXACT:
        k_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), start_n, BLOCK_N, CLOCK, True)
    k_base, k_rest = k_clock
    qk = dot_heads(q, k, INPUT_PRECISION)
    qk = add_rows(qk, content, distance0, start_n, BLOCK_M, BLOCK_N, False)
    dp = dot_heads(grad_out, v, INPUT_PRECISION)
    dp = add_rows(dp, sums_grad, distance0, start_n, BLOCK_M, BLOCK_N, False)
    key_bias = 0.0
    if (
        HAS_SLOPE
    ):  # slope * distance0 is the same for the whole tile: subtract it from lse, once per row instead of per logit
        lse = lse - slope * distance0.to(tl.float32)
        key_bias = (slope * (0 - offs_n).to(tl.float32))[None, :]
    if CLOCK > 0:
        if CLOCK == BY_BLOCK:
            lse = lse - (q_base + k_base)
            key_bias = k_rest[None, :] + key_bias if HAS_SLOPE else k_rest[None, :]
        else:
            key_bias = clock_tile(q_base[:, None], q_rest[:, None], k_base[None, :], k_rest[None, :])
    TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    table = move_table(table, distance0, TABLE_WIDTH)
    logits, score_scale = compute_logits(
        qk,
        table,
        qk_scale,
        key_bias,
        BLOCK_M,
        BLOCK_N,
        1,
        HAS_SCORE_SCALE,
        HAS_BIAS,
        HAS_SLOPE or CLOCK > 0,
    )
    next_clock = k_clock
    if CLOCK == BY_BLOCK:  # of the next tile, into the registers of this one's: products hide the time of the loads
        next_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), start_n + BLOCK_N, BLOCK_N, CLOCK, True)
    p = tl.exp2(logits - lse[:, None])
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
        p = tl.where(mask, p, 0.0)
    if HAS_DROPOUT:
        offs_m = start_m + tl.arange(0, BLOCK_M)
        dp = dp * dropout_multiplier(
            seed, batch_head, offs_m[:, None], (start_n + offs_n)[None, :], q_len, kv_len, dropout
        )
    dlogits = p * (dp - delta[:, None])
    if DENSE_SCALE_GRAD:
        scale_carry = add_diagonal_sums(dlogits * qk, scale_carry, scale_table_grad + distance0, BLOCK_M, BLOCK_N)
    if DENSE_BIAS_GRAD:
        bias_carry = add_diagonal_sums(dlogits, bias_carry, bias_table_grad + distance0, BLOCK_M, BLOCK_N)
    if NUM_SCALE_DERIVS + NUM_BIAS_DERIVS > 0 and not isinstance(table, tl.tensor):
        g0, g1, g2, scale_carry, bias_carry = add_function_gradients(
            dlogits, qk, table, derivatives + distance0, scale_table_grad, g0, g1, g2, scale_carry, bias_carry, BLOCK_M,
            BLOCK_N,
        )  # fmt: skip
    elif NUM_SCALE_DERIVS + NUM_BIAS_DERIVS > 0:
        scale_grad = dlogits
        if NUM_SCALE_DERIVS > 0:
            scale_grad = dlogits * qk
        g0, g1, g2, g3 = contract_derivatives(
            scale_grad,
            dlogits,
            derivatives + distance0 * DERIV_WIDTH,
            g0,
            g1,
            g2,
            g3,
            BLOCK_M,
            BLOCK_N,
            NUM_SCALE_DERIVS,
            NUM_BIAS_DERIVS,
            DERIV_WIDTH,
        )
    if CLOCK > 0:
        clock_sums = add_row_sums(dlogits, clock_sums, BLOCK_M, BLOCK_N)
    if SLOPE_GRAD:
        slope_grad = add_distance_weighted_sum(dlogits, distance0, slope_grad, BLOCK_M, BLOCK_N)
    if HAS_SCORE_SCALE:
        dlogits = dlogits * score_scale
    if not isinstance(content_grad, tl.tensor):
        low_sums, high_sums = store_pairs(
            dlogits, dlogits, content_grad, low_sums, high_sums, distance0, start_m, start_n, q_len, BLOCK_M, BLOCK_N
        )
    acc = dot_weights(dlogits, k, acc, INPUT_PRECISION)
    return acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums, high_sums, next_clock


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
        "bias_grad_offset",
        "SEED",
    ]
)
def backward_dq_kernel(
    Q, Q_REST, K, K_REST, V, V_REST, GRAD_OUT, GRAD_OUT_REST, OUT, OUT_REST, DQ, DQ_REST, LSE, DELTA, TABLE, DERIVATIVES,
    TABLE_GRADS, PARTIAL_SUMS, SLOPE, Q_CLOCK, K_CLOCK, CLOCK_SUMS, Q_SEGMENTS, K_SEGMENTS, SEGMENT_RANGES, MAX_DISTANCE, CONTENT, CONTENT_GRAD, SUMS_GRAD, SUMS_DELTA, batch, heads, q_len, lse_stride, kv_len, q_offset,
    first_distance, window, table_stride, bias_grad_offset, qk_scale, qk_grad_scale, dropout, SEED,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPE: tl.constexpr,
    CLOCK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
    SKIP_BLOCKS: tl.constexpr, HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr, DENSE_SCALE_GRAD: tl.constexpr,
    DENSE_BIAS_GRAD: tl.constexpr, NUM_SCALE_DERIVS: tl.constexpr, NUM_BIAS_DERIVS: tl.constexpr,
    DERIV_WIDTH: tl.constexpr, SLOPE_GRAD: tl.constexpr, AMPLITUDE_GRAD: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    seed = 0
    if HAS_DROPOUT:
        seed = tl.load(SEED)
    Q, K, V, DQ = (Q, Q_REST), (K, K_REST), (V, V_REST), (DQ, DQ_REST)
    GRAD_OUT, OUT = (GRAD_OUT, GRAD_OUT_REST), (OUT, OUT_REST)
    blocks = tl.cdiv(q_len, BLOCK_M)
    rank, place = place_program(
        blocks, kv_len, BLOCK_D + BLOCK_DV, GROUP_SIZE, CAUSAL and not (HAS_WINDOW or SKIP_BLOCKS)
    )
    block = blocks - 1 - place
    if SKIP_BLOCKS:
        h = tl.load(MAX_DISTANCE + heads + rank // batch)
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
    grad_out = load_parts(GRAD_OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
    out = load_parts(OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
    delta = dot_rows(out, grad_out)
    if not isinstance(SUMS_GRAD, tl.tensor):
        delta += tl.load(SUMS_DELTA + batch_head * q_len + start_m + offs_m, mask=in_range, other=0.0)
    tl.store(DELTA + batch_head * lse_stride + start_m + offs_m, delta)
    lse = tl.load(LSE + batch_head * lse_stride + start_m + offs_m)
    acc = zero_parts(BLOCK_M, BLOCK_D)
    TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    table_offset = (h.to(tl.int64) * table_stride + TABLE_PADDING - first_distance) * TABLE_WIDTH
    table = head_table(TABLE, table_offset, b, h, heads, start_m + offs_m, q_len)
    content = load_rows(CONTENT, batch_head, start_m, q_len, BLOCK_M)
    content_grad = load_rows(CONTENT_GRAD, batch_head, start_m, q_len, BLOCK_M)
    sums_grad = load_rows(SUMS_GRAD, batch_head, start_m, q_len, BLOCK_M)
    low_sums = zero_sums(content_grad, BLOCK_M)
    high_sums = zero_sums(content_grad, BLOCK_M)
    derivatives = DERIVATIVES + (h.to(tl.int64) * table_stride + TABLE_PADDING - first_distance) * DERIV_WIDTH
    scale_table_grad = TABLE_GRADS + batch_head * table_stride + TABLE_PADDING - first_distance
    bias_table_grad = scale_table_grad
    if DENSE_SCALE_GRAD and DENSE_BIAS_GRAD:
        bias_table_grad = scale_table_grad + bias_grad_offset
    q_base, q_rest = load_clock(Q_CLOCK, batch_head, lse_stride, start_m, BLOCK_M, CLOCK)
    if CLOCK == BY_BLOCK:  # stored for the dk/dv kernel, which then need not load the rests of the queries
        lse = lse - q_rest
        tl.store(CLOCK_SUMS + (batch * heads + batch_head) * lse_stride + start_m + offs_m, lse)
    slope = 0.0
    if HAS_SLOPE:
        slope = tl.load(SLOPE + h)
        lse = lse - slope * offs_m.to(tl.float32)
    g0 = tl.zeros([BLOCK_M // 16, 8, 8], tl.float32)
    g1 = tl.zeros([BLOCK_M // 16, 8, 8], tl.float32)
    g2 = tl.zeros([BLOCK_M // 16, 8, 8], tl.float32)
    g3 = tl.zeros([BLOCK_M // 16, 8, 8], tl.float32)
    slope_grad = tl.zeros([BLOCK_M // 16, 8, 8], tl.float32)
    scale_carry = tl.zeros([BLOCK_M // BLOCK_N, BLOCK_N // 8, 4, 8] if DENSE_SCALE_GRAD else [1], tl.float32)
    bias_carry = tl.zeros([BLOCK_M // BLOCK_N, BLOCK_N // 8, 4, 8] if DENSE_BIAS_GRAD else [1], tl.float32)
    clock_sums = tl.zeros([1], tl.float32)
    if CLOCK > 0:
        clock_sums = zero_row_sums(BLOCK_M)
    if not isinstance(TABLE, tl.tensor):  # see add_function_gradients
        scale_table_grad = TABLE_GRADS + (batch_head * blocks + block) * (4 * (TABLE[2] + 1))
        scale_carry = tl.zeros([BLOCK_M], tl.float32)  # the gradient of the scale of each query
        bias_carry = h * 0  # the piece that g0 and g1 belong to
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
            acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums, high_sums, k_clock = dq_step(
                q, grad_out, K, V, K_SEGMENTS, acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums,
                high_sums, b, h_kv, batch_head, start_m, start_n, q_offset, q_len, kv_len, window, table, content,
                content_grad, sums_grad, derivatives, scale_table_grad,
                bias_table_grad, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest, lse, delta, q_segment, dropout, seed,
                BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_BIAS, HAS_SLOPE, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, HAS_DROPOUT, INPUT_PRECISION, DENSE_SCALE_GRAD, DENSE_BIAS_GRAD, NUM_SCALE_DERIVS,
                NUM_BIAS_DERIVS, DERIV_WIDTH, SLOPE_GRAD, True,
            )  # fmt: skip
    if not HAS_SEGMENTS:
        k_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), full_low, BLOCK_N, CLOCK, True)
        for start_n in tl.range(full_low, full_high, BLOCK_N, num_stages=NUM_STAGES):
            acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums, high_sums, k_clock = dq_step(
                q, grad_out, K, V, K_SEGMENTS, acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums,
                high_sums, b, h_kv, batch_head, start_m, start_n, q_offset, q_len, kv_len, window, table, content,
                content_grad, sums_grad, derivatives, scale_table_grad,
                bias_table_grad, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest, lse, delta, q_segment, dropout, seed,
                BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_BIAS, HAS_SLOPE, CLOCK, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, HAS_DROPOUT, INPUT_PRECISION, DENSE_SCALE_GRAD, DENSE_BIAS_GRAD, NUM_SCALE_DERIVS,
                NUM_BIAS_DERIVS, DERIV_WIDTH, SLOPE_GRAD, False,
            )  # fmt: skip
    else:
        full_high = low
    k_clock = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), full_high, BLOCK_N, CLOCK, True)
    for start_n in tl.range(full_high, high, BLOCK_N, num_stages=NUM_STAGES):
        acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums, high_sums, k_clock = dq_step(
            q, grad_out, K, V, K_SEGMENTS, acc, g0, g1, g2, g3, slope_grad, scale_carry, bias_carry, clock_sums, low_sums,
            high_sums, b, h_kv, batch_head, start_m, start_n, q_offset, q_len, kv_len, window, table, content,
            content_grad, sums_grad, derivatives, scale_table_grad,
            bias_table_grad, qk_scale, slope, K_CLOCK, k_clock, q_base, q_rest, lse, delta, q_segment, dropout, seed, BLOCK_M,
            BLOCK_N, BLOCK_D, BLOCK_DV, HAS_SCORE_SCALE, HAS_BIAS, HAS_SLOPE, CLOCK, CAUSAL, HAS_WINDOW, HAS_SEGMENTS,
            HAS_DROPOUT, INPUT_PRECISION, DENSE_SCALE_GRAD, DENSE_BIAS_GRAD, NUM_SCALE_DERIVS, NUM_BIAS_DERIVS,
            DERIV_WIDTH, SLOPE_GRAD, True,
        )  # fmt: skip
    if NUM_BIAS_DERIVS > 0 and not isinstance(TABLE, tl.tensor):
        add_piece_sums(scale_table_grad, bias_carry, g0, g1, TABLE[2])
        tl.store(TABLE_GRADS + bias_grad_offset + batch_head * lse_stride + start_m + offs_m, scale_carry)
    if high > low:  # the carry of the last tile belongs to the next block of distances
        carry_distance = q_offset + start_m - low - tl.cdiv(high - low, BLOCK_N) * BLOCK_N
        if DENSE_SCALE_GRAD:
            atomic_add_diagonals(scale_carry, scale_table_grad + carry_distance, BLOCK_M, BLOCK_N)
        if DENSE_BIAS_GRAD:
            atomic_add_diagonals(bias_carry, bias_table_grad + carry_distance, BLOCK_M, BLOCK_N)
    acc = multiply_parts(acc, qk_grad_scale)
    store_parts(DQ, b, h, start_m, q_len, acc, BLOCK_M, BLOCK_D)
    store_ends(content_grad, low_sums, high_sums, in_range)
    if CLOCK > 0:
        tl.store(CLOCK_SUMS + batch_head * lse_stride + start_m + offs_m, finish_row_sums(clock_sums, BLOCK_M))
    partial_sums = PARTIAL_SUMS + (batch_head * blocks + block) * 8
    COUNT: tl.constexpr = NUM_SCALE_DERIVS + NUM_BIAS_DERIVS
    if COUNT > 0:
        tl.store(partial_sums, tl.sum(tl.ravel(g0), 0))
    if COUNT > 1:
        tl.store(partial_sums + 1, tl.sum(tl.ravel(g1), 0))
    if COUNT > 2:
        tl.store(partial_sums + 2, tl.sum(tl.ravel(g2), 0))
    if COUNT > 3:
        tl.store(partial_sums + 3, tl.sum(tl.ravel(g3), 0))
    if SLOPE_GRAD:
        tl.store(partial_sums + 4, tl.sum(tl.ravel(slope_grad), 0))
    if AMPLITUDE_GRAD:
        q_again = load_parts(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
        tl.store(partial_sums + 5, tl.sum(dot_rows(q_again, acc), 0))
