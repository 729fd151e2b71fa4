"""The kernel for dense table gradients that adds nothing in memory: deterministic, and apart from the other kernels.

One program for a block diagonal of one head walks that diagonal over the whole batch. All its tiles share their distances,
so they add up in registers; the sums along diagonals are taken once, at the end, and stored plainly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import PAD, diagonal_sums
from whence.attention.fused.scores import kept, load_tile, logits, seen


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
        "seed",
        "first_diagonal",
        "splits",
    ]
)
def tables_kernel(
    Q, K, V, GRAD, LSE, DELTA, TABLE, PARTS, Q_IDS, K_IDS, REACH,
    batch, heads, rows, line_stride, keys, offset, first, window, stride, unit, dropout, seed, first_diagonal, splits,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    FACTOR: tl.constexpr, BIAS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, IDS: tl.constexpr,
    SKIP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, DENSE_FACTOR: tl.constexpr,
    DENSE_BIAS: tl.constexpr, RAGGED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2)
    g = h // SHARE
    between = (first_diagonal + number) * BN  # first row less first key, of every tile
    row = tl.arange(0, BM)
    column = tl.arange(0, BN)
    WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
    table = TABLE + (h.to(tl.int64) * stride + PAD - first + offset + between) * WIDTH
    low = tl.cdiv(tl.maximum(between, 0), BM)
    high = tl.minimum(tl.cdiv(rows, BM), tl.cdiv(tl.maximum(keys + between, 0), BM))
    count = tl.maximum(high - low, 0)
    if SKIP:
        count = tl.where(offset + between - BN > tl.load(REACH + h), 0, count)
    each = tl.cdiv(count * batch, splits)
    distance = offset + between + row[:, None] - column[None, :]
    by_factor = tl.zeros([BM, BN], tl.float32)
    by_bias = tl.zeros([BM, BN], tl.float32)
    for step in tl.range(split * each, tl.minimum(count * batch, (split + 1) * each), num_stages=STAGES):
        b = step // count
        row0 = (low + step % count) * BM
        key0 = row0 - between
        pair = (b * heads + h).to(tl.int64)
        q = load_tile(Q, b, h, row0, BM, BD)
        k = load_tile(K, b, g, key0, BN, BD)
        qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        grad = load_tile(GRAD, b, h, row0, BM, BE)
        v = load_tile(V, b, g, key0, BN, BE)
        dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        lse = tl.load(LSE + pair * line_stride + row0 + row)
        delta = tl.load(DELTA + pair * line_stride + row0 + row)
        z, _ = logits(qk, table, unit, 0.0, BM, BN, 1, FACTOR, BIAS, False)
        p = tl.exp2(z - lse[:, None])
        if RAGGED or IDS:
            q_id = 0
            k_id = 0
            if IDS:
                q_id = tl.load(Q_IDS + b * rows + row0 + row, mask=row0 + row < rows, other=0)[:, None]
                k_id = tl.load(K_IDS + b * keys + key0 + column, mask=key0 + column < keys, other=-1)[None, :]
            p = tl.where(seen(distance, (key0 + column)[None, :], keys, window, q_id, k_id, False, False, IDS), p, 0.0)
        if DROPOUT:
            dp = dp * kept(seed, pair, (row0 + row)[:, None], (key0 + column)[None, :], rows, keys, dropout)
        dz = p * (dp - delta[:, None])
        if DENSE_FACTOR:
            by_factor += dz * qk
        if DENSE_BIAS:
            by_bias += dz
    # distances that nobody sees may hold anything, up to infinity: they go before the sums
    ok = seen(distance, 0, 1, window, 0, 0, CAUSAL, WINDOWED, False)
    place = tl.arange(0, BM // BN)[:, None] * BN + column[None, :]
    base = PARTS + ((split * heads + h).to(tl.int64) * tl.num_programs(0) + number) * 4 * BM
    if DENSE_FACTOR:
        upper, lower = diagonal_sums(tl.where(ok, by_factor, 0.0), BM, BN)
        tl.store(base + place, upper)
        tl.store(base + BM + place, lower)
    if DENSE_BIAS:
        upper, lower = diagonal_sums(tl.where(ok, by_bias, 0.0), BM, BN)
        tl.store(base + 2 * BM + place, upper)
        tl.store(base + 3 * BM + place, lower)
