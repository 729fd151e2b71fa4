"""The roles of both kernels, the sizes that they share, and the barriers at which they meet.

As in ``gluon_forward``: a program has a producer of one warp, which copies by TMA, and two consumers of four warps. Both kernels
compute tiles of 128 rows, one after another, each consumer 64 rows: queries of dq, keys of dk and dv. Inner loops go over steps
of 64 queries (dk and dv) or of 64 or 128 keys (dq), which both consumers read. ``find_tile`` says which tile is next.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from layouts import tile_layout
from whence.attention.fused import packing

# Barriers. Number n = 0, 1, ... counts the uses of a buffer (of a ring of STAGES buffers: n = position // STAGES).
#
# - ``full``, one arrival and the bytes of its copies: consumers wait for the phase with parity n & 1. The producer arms it for use n
#   after the wait below alone, so it is at most one phase ahead of a consumer, and a parity is never mistaken for that of use n + 2.
# - ``empty``, two arrivals, one of each consumer: the producer waits for the parity (n & 1) ^ 1 before use n, which at n = 0 has
#   "ended" before the beginning. A consumer that skips a step waits for ``full`` before it arrives. Without that wait it could arrive
#   for use n + 1 while the other consumer still reads use n, and both arrivals would end the phase of use n.
# - ``turns`` (some configurations), one arrival by the other consumer; see ``wait_turn``.
#
# Arrivals. A consumer arrives at each ``empty`` barrier exactly once for each use; ``dkdv_kernel`` and ``dq_kernel`` say where. The
# producer fills exactly as many buffers as consumers read.
#
# No deadlock. The producer fills buffers in the order in which consumers first wait for them; ``dq_kernel`` has the one exception.
# A consumer at position p waits for ``full`` of p alone, and holds at most the buffers of p - 1 and p, so a ring of two or more
# buffers lets the producer reach what is waited for. Buffers of a tile outside the ring need only what the consumers do in the tile
# before, as the kernels say, and all buffers of that tile are filled before. By induction over positions, every wait ends.

ROWS = gl.constexpr(64)  # of a consumer: queries of dq, keys of dk and dv
CONSUMERS = gl.constexpr(2)
WARPS = gl.constexpr(4)  # of a consumer
TILE = gl.constexpr(128)  # rows of a tile: those of both consumers
HEAD_DIM = gl.constexpr(128)
STEP = gl.constexpr(64)  # queries of a step of the dk/dv kernel
CONSUMER_REGISTERS = gl.constexpr(240)
PRODUCER_REGISTERS = gl.constexpr(24)
TABLE_PADDING = gl.constexpr(packing.TABLE_PADDING)
NUM_SLOTS = gl.constexpr(packing.NUM_SLOTS)
AMPLITUDE_SLOT = gl.constexpr(packing.AMPLITUDE_SLOT)


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
def issue_scores(x, y_smem, slot, N: gl.constexpr):
    """Begin the product of ``[64, D]`` with the transpose of the rows ``[N, D]`` of a buffer."""
    y = y_smem.index(slot).reshape([N, HEAD_DIM]).permute((1, 0))
    return warpgroup_mma(x, y, gl.zeros([ROWS, N], gl.float32, tile_layout(N)), use_acc=False, is_async=True)
