"""The bias ``C_i - C_j`` of a clock inside a tile, from two vectors of running sums.

The sums grow with the length and the bias of near tokens is small, so sums in float32 would lose its digits. Each sum is
stored as two float32 numbers, ``base + rest``. Differences of bases are exact where the tokens are near (they are within a
factor of two of each other), and the rests are small. Keys are stored with the opposite sign, so that kernels add.

* EXACT: every token has its own base, and ``(base_i + base_j) + (rest_i + rest_j)`` is computed for every pair: float32
  precision. For float32 inputs, and where a row's logits may be far from 0: beside a bias table, and without causality.
  None of these has a slope.
* BY_BLOCK: the tokens of a block share the base of its first one. The difference of bases is one number per tile, the rest of
  the query one per row, and only the rest of the key is added to the logits: as cheap as a slope. The rests grow with the
  steps of one block, never with the length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused.diagonals import load_f32, load_f32x2
from whence.attention.fused.packing import padded_length

CLOCK_BLOCK = 128  # every tile lies within a block
BY_BLOCK, EXACT = tl.constexpr(1), tl.constexpr(2)  # values of the compile-time argument CLOCK; 0 for no clock


def split_clock(sums: Tensor, scale: float, clock: int, launch: Callable[..., None], signs: int = 1) -> Tensor:
    """Bases and rests of scaled running sums ``[B, H, n]`` in float64: float32 ``[signs, B, H, 2, padded_length(n)]``.

    With two signs, the second half is the first with the opposite sign. ``launch``: see ``DeviceCall.launch``.
    """
    batch, heads, n = sums.shape
    split = torch.empty(signs, batch, heads, 2, padded_length(n), dtype=torch.float32, device=sums.device)
    blocks = split.shape[4] // CLOCK_BLOCK
    strides, constants = sums.stride(), {"CLOCK": clock, "BLOCK": CLOCK_BLOCK, "SIGNS": signs}
    arguments = (sums, split, batch, heads, n, blocks, *strides, scale)
    launch(split_clock_kernel, batch * heads * blocks, arguments, constants, variant=(strides, sums.data_ptr() % 16))
    return split


@triton.jit(do_not_specialize=["batch", "heads", "n", "blocks"])
def split_clock_kernel(
    SUMS, SPLIT, batch, heads, n, blocks, sums_b, sums_h, sums_t, scale,
    CLOCK: tl.constexpr, BLOCK: tl.constexpr, SIGNS: tl.constexpr,
):  # fmt: skip
    """One block of tokens of one head. Tokens of padding repeat the last one."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK
    tokens = start + tl.arange(0, BLOCK)
    sums = SUMS + row // heads * sums_b + row % heads * sums_h
    values = tl.load(sums + tl.minimum(tokens, n - 1) * sums_t) * scale
    base = values.to(tl.float32)
    if CLOCK == BY_BLOCK:
        first = tl.load(sums + start * sums_t) * scale
        base = tl.zeros([BLOCK], tl.float32) + first.to(tl.float32)
    pointers = SPLIT + row * 2 * blocks * BLOCK + tokens
    rest = (values - base.to(tl.float64)).to(tl.float32)
    tl.store(pointers, base)
    tl.store(pointers + blocks * BLOCK, rest)
    if SIGNS == 2:
        pointers += (batch * heads).to(tl.int64) * (2 * blocks * BLOCK)
        tl.store(pointers, 0.0 - base)
        tl.store(pointers + blocks * BLOCK, 0.0 - rest)


@triton.jit
def load_clock(X, row, stride, start, TOKENS: tl.constexpr, CLOCK: tl.constexpr, ACROSS: tl.constexpr = False):
    """Base and rest of tokens from start, ``[TOKENS]`` each; BY_BLOCK, the base is one number. Without a clock, 0.

    ``row`` counts sequences and heads, ``stride`` is the padded number of tokens. Kernels load ahead: beyond the tokens, the last
    tile is loaded, and an empty range of tiles may begin inside a tile, where pairs would be misaligned, so that tile is loaded.
    ACROSS: the tokens are columns of a tile.
    """
    base = 0.0
    rest = 0.0
    if CLOCK > 0:
        start = tl.minimum(start, stride - TOKENS) // TOKENS * TOKENS
        first = X + row * 2 * stride + start
        rest = load_numbers(first + stride, TOKENS, ACROSS)
        if CLOCK == BY_BLOCK:
            base = load_base(X, row, stride, start)
        else:
            base = load_numbers(first, TOKENS, ACROSS)
    return base, rest


@triton.jit
def load_numbers(first, TOKENS: tl.constexpr, ACROSS: tl.constexpr):
    """Numbers of some tokens in the register layout of a tile, see ``diagonals``: a thread has pairs of columns, and single rows.

    Triton would copy these few numbers through shared memory, with a barrier in every tile.
    """
    tokens = (tl.arange(0, TOKENS // 8) * 8)[:, None]
    if ACROSS:
        even, odd = load_f32x2((first + tl.arange(0, 4)[None, :] * 2) + tokens)
        return tl.reshape(tl.join(even, odd), [TOKENS])
    else:
        return tl.reshape(load_f32((first + tl.arange(0, 8)[None, :]) + tokens), [TOKENS])


@triton.jit
def load_base(X, row, stride, start):
    """The base of the block of tokens from start; BY_BLOCK."""
    return load_f32(X + row * 2 * stride + tl.minimum(start, stride - 1))


@triton.jit
def clock_tile(row_base, row_rest, column_base, column_rest):
    """The bias of every pair; ``[rows, 1]`` for rows, ``[1, columns]`` for columns."""
    return (row_base + column_base) + (row_rest + column_rest)


@triton.jit
def clock_stride(length):
    """``padded_length`` inside a kernel."""
    return tl.cdiv(length, 128) * 128
