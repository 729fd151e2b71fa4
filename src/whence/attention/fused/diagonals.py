"""Reading a distance table along the diagonals of a tile, and summing a tile along them, inside a kernel.

A tile of scores ``[rows, columns]`` needs the table at ``row - column``: the same number all along a diagonal. The tile
is seen as ``[rows / 16, 2, 8, columns / 8, 8]``, which is how a matrix unit's result lies in registers: the first, third
and fifth axes are a thread's place, the second and fourth count the registers of one thread. Pointers are built as a
part that depends on the thread plus a part that depends on the register alone, so the compiler turns the second into
immediate offsets and loads each diagonal a thread meets once. The answer is right for any layout; only the speed is not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.packing import MARGIN

# inline assembly keeps the table out of Triton's own staging of loads through shared memory; the interpreter has none
PLAIN_LOADS = tl.constexpr(bool(triton.knobs.runtime.interpret))
PAD = tl.constexpr(MARGIN)  # a tile may overhang the table by its own size


@triton.jit
def read_one(pointer):
    if PLAIN_LOADS:
        return tl.load(pointer)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [pointer.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def read_two(pointer):
    if PLAIN_LOADS:
        return tl.load(pointer), tl.load(pointer + 1)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [pointer.to(tl.int64)],
            dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def read_four(pointer):
    if PLAIN_LOADS:
        return tl.load(pointer), tl.load(pointer + 1), tl.load(pointer + 2), tl.load(pointer + 3)
    else:
        return tl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [pointer.to(tl.int64)],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def thread_part(ROWS: tl.constexpr):
    """``row - column`` as far as it depends on the thread: ``[ROWS / 16, 1, 8, 1, 8]``."""
    group = tl.arange(0, ROWS // 16) * 16
    inner = tl.arange(0, 8)
    across = inner[None, None, :, None, None] - inner[None, None, None, None, :]
    return group[:, None, None, None, None] + across


@triton.jit
def register_part(COLUMNS: tl.constexpr):
    """``row - column`` as far as it depends on the register: ``[1, 2, 1, COLUMNS / 8, 1]``."""
    half = tl.arange(0, 2) * 8
    block = tl.arange(0, COLUMNS // 8) * 8
    return half[None, :, None, None, None] - block[None, None, None, :, None]


@triton.jit
def diagonal(base, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr, WIDTH: tl.constexpr):
    """Pointers to ``base + SIGN * (row - column) * WIDTH``, as five axes."""
    thread = thread_part(ROWS) * WIDTH
    register = register_part(COLUMNS) * WIDTH
    if SIGN > 0:
        return (base + thread) + register
    else:
        return (base + (0 - thread)) + (0 - register)


@triton.jit
def factor_and_bias(base, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr, FACTOR: tl.constexpr,
                    BIAS: tl.constexpr):  # fmt: skip
    """The factor tile and the bias tile ``[ROWS, COLUMNS]``; with one of them absent, the other twice."""
    if FACTOR and BIAS:
        one, two = read_two(diagonal(base, ROWS, COLUMNS, SIGN, 2))
        return tl.reshape(one, [ROWS, COLUMNS]), tl.reshape(two, [ROWS, COLUMNS])
    else:
        one = tl.reshape(read_one(diagonal(base, ROWS, COLUMNS, SIGN, 1)), [ROWS, COLUMNS])
        return one, one


@triton.jit
def in_thread_sum(x):
    """The sum of a five-axis tile over a thread's registers: ``[rows / 16, 8, 8]``, with no exchange between threads."""
    return tl.sum(tl.sum(x, 3), 1)


@triton.jit
def weigh_by_distance(tile, start, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add tile * (start + row - column), summed within threads."""
    five = tl.reshape(tile, [ROWS // 16, 2, 8, COLUMNS // 8, 8])
    distance = (thread_part(ROWS) + start).to(tl.float32) + register_part(COLUMNS).to(tl.float32)
    return total + in_thread_sum(five * distance)


@triton.jit
def contract(by_factor, by_bias, base, g0, g1, g2, g3, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
             FACTOR_RATES: tl.constexpr, BIAS_RATES: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Add the tile's share of each number's gradient: its derivative table times the tile, summed within threads."""
    for_factor = tl.reshape(by_factor, [ROWS // 16, 2, 8, COLUMNS // 8, 8])
    for_bias = tl.reshape(by_bias, [ROWS // 16, 2, 8, COLUMNS // 8, 8])
    COUNT: tl.constexpr = FACTOR_RATES + BIAS_RATES
    pointers = diagonal(base, ROWS, COLUMNS, 1, WIDTH)
    if COUNT == 1:
        r0 = read_one(pointers)
        g0 += in_thread_sum((for_factor if FACTOR_RATES > 0 else for_bias) * r0)
    elif COUNT == 2:
        r0, r1 = read_two(pointers)
        g0 += in_thread_sum((for_factor if FACTOR_RATES > 0 else for_bias) * r0)
        g1 += in_thread_sum((for_factor if FACTOR_RATES > 1 else for_bias) * r1)
    else:
        r0, r1, r2, r3 = read_four(pointers)
        g0 += in_thread_sum((for_factor if FACTOR_RATES > 0 else for_bias) * r0)
        g1 += in_thread_sum((for_factor if FACTOR_RATES > 1 else for_bias) * r1)
        g2 += in_thread_sum((for_factor if FACTOR_RATES > 2 else for_bias) * r2)
        if COUNT == 4:
            g3 += in_thread_sum((for_factor if FACTOR_RATES > 3 else for_bias) * r3)
    return g0, g1, g2, g3


@triton.jit
def diagonal_sums(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of a tile along its diagonals, in four shares: two ``[ROWS / COLUMNS, COLUMNS / 8, 4, 8]``, to be added up
    over the third axis.

    Block b, entry t: the first holds ``row - column = b * COLUMNS + t``, the second the same less COLUMNS. Each row is
    turned by its own number, so that a diagonal becomes a column; the flat gather goes through shared memory once. There
    the tile lies in pieces of 4 rows and 8 columns, a bank for each number, so that the threads of a warp do not meet in a
    bank: half of them write one piece, in pairs of numbers, and all of them read four rows of eight turned columns.
    """
    BLOCKS: tl.constexpr = ROWS // COLUMNS
    high = tl.arange(0, ROWS // 8)[:, None, None, None, None]  # row = 8 * high + 4 * middle + low
    middle = tl.arange(0, 2)[None, :, None, None, None]
    low = tl.arange(0, 4)[None, None, None, :, None]
    turn_high = tl.arange(0, COLUMNS // 8)[None, None, :, None, None]  # turn = 8 * turn_high + turn_low
    turn_low = tl.arange(0, 8)[None, None, None, None, :]
    within = middle * 4 + low - turn_low
    behind = (within >> 3) - turn_high
    wrapped = high % (COLUMNS // 8) + behind < 0
    thread = middle * (4 * COLUMNS) + behind * 32 + low * 8 + (within & 7)
    register = high // (COLUMNS // 8) * (8 * COLUMNS * (COLUMNS // 8)) + high % (COLUMNS // 8) * (8 * COLUMNS + 32)
    source = thread + register + tl.where(wrapped, 4 * COLUMNS, 0)
    pieces = tl.permute(tl.reshape(tile, [ROWS // 4, 4, COLUMNS // 8, 8]), [0, 2, 1, 3])
    turned = tl.gather(tl.reshape(pieces, [ROWS * COLUMNS]), tl.reshape(source, [ROWS * COLUMNS]), 0)
    turned = tl.reshape(turned, [ROWS // 8, 2, COLUMNS // 8, 4, 8])
    upper = tl.where(wrapped, 0.0, turned)
    whole = tl.sum(tl.reshape(turned, [BLOCKS, COLUMNS // 4, COLUMNS // 8, 4, 8]), 1)
    upper = tl.sum(tl.reshape(upper, [BLOCKS, COLUMNS // 4, COLUMNS // 8, 4, 8]), 1)
    return upper, whole - upper


@triton.jit
def add_diagonal_sums(tile, before, base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add a tile's diagonal sums to a table in memory whose entry for ``row - column = 0`` is at base.

    Tiles come with ascending columns, each the next block: the lower sums of one lie where the upper sums of the next
    do, so they wait, and go to memory together: ``before`` is what the last tile left, the answer what this one leaves.
    """
    upper, lower = diagonal_sums(tile, ROWS, COLUMNS)
    add_to_table(upper + before, base, ROWS, COLUMNS)
    return lower


@triton.jit
def add_to_table(sums, base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tl.atomic_add(base + diagonal_places(ROWS, COLUMNS), tl.sum(sums, 2), sem="relaxed")


@triton.jit
def diagonal_places(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where the sums of a tile belong, from ``row - column = 0`` on: ``[ROWS / COLUMNS, COLUMNS / 8, 8]``."""
    block = tl.arange(0, ROWS // COLUMNS)[:, None, None] * COLUMNS
    return block + tl.arange(0, COLUMNS // 8)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
