"""The kernel for dense table gradients that adds nothing in memory: deterministic, and apart from the other kernels.

One program for a block diagonal of one head walks that diagonal over the whole batch. All its tiles share their distances,
so they add up in registers; the sums along diagonals are taken once, at the end, and stored plainly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused import tiling
from whence.attention.fused.diagonals import PAD, diagonal_places, diagonal_sums
from whence.attention.fused.packing import ceil_div, processors
from whence.attention.fused.scores import kept, load_tile, logits, seen

if TYPE_CHECKING:
    from whence.attention.fused.launch import Work


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
    place = diagonal_places(BM, BN)
    base = PARTS + ((split * heads + h).to(tl.int64) * tl.num_programs(0) + number) * 4 * BM
    if DENSE_FACTOR:
        upper, lower = diagonal_sums(tl.where(ok, by_factor, 0.0), BM, BN)
        tl.store(base + place, tl.sum(upper, 2))
        tl.store(base + BM + place, tl.sum(lower, 2))
    if DENSE_BIAS:
        upper, lower = diagonal_sums(tl.where(ok, by_bias, 0.0), BM, BN)
        tl.store(base + 2 * BM + place, tl.sum(upper, 2))
        tl.store(base + 3 * BM + place, tl.sum(lower, 2))


def tables(
    work: Work, grad: Tensor, lse: Tensor, delta: Tensor, reach: Tensor, dense: tuple[bool, bool], entries: int
) -> list[Tensor]:
    """The wanted dense gradients by block diagonals, with nothing added in memory."""
    s = work.settings
    tile = tiling.tables_tile(work.widest, work.q.element_size())
    # a block diagonal holds distances offset + between - keys_in_tile < d < offset + between + rows_in_tile
    lowest = (s.first - s.offset - tile.rows + 1) // tile.keys
    highest = (s.first + entries - 1 - s.offset + tile.keys - 1) // tile.keys
    lowest = max(lowest, -ceil_div(work.keys, tile.keys) + 1)
    highest = min(highest, ceil_div(work.rows, tile.keys))
    count = highest - lowest + 1
    if count < 1:  # nobody sees anybody
        return [lse.new_zeros(work.heads, entries) for _ in range(sum(dense))]
    splits = max(1, min(work.batch, ceil_div(4 * processors(work.q.device), count * work.heads)))
    parts = lse.new_zeros(splits, work.heads, count, 2, 2, tile.rows // tile.keys, tile.keys)
    q_ids, k_ids = (work.nothing, work.nothing) if work.texts is None else (work.texts.queries, work.texts.keys)
    flags = {name: value for name, value in work.flags.items() if name != "SLOPED"}
    tables_kernel[(count, work.heads, splits)](
        work.describe(work.q, tile.rows, work.wide), work.describe(work.k, tile.keys, work.wide),
        work.describe(work.v, tile.keys, work.value_wide), work.describe(grad, tile.rows, work.value_wide), lse,
        delta, work.table, parts, q_ids, k_ids, reach if reach.numel() else work.nothing, *work.counts,
        work.unit, s.dropout, s.seed, lowest, splits, BM=tile.rows, BN=tile.keys, SKIP=reach.numel() > 0, DENSE_FACTOR=dense[0], DENSE_BIAS=dense[1],
        RAGGED=work.keys % tile.keys != 0 or work.rows % tile.rows != 0 or tile.rows != tile.keys,
        STAGES=tile.stages, **flags, **tile.options,
    )  # fmt: skip
    summed = parts.sum(0)  # [H, diagonals, table, upper or lower, blocks, keys]
    blocks = tile.rows // tile.keys
    found: list[Tensor] = []
    for which in (which for which, wanted in enumerate(dense) if wanted):
        # entry (block c + b, t) of `upper` is distance offset + (lowest + c + b) * keys + t; `lower` one block less
        line = lse.new_zeros(work.heads, count + blocks, tile.keys)
        for b in range(blocks):
            line[:, b + 1 : b + 1 + count] += summed[:, :, which, 0, b]
            line[:, b : b + count] += summed[:, :, which, 1, b]
        start = s.first - (s.offset + (lowest - 1) * tile.keys)
        line = line.flatten(1)
        line = torch.nn.functional.pad(line, (max(0, -start), max(0, start + entries - line.shape[1])))
        found.append(line[:, max(0, start) : max(0, start) + entries])
    return found
