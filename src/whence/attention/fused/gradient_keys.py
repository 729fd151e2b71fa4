"""The backward kernel for keys and values: one program for a block of keys walks the rows of every head that reads them,
so grouped heads add up in registers, in a fixed order.

Two effects come apart into a part of the row and a part of the key, and cost less here for it. A factor that decays to a
floor is ``lowest + span * 2 ** -(fall * row) * 2 ** (fall * key)``: no table is read. What a slope adds along the keys is
one weight a key, ``2 ** -(slope * key)``, with which the sums over all rows are multiplied once at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import PAD
from whence.attention.fused.scores import kept, load_tile, logits, query_bounds, seen, store_tile

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def keys_step(
    k, v, Q, GRAD, LSE, DELTA, TABLE, Q_IDS, dk, dv, b, h, row0, key0, heads, rows, line_stride, keys, offset,
    first, window, stride, unit, slope, lowest, span, fall, k_id, dropout, seed,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, FACTOR: tl.constexpr, DECAYS: tl.constexpr,
    BIAS: tl.constexpr, SLOPED: tl.constexpr, INCLINED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    IDS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    row0 = tl.multiple_of(row0, BM)
    pair = (b * heads + h).to(tl.int64)
    line = pair * line_stride
    start = offset + row0 - key0
    row = tl.arange(0, BM)
    column = tl.arange(0, BN)
    q = load_tile(Q, b, h, row0, BM, BD)
    grad = load_tile(GRAD, b, h, row0, BM, BE)
    lse = tl.load(LSE + line + row0 + row)
    delta = tl.load(DELTA + line + row0 + row)
    qk = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [BN, BM]
    distance = start + row[None, :] - column[:, None]
    incline = 0.0
    if SLOPED:  # what depends on the row goes with the row's normaliser
        along = row if INCLINED else row - BN // 2  # the keys' weights are taken from the middle of the block
        lse = lse - slope * (start + along).to(tl.float32)
        incline = (slope * (0 - column).to(tl.float32))[:, None]
    if DECAYS:
        if MASKED:  # a key after its row, which weighs nothing, must not overflow
            score_scale = lowest + span * tl.exp2(-fall * tl.maximum(distance, 0).to(tl.float32))
        else:
            by_key = span * tl.exp2(-fall * (start - column).to(tl.float32))
            score_scale = lowest + by_key[:, None] * tl.exp2(-fall * row.to(tl.float32))[None, :]
        z = qk * score_scale
    else:
        WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
        table = TABLE + (h.to(tl.int64) * stride + PAD - first + start) * WIDTH
        z, score_scale = logits(qk, table, unit, incline, BN, BM, -1, FACTOR, BIAS, INCLINED)
    p = tl.exp2(z - lse[None, :])
    if MASKED:
        q_id = 0
        if IDS:
            q_id = tl.load(Q_IDS + b * rows + row0 + row, mask=row0 + row < rows, other=0)[None, :]
        ok = seen(distance, (key0 + column)[:, None], keys, window, q_id, k_id, CAUSAL, WINDOWED, IDS)
        p = tl.where(ok, p, 0.0)
    used = p
    keep = 1.0
    if DROPOUT:
        keep = kept(seed, pair, (row0 + row)[None, :], (key0 + column)[:, None], rows, keys, dropout)
        used = p * keep
    # this product first: the other order keeps more in registers meanwhile, and was measured slower
    dv = tl.dot(used.to(grad.dtype), grad, dv, input_precision=PRECISION)
    dp = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
    if DROPOUT:
        dp = dp * keep
    dz = p * (dp - delta[None, :])
    if FACTOR:
        dz = dz * score_scale
    dk = tl.dot(dz.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit
def stretch(
    k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, low, high, key0, heads, rows, line_stride,
    keys, offset, first, window, stride, unit, k_id, dropout, seed,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, FACTOR: tl.constexpr,
    DECAYS: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr, INCLINED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, IDS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Rows low to high of all the heads that share these keys; one loop, which the compiler can stage."""
    if SHARE == 1:
        slope, lowest, span, fall = shape_of(SLOPE, DECAY, g, unit, SLOPED, DECAYS)
        for row0 in tl.range(low, high, BM, num_stages=STAGES):
            dk, dv = keys_step(
                k, v, Q, GRAD, LSE, DELTA, TABLE, Q_IDS, dk, dv, b, g, row0, key0, heads, rows, line_stride, keys,
                offset, first, window, stride, unit, slope, lowest, span, fall, k_id, dropout, seed, BM, BN, BD, BE,
                FACTOR, DECAYS, BIAS, SLOPED, INCLINED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, MASKED,
            )  # fmt: skip
    else:
        count = tl.maximum(tl.cdiv(high - low, BM), 0)
        whole = tl.maximum(count, 1)  # the first loads are reckoned before it is known that there are none
        for step in tl.range(0, count * SHARE, num_stages=STAGES):
            h = g * SHARE + step // whole
            slope, lowest, span, fall = shape_of(SLOPE, DECAY, h, unit, SLOPED, DECAYS)
            dk, dv = keys_step(
                k, v, Q, GRAD, LSE, DELTA, TABLE, Q_IDS, dk, dv, b, h, low + step % whole * BM, key0, heads, rows,
                line_stride, keys, offset, first, window, stride, unit, slope, lowest, span, fall, k_id, dropout, seed,
                BM, BN, BD, BE, FACTOR, DECAYS, BIAS, SLOPED, INCLINED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION,
                MASKED,
            )  # fmt: skip
    return dk, dv


@triton.jit
def shape_of(SLOPE, DECAY, h, unit, SLOPED: tl.constexpr, DECAYS: tl.constexpr):
    """A head's slope, and its decay's floor, span and fall, in the kernels' units."""
    slope = 0.0
    lowest = 0.0
    span = 0.0
    fall = 0.0
    if SLOPED:
        slope = tl.load(SLOPE + h)
    if DECAYS:
        lowest = tl.load(DECAY + h * 3) * unit
        span = tl.load(DECAY + h * 3 + 1) * unit
        fall = tl.load(DECAY + h * 3 + 2) * LOG2E
    return slope, lowest, span, fall


@triton.jit
def walk(
    k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, low, full_low, full_high, high, key0, heads,
    rows, line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, FACTOR: tl.constexpr,
    DECAYS: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr, INCLINED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, IDS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All rows that see these keys: those that need a mask, those that need none, and those past a window's edge."""
    if CAUSAL or WINDOWED or IDS:
        dk, dv = stretch(
            k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, low, full_low, key0, heads, rows,
            line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed, SHARE, BM, BN, BD, BE, FACTOR,
            DECAYS, BIAS, SLOPED, INCLINED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, STAGES, True,
        )  # fmt: skip
    if not IDS:
        dk, dv = stretch(
            k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, full_low, full_high, key0, heads, rows,
            line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed, SHARE, BM, BN, BD, BE, FACTOR,
            DECAYS, BIAS, SLOPED, INCLINED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, STAGES, False,
        )  # fmt: skip
    if WINDOWED and not IDS:
        dk, dv = stretch(
            k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, full_high, high, key0, heads, rows,
            line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed, SHARE, BM, BN, BD, BE, FACTOR,
            DECAYS, BIAS, SLOPED, INCLINED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, STAGES, True,
        )  # fmt: skip
    return dk, dv


@triton.jit(
    do_not_specialize=["batch", "heads", "rows", "line_stride", "keys", "offset", "first", "window", "stride", "seed"]
)
def keys_kernel(
    Q, K, V, GRAD, DK, DV, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, K_IDS, RANGE, REACH,
    batch, heads, rows, line_stride, keys, offset, first, window, stride, unit, back, dropout, seed,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    FACTOR: tl.constexpr, DECAYS: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, IDS: tl.constexpr, SKIP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr, GENTLE: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(keys, BN)
    rank = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks  # the first keys meet the most rows
    groups = heads // SHARE
    if SKIP and SHARE == 1:
        g = tl.load(REACH + heads + rank // batch)
        b = rank % batch
    else:
        g = rank % groups
        b = rank // groups
    key0 = block * BN
    column = tl.arange(0, BN)
    k = load_tile(K, b, g, key0, BN, BD)
    v = load_tile(V, b, g, key0, BN, BE)
    dk = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BE], tl.float32)
    k_id = 0
    ids_low = 0
    ids_high = 0
    if IDS:
        k_id = tl.load(K_IDS + b * keys + key0 + column, mask=key0 + column < keys, other=-1)[:, None]
        ids_low = tl.load(RANGE + (b * blocks + block) * 2)
        ids_high = tl.load(RANGE + (b * blocks + block) * 2 + 1)
    reach = 0
    if SKIP:
        for member in tl.static_range(SHARE):
            reach = tl.maximum(reach, tl.load(REACH + g * SHARE + member))
    low, high, full_low, full_high = query_bounds(
        key0, offset, rows, window, reach, ids_low, ids_high, BN, BM, CAUSAL, WINDOWED, SKIP, IDS
    )
    if GENTLE > 0:
        slope = tl.load(SLOPE + g)
        if tl.abs(slope) * BN <= GENTLE:
            dk, dv = walk(
                k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, low, full_low, full_high, high,
                key0, heads, rows, line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed, SHARE,
                BM, BN, BD, BE, FACTOR, DECAYS, BIAS, SLOPED, False, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, STAGES,
            )  # fmt: skip
            weight = tl.exp2(slope * (BN // 2 - column).to(tl.float32))[:, None]
            dk = dk * weight
            dv = dv * weight
        else:
            dk, dv = walk(
                k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, low, full_low, full_high, high,
                key0, heads, rows, line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed, SHARE,
                BM, BN, BD, BE, FACTOR, DECAYS, BIAS, SLOPED, True, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, STAGES,
            )  # fmt: skip
    else:
        dk, dv = walk(
            k, v, Q, GRAD, LSE, DELTA, TABLE, SLOPE, DECAY, Q_IDS, dk, dv, b, g, low, full_low, full_high, high, key0,
            heads, rows, line_stride, keys, offset, first, window, stride, unit, k_id, dropout, seed, SHARE, BM, BN, BD,
            BE, FACTOR, DECAYS, BIAS, SLOPED, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, STAGES,
        )  # fmt: skip
    store_tile(DV, b, g, key0, dv.to(DV.dtype), BN, BE)
    store_tile(DK, b, g, key0, (dk * back).to(DK.dtype), BN, BD)
