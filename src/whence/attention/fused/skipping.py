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

from whence.attention.fused.scores import load_tile

SPARE = 24  # bits: what is left out weighs less than float32's last digit of the row
BLOCK = 64
FAR = 2**30


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


def reach(
    q: Any, k: Any, shape: tuple[int, int, int, int, int], width: int, offset: int, unit: float,
    factor: Tensor | None, bias: Tensor | None, slope: Tensor | None, first: int, device: torch.device,
) -> Tensor:  # fmt: skip
    """``[heads]`` whole numbers: the farthest distance each head needs.

    q and k are descriptors of ``[B, H, n, width]``; unit turns q.k into logits of log 2, in which bias and slope are.
    """
    batch, heads, groups, rows, keys = shape
    norm_blocks, blocks = triton.cdiv(keys, BLOCK), triton.cdiv(rows, BLOCK)
    norms = torch.empty(batch, groups, norm_blocks, device=device)
    bounds = torch.empty(batch, heads, blocks, 2, device=device)
    key_norm_kernel[(batch * groups * norm_blocks,)](k, norms, keys, groups, BLOCK, width)
    query_bound_kernel[(batch * heads * blocks,)](
        q, k, norms, bounds, rows, keys, heads, offset, math.copysign(1.0, unit), heads // groups, BLOCK, width, 256
    )
    above, size = (bounds.amax((0, 2)) * (abs(unit) * 1.001)).unbind(-1)  # a thousandth for the rounding of the norms
    spare = SPARE + math.log2(max(2, keys))
    if slope is not None:
        far = ((above + spare) / (-slope).clamp(min=1e-30)).ceil()
        return torch.where((slope < 0) & (far < FAR), far, FAR).to(torch.int32)
    assert bias is not None
    own = bias[:, -first : 1 - first]  # the table's entry for distance 0
    limit = bias - own + above[:, None]
    if factor is not None:
        strength = factor.abs()
        limit = bias - own + 2 * size[:, None] * torch.maximum(strength, strength[:, -first : 1 - first])
    # written so that a NaN is within reach
    needed = torch.where(limit <= -spare, 0, torch.arange(limit.shape[1], device=device) + first)
    return needed.amax(-1).to(torch.int32)
