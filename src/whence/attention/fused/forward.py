"""The forward kernel: one program for a block of query rows of one head, keys in blocks, a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import PAD
from whence.attention.fused.scores import kept, key_bounds, load_tile, logits, seen, store_tile


@triton.jit
def forward_step(
    q, K, V, K_IDS, acc, total, top, b, g, pair, row0, key0, offset, rows, keys, window, table, unit, slope, q_id,
    dropout, seed,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, FACTOR: tl.constexpr, BIAS: tl.constexpr,
    SLOPED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, IDS: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    key0 = tl.multiple_of(key0, BN)
    start = offset + row0 - key0
    column = tl.arange(0, BN)
    k = load_tile(K, b, g, key0, BN, BD)
    qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    incline = 0.0
    rise = 0.0
    if SLOPED:  # what all keys of the tile share is one number, added to the rows' maxima and not to every score
        rise = slope * start.to(tl.float32)
        incline = (slope * (0 - column).to(tl.float32))[None, :]
    WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
    z, _ = logits(qk, table + start * WIDTH, unit, incline, BM, BN, 1, FACTOR, BIAS, SLOPED)
    if MASKED:
        row = tl.arange(0, BM)
        k_id = 0
        if IDS:
            k_id = tl.load(K_IDS + b * keys + key0 + column, mask=key0 + column < keys, other=-1)[None, :]
        distance = start + row[:, None] - column[None, :]
        ok = seen(distance, (key0 + column)[None, :], keys, window, q_id, k_id, CAUSAL, WINDOWED, IDS)
        z = tl.where(ok, z, -float("inf"))
    higher = tl.maximum(top, tl.max(z, 1) + rise)
    base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen yet: any base does
    p = tl.exp2(z - (base - rise)[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(p, 1)
    acc = acc * shrink[:, None]
    if DROPOUT:
        row = row0 + tl.arange(0, BM)
        p = p * kept(seed, pair, row[:, None], (key0 + column)[None, :], rows, keys, dropout)
    v = load_tile(V, b, g, key0, BN, BE)
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, higher


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
        "sink_b",
        "sink_h",
        "sink_t",
        "seed",
    ]
)
def forward_kernel(
    Q, K, V, OUT, LSE, TABLE, SLOPE, SINK, Q_IDS, K_IDS, RANGE, REACH,
    batch, heads, rows, line_stride, keys, offset, first, window, stride, unit, sink_unit, sink_b, sink_h, sink_t, dropout, seed,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    FACTOR: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr, SINKED: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr, IDS: tl.constexpr, SKIP: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(rows, BM)
    rank = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks  # the longest rows first
    if SKIP:
        h = tl.load(REACH + heads + rank // batch)  # the widest reach first
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
    acc = tl.zeros([BM, BE], tl.float32)
    WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
    table = TABLE + (h.to(tl.int64) * stride + PAD - first) * WIDTH
    slope = 0.0
    if SLOPED:
        slope = tl.load(SLOPE + h)
    if SINKED:
        at = SINK + b.to(tl.int64) * sink_b + h * sink_h + (row0 + row) * sink_t
        top = tl.load(at, mask=inside, other=0.0).to(tl.float32) * sink_unit
        if SLOPED:
            top = top - slope * row.to(tl.float32)
        total = tl.where(top == -float("inf"), 0.0, 1.0)
    else:
        top = tl.full([BM], -float("inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
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
            acc, total, top = forward_step(
                q, K, V, K_IDS, acc, total, top, b, g, pair, row0, key0, offset, rows, keys, window, table, unit,
                slope, q_id, dropout, seed, BM, BN, BD, BE, FACTOR, BIAS, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT,
                PRECISION, True,
            )  # fmt: skip
    if not IDS:
        for key0 in tl.range(full_low, full_high, BN, num_stages=STAGES):
            acc, total, top = forward_step(
                q, K, V, K_IDS, acc, total, top, b, g, pair, row0, key0, offset, rows, keys, window, table, unit,
                slope, q_id, dropout, seed, BM, BN, BD, BE, FACTOR, BIAS, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT,
                PRECISION, False,
            )  # fmt: skip
    else:
        full_high = low
    for key0 in tl.range(full_high, high, BN, num_stages=STAGES):
        acc, total, top = forward_step(
            q, K, V, K_IDS, acc, total, top, b, g, pair, row0, key0, offset, rows, keys, window, table, unit, slope,
            q_id, dropout, seed, BM, BN, BD, BE, FACTOR, BIAS, SLOPED, CAUSAL, WINDOWED, IDS, DROPOUT, PRECISION, True,
        )  # fmt: skip
    empty = total == 0.0
    lse = top + tl.log2(total)
    if SLOPED:
        lse = lse + slope * row.to(tl.float32)
    # a row that sees nothing, or is none, weighs nothing in the backward pass; the line is long enough for every block
    tl.store(LSE + pair * line_stride + row0 + row, tl.where(empty | ~inside, float("inf"), lse))
    out = acc / tl.where(empty, 1.0, total)[:, None]
    store_tile(OUT, b, h, row0, out.to(OUT.dtype), BM, BE)
