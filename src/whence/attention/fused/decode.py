"""Few queries against many keys: the keys are split over programs, each with the rows of a whole group of heads, and a
second kernel joins the parts. The work is reading keys and values once, at the speed of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused import tiling
from whence.attention.fused.diagonals import PAD, read_one, read_two
from whence.attention.fused.packing import ceil_div, line, power_of_two, processors
from whence.attention.fused.scores import kept, load_tile, seen

if TYPE_CHECKING:
    from whence.attention.fused.launch import Work

SPREAD = 2  # programs for each processor


@triton.jit(
    do_not_specialize=[
        "heads",
        "rows",
        "keys",
        "offset",
        "first",
        "window",
        "stride",
        "low",
        "high",
        "each",
        "splits",
        "seed",
    ]
)
def split_kernel(
    Q, K, V, PARTS, TOPS, TOTALS, TABLE, SLOPE, Q_IDS, K_IDS,
    heads, rows, keys, offset, first, window, stride, unit, q_b, q_h, q_t, head_dim, low, high, each, splits, dropout, seed,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    FACTOR: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    IDS: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) % splits
    rank = tl.program_id(0) // splits
    groups = heads // SHARE
    g = rank % groups
    b = rank // groups
    member = tl.arange(0, BM)
    # rows that are none weigh nothing; they read the last head's numbers, which are read anyway
    h = g * SHARE + tl.minimum(member // rows, SHARE - 1)
    row = member % rows
    inside = member < SHARE * rows
    wide = tl.arange(0, BD)
    at = Q + b.to(tl.int64) * q_b + h.to(tl.int64)[:, None] * q_h + row[:, None] * q_t + wide[None, :]
    q = tl.load(at, mask=inside[:, None] & (wide < head_dim)[None, :], other=0.0)
    WIDTH: tl.constexpr = 2 if FACTOR and BIAS else 1
    table = TABLE + ((h.to(tl.int64) * stride + PAD - first + offset + row) * WIDTH)[:, None]
    slope = tl.zeros([BM], tl.float32)
    if SLOPED:
        slope = tl.load(SLOPE + h, mask=inside, other=0.0)
    q_id = 0
    if IDS:
        q_id = tl.load(Q_IDS + b * rows + row)[:, None]
    acc = tl.zeros([BM, BE], tl.float32)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    begin = low + split * each
    for key0 in tl.range(begin, tl.minimum(high, begin + each), BN, num_stages=STAGES):
        key = key0 + tl.arange(0, BN)
        # asked for before the keys are waited for; a block overhangs the table by less than its margin
        score_scale = 1.0
        bias = 0.0
        if FACTOR and BIAS:
            score_scale, bias = read_two(table - key[None, :] * 2)
        elif FACTOR:
            score_scale = read_one(table - key[None, :])
        elif BIAS:
            bias = read_one(table - key[None, :])
        k = load_tile(K, b, g, key0, BN, BD)
        qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        distance = offset + row[:, None] - key[None, :]
        k_id = 0
        if IDS:
            k_id = tl.load(K_IDS + b * keys + key, mask=key < keys, other=-1)[None, :]
        ok = seen(distance, key[None, :], keys, window, q_id, k_id, CAUSAL, WINDOWED, IDS) & inside[:, None]
        if FACTOR:
            z = qk * score_scale
        else:
            z = qk * unit
        if BIAS:
            z += bias
        if SLOPED:
            z += slope[:, None] * distance.to(tl.float32)
        z = tl.where(ok, z, -float("inf"))
        higher = tl.maximum(top, tl.max(z, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        p = tl.exp2(z - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if DROPOUT:
            p = p * kept(seed, (b * heads + h)[:, None], row[:, None], key[None, :], rows, keys, dropout)
        v = load_tile(V, b, g, key0, BN, BE)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
        top = higher
    # parts lie by row, then split: [B, H, rows, splits, ...]
    place = ((b * heads + h).to(tl.int64) * rows + row) * splits + split
    tl.store(TOPS + place, top, mask=inside)
    tl.store(TOTALS + place, total, mask=inside)
    e = tl.arange(0, BE)
    tl.store(PARTS + place[:, None] * BE + e[None, :], acc, mask=inside[:, None])


@triton.jit
def join_kernel(
    PARTS, TOPS, TOTALS, SINK, OUT, LSE, heads, rows, line_stride, splits, sink_unit, sink_b, sink_h, sink_t, o_b, o_h, o_t, head_dim,
    SINKED: tl.constexpr, BS: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64)
    row = place % rows
    h = place // rows % heads
    b = place // rows // heads
    split = tl.arange(0, BS)
    e = tl.arange(0, BE)
    there = split < splits
    tops = tl.load(TOPS + place * splits + split, mask=there, other=-float("inf"))
    totals = tl.load(TOTALS + place * splits + split, mask=there, other=0.0)
    top = tl.max(tops, 0)
    sink = -float("inf")
    if SINKED:
        sink = tl.load(SINK + b * sink_b + h * sink_h + row * sink_t).to(tl.float32) * sink_unit
        top = tl.maximum(top, sink)
    base = tl.where(top == -float("inf"), 0.0, top)
    weight = tl.exp2(tops - base)
    total = tl.sum(totals * weight, 0)
    if SINKED:
        total += tl.exp2(sink - base)
    parts = tl.load(PARTS + (place * splits + split)[:, None] * BE + e[None, :], mask=there[:, None], other=0.0)
    empty = total == 0.0
    out = tl.sum(parts * weight[:, None], 0) / tl.where(empty, 1.0, total)
    tl.store(OUT + b * o_b + h * o_h + row * o_t + e, out.to(OUT.dtype.element_ty), mask=e < head_dim)
    tl.store(LSE + place // rows * line_stride + row, tl.where(empty, float("inf"), top + tl.log2(total)))


def decode(work: Work, out: Tensor, lse: Tensor) -> None:
    """Fill the output and the normalisers of a call with few queries."""
    e, s = work.effects, work.settings
    members = max(16, power_of_two(work.rows * work.share))
    tile = tiling.decode_tile(members, work.widest, work.q.element_size())
    low, high = 0, work.keys
    if s.causal:
        high = max(0, min(high, s.offset + work.rows))
    if s.window is not None:
        low = max(0, s.offset - s.window + 1)
        high = min(high, max(0, s.offset + work.rows - 1 + s.window))
    if low >= high:  # nobody sees anybody, and blocks are rounded: not even one may be read
        low = high = 0
    low = low // tile.keys * tile.keys
    blocks = max(1, ceil_div(high - low, tile.keys))
    wanted = max(1, ceil_div(processors(work.q.device) * SPREAD, work.batch * work.groups))
    each = ceil_div(blocks, min(wanted, blocks, 256)) * tile.keys
    splits = ceil_div(blocks * tile.keys, each)
    parts = lse.new_empty(work.batch, work.heads, work.rows, splits, work.value_wide)
    tops, totals = (lse.new_empty(work.batch, work.heads, work.rows, splits) for _ in range(2))
    q_ids, k_ids = (work.nothing, work.nothing) if work.texts is None else (work.texts.queries, work.texts.keys)
    split_kernel[(work.batch * work.groups * splits,)](
        work.q, work.describe(work.k, tile.keys, work.wide), work.describe(work.v, tile.keys, work.value_wide),
        parts, tops, totals, work.table, work.slope, q_ids, k_ids, work.heads, work.rows, work.keys, s.offset, s.first,
        s.window or 0, work.stride, work.unit, *work.q.stride()[:3], work.head_dim, low, high, each, splits, s.dropout, s.seed,
        BM=members, BN=tile.keys, STAGES=tile.stages, **work.flags, **tile.options,
    )  # fmt: skip
    sink = work.nothing.expand(1, 1, 1) if e.sink is None else e.sink
    join_kernel[(work.batch * work.heads * work.rows,)](
        parts, tops, totals, sink, out, lse, work.heads, work.rows, line(work.rows), splits, work.bias_unit, *sink.stride(),
        *out.stride()[:3], work.value_dim, SINKED=e.sink is not None, BS=max(2, power_of_two(splits)),
        BE=work.value_wide,
    )  # fmt: skip
