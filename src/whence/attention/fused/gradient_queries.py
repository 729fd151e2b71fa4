"""The backward kernel for queries, and with it the gradients of what shapes the scores.

One program for a block of query rows of one head walks the keys once. It computes ``sum(grad * out)`` of its rows (which
the kernel for keys reads later), the queries' gradient and, by choice:

* nothing more;
* few numbers per head: each number's derivative table is contracted with the tile in registers. A number that scales
  the whole factor needs no table, for its gradient is ``q . dq`` over the number; a slope's table is the distance itself;
* dense tables: the tile's diagonal sums are added to a table in memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import PAD, add_diagonal_sums, add_to_table, contract, weigh_by_distance
from whence.attention.fused.scores import kept, key_bounds, load_tile, logits, seen, store_tile


@triton.jit
def queries_step(
    q, grad, K, V, K_IDS, acc, g0, g1, g2, g3, gs, df, db, b, g, pair, row0, key0, offset, rows, keys, window, table,
    parameter_gradients, dense_factor, dense_bias, unit, slope, lse, delta, q_id, dropout, seed,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, FACTOR: tl.constexpr, BIAS: tl.constexpr,
    SLOPED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, IDS: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, DENSE_FACTOR: tl.constexpr, DENSE_BIAS: tl.constexpr, FACTOR_RATES: tl.constexpr,
    BIAS_RATES: tl.constexpr, RATE_WIDTH: tl.constexpr, SLOPE_GRAD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    key0 = tl.multiple_of(key0, BN)
    start = offset + row0 - key0
    column = tl.arange(0, BN)
    k = load_tile(K, b, g, key0, BN, BD)
    v = load_tile(V, b, g, key0, BN, BE)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    incline = 0.0
    if SLOPED:  # what all keys of the tile share goes with the rows' normalisers: a number a row, not one a key
        lse = lse - slope * start.to(tl.float32)
        incline = (slope * (0 - column).to(tl.float32))[None, :]
    WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
    z, score_scale = logits(qk, table + start * WIDTH, unit, incline, BM, BN, 1, FACTOR, BIAS, SLOPED)
    p = tl.exp2(z - lse[:, None])
    if MASKED:
        row = tl.arange(0, BM)
        k_id = 0
        if IDS:
            k_id = tl.load(K_IDS + b * keys + key0 + column, mask=key0 + column < keys, other=-1)[None, :]
        distance = start + row[:, None] - column[None, :]
        ok = seen(distance, (key0 + column)[None, :], keys, window, q_id, k_id, CAUSAL, WINDOWED, IDS)
        p = tl.where(ok, p, 0.0)
    if DROPOUT:
        row = row0 + tl.arange(0, BM)
        dp = dp * kept(seed, pair, row[:, None], (key0 + column)[None, :], rows, keys, dropout)
    dz = p * (dp - delta[:, None])
    if DENSE_FACTOR:
        df = add_diagonal_sums(dz * qk, df, dense_factor + start, BM, BN)
    if DENSE_BIAS:
        db = add_diagonal_sums(dz, db, dense_bias + start, BM, BN)
    if FACTOR_RATES + BIAS_RATES > 0:
        by_factor = dz
        if FACTOR_RATES > 0:
            by_factor = dz * qk
        g0, g1, g2, g3 = contract(
            by_factor,
            dz,
            parameter_gradients + start * RATE_WIDTH,
            g0,
            g1,
            g2,
            g3,
            BM,
            BN,
            FACTOR_RATES,
            BIAS_RATES,
            RATE_WIDTH,
        )
    if SLOPE_GRAD:
        gs = weigh_by_distance(dz, start, gs, BM, BN)
    if FACTOR:
        dz = dz * score_scale
    acc = tl.dot(dz.to(k.dtype), k, acc, input_precision=PRECISION)
    return acc, g0, g1, g2, g3, gs, df, db


@triton.jit(
    do_not_specialize=[
        "batch",
        "heads",
        "rows",
        "line_stride",
        "keys",
        "offset",
        "first",
        "window",
        "stride",
        "bias_shift",
        "seed",
    ]
)
def queries_kernel(
    Q, K, V, GRAD, OUT, DQ, LSE, DELTA, TABLE, RATES, DENSE, NUMBERS, SLOPE, Q_IDS, K_IDS, RANGE, REACH,
    batch, heads, rows, line_stride, keys, offset, first, window, stride, bias_shift, unit, back, dropout, seed,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    FACTOR: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    IDS: tl.constexpr, SKIP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    DENSE_FACTOR: tl.constexpr, DENSE_BIAS: tl.constexpr, FACTOR_RATES: tl.constexpr, BIAS_RATES: tl.constexpr,
    RATE_WIDTH: tl.constexpr, SLOPE_GRAD: tl.constexpr, AMPLITUDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(rows, BM)
    rank = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks
    if SKIP:
        h = tl.load(REACH + heads + rank // batch)
        b = rank % batch
    else:
        h = rank % heads
        b = rank // heads
    pair = (b * heads + h).to(tl.int64)
    g = h // SHARE
    row0 = block * BM
    row = tl.arange(0, BM)
    inside = row0 + row < rows
    q = load_tile(Q, b, h, row0, BM, BD)
    grad = load_tile(GRAD, b, h, row0, BM, BE)
    out = load_tile(OUT, b, h, row0, BM, BE)
    delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(DELTA + pair * line_stride + row0 + row, delta)
    lse = tl.load(LSE + pair * line_stride + row0 + row)
    acc = tl.zeros([BM, BD], tl.float32)
    WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
    table = TABLE + (h.to(tl.int64) * stride + PAD - first) * WIDTH
    parameter_gradients = RATES + (h.to(tl.int64) * stride + PAD - first) * RATE_WIDTH
    dense = DENSE + pair * stride + PAD - first
    dense_bias = dense
    if DENSE_FACTOR and DENSE_BIAS:
        dense_bias = dense + bias_shift
    slope = 0.0
    if SLOPED:
        slope = tl.load(SLOPE + h)
        lse = lse - slope * row.to(tl.float32)
    g0 = tl.zeros([BM // 16, 8, 8], tl.float32)
    g1 = tl.zeros([BM // 16, 8, 8], tl.float32)
    g2 = tl.zeros([BM // 16, 8, 8], tl.float32)
    g3 = tl.zeros([BM // 16, 8, 8], tl.float32)
    gs = tl.zeros([BM // 16, 8, 8], tl.float32)
    df = tl.zeros([BM // BN, BN // 8, 4, 8] if DENSE_FACTOR else [1], tl.float32)
    db = tl.zeros([BM // BN, BN // 8, 4, 8] if DENSE_BIAS else [1], tl.float32)
    q_id = 0
    ids_low = 0
    ids_high = 0
    if IDS:
        q_id = tl.load(Q_IDS + b * rows + row0 + row, mask=inside, other=0)[:, None]
        ids_low = tl.load(RANGE + (b * blocks + block) * 2)
        ids_high = tl.load(RANGE + (b * blocks + block) * 2 + 1)
    reach = 0
    if SKIP:
        reach = tl.load(REACH + h)
    low, high, full_low, full_high = key_bounds(
        row0, offset, keys, window, reach, ids_low, ids_high, BM, BN, CAUSAL, WINDOWED, SKIP, IDS
    )
    if WINDOWED and not IDS:
        for key0 in tl.range(low, full_low, BN, num_stages=STAGES):
            acc, g0, g1, g2, g3, gs, df, db = queries_step(
                q, grad, K, V, K_IDS, acc, g0, g1, g2, g3, gs, df, db, b, g, pair, row0, key0, offset, rows, keys,
                window, table, parameter_gradients, dense, dense_bias, unit, slope, lse, delta, q_id, dropout, seed, BM, BN, BD, BE,
                FACTOR, BIAS, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, DENSE_FACTOR, DENSE_BIAS,
                FACTOR_RATES, BIAS_RATES, RATE_WIDTH, SLOPE_GRAD, True,
            )  # fmt: skip
    if not IDS:
        for key0 in tl.range(full_low, full_high, BN, num_stages=STAGES):
            acc, g0, g1, g2, g3, gs, df, db = queries_step(
                q, grad, K, V, K_IDS, acc, g0, g1, g2, g3, gs, df, db, b, g, pair, row0, key0, offset, rows, keys,
                window, table, parameter_gradients, dense, dense_bias, unit, slope, lse, delta, q_id, dropout, seed, BM, BN, BD, BE,
                FACTOR, BIAS, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, DENSE_FACTOR, DENSE_BIAS,
                FACTOR_RATES, BIAS_RATES, RATE_WIDTH, SLOPE_GRAD, False,
            )  # fmt: skip
    else:
        full_high = low
    for key0 in tl.range(full_high, high, BN, num_stages=STAGES):
        acc, g0, g1, g2, g3, gs, df, db = queries_step(
            q, grad, K, V, K_IDS, acc, g0, g1, g2, g3, gs, df, db, b, g, pair, row0, key0, offset, rows, keys, window,
            table, parameter_gradients, dense, dense_bias, unit, slope, lse, delta, q_id, dropout, seed, BM, BN, BD, BE, FACTOR,
            BIAS, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, DENSE_FACTOR, DENSE_BIAS, FACTOR_RATES,
            BIAS_RATES, RATE_WIDTH, SLOPE_GRAD, True,
        )  # fmt: skip
    if high > low:  # what the last tile left belongs to the block after it
        left = offset + row0 - low - tl.cdiv(high - low, BN) * BN
        if DENSE_FACTOR:
            add_to_table(df, dense + left, BM, BN)
        if DENSE_BIAS:
            add_to_table(db, dense_bias + left, BM, BN)
    acc = acc * back
    store_tile(DQ, b, h, row0, acc.to(DQ.dtype), BM, BD)
    numbers = NUMBERS + (pair * blocks + block) * 8
    COUNT: tl.constexpr = FACTOR_RATES + BIAS_RATES
    if COUNT > 0:
        tl.store(numbers, tl.sum(tl.ravel(g0), 0))
    if COUNT > 1:
        tl.store(numbers + 1, tl.sum(tl.ravel(g1), 0))
    if COUNT > 2:
        tl.store(numbers + 2, tl.sum(tl.ravel(g2), 0))
    if COUNT > 3:
        tl.store(numbers + 3, tl.sum(tl.ravel(g3), 0))
    if SLOPE_GRAD:
        tl.store(numbers + 4, tl.sum(tl.ravel(gs), 0))
    if AMPLITUDE:
        again = load_tile(Q, b, h, row0, BM, BD)
        tl.store(numbers + 5, tl.sum(tl.sum(again.to(tl.float32) * acc, 1), 0))
