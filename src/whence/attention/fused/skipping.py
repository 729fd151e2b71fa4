"""How far each head needs to look: a distance beyond which no key can change the result.

A row's own key gives it a logit it surely has. A key at distance d has at most ``|q| * max|k| * |factor(d)| + bias(d)``.
Where that lies so far below the row's own logit that all keys together weigh under ``2 ** -SPARE`` of the row, the
distance is out of reach. The bound holds for every row of every sequence, so one number a head is enough.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused.packing import MARGIN, ceil_div, power_of_two
from whence.attention.fused.scores import load_tile

SPARE = 24  # bits: what is left out weighs less than float32's last digit of the row
BLOCK = 64
FAR = 2**30
LOOSER = tl.constexpr(1.001)  # a thousandth for the rounding of the norms


@triton.jit
def endless(x):
    """NaN as infinity: a maximum would lose it, and nothing may be left out beside it."""
    return tl.where(x != x, float("inf"), x)


@triton.jit
def lengths_kernel(Q, K, LONGEST, SIZES, OWN, rows, keys, heads, SHARE: tl.constexpr, BLOCK: tl.constexpr,
                   BD: tl.constexpr, offset):  # fmt: skip
    """Of a block of rows: each query's length and its product with its own key; and the longest key of some blocks."""
    blocks = tl.cdiv(rows, BLOCK)
    block = tl.program_id(0) % blocks
    rank = tl.program_id(0) // blocks
    b = rank // heads
    h = rank % heads
    g = h // SHARE
    row = block * BLOCK + tl.arange(0, BLOCK)
    q = load_tile(Q, b, h, block * BLOCK, BLOCK, BD).to(tl.float32)
    own = load_tile(K, b, g, block * BLOCK + offset, BLOCK, BD).to(tl.float32)
    place = rank.to(tl.int64) * rows + row
    tl.store(SIZES + place, tl.sqrt(tl.sum(q * q, 1)), mask=row < rows)
    tl.store(OWN + place, tl.sum(q * own, 1), mask=row < rows)
    if h % SHARE == 0:
        key_blocks = tl.cdiv(keys, BLOCK)
        for part in range(block, key_blocks, blocks):
            k = load_tile(K, b, g, part * BLOCK, BLOCK, BD).to(tl.float32)
            # the largest of all is the same in whatever order the blocks come
            tl.atomic_max(LONGEST + b * (heads // SHARE) + g, tl.sqrt(tl.max(endless(tl.sum(k * k, 1)), 0)))


@triton.jit(do_not_specialize=["batch", "heads", "rows", "entries", "stride", "first"])
def reach_kernel(LONGEST, SIZES, OWN, TABLE, SLOPE, REACH, batch, heads, rows, entries, stride, first, sign,
                 unit, spare, SHARE: tl.constexpr, FACTOR: tl.constexpr, SLOPED: tl.constexpr, BLOCK: tl.constexpr,
                 HEADS: tl.constexpr, PAD: tl.constexpr, FARTHEST: tl.constexpr):  # fmt: skip
    """One head's reach, from all its rows and from its slope or its table; the last program puts the heads in order."""
    h = tl.program_id(0)
    above = 0.0  # the largest of |q| * max|k| - sign * q.own_key, and of |q| * max|k|
    size = 0.0
    for start in range(0, batch * rows, BLOCK):  # sequences one after the other: short ones share a step
        at = start + tl.arange(0, BLOCK)
        there = at < batch * rows
        b = at // rows
        place = (b * heads + h).to(tl.int64) * rows + at % rows
        longest = tl.load(LONGEST + b * (heads // SHARE) + h // SHARE, mask=there, other=0.0)
        most = tl.load(SIZES + place, mask=there, other=0.0) * longest
        own = tl.load(OWN + place, mask=there, other=0.0)
        above = tl.maximum(above, tl.max(endless(most - sign * own), 0))
        size = tl.maximum(size, tl.max(endless(most), 0))
    above = above * unit
    if SLOPED:
        slope = tl.load(SLOPE + h)
        far = tl.ceil((above + spare) / tl.maximum(-slope, 1e-30))
        needed = tl.where((slope < 0) & (far < FARTHEST), far, FARTHEST).to(tl.int32)
    else:
        WIDTH: tl.constexpr = 2 if FACTOR else 1
        table = TABLE + (h.to(tl.int64) * stride + PAD) * WIDTH
        zero = table - first * WIDTH  # the table's entry for distance 0
        own_bias = tl.load(zero + WIDTH - 1)
        own_strength = endless(tl.abs(tl.load(zero)))
        needed = 0
        for start in range(0, entries, BLOCK):
            at = start + tl.arange(0, BLOCK)
            limit = tl.load(table + at * WIDTH + WIDTH - 1, mask=at < entries, other=0.0) - own_bias
            if FACTOR:  # in the table the unit is in it
                strength = endless(tl.abs(tl.load(table + at * WIDTH, mask=at < entries, other=0.0)))
                limit += 2 * size * LOOSER * tl.maximum(strength, own_strength)
            else:
                limit += above
            out_of_reach = (limit <= -spare) | (at >= entries)  # a NaN is within reach
            needed = tl.maximum(needed, tl.max(tl.where(out_of_reach, 0, at + first), 0))
    tl.store(REACH + h, needed)
    if tl.atomic_add(REACH + 2 * heads, 1) == heads - 1:
        one = tl.arange(0, HEADS)
        reach = tl.load(REACH + one, mask=one < heads, other=-1, volatile=True)
        other = tl.load(REACH + one, mask=one < heads, other=-1, volatile=True)
        farther = (other[None, :] > reach[:, None]) | (
            (other[None, :] == reach[:, None]) & (one[None, :] < one[:, None])
        )
        tl.store(REACH + heads + tl.sum(farther.to(tl.int32), 1), one, mask=one < heads)


def reach(
    q: Any, k: Any, shape: tuple[int, int, int, int, int], head_dim: int, offset: int, unit: float,
    table: Tensor, slope: Tensor | None, score_scale: bool, entries: int, first: int,
) -> Tensor:  # fmt: skip
    """Whole numbers, ``[2 * heads + 1]``: the farthest distance each head needs, the heads in the order of it, a counter.

    q and k are descriptors of ``[B, H, n, width]``; unit turns q.k into logits of log 2, in which table and slope are.
    All of it is two launches: what a host needs for them is what a short sequence's skipping has to win back.
    """
    batch, heads, groups, rows, keys = shape
    blocks = ceil_div(rows, BLOCK)
    longest = table.new_zeros(batch * groups, dtype=torch.float32)
    sizes, own = table.new_empty(2, batch * heads * rows, dtype=torch.float32)
    found = table.new_zeros(2 * heads + 1, dtype=torch.int32)
    lengths_kernel[(batch * heads * blocks,)](
        q, k, longest, sizes, own, rows, keys, heads, heads // groups, BLOCK, head_dim, offset
    )
    reach_kernel[(heads,)](
        longest, sizes, own, table, table if slope is None else slope, found, batch, heads, rows, entries,
        entries + 2 * MARGIN, first, math.copysign(1.0, unit), abs(unit) * LOOSER.value,
        SPARE + math.log2(max(2, keys)), heads // groups, score_scale, slope is not None, 4096, power_of_two(heads), MARGIN,
        FAR, num_warps=8,
    )  # fmt: skip
    return found
