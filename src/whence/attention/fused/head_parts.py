"""Tiles of head dimensions in one or two parts.

A tile of a kernel has a power of two of columns. A head dimension of 96 as 128 columns would cost a third more than it needs, so
its tiles have two parts, 64 and 32 columns, and each matrix product is two products. A tile in one part is a tensor, as for
every power of two; a tile in two parts is a tuple. ``BLOCK_D`` is the number of columns of all parts.

A kernel takes ``x`` and ``x_rest``, and passes the pair to these functions. With TMA, ``x_rest`` is the descriptor of the second
part, or None where there is none; pointers serve both parts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.tile_ops import load_tile, store_tile


@triton.constexpr_function
def first_part(columns: int) -> int:
    """The columns of the first part: the largest power of two."""
    return 1 << (columns.bit_length() - 1)


@triton.jit
def load_parts(x, b, h, start, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """See ``load_tile``."""
    FIRST: tl.constexpr = first_part(COLUMNS)
    first = load_tile(x[0], b, h, start, length, ROWS, FIRST)
    if FIRST == COLUMNS:
        return first
    elif isinstance(x[0], tl.core.tensor_descriptor_base):
        return first, load_tile(x[1], b, h, start, length, ROWS, COLUMNS - FIRST, FIRST)
    else:
        return first, load_tile(x[0], b, h, start, length, ROWS, COLUMNS - FIRST, FIRST)


@triton.jit
def store_parts(x, b, h, start, length, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """See ``store_tile``."""
    FIRST: tl.constexpr = first_part(COLUMNS)
    if FIRST == COLUMNS:
        store_tile(x[0], b, h, start, length, tile, ROWS, FIRST)
    else:
        store_tile(x[0], b, h, start, length, tile[0], ROWS, FIRST)
        if isinstance(x[0], tl.core.tensor_descriptor_base):
            store_tile(x[1], b, h, start, length, tile[1], ROWS, COLUMNS - FIRST, FIRST)
        else:
            store_tile(x[0], b, h, start, length, tile[1], ROWS, COLUMNS - FIRST, FIRST)


@triton.jit
def zero_parts(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of zeros, to accumulate in."""
    FIRST: tl.constexpr = first_part(COLUMNS)
    first = tl.zeros([ROWS, FIRST], tl.float32)
    if FIRST == COLUMNS:
        return first
    else:
        return first, tl.zeros([ROWS, COLUMNS - FIRST], tl.float32)


@triton.jit
def multiply_parts(tile, factor):
    if isinstance(tile, tl.tensor):
        return tile * factor
    else:
        return tile[0] * factor, tile[1] * factor


@triton.jit
def divide_parts(tile, divisor):
    if isinstance(tile, tl.tensor):
        return tile / divisor
    else:
        return tile[0] / divisor, tile[1] / divisor


@triton.jit
def dot_heads(x, y, INPUT_PRECISION: tl.constexpr):
    """The scores ``x @ y.T`` of two tiles."""
    if isinstance(x, tl.tensor):
        return tl.dot(x, tl.trans(y), input_precision=INPUT_PRECISION)
    else:
        scores = tl.dot(x[0], tl.trans(y[0]), input_precision=INPUT_PRECISION)
        return tl.dot(x[1], tl.trans(y[1]), scores, input_precision=INPUT_PRECISION)


@triton.jit
def dot_weights(weights, x, acc, INPUT_PRECISION: tl.constexpr):
    """``acc + weights @ x``, where the weights are rounded to the dtype of x."""
    if isinstance(x, tl.tensor):
        return tl.dot(weights.to(x.dtype), x, acc, input_precision=INPUT_PRECISION)
    else:
        first = tl.dot(weights.to(x[0].dtype), x[0], acc[0], input_precision=INPUT_PRECISION)
        return first, tl.dot(weights.to(x[1].dtype), x[1], acc[1], input_precision=INPUT_PRECISION)


@triton.jit
def dot_rows(x, y):
    """The product of each row of x with the same row of y."""
    if isinstance(x, tl.tensor):
        return tl.sum(x.to(tl.float32) * y.to(tl.float32), 1)
    else:
        first = tl.sum(x[0].to(tl.float32) * y[0].to(tl.float32), 1)
        return first + tl.sum(x[1].to(tl.float32) * y[1].to(tl.float32), 1)
