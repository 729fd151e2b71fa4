"""The kernel of dq, delta and sums for parameters: its producer, and the loop of its consumers over tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from diagonal_tables import as_diagonals, prefetch_tables
from dq_steps import dq_first_step, dq_step, dq_step_ahead, sum_registers
from layouts import operand_layout, row_layout, sums_layout, tile_layout
from roles import (
    AMPLITUDE_SLOT,
    CONSUMER_REGISTERS,
    CONSUMERS,
    HEAD_DIM,
    NUM_SLOTS,
    PRODUCER_REGISTERS,
    ROWS,
    TABLE_PADDING,
    TILE,
    WARPS,
    end_turn,
    issue_scores,
    wait_turn,
)
from whence.attention.fused.gluon_forward import count_tiles, find_tile, role_barrier

# ``roles`` says what the barriers mean and why no wait lasts forever; this is what is particular to dq.
#
# Arrivals. A consumer arrives at v_empty at step i for that of step i, and at k_empty at step i + 1 for that of step i, after the last
# product that reads it has ended, or after the loop for the last step; at q_empty and out_empty once for each tile.
#
# No deadlock. The one exception to the order in which the producer fills buffers, the first keys of a tile before its queries, needs
# only that the ring's use STAGES earlier is over, which belongs to an earlier step. A consumer with AHEAD at position p waits for the
# keys of p + 1 and holds those of p. q_empty and out_empty of a tile need only that the consumers end the tile before.


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
