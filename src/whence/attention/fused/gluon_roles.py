"""What the warp-specialised kernels of Hopper GPUs share: roles, barriers, and which tile is next.

They are written in Gluon, Triton's dialect with explicit layouts, barriers and warp roles. A program has nine warps in three
roles, which run at the same time:

- *Producer*, one warp: copies blocks of the inputs into shared memory by TMA.
- *Two consumers*, four warps each: each computes 64 of the 128 rows of a tile.

A program computes several tiles, one after another, and the producer copies ahead into the next tile. ``find_tile`` says which.
Import these modules late: Gluon is experimental, and ``gluon_launch`` says which versions of it are known.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from whence.attention.fused import packing
from whence.attention.fused.gluon_tiles import tile_layout

# Barriers of all kernels. Number n = 0, 1, ... counts the uses of a buffer (of a ring of buffers: n = position // its size).
#
# - ``full``, one arrival and the bytes of its copies: consumers wait for the phase with parity n & 1. The producer arms it for use n
#   after the wait below alone, so it is at most one phase ahead of a consumer, and a parity is never mistaken for that of use n + 2.
# - ``empty``, two arrivals, one of each consumer: the producer waits for the parity (n & 1) ^ 1 before use n, which at n = 0 has
#   "ended" before the beginning. A consumer that skips a step waits for ``full`` before it arrives. Without that wait it could arrive
#   for use n + 1 while the other consumer still reads use n, and both arrivals would end the phase of use n.
# - ``turns``, one arrival by the other consumer: the consumers begin their products in turn, so that one computes weights while the
#   tensor cores work for the other.
#
# Arrivals. A consumer arrives at each ``empty`` barrier exactly once for each use; the kernels say where. The producer fills
# exactly as many buffers as consumers read.
#
# No deadlock. The producer fills buffers in the order in which consumers first wait for them; ``gluon_dq`` has the one exception.
# A consumer at position p waits for ``full`` of p alone, and holds at most the buffers of p - 1 and p, so a ring of two or more
# buffers lets the producer reach what is waited for. Buffers of a tile outside the ring need only what the consumers do in the tile
# before, as the kernels say, and all buffers of that tile are filled before. By induction over positions, every wait ends.

ROWS = gl.constexpr(64)  # of a consumer
CONSUMERS = gl.constexpr(2)
WARPS = gl.constexpr(4)  # of a consumer
TILE = gl.constexpr(128)  # rows of a tile: those of both consumers
CONSUMER_REGISTERS = gl.constexpr(240)
PRODUCER_REGISTERS = gl.constexpr(24)
TABLE_PADDING = gl.constexpr(packing.TABLE_PADDING)
# wait for all threads of a role; renamed after Triton 3.6
role_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


# --- which tile ------------------------------------------------------------------------------------------------------


@gluon.jit
def find_tile(program, programs, turn, row_blocks, unit_heads, rounds, begun, taken, whole):
    """Head (counted over all sequences) and block of rows of a program's tile; see ``gluon_launch.Schedule``."""
    levels = unit_heads * row_blocks
    if turn < 2 * rounds:  # a long tile and the short one that makes their sum the same for all
        pair = turn // 2 * programs + program
        unit = pair // (levels // 2)
        level = pair % (levels // 2)
        if turn % 2 == 1:
            level = levels - 1 - level
    else:  # the others from the longest to the shortest, forth and back
        last = turn - 2 * rounds
        rank = last * programs + program
        if last % 2 == 1:
            rank = (last + 1) * programs - 1 - program
        middle = rank - whole * taken
        end = middle - (whole + 1) * (levels - 2 * taken)
        if middle < 0:
            level = rank // whole
            unit = begun + 1 + rank % whole
        elif end < 0:
            level = taken + middle // (whole + 1)
            unit = begun + middle % (whole + 1)
        else:
            level = levels - taken + end // whole
            unit = begun + 1 + end % whole
    return unit * unit_heads + level % unit_heads, row_blocks - 1 - level // unit_heads


@gluon.jit
def count_tiles(program, programs, tiles, rounds):
    """The number of tiles of a program."""
    left = tiles - 2 * rounds * programs
    turns = left // programs
    place = program
    if turns % 2 == 1:
        place = programs - 1 - program
    if place < left % programs:
        turns += 1
    return 2 * rounds + turns


# --- backward kernels ------------------------------------------------------------------------------------------------


@gluon.jit
def wait_turn(turns, position, INDEX: gl.constexpr, TURNS: gl.constexpr):
    """Consumers begin the two products of scores in turn: number ``position`` of the first, that of the second, and so on.

    The first turn of the first consumer needs no signal. Both take a turn at every step, also at one that they skip. Turn n of one
    consumer waits for turn n - 1 or n of the other alone, which never waits for turn n of the first: no circle.
    """
    if TURNS:
        mbarrier.wait(turns.index(INDEX), (position + 1 - INDEX) & 1)


@gluon.jit
def end_turn(turns, INDEX: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        mbarrier.arrive(turns.index(1 - INDEX), count=1)


@gluon.jit
def issue_scores(x, y_smem, slot, N: gl.constexpr, BLOCK_D: gl.constexpr):
    """Begin the product of ``[64, BLOCK_D]`` with the transpose of the rows ``[N, BLOCK_D]`` of a buffer."""
    y = y_smem.index(slot).reshape([N, BLOCK_D]).permute((1, 0))
    return warpgroup_mma(x, y, gl.zeros([ROWS, N], gl.float32, tile_layout(N)), use_acc=False, is_async=True)
