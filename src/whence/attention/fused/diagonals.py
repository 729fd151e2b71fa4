"""Toeplitz loads and sums: load a distance table along the diagonals of a tile, and sum a tile along its diagonals.

A tile of scores ``[rows, columns]`` needs the table at ``row - column``, which is constant along a diagonal. The tile
is viewed as ``[rows / 16, 2, 8, columns / 8, 8]``, the register layout of a tensor core accumulator (wgmma): the first,
third and fifth axes select the thread, the second and fourth count the registers of one thread. Pointers are the sum of
a part that depends on the thread and a part that depends on the register alone. The compiler turns the second part into
immediate offsets and loads each diagonal of a thread once. Results are correct for any layout; only the speed depends
on it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused import packing

# inline assembly of NVIDIA keeps Triton from pipelining the table loads through shared memory; the interpreter cannot run it
PLAIN_LOADS = tl.constexpr(bool(triton.knobs.runtime.interpret) or packing.IS_AMD)
TABLE_PADDING = tl.constexpr(packing.TABLE_PADDING)


@triton.jit
def load_f32(pointer):
    if PLAIN_LOADS:
        return tl.load(pointer)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [pointer.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def load_f32x2(pointer):
    if PLAIN_LOADS:
        return tl.load(pointer), tl.load(pointer + 1)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [pointer.to(tl.int64)],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def load_f32x4(pointer):
    if PLAIN_LOADS:
        return tl.load(pointer), tl.load(pointer + 1), tl.load(pointer + 2), tl.load(pointer + 3)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [pointer.to(tl.int64)],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def thread_offsets(ROWS: tl.constexpr):
    """The part of ``row - column`` that depends on the thread: ``[ROWS / 16, 1, 8, 1, 8]``."""
    group = tl.arange(0, ROWS // 16) * 16
    inner = tl.arange(0, 8)
    across = inner[None, None, :, None, None] - inner[None, None, None, None, :]
    return group[:, None, None, None, None] + across


@triton.jit
def register_offsets(COLUMNS: tl.constexpr):
    """The part of ``row - column`` that depends on the register: ``[1, 2, 1, COLUMNS / 8, 1]``."""
    half = tl.arange(0, 2) * 8
    block = tl.arange(0, COLUMNS // 8) * 8
    return half[None, :, None, None, None] - block[None, None, None, :, None]


@triton.jit
def diagonal_pointers(base, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr, TABLE_WIDTH: tl.constexpr):
    """Pointers to ``base + SIGN * (row - column) * TABLE_WIDTH`` in the five-axis view."""
    thread = thread_offsets(ROWS) * TABLE_WIDTH
    register = register_offsets(COLUMNS) * TABLE_WIDTH
    if SIGN > 0:
        return (base + thread) + register
    else:
        return (base + (0 - thread)) + (0 - register)


@triton.jit
def load_table_tiles(
    base,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Tiles ``[ROWS, COLUMNS]`` of the score scale and the bias; if the table holds only one, that one twice."""
    if HAS_SCORE_SCALE and HAS_BIAS:
        scale, bias = load_f32x2(diagonal_pointers(base, ROWS, COLUMNS, SIGN, 2))
        return tl.reshape(scale, [ROWS, COLUMNS]), tl.reshape(bias, [ROWS, COLUMNS])
    else:
        tile = tl.reshape(load_f32(diagonal_pointers(base, ROWS, COLUMNS, SIGN, 1)), [ROWS, COLUMNS])
        return tile, tile


@triton.jit
def sum_registers(x):
    """Sum a five-axis tile over the registers of each thread: ``[rows / 16, 8, 8]``, without communication."""
    return tl.sum(tl.sum(x, 3), 1)


@triton.jit
def zero_row_sums(ROWS: tl.constexpr):
    """Sums of rows before the first tile, for ``add_row_sums``."""
    return tl.zeros([ROWS // 16, 2, 8, 8], tl.float32)


@triton.jit
def add_row_sums(tile, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add a tile's columns to the sums of its rows, within threads; ``finish_row_sums`` adds up the threads."""
    return total + tl.sum(tl.reshape(tile, [ROWS // 16, 2, 8, COLUMNS // 8, 8]), 3)


@triton.jit
def finish_row_sums(total, ROWS: tl.constexpr):
    return tl.sum(tl.reshape(total, [ROWS, 8]), 1)


@triton.jit
def add_distance_weighted_sum(tile, distance0, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add ``tile * (distance0 + row - column)``, summed within threads."""
    five = tl.reshape(tile, [ROWS // 16, 2, 8, COLUMNS // 8, 8])
    distance = (thread_offsets(ROWS) + distance0).to(tl.float32) + register_offsets(COLUMNS).to(tl.float32)
    return total + sum_registers(five * distance)


@triton.jit
def contract_derivatives(
    scale_grad, bias_grad, base, g0, g1, g2, g3,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, NUM_SCALE_DERIVS: tl.constexpr, NUM_BIAS_DERIVS: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Add the tile's part of each parameter's gradient: derivative times gradient tile, summed within threads."""
    scale_tile = tl.reshape(scale_grad, [ROWS // 16, 2, 8, COLUMNS // 8, 8])
    bias_tile = tl.reshape(bias_grad, [ROWS // 16, 2, 8, COLUMNS // 8, 8])
    COUNT: tl.constexpr = NUM_SCALE_DERIVS + NUM_BIAS_DERIVS
    pointers = diagonal_pointers(base, ROWS, COLUMNS, 1, TABLE_WIDTH)
    if COUNT == 1:
        d0 = load_f32(pointers)
        g0 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 0 else bias_tile) * d0)
    elif COUNT == 2:
        d0, d1 = load_f32x2(pointers)
        g0 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 0 else bias_tile) * d0)
        g1 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 1 else bias_tile) * d1)
    else:
        d0, d1, d2, d3 = load_f32x4(pointers)
        g0 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 0 else bias_tile) * d0)
        g1 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 1 else bias_tile) * d1)
        g2 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 2 else bias_tile) * d2)
        if COUNT == 4:
            g3 += sum_registers((scale_tile if NUM_SCALE_DERIVS > 3 else bias_tile) * d3)
    return g0, g1, g2, g3


@triton.jit
def diagonal_sums(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums of a tile along its diagonals: two ``[ROWS / COLUMNS, COLUMNS / 8, 4, 8]``, still to be summed over axis 2.

    Entry t of block b in the first result has ``row - column = b * COLUMNS + t``; in the second, COLUMNS less. Each row
    is rotated by its index, so that a diagonal becomes a column. The flat gather passes through shared memory once,
    where the
    tile is stored in pieces of 4 rows and 8 columns, one bank per element, to avoid bank conflicts: half a warp writes
    one piece, in pairs of elements, and a whole warp reads four rows of eight rotated columns.
    """
    BLOCKS: tl.constexpr = ROWS // COLUMNS
    high = tl.arange(0, ROWS // 8)[:, None, None, None, None]  # row = 8 * high + 4 * middle + low
    middle = tl.arange(0, 2)[None, :, None, None, None]
    low = tl.arange(0, 4)[None, None, None, :, None]
    rotation_high = tl.arange(0, COLUMNS // 8)[None, None, :, None, None]  # rotation = 8 * rotation_high + rotation_low
    rotation_low = tl.arange(0, 8)[None, None, None, None, :]
    within = middle * 4 + low - rotation_low
    behind = (within >> 3) - rotation_high
    wrapped = high % (COLUMNS // 8) + behind < 0
    thread = middle * (4 * COLUMNS) + behind * 32 + low * 8 + (within & 7)
    register = high // (COLUMNS // 8) * (8 * COLUMNS * (COLUMNS // 8)) + high % (COLUMNS // 8) * (8 * COLUMNS + 32)
    source = thread + register + tl.where(wrapped, 4 * COLUMNS, 0)
    pieces = tl.permute(tl.reshape(tile, [ROWS // 4, 4, COLUMNS // 8, 8]), [0, 2, 1, 3])
    rotated = tl.gather(tl.reshape(pieces, [ROWS * COLUMNS]), tl.reshape(source, [ROWS * COLUMNS]), 0)
    rotated = tl.reshape(rotated, [ROWS // 8, 2, COLUMNS // 8, 4, 8])
    upper = tl.where(wrapped, 0.0, rotated)
    all_rows = tl.sum(tl.reshape(rotated, [BLOCKS, COLUMNS // 4, COLUMNS // 8, 4, 8]), 1)
    upper = tl.sum(tl.reshape(upper, [BLOCKS, COLUMNS // 4, COLUMNS // 8, 4, 8]), 1)
    return upper, all_rows - upper


@triton.jit
def add_diagonal_sums(tile, carry, base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add a tile's diagonal sums to a table in memory whose entry for ``row - column = 0`` is at base.

    Tiles arrive with ascending columns, one block after the other, so the lower sums of one tile and the upper sums of
    the next belong to the same entries. ``carry`` holds the lower sums of the previous tile; both go to memory
    together, and the lower sums of this tile are returned as the next carry.
    """
    upper, lower = diagonal_sums(tile, ROWS, COLUMNS)
    atomic_add_diagonals(upper + carry, base, ROWS, COLUMNS)
    return lower


@triton.jit
def atomic_add_diagonals(sums, base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tl.atomic_add(base + diagonal_offsets(ROWS, COLUMNS), tl.sum(sums, 2), sem="relaxed")


@triton.jit
def diagonal_offsets(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Table offsets of a tile's sums relative to ``row - column = 0``: ``[ROWS / COLUMNS, COLUMNS / 8, 8]``."""
    block = tl.arange(0, ROWS // COLUMNS)[:, None, None] * COLUMNS
    return block + tl.arange(0, COLUMNS // 8)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
