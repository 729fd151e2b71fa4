"""Trial: the backward pass at head dim 128 as warp-specialised Gluon kernels, one for dq and one for dk and dv.

    python benchmarks/gluon_backward_trial.py --out trial.json       # on a Hopper GPU: check, then time; under 6 minutes
    python benchmarks/gluon_backward_trial.py --check                # the same without times
    python benchmarks/gluon_backward_trial.py --compile              # on a CPU: registers, spills, shared memory for sm_90
    python benchmarks/gluon_backward_trial.py --emulate              # on a CPU: results and barriers with threads for roles

The kernels take the inputs of the Triton kernels ``backward_dq_kernel`` and ``backward_dkdv_kernel`` and give their results, for
causal attention without position, with a table of the score scale, or with a table of the bias. Each configuration is checked and
timed in a process of its own with a time limit, so that one that fails or never ends leaves the others.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.runtime.jit import JITFunction

import whence
from whence import records
from whence.attention.fused import eager_plan, gluon_launch, packing, tile_configs
from whence.attention.fused.gluon_forward import count_tiles, exp2, find_tile, role_barrier

# --- roles and barriers ------------------------------------------------------------------------------------------------
#
# As in ``gluon_forward``: a program has a producer of one warp, which copies by TMA, and two consumers of four warps. Both kernels
# compute tiles of 128 rows, one after another, each consumer 64 rows: queries of dq, keys of dk and dv. Inner loops go over steps
# of 64 queries (dk and dv) or of 64 or 128 keys (dq), which both consumers read. ``find_tile`` says which tile is next.
#
# Barriers. Number n = 0, 1, ... counts the uses of a buffer (of a ring of STAGES buffers: n = position // STAGES).
#
# - ``full``, one arrival and the bytes of its copies: consumers wait for the phase with parity n & 1. The producer arms it for use n
#   after the wait below alone, so it is at most one phase ahead of a consumer, and a parity is never mistaken for that of use n + 2.
# - ``empty``, two arrivals, one of each consumer: the producer waits for the parity (n & 1) ^ 1 before use n, which at n = 0 has
#   "ended" before the beginning. A consumer that skips a step waits for ``full`` before it arrives. Without that wait it could arrive
#   for use n + 1 while the other consumer still reads use n, and both arrivals would end the phase of use n.
# - ``turns`` (some configurations), one arrival by the other consumer; see ``wait_turn``.
#
# Arrivals. A consumer arrives at each ``empty`` barrier exactly once for each use: in dk/dv, at step i + 1 for that of step i, after the
# last product that reads it has ended, or after the loop for the last step; in dq, for v at step i and for k as above; at q_empty and
# out_empty once for each tile. Keys and values of dk/dv have two pairs of buffers, for this tile and the next. The results leave from
# this tile's pair, so a consumer arrives at its kv_empty after the first step of the next tile, when the copies have read it. After the
# last tile nobody waits for that. The producer fills exactly as many buffers as consumers read.
#
# No deadlock. The producer fills buffers in the order in which consumers first wait for them. The one exception, the first keys of a
# dq tile before its queries, needs only that the ring's use STAGES earlier is over, which belongs to an earlier step. A consumer at
# position p waits for ``full`` of p alone, and holds at most the buffers of p - 1 and p (ahead: it waits for the keys of p + 1 and holds
# those of p), so a ring of two or more buffers lets the producer reach what is waited for. q_empty and out_empty of a tile need only
# that the consumers end the tile before, and kv_empty that they end its first step; all buffers of that tile are filled before. By
# induction over positions, every wait ends.

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


# --- layouts -----------------------------------------------------------------------------------------------------------


@gluon.constexpr_function
def tile_layout(columns):
    """The accumulator of ``[64, columns]`` in the registers of four warps."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def operand_layout(columns):
    """The same as the left operand of a product with as many columns."""
    return gl.DotOperandLayout(0, tile_layout(columns), 2)


@gluon.constexpr_function
def row_layout(columns):
    return gl.SliceLayout(1, tile_layout(columns))


@gluon.constexpr_function
def column_layout(columns):
    return gl.SliceLayout(0, tile_layout(columns))


@gluon.constexpr_function
def diagonal_layout(columns):
    """The accumulator layout, seen as ``[4, 2, 8, columns / 8, 8]``; see ``whence.attention.fused.diagonals``."""
    blocks = columns // 8
    registers = [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0], *([0, 0, 0, n, 0] for n in (1, 2, 4, 8) if n < blocks)]
    lanes = [[0, 0, 0, 0, 2], [0, 0, 0, 0, 4], [0, 0, 1, 0, 0], [0, 0, 2, 0, 0], [0, 0, 4, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[1, 0, 0, 0, 0], [2, 0, 0, 0, 0]], [], [4, 2, 8, blocks, 8])


@gluon.constexpr_function
def axis_layout(columns, axis):
    """The layout of a vector along one of the five axes."""
    layout = diagonal_layout(columns)
    for other in (4, 3, 2, 1, 0):
        if other != axis:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.constexpr_function
def sums_layout(columns):
    """The layout of a five-axis tile summed over the registers of each thread."""
    return gl.SliceLayout(1, gl.SliceLayout(3, diagonal_layout(columns)))


# --- tables ------------------------------------------------------------------------------------------------------------


@gluon.jit
def diagonal_pointers(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr, WIDTH: gl.constexpr):
    """Pointers to ``base + SIGN * (row - column) * WIDTH`` in the five-axis view."""
    group = gl.arange(0, 4, axis_layout(COLUMNS, 0))[:, None, None, None, None] * (16 * SIGN * WIDTH)
    half = gl.arange(0, 2, axis_layout(COLUMNS, 1))[None, :, None, None, None] * (8 * SIGN * WIDTH)
    row = gl.arange(0, 8, axis_layout(COLUMNS, 2))[None, None, :, None, None] * (SIGN * WIDTH)
    block = gl.arange(0, COLUMNS // 8, axis_layout(COLUMNS, 3))[None, None, None, :, None] * (8 * SIGN * WIDTH)
    column = gl.arange(0, 8, axis_layout(COLUMNS, 4))[None, None, None, None, :] * (SIGN * WIDTH)
    # first what depends on the thread, then what depends on the register: the compiler makes the latter immediate offsets
    return ((base + (group + (row - column))) + (half - block)).to(gl.int64)


@gluon.jit
def load_pure(pointers):
    return gl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def load_again(pointers):
    """The same load in other words, so that the compiler does not keep the first result in registers instead."""
    return gl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];", "=f,l", [pointers], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def as_tile(x, COLUMNS: gl.constexpr):
    return gl.convert_layout(gl.reshape(x, [ROWS, COLUMNS]), tile_layout(COLUMNS), assert_trivial=True)


@gluon.jit
def as_diagonals(x, COLUMNS: gl.constexpr):
    return gl.convert_layout(gl.reshape(x, [4, 2, 8, COLUMNS // 8, 8]), diagonal_layout(COLUMNS), assert_trivial=True)


@gluon.jit
def load_table(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr):
    return as_tile(load_pure(diagonal_pointers(base, COLUMNS, SIGN, 1)), COLUMNS)


@gluon.jit
def load_table_again(base, COLUMNS: gl.constexpr, SIGN: gl.constexpr):
    return as_tile(load_again(diagonal_pointers(base, COLUMNS, SIGN, 1)), COLUMNS)


@gluon.jit
def prefetch(base, COUNT: gl.constexpr):
    """Bring ``COUNT`` numbers, a multiple of 128, toward the threads. The result is not read."""
    threads = gl.arange(0, COUNT, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        "prefetch.global.L1 [$1]; mov.b32 $0, 0;", "=r,l", [(base + threads).to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def prefetch_tables(
    table, derivatives, KEYS: gl.constexpr, PREFETCH: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr,
):  # fmt: skip
    """What the next step of dq reads, or the next two, and this one does not."""
    if PREFETCH and (HAS_SCORE_SCALE or HAS_BIAS):
        prefetch(table + KEYS, 128)
        if DERIVS > 0:
            prefetch(derivatives + KEYS * DERIV_WIDTH, 128 * DERIV_WIDTH)


# --- dk and dv ---------------------------------------------------------------------------------------------------------


@gluon.jit
def dkdv_producer(
    Q, K, V, GRAD_OUT, LSE, DELTA, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty, full, empty,
    heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, STAGES: gl.constexpr,
):  # fmt: skip
    program, programs = gl.program_id(0), gl.num_programs(0)
    kv_heads = heads // group_size
    position = 0  # steps so far, of all tiles
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, place = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        block = blocks - 1 - place  # the first keys have the most queries
        b, h_kv = rank // kv_heads, rank % kv_heads
        first = block * (TILE // STEP)
        # into the other buffers than those of the last tile, while consumers still work on it
        pair = turn % 2
        mbarrier.wait(kv_empty.index(pair), ((turn // 2) & 1) ^ 1)
        mbarrier.expect(kv_full.index(pair), 2 * TILE * HEAD_DIM * 2)
        for c in gl.static_range(CONSUMERS):
            start = block * TILE + ROWS * c
            tma.async_copy_global_to_shared(
                K, [b, h_kv, start, 0], kv_full.index(pair), k_smem.index(pair * CONSUMERS + c)
            )
            tma.async_copy_global_to_shared(
                V, [b, h_kv, start, 0], kv_full.index(pair), v_smem.index(pair * CONSUMERS + c)
            )
        for member in range(group_size):
            h = h_kv * group_size + member
            for i in range(first, blocks * (TILE // STEP)):
                slot = position % STAGES
                mbarrier.wait(empty.index(slot), ((position // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(slot), 2 * STEP * HEAD_DIM * 2 + 2 * STEP * 4)
                tma.async_copy_global_to_shared(Q, [b, h, i * STEP, 0], full.index(slot), q_smem.index(slot))
                tma.async_copy_global_to_shared(LSE, [b * heads + h, i * STEP], full.index(slot), lse_smem.index(slot))
                tma.async_copy_global_to_shared(GRAD_OUT, [b, h, i * STEP, 0], full.index(slot), do_smem.index(slot))
                tma.async_copy_global_to_shared(
                    DELTA, [b * heads + h, i * STEP], full.index(slot), delta_smem.index(slot)
                )
                position += 1


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


@gluon.jit
def dkdv_weights(
    s, lse, table, qk_scale, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr
):  # fmt: skip
    """The weights of 64 keys and 64 queries. MASKED: both begin at the same token."""
    if HAS_SCORE_SCALE:
        p = exp2(s * load_table(table, STEP, -1) - lse[None, :])
    elif HAS_BIAS:
        p = exp2(s * qk_scale + (load_table(table, STEP, -1) - lse[None, :]))
    else:
        p = exp2(s * qk_scale - lse[None, :])
    if MASKED:
        keys = gl.arange(0, ROWS, row_layout(STEP))
        queries = gl.arange(0, STEP, column_layout(STEP))
        p = gl.where(queries[None, :] >= keys[:, None], p, 0.0)
    return p


@gluon.jit
def dkdv_step(
    k, v, dk, dv, ds16, q_smem, do_smem, lse_smem, delta_smem, full, empty, turns, table, qk_scale, position,
    INDEX: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, PREFETCH: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """One step. The product of dk that the last step began is finished here, and this step's begins.

    Products end in the order in which they begin: (dk of the last step), s, dp, dv, dk.
    """
    slot = position % STAGES
    if PREFETCH and (HAS_SCORE_SCALE or HAS_BIAS):
        prefetch(table + STEP, 128)  # what the next two steps read and this one does not
    mbarrier.wait(full.index(slot), (position // STAGES) & 1)
    wait_turn(turns, position, INDEX, TURNS)
    s = issue_scores(k, q_smem, slot, STEP)
    dp = issue_scores(v, do_smem, slot, STEP)
    end_turn(turns, INDEX, TURNS)
    if MASKED:
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    else:
        s, dk, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(s, dk, ds16))
        mbarrier.arrive(empty.index((position - 1) % STAGES), count=1)
    lse = lse_smem.index(slot).reshape([STEP]).load(column_layout(STEP))
    p = dkdv_weights(s, lse, table, qk_scale, HAS_SCORE_SCALE, HAS_BIAS, MASKED)
    p16 = gl.convert_layout(p.to(q_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dv = warpgroup_mma(p16, do_smem.index(slot).reshape([STEP, HEAD_DIM]), dv, is_async=True)
    delta = delta_smem.index(slot).reshape([STEP]).load(column_layout(STEP))
    dp = warpgroup_mma_wait(num_outstanding=1, deps=(dp,))
    ds = p * (dp - delta[None, :])
    if HAS_SCORE_SCALE:
        ds = ds * load_table_again(table, STEP, -1)
    ds16 = gl.convert_layout(ds.to(q_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dk = warpgroup_mma(ds16, q_smem.index(slot).reshape([STEP, HEAD_DIM]), dk, is_async=True)
    dv, p16 = warpgroup_mma_wait(num_outstanding=1, deps=(dv, p16))
    return dk, dv, ds16


@gluon.jit
def dkdv_consumer(
    DK, DV, TABLE, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty, full, empty, turns,
    heads, group_size, table_stride, qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds, begun, taken, whole,
    INDEX: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, PREFETCH: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    program, programs = gl.program_id(0), gl.num_programs(0)
    kv_heads = heads // group_size
    done = 0  # steps of earlier tiles and heads
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, place = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        block = blocks - 1 - place
        b, h_kv = rank // kv_heads, rank % kv_heads
        steps = (blocks - block) * (TILE // STEP)
        dk = gl.zeros([ROWS, HEAD_DIM], gl.float32, tile_layout(HEAD_DIM))
        dv = gl.zeros([ROWS, HEAD_DIM], gl.float32, tile_layout(HEAD_DIM))
        pair = turn % 2
        k_buffer = k_smem.index(pair * CONSUMERS + INDEX)
        v_buffer = v_smem.index(pair * CONSUMERS + INDEX)
        k = k_buffer.reshape([ROWS, HEAD_DIM])
        v = v_buffer.reshape([ROWS, HEAD_DIM])
        mbarrier.wait(kv_full.index(pair), (turn // 2) & 1)
        for member in range(group_size):
            h = h_kv * group_size + member
            table = TABLE + (h.to(gl.int64) * table_stride + TABLE_PADDING)
            if INDEX == 1:  # these queries come before the keys of the second consumer
                slot = done % STAGES
                mbarrier.wait(full.index(slot), (done // STAGES) & 1)
                wait_turn(turns, done, INDEX, TURNS)
                end_turn(turns, INDEX, TURNS)
                mbarrier.arrive(empty.index(slot), count=1)
            ds16 = gl.zeros([ROWS, STEP], q_smem.dtype, operand_layout(HEAD_DIM))
            dk_token, dv, ds16 = dkdv_step(
                k, v, warpgroup_mma_init(dk), dv, ds16, q_smem, do_smem, lse_smem, delta_smem, full, empty, turns, table,
                qk_scale, done + INDEX, INDEX, STAGES, TURNS, PREFETCH, HAS_SCORE_SCALE, HAS_BIAS, True,
            )  # fmt: skip
            if (member == 0) & (turn > 0):  # the copies of the last tile's results have read the buffers
                tma.store_wait(0)
                mbarrier.arrive(kv_empty.index(1 - pair), count=1)
            for i in range(INDEX + 1, steps):
                dk_token, dv, ds16 = dkdv_step(
                    k, v, dk_token, dv, ds16, q_smem, do_smem, lse_smem, delta_smem, full, empty, turns,
                    table + (i - INDEX) * STEP, qk_scale, done + i, INDEX, STAGES, TURNS, PREFETCH, HAS_SCORE_SCALE, HAS_BIAS, False,
                )  # fmt: skip
            dk, ds16 = warpgroup_mma_wait(num_outstanding=0, deps=(dk_token, ds16))
            done += steps
            mbarrier.arrive(empty.index((done - 1) % STAGES), count=1)
        # the results leave from the buffers of this consumer's keys and values, which nobody reads any more
        v.store(dv.to(v_smem.dtype))
        k.store((dk * qk_grad_scale).to(k_smem.dtype))
        fence_async_shared()
        role_barrier()
        start = block * TILE + INDEX * ROWS
        tma.async_copy_shared_to_global(DV, [b, h_kv, start, 0], v_buffer)
        tma.async_copy_shared_to_global(DK, [b, h_kv, start, 0], k_buffer)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "heads", "group_size", "table_stride", "tiles", "blocks", "unit_heads", "rounds", "begun", "taken", "whole",
    ]
)  # fmt: skip
def gluon_dkdv_kernel(
    Q, K, V, GRAD_OUT, DK, DV, LSE, DELTA, TABLE, heads, group_size, table_stride, qk_scale, qk_grad_scale, tiles, blocks,
    unit_heads, rounds, begun, taken, whole,
    STAGES: gl.constexpr, TURNS: gl.constexpr, PREFETCH: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """dk and dv of causal attention. All descriptors have 64 rows; those of LSE and DELTA are of ``[heads, 64]``."""
    k_smem = gl.allocate_shared_memory(K.dtype, [2 * CONSUMERS, 1, 1, ROWS, HEAD_DIM], K.layout)
    v_smem = gl.allocate_shared_memory(V.dtype, [2 * CONSUMERS, 1, 1, ROWS, HEAD_DIM], V.layout)
    q_smem = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, STEP, HEAD_DIM], Q.layout)
    do_smem = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, STEP, HEAD_DIM], GRAD_OUT.layout)
    lse_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, STEP], LSE.layout)
    delta_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 1, STEP], DELTA.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    kv_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(kv_full.index(i), count=1)
        mbarrier.init(kv_empty.index(i), count=CONSUMERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=CONSUMERS)
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (dkdv_consumer, (
                DK, DV, TABLE, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty,
                full, empty, turns, heads, group_size, table_stride, qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds,
                begun, taken, whole, 0, STAGES, TURNS, PREFETCH, HAS_SCORE_SCALE, HAS_BIAS,
            )),
            (dkdv_consumer, (
                DK, DV, TABLE, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty,
                full, empty, turns, heads, group_size, table_stride, qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds,
                begun, taken, whole, 1, STAGES, TURNS, PREFETCH, HAS_SCORE_SCALE, HAS_BIAS,
            )),
            (dkdv_producer, (
                Q, K, V, GRAD_OUT, LSE, DELTA, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty,
                full, empty, heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, STAGES,
            )),
        ],
        [WARPS, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


# --- dq ----------------------------------------------------------------------------------------------------------------


@gluon.jit
def dq_producer(
    Q, K, V, GRAD_OUT, OUT, q_smem, do_smem, out_smem, k_smem, v_smem, q_full, q_empty, out_empty, k_full, k_empty, v_full,
    v_empty, heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole,
    KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    program, programs = gl.program_id(0), gl.num_programs(0)
    position = 0  # steps so far, of all tiles
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, block = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        b, h = rank // heads, rank % heads
        h_kv = h // group_size
        steps = (block + 1) * (TILE // KEYS)
        for i in range(steps):  # from the diagonal to the farthest key
            start = (steps - 1 - i) * KEYS
            slot = position % STAGES
            phase = ((position // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(slot), phase)
            mbarrier.expect(k_full.index(slot), KEYS * HEAD_DIM * 2)
            tma.async_copy_global_to_shared(K, [b, h_kv, start, 0], k_full.index(slot), k_smem.index(slot))
            if i == 0:  # after the first keys, which need not wait for the end of the last tile
                mbarrier.wait(q_empty, (turn & 1) ^ 1)
                mbarrier.wait(out_empty, (turn & 1) ^ 1)
                mbarrier.expect(q_full, 3 * TILE * HEAD_DIM * 2)
                for c in gl.static_range(CONSUMERS):
                    row = block * TILE + ROWS * c
                    tma.async_copy_global_to_shared(Q, [b, h, row, 0], q_full, q_smem.index(c))
                    tma.async_copy_global_to_shared(GRAD_OUT, [b, h, row, 0], q_full, do_smem.index(c))
                    tma.async_copy_global_to_shared(OUT, [b, h, row, 0], q_full, out_smem.index(c))
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(v_full.index(slot), KEYS * HEAD_DIM * 2)
            tma.async_copy_global_to_shared(V, [b, h_kv, start, 0], v_full.index(slot), v_smem.index(slot))
            position += 1


@gluon.jit
def dq_weights(
    s, lse, table, qk_scale, distance0,
    KEYS: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    if HAS_SCORE_SCALE:
        p = exp2(s * load_table(table, KEYS, 1) - lse[:, None])
    elif HAS_BIAS:
        p = exp2(s * qk_scale + (load_table(table, KEYS, 1) - lse[:, None]))
    else:
        p = exp2(s * qk_scale - lse[:, None])
    if MASKED:
        queries = gl.arange(0, ROWS, row_layout(KEYS))
        keys = gl.arange(0, KEYS, column_layout(KEYS))
        p = gl.where((distance0 + queries)[:, None] >= keys[None, :], p, 0.0)
    return p


@gluon.jit
def sum_registers(x):
    return gl.sum(gl.sum(x, 3), 1)


@gluon.jit
def contract_derivatives(
    tile, base, g0, g1, g2, KEYS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr
):  # fmt: skip
    """Add a gradient tile times each parameter's derivative table, summed within threads."""
    x = as_diagonals(tile, KEYS)
    pointers = diagonal_pointers(base, KEYS, 1, DERIV_WIDTH)
    if DERIVS == 1:
        g0 += sum_registers(x * load_pure(pointers))
    elif DERIVS == 2:
        d0, d1 = gl.inline_asm_elementwise(
            "ld.global.nc.v2.f32 {$0, $1}, [$2];", "=f,=f,l", [pointers], dtype=(gl.float32, gl.float32), is_pure=True, pack=1
        )  # fmt: skip
        g0 += sum_registers(x * d0)
        g1 += sum_registers(x * d1)
    elif DERIVS == 3:
        d0, d1, d2, _ = gl.inline_asm_elementwise(
            "ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [pointers],
            dtype=(gl.float32, gl.float32, gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
        g0 += sum_registers(x * d0)
        g1 += sum_registers(x * d1)
        g2 += sum_registers(x * d2)
    return g0, g1, g2


@gluon.jit
def dq_gradients(
    s, p, dp, delta, table, derivatives, g0, g1, g2,
    KEYS: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """The gradients of the scores, and the sums for the parameters."""
    ds = p * (dp - delta[:, None])
    if DERIVS > 0:
        g0, g1, g2 = contract_derivatives(
            ds * s if HAS_SCORE_SCALE else ds, derivatives, g0, g1, g2, KEYS, DERIVS, DERIV_WIDTH
        )
    if HAS_SCORE_SCALE:
        ds = ds * load_table_again(table, KEYS, 1)
    if AMPLITUDE:  # q . dq, without q
        g2 += sum_registers(as_diagonals(ds * s, KEYS))
    return ds, g0, g1, g2


@gluon.jit
def dq_first_step(
    q, do, lse, delta, dq, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, v_empty, turns, qk_scale,
    distance0, position, INDEX: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """The step of the diagonal. Its last product goes on, and its keys are still in use."""
    slot = position % STAGES
    phase = (position // STAGES) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    wait_turn(turns, position, INDEX, TURNS)
    s = issue_scores(q, k_smem, slot, KEYS)
    dp = issue_scores(do, v_smem, slot, KEYS)
    end_turn(turns, INDEX, TURNS)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    p = dq_weights(s, lse, table, qk_scale, distance0, KEYS, HAS_SCORE_SCALE, HAS_BIAS, True)
    dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, KEYS, HAS_SCORE_SCALE, DERIVS, DERIV_WIDTH, AMPLITUDE
    )
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dq = warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, HEAD_DIM]), dq, is_async=True)
    return dq, ds16, g0, g1, g2


@gluon.jit
def dq_step(
    q, do, lse, delta, dq, ds16, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, k_empty, v_empty, turns, qk_scale,
    position, INDEX: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, EARLY: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """A step without a mask. Products end in the order (dq of the last step), s, dp, dq."""
    slot = position % STAGES
    phase = (position // STAGES) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    wait_turn(turns, position, INDEX, TURNS)
    s = issue_scores(q, k_smem, slot, KEYS)
    if KEYS > 64:  # registers: the last step's gradients first make room for dp
        dq, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(dq, ds16))
        dp = issue_scores(do, v_smem, slot, KEYS)
        end_turn(turns, INDEX, TURNS)
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    else:
        dp = issue_scores(do, v_smem, slot, KEYS)
        end_turn(turns, INDEX, TURNS)
        s, dq, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(s, dq, ds16))
    mbarrier.arrive(k_empty.index((position - 1) % STAGES), count=1)
    p = dq_weights(s, lse, table, qk_scale, 0, KEYS, HAS_SCORE_SCALE, HAS_BIAS, False)
    if EARLY:  # wait again: else the compiler moves the exponentials behind the next line
        mbarrier.wait(v_full.index(slot), phase)
    dp, p = warpgroup_mma_wait(num_outstanding=0, deps=(dp, p))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, KEYS, HAS_SCORE_SCALE, DERIVS, DERIV_WIDTH, AMPLITUDE
    )
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dq = warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, HEAD_DIM]), dq, is_async=True)
    return dq, ds16, g0, g1, g2


@gluon.jit
def dq_step_ahead(
    q, do, lse, delta, s, dq, ds16, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, k_empty, v_empty, qk_scale,
    position, KEYS: gl.constexpr, STAGES: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """The same, but its scores were computed in the last step, and it computes those of the next, unless it is the LAST.

    Products end in the order (dq of the last step), dp, s of the next step, dq.
    """
    slot = position % STAGES
    mbarrier.wait(v_full.index(slot), (position // STAGES) & 1)
    dp = issue_scores(do, v_smem, slot, KEYS)
    p = dq_weights(s, lse, table, qk_scale, 0, KEYS, HAS_SCORE_SCALE, HAS_BIAS, False)
    mbarrier.wait(v_full.index(slot), (position // STAGES) & 1)  # again: as in dq_step
    dq, ds16, p = warpgroup_mma_wait(num_outstanding=1, deps=(dq, ds16, p))
    mbarrier.arrive(k_empty.index((position - 1) % STAGES), count=1)
    if LAST:
        next_s = s
        dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
    else:
        next_slot = (position + 1) % STAGES
        mbarrier.wait(k_full.index(next_slot), ((position + 1) // STAGES) & 1)
        next_s = issue_scores(q, k_smem, next_slot, KEYS)
        dp = warpgroup_mma_wait(num_outstanding=1, deps=(dp,))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, KEYS, HAS_SCORE_SCALE, DERIVS, DERIV_WIDTH, AMPLITUDE
    )
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(HEAD_DIM), assert_trivial=True)
    dq = warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, HEAD_DIM]), dq, is_async=True)
    if not LAST:
        next_s = warpgroup_mma_wait(num_outstanding=1, deps=(next_s,))
    return next_s, dq, ds16, g0, g1, g2


@gluon.jit
def store_warp_sums(pointers, x):
    """Store the sum of each warp; ``x`` is summed over the registers of each thread."""
    gl.store(pointers, gl.sum(gl.sum(x, 2), 1))


@gluon.jit
def dq_consumer(
    DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, q_smem, do_smem, out_smem, dq_smem, k_smem, v_smem, q_full, q_empty,
    out_empty, k_full, k_empty, v_full, v_empty, turns, heads, lse_stride, table_stride, qk_scale, qk_grad_scale, tiles,
    blocks, unit_heads, rounds, begun, taken, whole,
    INDEX: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr, HELD: gl.constexpr,
    TURNS: gl.constexpr, PREFETCH: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr,
    HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    program, programs = gl.program_id(0), gl.num_programs(0)
    # with blocks of 64 keys, those of the first step come after the queries of the first consumer
    FIRST: gl.constexpr = 1 if KEYS == 64 and INDEX == 0 else 0
    DISTANCE0: gl.constexpr = INDEX * 64 if KEYS == 128 else 0
    # out and dq share buffers where there is no room for both
    SHARED_OUT: gl.constexpr = KEYS == 128
    # whether there are registers for scores, weights and dp at once
    EARLY: gl.constexpr = not (HAS_SCORE_SCALE and DERIVS > 0 and (HELD > 0 or KEYS == 128))
    # the sum for an amplitude in the loop: then nothing reads q behind it
    LOOP_AMPLITUDE: gl.constexpr = AMPLITUDE and HELD == 2 and DERIVS < 3
    EARLY_RELEASE: gl.constexpr = HELD == 2 and (LOOP_AMPLITUDE or not AMPLITUDE)
    done = 0  # steps of earlier tiles
    q = q_smem.index(INDEX).reshape([ROWS, HEAD_DIM])
    do = do_smem.index(INDEX).reshape([ROWS, HEAD_DIM])
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, block = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        b, h = rank // heads, rank % heads
        steps = (block + 1) * (TILE // KEYS)
        start_m = block * TILE + INDEX * ROWS
        statistics = rank.to(gl.int64) * lse_stride + start_m + gl.arange(0, ROWS, row_layout(KEYS))
        table = TABLE + (h.to(gl.int64) * table_stride + TABLE_PADDING)
        derivatives = DERIVATIVES + (h.to(gl.int64) * table_stride + TABLE_PADDING) * DERIV_WIDTH
        lse = gl.load(LSE + statistics)
        mbarrier.wait(q_full, turn & 1)
        out = out_smem.index(INDEX).reshape([ROWS, HEAD_DIM]).load(tile_layout(HEAD_DIM))
        grad_out = do_smem.index(INDEX).reshape([ROWS, HEAD_DIM]).load(tile_layout(HEAD_DIM))
        delta = gl.sum(out.to(gl.float32) * grad_out.to(gl.float32), 1)
        delta = gl.convert_layout(delta, row_layout(KEYS), assert_trivial=True)
        gl.store(DELTA + statistics, delta)
        if not SHARED_OUT:
            mbarrier.arrive(out_empty, count=1)
        # left operands in registers: else products with 64 keys read 128 bytes a cycle, all that shared memory gives
        left_q = q.load(operand_layout(KEYS)) if HELD > 0 else q
        left_do = do.load(operand_layout(KEYS)) if HELD > 1 else do
        if EARLY_RELEASE:
            mbarrier.arrive(q_empty, count=1)
        dq = gl.zeros([ROWS, HEAD_DIM], gl.float32, tile_layout(HEAD_DIM))
        g0 = gl.zeros([4, 8, 8], gl.float32, sums_layout(KEYS))
        g1 = gl.zeros([4, 8, 8], gl.float32, sums_layout(KEYS))
        g2 = gl.zeros([4, 8, 8], gl.float32, sums_layout(KEYS))
        if FIRST == 1:
            slot = done % STAGES
            phase = (done // STAGES) & 1
            mbarrier.wait(k_full.index(slot), phase)
            mbarrier.arrive(k_empty.index(slot), count=1)
            mbarrier.wait(v_full.index(slot), phase)
            wait_turn(turns, done, INDEX, TURNS)
            end_turn(turns, INDEX, TURNS)
            mbarrier.arrive(v_empty.index(slot), count=1)
        token, ds16, g0, g1, g2 = dq_first_step(
            left_q, left_do, lse, delta, warpgroup_mma_init(dq), g0, g1, g2, table + DISTANCE0, derivatives + DISTANCE0 * DERIV_WIDTH,
            k_smem, v_smem, k_full, v_full, v_empty, turns, qk_scale, DISTANCE0, done + FIRST, INDEX, KEYS, STAGES, TURNS,
            HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, LOOP_AMPLITUDE,
        )  # fmt: skip
        if AHEAD:
            dq, ds16 = warpgroup_mma_wait(num_outstanding=0, deps=(token, ds16))
            if steps > FIRST + 1:
                slot = (done + FIRST + 1) % STAGES
                mbarrier.wait(k_full.index(slot), ((done + FIRST + 1) // STAGES) & 1)
                s = issue_scores(left_q, k_smem, slot, KEYS)
                s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
                token = warpgroup_mma_init(dq)
                for i in range(FIRST + 1, steps - 1):
                    distance0 = DISTANCE0 + (i - FIRST) * KEYS
                    prefetch_tables(
                        table + distance0,
                        derivatives + distance0 * DERIV_WIDTH,
                        KEYS,
                        PREFETCH,
                        HAS_SCORE_SCALE,
                        HAS_BIAS,
                        DERIVS,
                        DERIV_WIDTH,
                    )
                    s, token, ds16, g0, g1, g2 = dq_step_ahead(
                        left_q, left_do, lse, delta, s, token, ds16, g0, g1, g2, table + distance0, derivatives + distance0 * DERIV_WIDTH,
                        k_smem, v_smem, k_full, v_full, k_empty, v_empty, qk_scale, done + i, KEYS, STAGES, HAS_SCORE_SCALE,
                        HAS_BIAS, DERIVS, DERIV_WIDTH, LOOP_AMPLITUDE, False,
                    )  # fmt: skip
                distance0 = DISTANCE0 + (steps - 1 - FIRST) * KEYS
                s, token, ds16, g0, g1, g2 = dq_step_ahead(
                    left_q, left_do, lse, delta, s, token, ds16, g0, g1, g2, table + distance0, derivatives + distance0 * DERIV_WIDTH,
                    k_smem, v_smem, k_full, v_full, k_empty, v_empty, qk_scale, done + steps - 1, KEYS, STAGES,
                    HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, LOOP_AMPLITUDE, True,
                )  # fmt: skip
                dq, ds16 = warpgroup_mma_wait(num_outstanding=0, deps=(token, ds16))
        else:
            for i in range(FIRST + 1, steps):
                distance0 = DISTANCE0 + (i - FIRST) * KEYS
                prefetch_tables(
                    table + distance0,
                    derivatives + distance0 * DERIV_WIDTH,
                    KEYS,
                    PREFETCH,
                    HAS_SCORE_SCALE,
                    HAS_BIAS,
                    DERIVS,
                    DERIV_WIDTH,
                )
                token, ds16, g0, g1, g2 = dq_step(
                    left_q, left_do, lse, delta, token, ds16, g0, g1, g2, table + distance0, derivatives + distance0 * DERIV_WIDTH, k_smem,
                    v_smem, k_full, v_full, k_empty, v_empty, turns, qk_scale, done + i, INDEX, KEYS, STAGES, TURNS, EARLY, HAS_SCORE_SCALE,
                    HAS_BIAS, DERIVS, DERIV_WIDTH, LOOP_AMPLITUDE,
                )  # fmt: skip
            dq, ds16 = warpgroup_mma_wait(num_outstanding=0, deps=(token, ds16))
        done += steps
        mbarrier.arrive(k_empty.index((done - 1) % STAGES), count=1)
        dq = dq * qk_grad_scale
        # a sum for each warp: to add them up here, through shared memory, costs registers in the loop
        first_sum = ((rank.to(gl.int64) * blocks + block) * CONSUMERS + INDEX) * (WARPS * NUM_SLOTS)
        sums = PARTIAL_SUMS + first_sum
        warps = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, sums_layout(KEYS)))) * NUM_SLOTS
        if DERIVS > 0:
            store_warp_sums(sums + warps, g0)
        if DERIVS > 1:
            store_warp_sums(sums + 1 + warps, g1)
        if DERIVS > 2:
            store_warp_sums(sums + 2 + warps, g2)
        if LOOP_AMPLITUDE:
            store_warp_sums(sums + AMPLITUDE_SLOT + warps, g2 * qk_grad_scale)
        elif AMPLITUDE:
            q_again = q.load(tile_layout(HEAD_DIM)).to(gl.float32)
            products = sum_registers(as_diagonals(dq * q_again, HEAD_DIM))
            warps = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, sums_layout(HEAD_DIM)))) * NUM_SLOTS
            store_warp_sums(sums + AMPLITUDE_SLOT + warps, products)
        if not EARLY_RELEASE:
            mbarrier.arrive(q_empty, count=1)
        if not SHARED_OUT:
            tma.store_wait(0)  # the copy of the last tile has read the buffer
            role_barrier()
        dq_smem.index(INDEX).reshape([ROWS, HEAD_DIM]).store(dq.to(dq_smem.dtype))
        fence_async_shared()
        role_barrier()
        tma.async_copy_shared_to_global(DQ, [b, h, start_m, 0], dq_smem.index(INDEX))
        if SHARED_OUT:
            tma.store_wait(0)
            mbarrier.arrive(out_empty, count=1)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "heads", "group_size", "lse_stride", "table_stride", "tiles", "blocks", "unit_heads", "rounds", "begun", "taken",
        "whole",
    ]
)  # fmt: skip
def gluon_dq_kernel(
    Q, K, V, GRAD_OUT, OUT, DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, heads, group_size, lse_stride, table_stride,
    qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds, begun, taken, whole,
    KEYS: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr, HELD: gl.constexpr,
    TURNS: gl.constexpr, PREFETCH: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr,
):  # fmt: skip
    """dq, delta and sums for parameters. Descriptors of K and V have KEYS rows, the others 64."""
    q_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, HEAD_DIM], Q.layout)
    do_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, HEAD_DIM], GRAD_OUT.layout)
    out_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, HEAD_DIM], OUT.layout)
    if KEYS == 128:
        dq_smem = out_smem
    else:
        dq_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, HEAD_DIM], DQ.layout)
    k_smem = gl.allocate_shared_memory(K.dtype, [STAGES, 1, 1, KEYS, HEAD_DIM], K.layout)
    v_smem = gl.allocate_shared_memory(V.dtype, [STAGES, 1, 1, KEYS, HEAD_DIM], V.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    out_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=CONSUMERS)
    mbarrier.init(out_empty, count=CONSUMERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (dq_consumer, (
                DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, q_smem, do_smem, out_smem, dq_smem, k_smem, v_smem, q_full,
                q_empty, out_empty, k_full, k_empty, v_full, v_empty, turns, heads, lse_stride, table_stride, qk_scale, qk_grad_scale,
                tiles, blocks, unit_heads, rounds, begun, taken, whole, 0, KEYS, STAGES, AHEAD, HELD, TURNS, PREFETCH,
                HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, AMPLITUDE,
            )),
            (dq_consumer, (
                DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, q_smem, do_smem, out_smem, dq_smem, k_smem, v_smem, q_full,
                q_empty, out_empty, k_full, k_empty, v_full, v_empty, turns, heads, lse_stride, table_stride, qk_scale, qk_grad_scale,
                tiles, blocks, unit_heads, rounds, begun, taken, whole, 1, KEYS, STAGES, AHEAD, HELD, TURNS, PREFETCH,
                HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, AMPLITUDE,
            )),
            (dq_producer, (
                Q, K, V, GRAD_OUT, OUT, q_smem, do_smem, out_smem, k_smem, v_smem, q_full, q_empty, out_empty, k_full, k_empty,
                v_full, v_empty, heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, KEYS, STAGES,
            )),
        ],
        [WARPS, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


# --- launches ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    """A variant of one of the kernels."""

    kernel: str  # dq or dkdv
    stages: int  # buffers of each input of the inner loop
    keys: int = 64  # of a step, in the dq kernel
    turns: bool = False  # the consumers begin their products in turn
    prefetch: bool = False  # tables, for the next step
    held: int = 0  # of the left operands q and do, how many the dq kernel holds in registers
    ahead: bool = False  # the dq kernel begins the next step's scores before this step's gradients

    @property
    def name(self) -> str:
        keys = [f"{self.keys} keys"] if self.kernel == "dq" else []
        held = [f"{self.held} held"] if self.held else []
        others = [name for name in ("turns", "ahead", "prefetch") if getattr(self, name)]
        return ", ".join([self.kernel, *keys, f"{self.stages} stages", *held, *others])


@dataclasses.dataclass
class Problem:
    """What both kernels take. ``describe`` makes descriptors of tensors: of 4 axes for tiles of some rows, of 2 axes for 64 columns."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    table_stride: int
    has_score_scale: bool
    has_bias: bool
    qk_scale: float
    qk_grad_scale: float
    programs: int  # that run at the same time
    describe: Callable[[Tensor, int], Any]

    def schedule(self, heads: int) -> tuple[int, tuple[int, ...]]:
        blocks = packing.ceil_div(self.q.shape[2], TILE.value)
        programs = min(self.programs, heads * blocks)
        return programs, tuple(gluon_launch.make_schedule(heads, blocks, programs))


def dkdv_launch(
    config: Config, problem: Problem, grad_out: Tensor, lse: Tensor, delta: Tensor, dk: Tensor, dv: Tensor
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """The number of programs, the arguments and the compile-time arguments."""
    x = problem
    batch, heads = x.q.shape[:2]
    programs, schedule = x.schedule(batch * x.k.shape[1])
    tensors = (
        *(x.describe(t, 64) for t in (x.q, x.k, x.v, grad_out, dk, dv)),
        *(x.describe(t.flatten(0, 1), 64) for t in (lse, delta)),
        x.table,
    )
    sizes = (heads, heads // x.k.shape[1], x.table_stride, x.qk_scale, x.qk_grad_scale)
    constants = {
        "STAGES": config.stages,
        "TURNS": config.turns,
        "PREFETCH": config.prefetch,
        "HAS_SCORE_SCALE": x.has_score_scale,
        "HAS_BIAS": x.has_bias,
    }
    return programs, (*tensors, *sizes, *schedule), constants


def dq_launch(
    config: Config, problem: Problem, grad_out: Tensor, out: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, derivatives: Tensor,
    partial_sums: Tensor, num_derivatives: int, amplitude: bool,
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    x = problem
    batch, heads, q_len, _ = x.q.shape
    programs, schedule = x.schedule(batch * heads)
    tensors = (
        x.describe(x.q, 64), x.describe(x.k, config.keys), x.describe(x.v, config.keys), x.describe(grad_out, 64),
        x.describe(out, 64), x.describe(dq, 64), lse, delta, x.table, derivatives, partial_sums,
    )  # fmt: skip
    sizes = (heads, heads // x.k.shape[1], packing.padded_length(q_len), x.table_stride, x.qk_scale, x.qk_grad_scale)
    constants = {
        "KEYS": config.keys, "STAGES": config.stages, "AHEAD": config.ahead, "HELD": config.held, "TURNS": config.turns,
        "PREFETCH": config.prefetch, "HAS_SCORE_SCALE": x.has_score_scale,
        "HAS_BIAS": x.has_bias, "DERIVS": num_derivatives, "DERIV_WIDTH": (1, 1, 2, 4)[num_derivatives], "AMPLITUDE": amplitude,
    }  # fmt: skip
    return programs, (*tensors, *sizes, *schedule), constants


def partial_sums_shape(q: Tensor) -> tuple[int, ...]:
    """``[B, H, sums of a head, slots]``: one for each warp of each consumer of each tile."""
    return (*q.shape[:2], packing.ceil_div(q.shape[2], TILE.value) * CONSUMERS.value * WARPS.value, packing.NUM_SLOTS)


# --- emulation on a CPU ------------------------------------------------------------------------------------------------
#
# The same kernel functions run with threads for roles. Copies arrive late, into buffers that hold NaN in between, and matrix
# products either run when they begin or only when they are waited for. So a buffer that is read too early or overwritten too early
# changes the result, and a wrong phase or count of a barrier ends in a time limit.


class Emulator:
    SECONDS = 20.0  # until a wait counts as a deadlock

    def __init__(self, late: bool, seed: int) -> None:
        self.late, self.generator, self.role = late, torch.Generator().manual_seed(seed), threading.local()
        self.changed = threading.Condition()
        self.failed = False
        gl_functions = {
            "arange": lambda first, end, layout=None: torch.arange(first, end), "where": self.where,
            "zeros": lambda shape, dtype, layout=None: torch.zeros(shape, dtype=dtype), "static_range": range,
            "sum": lambda x, axis: x.sum(axis), "reshape": lambda x, shape: x.reshape(shape),
            "convert_layout": lambda x, layout, assert_trivial=False: x, "load": lambda p: p.read(),
            "store": lambda p, x: p.write(x), "program_id": lambda axis: torch.tensor(self.program),
            "num_programs": lambda axis: torch.tensor(self.programs), "inline_asm_elementwise": self.assembly,
            "allocate_shared_memory": self.allocate, "SliceLayout": lambda *a: None, "BlockedLayout": lambda *a: None,
            "warp_specialize": self.specialize, "int32": torch.int32,
            "float32": torch.float32, "int64": torch.int64,
        }  # fmt: skip
        barriers = {
            "MBarrierLayout": lambda: None, "init": lambda bar, count: bar.init(count), "wait": self.wait_barrier,
            "expect": lambda bar, size: self.arrive(bar, 1, size), "arrive": lambda bar, count: self.arrive(bar, count, 0),
        }  # fmt: skip
        copies = {
            "async_copy_global_to_shared": self.copy_in, "async_copy_shared_to_global": self.copy_out,
            "store_wait": self.wait_stores,
        }  # fmt: skip
        self.names: dict[str, Any] = {
            "gl": types.SimpleNamespace(**gl_functions), "mbarrier": types.SimpleNamespace(**barriers),
            "tma": types.SimpleNamespace(**copies), "warpgroup_mma": self.multiply, "warpgroup_mma_init": lambda x: x,
            "warpgroup_mma_wait": self.wait_products, "fence_async_shared": lambda: None, "role_barrier": lambda: None,
            "range": range, "float": float, "isinstance": isinstance,
        }  # fmt: skip
        for name, value in globals().items():
            if isinstance(value, JITFunction):
                self.names[name] = types.FunctionType(value.fn.__code__, self.names, name)
            elif isinstance(value, gl.constexpr):
                self.names[name] = value.value
            elif name.endswith("_layout"):
                self.names[name] = lambda *a: None
        del self.names["role_barrier"]
        self.names["role_barrier"] = lambda: None

    def launch(self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        self.programs = programs
        places = [
            Pointer(x) if isinstance(x, Tensor) else torch.tensor(x) if isinstance(x, int) else x for x in arguments
        ]
        for program in range(programs):
            self.program = program
            self.names[kernel.fn.__name__](*places, **constants)

    # tensors

    @staticmethod
    def where(condition: Tensor, x: Any, y: Any) -> Tensor:
        return torch.where(condition, torch.as_tensor(x), torch.as_tensor(y))

    @staticmethod
    def assembly(text: str, constraints: str, arguments: list[Any], dtype: Any, is_pure: bool, pack: int) -> Any:
        if text.startswith("ex2"):
            return torch.exp2(arguments[0])
        if text.startswith("prefetch"):
            return arguments[0].read()
        results = [(arguments[0] + i).read() for i in range(len(dtype) if isinstance(dtype, tuple) else 1)]
        return tuple(results) if isinstance(dtype, tuple) else results[0]

    def allocate(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Any:
        if dtype == torch.int64:
            return Barriers(shape[0])
        return Buffer(torch.full(shape, torch.nan, dtype=dtype))

    # roles

    def specialize(self, roles: list[Any], *_: Any) -> None:
        errors: list[Exception] = []

        def run(function: Any, arguments: tuple[Any, ...]) -> None:
            self.role.products, self.role.stores = [], []
            try:
                function(*arguments)
                assert not self.role.products and not self.role.stores
            except Exception as error:
                errors.append(error)
                self.failed = True

        threads = [threading.Thread(target=run, args=role, daemon=True) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def arrive(self, bar: Any, count: int, size: int) -> None:
        with self.changed:
            bar.pending -= count
            bar.bytes += size
            assert bar.pending >= 0, "more arrivals than the barrier counts"
            bar.turn()
            self.changed.notify_all()

    def wait_barrier(self, bar: Any, parity: Any) -> None:
        with self.changed:
            ready = self.changed.wait_for(lambda: self.failed or (bar.phases & 1) != int(parity), self.SECONDS)
            if not ready or self.failed:
                raise TimeoutError("a barrier's phase does not end")

    def copy_in(self, source: Any, place: list[Any], bar: Any, buffer: Any) -> None:
        place, target = [int(x) for x in place], buffer.x.view(-1, buffer.x.shape[-1])
        target.fill_(torch.nan)
        delay = torch.rand((), generator=self.generator).item() * 0.002

        def finish() -> None:
            time.sleep(delay)
            target.copy_(source.tile(place))
            with self.changed:
                bar.bytes -= target.numel() * target.element_size()
                bar.turn()
                self.changed.notify_all()

        threading.Thread(target=finish, daemon=True).start()

    def copy_out(self, target: Any, place: list[Any], buffer: Any) -> None:
        self.role.stores.append(lambda: target.store([int(x) for x in place], buffer.x))

    def wait_stores(self, left: int) -> None:
        for store in self.role.stores:
            store()
        self.role.stores = []

    def multiply(self, a: Any, b: Any, accumulator: Any, use_acc: bool = True, is_async: bool = False) -> Any:
        product = Product(a, b, accumulator, use_acc)
        if not self.late:
            product.run()
        self.role.products.append(product)
        return product

    def wait_products(self, num_outstanding: int, deps: tuple[Any, ...]) -> Any:
        while len(self.role.products) > num_outstanding:
            product = self.role.products.pop(0)
            product.run()
            product.is_finished = True
        results = []
        for x in deps:
            if isinstance(x, Product):
                assert x.is_finished, "a product is used before its end"
                x = x.result
            results.append(x)
        return results[0] if len(results) == 1 else tuple(results)


class Pointer:
    def __init__(self, x: Tensor, offset: Any = 0) -> None:
        self.x, self.offset = x.view(-1), offset

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.x, self.offset + other)

    def to(self, dtype: Any) -> Pointer:
        return self

    def read(self) -> Tensor:
        assert int(torch.as_tensor(self.offset).min()) >= 0, "before the beginning of a tensor"
        return self.x[self.offset]

    def write(self, x: Tensor) -> None:
        assert int(torch.as_tensor(self.offset).min()) >= 0, "before the beginning of a tensor"
        self.x[self.offset] = x


class Buffer:
    """Shared memory."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.dtype = x, x.dtype

    def index(self, i: Any) -> Buffer:
        return Buffer(self.x[int(i)])

    def reshape(self, shape: list[int]) -> Buffer:
        return Buffer(self.x.view(shape))

    def permute(self, order: tuple[int, ...]) -> Buffer:
        return Buffer(self.x.permute(order))

    def load(self, layout: Any) -> Tensor:
        return self.x.clone()

    def store(self, x: Tensor) -> None:
        self.x.copy_(x)


class Barriers:
    def __init__(self, n: int) -> None:
        self.all = [self] if n == 1 else [Barriers(1) for _ in range(n)]

    def index(self, i: Any) -> Barriers:
        return self.all[int(i)]

    def init(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = self.phases = 0

    def turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phases = self.count, self.phases + 1


class Product:
    """A matrix product that runs beside other work."""

    def __init__(self, a: Any, b: Any, accumulator: Any, use_acc: bool) -> None:
        self.operands, self.use_acc, self.result, self.is_finished = (a, b, accumulator), use_acc, None, False

    def run(self) -> None:
        if self.result is None:
            a, b, accumulator = self.operands
            a, b = (x.x if isinstance(x, Buffer) else x for x in (a, b))
            self.result = a.float() @ b.float()
            if self.use_acc:
                self.result += accumulator.result if isinstance(accumulator, Product) else accumulator


class EmulatedDescriptor:
    def __init__(self, x: Tensor, rows: int) -> None:
        self.x, self.rows, self.dtype, self.layout = x, rows, x.dtype, None

    def tile(self, place: list[int]) -> Tensor:
        if self.x.dim() == 2:
            assert place[1] + self.rows <= self.x.shape[1]
            return self.x[place[0], place[1] : place[1] + self.rows][None]
        b, h, start, _ = place
        tile = torch.zeros(self.rows, self.x.shape[3], dtype=self.dtype)
        rows = self.x[b, h, start : start + self.rows]
        tile[: rows.shape[0]] = rows
        return tile

    def store(self, place: list[int], tile: Tensor) -> None:
        b, h, start, _ = place
        rows = self.x[b, h, start : start + self.rows]
        rows.copy_(tile.view(-1, tile.shape[-1])[: rows.shape[0]])


KERNELS = {"dq": gluon_dq_kernel, "dkdv": gluon_dkdv_kernel}
#: score scale, bias, derivative tables, amplitude
KINDS = {
    "none": (False, False, 0, False), "scale": (True, False, 2, True), "scale, 3 derivatives": (True, False, 3, False),
    "bias": (False, True, 2, False),
}  # fmt: skip
#: batch, heads, key heads, tokens, programs
EMULATED_SHAPES = ((1, 2, 2, 300, 2), (2, 4, 2, 200, 3), (1, 1, 1, 128, 1), (1, 2, 1, 600, 2))


def reference_gradients(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, scale: Tensor, bias: Tensor
) -> dict[str, Tensor]:
    """Attention in float64: output, log-sum-exp in base 2, and gradients. Tables ``[H, T]`` are of natural logits."""
    leaves = [x.double().requires_grad_() for x in (q, k, v, scale, bias)]
    q, k, v, scale, bias = leaves
    length, group = q.shape[2], q.shape[1] // k.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    place = distance.clamp(min=0)
    logits = q @ k.repeat_interleave(group, 1).mT * scale[:, place] + bias[:, place]
    logits = logits.masked_fill(distance < 0, -torch.inf)
    out = logits.softmax(-1) @ v.repeat_interleave(group, 1)
    names = ("dq", "dk", "dv", "scale", "bias")
    gradients = dict(zip(names, torch.autograd.grad(out, leaves, grad_out.double()), strict=True))
    return gradients | {"out": out.detach(), "lse": logits.detach().logsumexp(-1) * packing.LOG2E}


def direct_case(
    configs: list[Config], kind: str, shape: tuple[int, ...], launch: Callable[..., None], describe: Callable[[Tensor, int], Any],
    *, seed: int = 0, device: str = "cpu", dtype: torch.dtype = torch.bfloat16,
) -> dict[str, float]:  # fmt: skip
    """Relative errors of all results of kernels that are launched without the operator. Outputs begin as NaN."""
    torch.manual_seed(seed)
    batch, heads, kv_heads, length, programs = shape
    has_scale, has_bias, derivs, amplitude = KINDS[kind]
    q, k, v, grad_out = (
        torch.randn(batch, n, length, HEAD_DIM.value).to(device, dtype) for n in (heads, kv_heads, kv_heads, heads)
    )
    softmax_scale = HEAD_DIM.value**-0.5
    distance, head = torch.arange(length, device=device), torch.arange(heads, device=device)[:, None]
    scale = torch.full((heads, length), softmax_scale, device=device)
    scale = scale * (1 + 0.5 * torch.sin(distance / 50 + head)) if has_scale else scale
    bias = -0.01 * distance * (1 + head) if has_bias else torch.zeros(heads, length, device=device)
    exact = reference_gradients(q, k, v, grad_out, scale, bias)
    padded = packing.padded_length(length)
    lse = torch.full((batch, heads, padded), torch.inf, device=device)
    lse[..., :length] = exact["lse"]
    table = packing.pack_tables([scale if has_scale else bias], [packing.LOG2E])
    assert table is not None
    tables = [torch.cos(distance * (i + 1) / 30).expand(heads, -1) for i in range(derivs)]
    derivatives = packing.pack_tables(tables, [1.0] * derivs)
    derivatives = table if derivatives is None else derivatives
    problem = Problem(
        q, k, v, table, table.shape[1], has_scale, has_bias, softmax_scale * packing.LOG2E,
        1 / packing.LOG2E if has_scale else softmax_scale, programs, describe,
    )  # fmt: skip
    out = exact["out"].to(dtype)
    delta = torch.full_like(lse, torch.nan)
    if all(config.kernel != "dq" for config in configs):
        delta[..., :length] = (out.float() * grad_out.float()).sum(-1)
        delta[..., length:] = 0
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    sums = torch.full(partial_sums_shape(q), torch.nan, device=device)
    pairs = {}
    for config in configs:
        if config.kernel == "dkdv":
            arguments = dkdv_launch(config, problem, grad_out, lse, delta, dk, dv)
            pairs |= {"dk": (dk, exact["dk"]), "dv": (dv, exact["dv"])}
        else:
            arguments = dq_launch(config, problem, grad_out, out, lse, delta, dq, derivatives, sums, derivs, amplitude)
            pairs |= {"dq": (dq, exact["dq"])}
            for i, derivative in enumerate(tables):  # of the score scale: sums of the products q . k without it
                pairs[f"parameter {i}"] = sums[..., i], exact["scale" if has_scale else "bias"] * derivative
            if amplitude:
                pairs["amplitude"] = sums[..., AMPLITUDE_SLOT.value], (exact["dq"] * q.double()).sum((0, 3))
        launch(KERNELS[config.kernel], *arguments)
    return {name: relative_error(*pair) for name, pair in pairs.items()}


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Of a gradient; or of the sums ``[B, H, n]`` for a parameter, whose exact terms ``[H, n]`` cancel."""
    if result.shape == exact.shape:
        return ((result.double() - exact).norm() / exact.norm()).item()
    difference = result.double().sum((0, 2)) - exact.sum(1)
    return (difference.norm() / torch.maximum(exact.sum(1).norm(), exact.norm())).item()


def is_accurate(errors: dict[str, float]) -> bool:
    """Of results without the operator; a NaN is not accurate."""
    return all(error < (5e-3 if name in ("dq", "dk", "dv") else 2e-2) for name, error in errors.items())


def emulate() -> None:
    by_kernel = [[x for x in CONFIGS if x.kernel == kernel] for kernel in ("dq", "dkdv")]
    worst: dict[str, float] = {}
    for seed, (shape, kind) in enumerate(itertools.product(EMULATED_SHAPES, KINDS)):
        for number in range(max(map(len, by_kernel))):
            configs = [x[number % len(x)] for x in by_kernel]
            emulator = Emulator(late=number % 2 == seed % 2, seed=seed)
            errors = direct_case(configs, kind, shape, emulator.launch, EmulatedDescriptor, seed=seed)
            worst = {name: max(error, worst.get(name, 0)) for name, error in errors.items()} | {
                name: error for name, error in worst.items() if name not in errors
            }
            line = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
            print(f"{shape} {kind}; {' + '.join(x.name for x in configs)}: {line}", flush=True)
            assert is_accurate(errors)
    print("largest relative errors:", ", ".join(f"{name} {error:.1e}" for name, error in worst.items()))


# --- compilation on a CPU ------------------------------------------------------------------------------------------------


def argument_types(config: Config, dtype: str = "bf16") -> dict[str, str]:
    """The types of a kernel's arguments, as Triton writes them."""
    tile_layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    row_layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    described = dict.fromkeys(("Q", "GRAD_OUT", "OUT", "DQ", "DK", "DV"), 64) | dict.fromkeys(("K", "V"), config.keys)
    result = {}
    for name in KERNELS[config.kernel].arg_names:
        if name in described:
            result[name] = f"tensordesc<{dtype}[1, 1, {described[name]}, {HEAD_DIM.value}],{tile_layout!r}>"
        elif name in ("LSE", "DELTA") and config.kernel == "dkdv":
            result[name] = f"tensordesc<fp32[1, 64],{row_layout!r}>"
        elif name in ("LSE", "DELTA", "TABLE", "DERIVATIVES", "PARTIAL_SUMS"):
            result[name] = "*fp32"
        else:
            result[name] = "fp32" if name.startswith("qk_") else "i32"
    return result


def constants_of(config: Config, kind: str) -> dict[str, Any]:
    has_scale, has_bias, derivs, amplitude = KINDS[kind]
    tables = {"HAS_SCORE_SCALE": has_scale, "HAS_BIAS": has_bias}
    if config.kernel == "dkdv":
        return {"STAGES": config.stages, "TURNS": config.turns, "PREFETCH": config.prefetch, **tables}
    own = {
        "KEYS": config.keys,
        "STAGES": config.stages,
        "AHEAD": config.ahead,
        "HELD": config.held,
        "TURNS": config.turns,
        "PREFETCH": config.prefetch,
    }
    return own | tables | {"DERIVS": derivs, "DERIV_WIDTH": (1, 1, 2, 4)[derivs], "AMPLITUDE": amplitude}


def compile_facts(config: Config, kind: str) -> dict[str, Any]:
    """Registers, spills and shared memory of a kernel for compute capability 9.0, and what its loops hold.

    Consumers have CONSUMER_REGISTERS registers a thread while they run; the compiler prints those at the start.
    """
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel, constants = KERNELS[config.kernel], constants_of(config, kind)
    signature = argument_types(config) | dict.fromkeys(constants, "constexpr")
    source = GluonASTSource(
        kernel, signature, {(kernel.arg_names.index(name),): x for name, x in constants.items()}, {}
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS.value})
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        ptx, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(compiled.asm["ptx"])
        command = [tools / "ptxas", "-v", "-arch=sm_90a", ptx, "-o", binary]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        disassembly = subprocess.run(
            [tools / "nvdisasm", "-c", binary], capture_output=True, text=True, check=True
        ).stdout
    spills = [int(x) for x in re.findall(r"(\d+) bytes spill", log)]
    loops = [loop for loop in find_loops(disassembly) if loop["stores"] == 0]
    return {
        "config": config.name, "kind": kind, "shared": compiled.metadata.shared,
        "registers": int(re.findall(r"Used (\d+) registers", log)[0]), "spill_bytes": spills,
        "serialized": "serialized" in log, "loops": loops,
    }  # fmt: skip


def find_loops(disassembly: str) -> list[dict[str, int]]:
    """Instructions, products, and stores and loads of spilled registers of the innermost loops with products."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in disassembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(instruction[1])
    ranges = []
    for end, instruction in enumerate(instructions):
        branch = re.search(r"BRA.*`\((\.L_x_\d+)\)", instruction)
        if branch and labels.get(branch[1], end) < end:
            ranges.append((labels[branch[1]], end + 1))
    names = {
        "products": "HGMMA",
        "spill_stores": "STL",
        "spill_loads": "LDL",
        "table_loads": "LDG",
        "stores": "UTMASTG",
    }
    found = []
    for first, end in ranges:
        body = instructions[first:end]
        counts = {name: sum(x in y for y in body) for name, x in names.items()}
        is_innermost = not any(first <= a and b <= end and (a, b) != (first, end) and b - a > 100 for a, b in ranges)
        if counts["products"] and is_innermost:
            found.append({"instructions": end - first, **counts})
    return found


def compile_all(out: Path | None) -> None:
    rows = []
    print(f"Triton {triton.__version__}")
    for config in CONFIGS:
        for kind in ("none", "scale", "bias") if config.kernel == "dkdv" else KINDS:
            row = compile_facts(config, kind)
            rows.append(row)
            loops = ", ".join(
                f"{x['instructions']} instructions with {x['spill_stores']} + {x['spill_loads']} spills"
                for x in row["loops"]
            )
            print(
                f"{row['config']:28} {kind:22} {row['shared'] / 1024:6.1f} of 227 KiB, spills {row['spill_bytes']} bytes; loops: {loops}"
                + ("; PRODUCTS SERIALIZED" if row["serialized"] else "")
                + ("; TOO LARGE" if row["shared"] > 227 * 1024 else ""),
                flush=True,
            )
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))


# --- on a GPU ------------------------------------------------------------------------------------------------------------

MECHANISMS = ("none", "epar", "power prior")
#: batch, heads, key heads, tokens; dtype
CHECKED_CALLS = (
    (1, 2, 2, 128, "bfloat16"), (2, 4, 2, 200, "bfloat16"), (2, 4, 1, 1000, "float16"), (1, 3, 3, 300, "bfloat16"),
    (1, 4, 4, 4096, "bfloat16"), (1, 4, 2, 4096, "bfloat16"),
)  # fmt: skip
TIMED_SHAPES = ((4, 16, 16, 4096), (1, 16, 16, 16384))
ROUNDING = 2e-4  # added to twice the error of the Triton kernels
CHECK_SECONDS, TIME_SECONDS, TOTAL_SECONDS = 170, 75, 350


def describe_on_gpu(x: Tensor, rows: int) -> Any:
    if x.dim() == 4:
        return gluon_launch.describe(x, rows)
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows], layout)


def launch_on_gpu(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    kernel[(programs,)](*arguments, **constants, num_warps=WARPS.value)


class Backward:
    """Takes the place of ``Plan.backward``. Kernels without a configuration are those of the plan.

    ``launches``: the launches of the last call, to repeat them alone.
    """

    def __init__(self, dq: Config | None, dkdv: Config | None, poison: bool = False) -> None:
        self.dq, self.dkdv, self.poison = dq, dkdv, poison
        self.launches: dict[str, Callable[[], None]] = {}
        self.original = eager_plan.Plan.backward

    def empty(self, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        x = torch.empty_like(like) if shape is None else like.new_empty(shape)
        return x.fill_(torch.nan) if self.poison else x

    def launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.launches[name] = functools.partial(launch_on_gpu, KERNELS[name], *arguments)
        self.launches[name]()

    def __call__(
        self, plan: Any, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor,
        derivatives: Tensor, head_values: Tensor, tensors: tuple[Tensor, ...], extent: Any, ids: Any, seed: int,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        tables = plan.tables
        gradients: tuple[Tensor | None, ...] = ()
        if self.dq is None or self.dkdv is None:
            rest = (q, k, v, out, lse, table, derivatives, head_values, tensors, extent, ids, seed)
            dq, dk, dv, *gradients = self.original(plan, grad_out, *rest)
        grad_out = packing.align(grad_out)
        if tables.has_bias:
            grad_out = plan._scale_rows(grad_out, lse)
        problem = Problem(
            q, k, v, table, extent.stride, tables.has_score_scale, tables.has_bias, plan.qk_scale, plan.qk_grad_scale,
            packing.num_multiprocessors(q.device), describe_on_gpu,
        )  # fmt: skip
        delta = self.empty(lse[0])
        if self.dq is None:
            delta.zero_()[..., : q.shape[2]] = (out.float() * grad_out.float()).sum(-1)
        else:
            dq, sums = self.empty(q), self.empty(lse, partial_sums_shape(q))
            count = tables.num_derivatives if tables.learns else 0
            amplitude = tables.learns and tables.has_score_scale
            arguments = (grad_out, out, lse[0], delta, dq, derivatives, sums, count, amplitude)
            self.launch("dq", dq_launch(self.dq, problem, *arguments))
            by_tile = sums.unflatten(2, (-1, CONSUMERS.value * WARPS.value)).sum(3)
            gradients = tables.gradients(tensors, by_tile, delta, extent)
        if self.dkdv is not None:
            dk, dv = self.empty(k), self.empty(v)
            self.launch("dkdv", dkdv_launch(self.dkdv, problem, grad_out, lse[0], delta, dk, dv))
        return (dq, dk, dv, *gradients)


def recorded_launches(run: Callable[[], object]) -> dict[str, Callable[[], None]]:
    """The launches of the Triton kernels of a backward pass, to repeat them alone."""
    launches: dict[str, Callable[[], None]] = {}
    tiled = eager_plan.Plan._tiled

    def record(plan: Any, key: tuple[Any, ...], *rest: Any) -> Any:
        launch = tiled(plan, key, *rest)

        def run_launch(*arguments: Any) -> None:
            launches[key[0]] = functools.partial(launch, *arguments)
            launch(*arguments)

        return run_launch

    with mock.patch.object(eager_plan.Plan, "_tiled", record):
        run()
    return launches


def patched(backward: Backward) -> Any:
    return mock.patch.object(eager_plan.Plan, "backward", lambda plan, *arguments: backward(plan, *arguments))


def make_call(
    mechanism: str, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Callable[[], list[Tensor]], Any, list[Tensor], Tensor]:
    """A forward and backward pass that returns the output and the gradients; its position and inputs."""
    import gpu_timing
    import gpu_variants

    torch.manual_seed(0)
    batch, heads, kv_heads, length = shape
    position = gpu_variants.POSITIONS[mechanism](heads, length, HEAD_DIM.value)
    position = None if position is None else position.to(gpu_timing.DEVICE)
    parameters = [] if position is None else list(position.parameters())
    q, k, v = (
        torch.randn(batch, n, length, HEAD_DIM.value, device=gpu_timing.DEVICE).to(dtype).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    )
    grad_out = torch.randn(batch, heads, length, HEAD_DIM.value, device=gpu_timing.DEVICE).to(dtype)

    def both() -> list[Tensor]:
        out = whence.attend(q, k, v, position=position, causal=True, backend="triton", skip_blocks=False)
        return [out, *torch.autograd.grad(out, [q, k, v, *parameters], grad_out)]

    return both, position, [q, k, v], grad_out


def exact_results(position: Any, inputs: list[Tensor], grad_out: Tensor) -> list[Tensor]:
    exact_position = None if position is None else copy.deepcopy(position).double()
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    parameters = [] if exact_position is None else list(exact_position.parameters())
    out = whence.attend(*leaves, position=exact_position, causal=True, backend="reference")
    return [out, *torch.autograd.grad(out, [*leaves, *parameters], grad_out.double())]


def report(**row: Any) -> None:
    """A line for the parent process."""
    print("ROW " + json.dumps(row), flush=True)


def check_config(number: int) -> None:
    """In a process of its own: compare one configuration with float64 and with the Triton kernels."""
    import gpu_timing

    tile_configs.FEW_PAIRS = 0  # short sequences by the kernels of long ones
    config = CONFIGS[number]
    pair = (config, None) if config.kernel == "dq" else (None, config)
    programs = packing.num_multiprocessors(torch.device(gpu_timing.DEVICE))
    for kind in KINDS if config.kernel == "dq" else ("none", "scale", "bias"):
        for shape in ((1, 2, 2, 300), (2, 4, 2, 1000)):
            for used in (programs, 3):  # with 3 programs, each computes many tiles
                errors = direct_case(
                    [config], kind, (*shape, used), launch_on_gpu, describe_on_gpu, device=gpu_timing.DEVICE
                )
                report(
                    what="direct", config=config.name, kind=kind, shape=shape, errors=errors, passed=is_accurate(errors)
                )
    checked = ("dq",) if config.kernel == "dq" else ("dk", "dv")
    for mechanism in MECHANISMS:
        for *shape, dtype in CHECKED_CALLS:
            if dtype == "float16" and mechanism != "epar":
                continue
            both, position, inputs, grad_out = make_call(mechanism, tuple(shape), getattr(torch, dtype))
            exact, triton_results = exact_results(position, inputs, grad_out), both()
            with patched(Backward(*pair, poison=True)):
                results, again = both(), both()
            names = ["out", "dq", "dk", "dv", *(f"parameter {i}" for i in range(len(exact) - 4))]
            rows = {}
            for name, a, b, wanted, twice in zip(names, triton_results, results, exact, again, strict=True):
                if name in checked or (name.startswith("parameter") and config.kernel == "dq"):
                    errors = [((x.double() - wanted).norm() / wanted.norm()).item() for x in (a, b)]
                    rows[name] = {"triton": errors[0], "gluon": errors[1], "repeats": torch.equal(b, twice)}
            # the gradient of a parameter is a sum that cancels: its two errors are two draws; the direct cases bound them closer
            passed = all(
                x["gluon"] <= 2 * x["triton"] + (2e-2 if name.startswith("parameter") else ROUNDING) and x["repeats"]
                for name, x in rows.items()
            )
            report(
                what="check",
                config=config.name,
                mechanism=mechanism,
                shape=shape,
                dtype=dtype,
                errors=rows,
                passed=passed,
            )
    for mechanism, shape in itertools.product(MECHANISMS, TIMED_SHAPES):  # against the Triton kernels
        both, *_ = make_call(mechanism, shape, torch.bfloat16)
        wanted = both()
        with patched(Backward(*pair, poison=True)):
            results = [both() for _ in range(3)]
        differences = [
            ((a.double() - b.double()).norm() / b.double().norm()).item()
            for a, b in zip(results[0], wanted, strict=True)
        ]
        repeats = all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
        passed = repeats and all(x < (1e-2 if i < 4 else 5e-2) for i, x in enumerate(differences))
        report(
            what="large", config=config.name, mechanism=mechanism, shape=shape, differences=differences, repeats=repeats, passed=passed
        )  # fmt: skip


def time_shape(mechanism: str, shape: tuple[int, ...], numbers: list[int]) -> None:
    """In a process of its own: times of some configurations, the Triton kernels and SDPA, all interleaved."""
    import gpu_variants

    both, _, inputs, grad_out = make_call(mechanism, shape, torch.bfloat16)
    steps: dict[str, Callable[[], object]] = {}
    for name in ("flash", "cudnn"):
        run, *_ = gpu_variants.make_variant(name, (*shape, HEAD_DIM.value), shape[3])
        steps[f"{name} both"] = lambda run=run: torch.autograd.grad(run(*inputs), inputs, grad_out)
    steps |= {f"triton {name}": x for name, x in recorded_launches(both).items() if name in KERNELS}
    steps["triton both"] = both
    configs = [CONFIGS[i] for i in numbers]
    for config in configs:
        backward = Backward(*((config, None) if config.kernel == "dq" else (None, config)))
        with patched(backward):
            both()
        steps[config.name] = backward.launches[config.kernel]
    times = time_graphs(steps)
    report(what="times", mechanism=mechanism, shape=shape, milliseconds=times)
    fastest = [min((x for x in configs if x.kernel == k), key=lambda x: times[x.name], default=None) for k in KERNELS]
    if None in fastest:
        return
    backward = Backward(*fastest)

    def patched_both() -> object:
        with patched(backward):
            return both()

    title = " + ".join(x.name for x in fastest if x is not None)
    again = {name: steps[name] for name in ("flash both", "cudnn both", "triton both")} | {
        f"both: {title}": patched_both
    }
    report(what="times", mechanism=mechanism, shape=shape, milliseconds=time_graphs(again))


def time_graphs(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians of interleaved replays, in milliseconds."""
    import gpu_timing

    graphs = {name: gpu_timing.capture_graph(step) for name, step in steps.items()}
    times = gpu_timing.time_interleaved({name: x for name, x in graphs.items() if x is not None}, 0.25)
    return {name: statistics.median(x) for name, x in times.items()}


def run_workers(
    tasks: dict[str, list[str]], seconds: float, at_once: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows that processes of this script print, and how those processes ended that failed or ran out of time."""
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    waiting, running = list(tasks.items()), []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, arguments = waiting.pop(0)
                log = Path(folder) / f"{len(tasks) - len(waiting)}.txt"
                with log.open("w") as file:
                    command = [sys.executable, __file__, *arguments]
                    process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
                running.append((name, process, log, time.monotonic()))
            time.sleep(0.2)
            for item in list(running):
                name, process, log, start = item
                late = time.monotonic() - start > seconds
                if process.poll() is None and not late:
                    continue
                if process.poll() is None:
                    process.kill()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                running.remove(item)
                lines = log.read_text(errors="replace").splitlines()
                rows += [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]
                if late or process.returncode != 0:
                    last = [line for line in lines if line and not line.startswith("ROW ")][-3:]
                    failures[name] = ("no end within its time: " if late else "failed: ") + " | ".join(last)[-400:]
    return rows, failures


def summarize_checks(rows: list[dict[str, Any]], failures: dict[str, str], config: Config) -> bool:
    """Print one line; whether everything about a configuration was right."""
    own = [row for row in rows if row.get("config") == config.name]
    expected = len(MECHANISMS) * (len(CHECKED_CALLS) + len(TIMED_SHAPES)) - 2  # float16 with one mechanism
    expected += 4 * (len(KINDS) if config.kernel == "dq" else 3)
    wrong = [row for row in own if not row["passed"]]
    passed = len(own) == expected and not wrong and config.name not in failures
    ratios = [
        x["gluon"] / x["triton"]
        for row in own
        if row["what"] == "check"
        for n, x in row["errors"].items()
        if n[0] == "d"
    ]
    ratio = f", errors at most {max(ratios):.2f} of the Triton kernels'" if ratios else ""
    print(
        f"{config.name:28} {'passed' if passed else 'NOT PASSED'}: {len(own) - len(wrong)} of {expected} comparisons{ratio}"
    )
    for row in wrong[:4]:
        print(
            f"    wrong: {json.dumps({name: x for name, x in row.items() if name not in ('config', 'passed')})[:500]}"
        )
    if config.name in failures:
        print(f"    {failures[config.name]}")
    return passed


def print_times(row: dict[str, Any]) -> None:
    batch, heads, _, length = row["shape"]
    times = row["milliseconds"]
    pairs = batch * heads * length**2 / 2
    print(
        f"\n{row['mechanism']}, {batch} x {heads} heads x {length} tokens; ratios below 1 are faster than the named one"
    )
    for name, ms in times.items():
        line = f"  {name:58} {ms:8.3f} ms"
        is_dq, is_dkdv = (
            name.endswith(" dq") or name.startswith("dq"),
            name.endswith(" dkdv") or name.startswith("dkdv"),
        )
        if is_dq or is_dkdv:
            line += f"  {(3 if is_dq else 4) * 2 * HEAD_DIM.value * pairs / ms / 1e9:6.0f} TFLOP/s"
            line += f"  {ms / times['triton dq' if is_dq else 'triton dkdv']:5.2f} of Triton"
        else:
            others = (("triton both", "Triton"), ("flash both", "flash"), ("cudnn both", "cuDNN"))
            line += "  " + ", ".join(f"{ms / times[other]:.2f} of {title}" for other, title in others if other in times)
        print(line)


def run_on_gpu(out: Path | None, check_only: bool) -> None:
    start = time.monotonic()
    tasks = {config.name: ["--worker", "check", str(i)] for i, config in enumerate(CONFIGS)}
    rows, failures = run_workers(tasks, CHECK_SECONDS, len(tasks))
    good = [i for i, config in enumerate(CONFIGS) if summarize_checks(rows, failures, config)]

    def save() -> None:
        if out is not None:
            environment = records.describe_environment(("torch", "triton"))
            out.write_text(json.dumps({"environment": environment, "rows": rows, "failures": failures}, indent=1))

    save()
    print(f"checks took {time.monotonic() - start:.0f} s", flush=True)
    if check_only or not good:
        return
    for shape, mechanism in itertools.product(TIMED_SHAPES, MECHANISMS):
        for numbers in (good, *([i] for i in good)):  # each by itself only if all together fail
            left = TOTAL_SECONDS - (time.monotonic() - start)
            if left < 20:
                print(f"no time left for {mechanism}, {shape}")
                break
            task = ["--worker", "time", mechanism, json.dumps(shape), json.dumps(numbers)]
            name = f"times of {mechanism}, {shape}, configurations {numbers}"
            found, failed = run_workers({name: task}, min(TIME_SECONDS, left), 1)
            rows, failures = rows + found, failures | failed
            for row in found:
                print_times(row)
            for title, reason in failed.items():
                print(f"{title}: {reason}")
            save()
            sys.stdout.flush()
            if not failed:
                break
    print(f"all took {time.monotonic() - start:.0f} s")


CONFIGS = (
    Config("dkdv", 2),
    Config("dkdv", 3),
    Config("dkdv", 3, turns=True),
    Config("dkdv", 3, prefetch=True),
    Config("dq", 3, ahead=True),
    Config("dq", 3, ahead=True, prefetch=True),
    Config("dq", 3, held=2),
    Config("dq", 3, held=2, turns=True),
    Config("dq", 2, keys=128),
    Config("dq", 2, keys=128, turns=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Compare results, without times.")
    parser.add_argument("--compile", action="store_true", help="Compile for compute capability 9.0 on a CPU.")
    parser.add_argument("--emulate", action="store_true", help="Run the kernels on a CPU with threads for roles.")
    parser.add_argument("--out", type=Path, help="A JSON file for the results.")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker and args.worker[0] == "check":
        check_config(int(args.worker[1]))
    elif args.worker:
        time_shape(args.worker[1], tuple(json.loads(args.worker[2])), json.loads(args.worker[3]))
    elif args.compile:
        compile_all(args.out)
    elif args.emulate:
        emulate()
    else:
        run_on_gpu(args.out, args.check)


if __name__ == "__main__":
    main()
