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

from whence.attention.fused.memory import MARGIN, ceil_div, power_of_two
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
def key_norm_kernel(K, NORMS, keys, groups, BN: tl.constexpr, BD: tl.constexpr):
    blocks = tl.cdiv(keys, BN)
    block = tl.program_id(0) % blocks
    rank = tl.program_id(0) // blocks
    k = load_tile(K, rank // groups, rank % groups, block * BN, BN, BD).to(tl.float32)
    tl.store(NORMS + rank * blocks + block, tl.sqrt(tl.max(endless(tl.sum(k * k, 1)), 0)))


@triton.jit
def query_bound_kernel(Q, K, NORMS, BOUNDS, rows, keys, heads, offset, sign, SHARE: tl.constexpr, BM: tl.constexpr,
                       BD: tl.constexpr, BNORMS: tl.constexpr):  # fmt: skip
    """Per block of rows: the largest of ``|q| * max|k| - sign * q.own_key`` and of ``|q| * max|k|``."""
    blocks = tl.cdiv(rows, BM)
    block = tl.program_id(0) % blocks
    rank = tl.program_id(0) // blocks
    b = rank // heads
    h = rank % heads
    g = h // SHARE
    norm_blocks = tl.cdiv(keys, BM)
    norms = NORMS + (b * (heads // SHARE) + g) * norm_blocks
    longest = 0.0
    for start in range(0, norm_blocks, BNORMS):
        at = start + tl.arange(0, BNORMS)
        longest = tl.maximum(longest, tl.max(tl.load(norms + at, mask=at < norm_blocks, other=0.0), 0))
    q = load_tile(Q, b, h, block * BM, BM, BD).to(tl.float32)
    own = load_tile(K, b, g, block * BM + offset, BM, BD).to(tl.float32)
    size = tl.sqrt(tl.sum(q * q, 1)) * longest
    inside = block * BM + tl.arange(0, BM) < rows
    above = endless(tl.where(inside, size - sign * tl.sum(q * own, 1), 0.0))
    tl.store(BOUNDS + (rank * blocks + block) * 2, tl.max(above, 0))
    tl.store(BOUNDS + (rank * blocks + block) * 2 + 1, tl.max(endless(tl.where(inside, size, 0.0)), 0))


@triton.jit(do_not_specialize=["batch", "heads", "blocks", "entries", "stride", "first"])
def reach_kernel(BOUNDS, TABLE, SLOPE, REACH, batch, heads, blocks, entries, stride, first, unit, spare,
                 FACTOR: tl.constexpr, SLOPED: tl.constexpr, BLOCK: tl.constexpr, PAD: tl.constexpr,
                 FARTHEST: tl.constexpr):  # fmt: skip
    """One head's reach from the bounds of all its rows, and from its slope or its table."""
    h = tl.program_id(0)
    above = 0.0
    size = 0.0
    for start in range(0, batch * blocks, BLOCK):
        at = start + tl.arange(0, BLOCK)
        own = BOUNDS + (((at // blocks) * heads + h) * blocks + at % blocks) * 2
        above = tl.maximum(above, tl.max(tl.load(own, mask=at < batch * blocks, other=0.0), 0))
        size = tl.maximum(size, tl.max(tl.load(own + 1, mask=at < batch * blocks, other=0.0), 0))
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


@triton.jit(do_not_specialize=["heads"])
def order_kernel(REACH, heads, BLOCK: tl.constexpr):
    """After the reaches the heads' numbers, those that look farthest first."""
    one = tl.arange(0, BLOCK)
    reach = tl.load(REACH + one, mask=one < heads, other=-1)
    other = tl.load(REACH + one, mask=one < heads, other=-1)
    before = (other[None, :] > reach[:, None]) | ((other[None, :] == reach[:, None]) & (one[None, :] < one[:, None]))
    tl.store(REACH + heads + tl.sum(before.to(tl.int32), 1), one, mask=one < heads)


def reach(
    q: Any, k: Any, shape: tuple[int, int, int, int, int], width: int, offset: int, unit: float,
    table: Tensor, slope: Tensor | None, factor: bool, entries: int, first: int,
) -> Tensor:  # fmt: skip
    """``[2, heads]`` whole numbers: the farthest distance each head needs, and the heads in the order of it.

    q and k are descriptors of ``[B, H, n, width]``; unit turns q.k into logits of log 2, in which table and slope are.
    All of it is four launches: what a host needs for them is what a short sequence's skipping has to win back.
    """
    batch, heads, groups, rows, keys = shape
    norm_blocks, blocks = ceil_div(keys, BLOCK), ceil_div(rows, BLOCK)
    norms = table.new_empty(batch * groups * norm_blocks, dtype=torch.float32)
    bounds = table.new_empty(batch * heads * blocks * 2, dtype=torch.float32)
    found = table.new_empty(2, heads, dtype=torch.int32)
    key_norm_kernel[(batch * groups * norm_blocks,)](k, norms, keys, groups, BLOCK, width)
    query_bound_kernel[(batch * heads * blocks,)](
        q, k, norms, bounds, rows, keys, heads, offset, math.copysign(1.0, unit), heads // groups, BLOCK, width, 256
    )
    spare = SPARE + math.log2(max(2, keys))
    reach_kernel[(heads,)](
        bounds, table, table if slope is None else slope, found, batch, heads, blocks, entries, entries + 2 * MARGIN,
        first, abs(unit) * LOOSER.value, spare, factor, slope is not None, 1024, MARGIN, FAR,
    )  # fmt: skip
    order_kernel[(1,)](found, heads, power_of_two(heads))
    return found
