"""The warp-specialised kernel of dq, of delta and of sums for parameters; ``gluon_roles`` has its roles and barriers.

A tile holds 128 queries, 64 of each consumer. Steps go over 128 keys, from the diagonal to the farthest key.
"""

from __future__ import annotations

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

from whence.attention.fused import packing
from whence.attention.fused.gluon_roles import (
    CONSUMER_REGISTERS,
    CONSUMERS,
    PRODUCER_REGISTERS,
    ROWS,
    TABLE_PADDING,
    TILE,
    WARPS,
    count_tiles,
    end_turn,
    exp2,
    find_tile,
    issue_scores,
    role_barrier,
    wait_turn,
)
from whence.attention.fused.gluon_tiles import (
    as_diagonals,
    column_layout,
    diagonal_pointers,
    load_numbers,
    load_pairs,
    load_table,
    multiply_by_scale,
    operand_layout,
    row_layout,
    sums_layout,
    tile_layout,
)

KEYS = TILE  # of a step, so that the diagonal crosses one step of a tile
STAGES = gl.constexpr(2)  # buffers of keys, and of values
NUM_SLOTS = gl.constexpr(packing.NUM_SLOTS)
AMPLITUDE_SLOT = gl.constexpr(packing.AMPLITUDE_SLOT)

# Arrivals. A consumer arrives at v_empty at step i for that of step i, and at k_empty at step i + 1 for that of step i, after the last
# product that reads it has ended, or after the loop for the last step; at q_empty and out_empty once for each tile.
#
# No deadlock. The one exception to the order in which the producer fills buffers, the first keys of a tile before its queries, needs
# only that the ring's use STAGES earlier is over, which belongs to an earlier step. q_empty and out_empty of a tile need only that
# the consumers end the tile before.


# --- steps -----------------------------------------------------------------------------------------------------------


@gluon.jit
def dq_weights(
    s, lse, table, qk_scale, distance0, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr
):  # fmt: skip
    scale, bias = load_table(table, KEYS, 1, HAS_SCORE_SCALE, HAS_BIAS)
    if HAS_SCORE_SCALE and HAS_BIAS:
        p = exp2(s * scale + (bias - lse[:, None]))
    elif HAS_SCORE_SCALE:
        p = exp2(s * scale - lse[:, None])
    elif HAS_BIAS:
        p = exp2(s * qk_scale + (bias - lse[:, None]))
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
def contract_derivatives(tile, base, g0, g1, g2, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr):
    """Add a gradient tile times each parameter's derivative table, summed within threads."""
    x = as_diagonals(tile, KEYS)
    pointers = diagonal_pointers(base, KEYS, 1, DERIV_WIDTH)
    if DERIVS == 1:
        g0 += sum_registers(x * load_numbers(pointers))
    elif DERIVS == 2:
        d0, d1 = load_pairs(pointers)
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
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr,
):  # fmt: skip
    """The gradients of the scores, and the sums for the parameters."""
    ds = p * (dp - delta[:, None])
    if DERIVS > 0:
        g0, g1, g2 = contract_derivatives(
            ds * s if HAS_SCORE_SCALE else ds, derivatives, g0, g1, g2, DERIVS, DERIV_WIDTH
        )
    if HAS_SCORE_SCALE:
        ds = multiply_by_scale(ds, table, KEYS, 1, HAS_BIAS)
    return ds, g0, g1, g2


@gluon.jit
def multiply_gradients(ds, k_smem, slot, dq, BLOCK_D: gl.constexpr):
    """Begin the product of the gradients of the scores with the keys."""
    ds16 = gl.convert_layout(ds.to(k_smem.dtype), operand_layout(BLOCK_D), assert_trivial=True)
    return warpgroup_mma(ds16, k_smem.index(slot).reshape([KEYS, BLOCK_D]), dq, is_async=True), ds16


@gluon.jit
def dq_first_step(
    q, do, lse, delta, dq, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, v_empty, turns, qk_scale,
    distance0, position, INDEX: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr,
    DERIV_WIDTH: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """The step of the diagonal. Its last product goes on, and its keys are still in use."""
    slot = position % STAGES
    phase = (position // STAGES) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    wait_turn(turns, position, INDEX, True)
    s = issue_scores(q, k_smem, slot, KEYS, BLOCK_D)
    dp = issue_scores(do, v_smem, slot, KEYS, BLOCK_D)
    end_turn(turns, INDEX, True)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    p = dq_weights(s, lse, table, qk_scale, distance0, HAS_SCORE_SCALE, HAS_BIAS, True)
    dp = warpgroup_mma_wait(num_outstanding=0, deps=(dp,))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH
    )
    dq, ds16 = multiply_gradients(ds, k_smem, slot, dq, BLOCK_D)
    return dq, ds16, g0, g1, g2


@gluon.jit
def dq_step(
    q, do, lse, delta, dq, ds16, g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, k_empty, v_empty, turns, qk_scale,
    position, INDEX: gl.constexpr, EARLY: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr,
    DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """A step without a mask. Products end in the order (dq of the last step), s, dp, dq."""
    slot = position % STAGES
    phase = (position // STAGES) & 1
    mbarrier.wait(k_full.index(slot), phase)
    mbarrier.wait(v_full.index(slot), phase)
    wait_turn(turns, position, INDEX, True)
    s = issue_scores(q, k_smem, slot, KEYS, BLOCK_D)
    # registers: the last step's gradients first make room for dp
    dq, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(dq, ds16))
    dp = issue_scores(do, v_smem, slot, KEYS, BLOCK_D)
    end_turn(turns, INDEX, True)
    s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    mbarrier.arrive(k_empty.index((position - 1) % STAGES), count=1)
    p = dq_weights(s, lse, table, qk_scale, 0, HAS_SCORE_SCALE, HAS_BIAS, False)
    if EARLY:  # wait again: else the compiler moves the exponentials behind the next line
        mbarrier.wait(v_full.index(slot), phase)
    dp, p = warpgroup_mma_wait(num_outstanding=0, deps=(dp, p))
    mbarrier.arrive(v_empty.index(slot), count=1)
    ds, g0, g1, g2 = dq_gradients(
        s, p, dp, delta, table, derivatives, g0, g1, g2, HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH
    )
    dq, ds16 = multiply_gradients(ds, k_smem, slot, dq, BLOCK_D)
    return dq, ds16, g0, g1, g2


# --- roles -----------------------------------------------------------------------------------------------------------


@gluon.jit
def dq_producer(
    Q, K, V, GRAD_OUT, OUT, q_smem, do_smem, out_smem, k_smem, v_smem, q_full, q_empty, out_empty, k_full, k_empty, v_full,
    v_empty, heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, BLOCK_D: gl.constexpr,
):  # fmt: skip
    program, programs = gl.program_id(0), gl.num_programs(0)
    position = 0  # steps so far, of all tiles
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, block = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        b, h = rank // heads, rank % heads
        h_kv = h // group_size
        for i in range(block + 1):  # from the diagonal to the farthest key
            start = (block - i) * KEYS
            slot = position % STAGES
            phase = ((position // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(slot), phase)
            mbarrier.expect(k_full.index(slot), KEYS * BLOCK_D * 2)
            tma.async_copy_global_to_shared(K, [b, h_kv, start, 0], k_full.index(slot), k_smem.index(slot))
            if i == 0:  # after the first keys, which need not wait for the end of the last tile
                mbarrier.wait(q_empty, (turn & 1) ^ 1)
                mbarrier.wait(out_empty, (turn & 1) ^ 1)
                mbarrier.expect(q_full, 3 * TILE * BLOCK_D * 2)
                for c in gl.static_range(CONSUMERS):
                    row = block * TILE + ROWS * c
                    tma.async_copy_global_to_shared(Q, [b, h, row, 0], q_full, q_smem.index(c))
                    tma.async_copy_global_to_shared(GRAD_OUT, [b, h, row, 0], q_full, do_smem.index(c))
                    tma.async_copy_global_to_shared(OUT, [b, h, row, 0], q_full, out_smem.index(c))
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(v_full.index(slot), KEYS * BLOCK_D * 2)
            tma.async_copy_global_to_shared(V, [b, h_kv, start, 0], v_full.index(slot), v_smem.index(slot))
            position += 1


@gluon.jit
def store_warp_sums(sums, x, COLUMNS: gl.constexpr):
    """Store the sum of each warp; ``x`` is a tile with these columns, summed over the registers of each thread."""
    warps = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, sums_layout(COLUMNS))))
    gl.store(sums + warps * NUM_SLOTS, gl.sum(gl.sum(x, 2), 1))


@gluon.jit
def dq_consumer(
    DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, q_smem, do_smem, out_smem, k_smem, v_smem, q_full, q_empty,
    out_empty, k_full, k_empty, v_full, v_empty, turns, heads, lse_stride, table_stride, qk_scale, qk_grad_scale, tiles,
    blocks, unit_heads, rounds, begun, taken, whole,
    INDEX: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr,
    DERIV_WIDTH: gl.constexpr, AMPLITUDE: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    DISTANCE0: gl.constexpr = INDEX * 64  # of the first query and key of the diagonal's step
    EARLY: gl.constexpr = not (HAS_SCORE_SCALE and DERIVS > 0)  # there are registers for scores, weights and dp at once
    program, programs = gl.program_id(0), gl.num_programs(0)
    done = 0  # steps of earlier tiles
    q = q_smem.index(INDEX).reshape([ROWS, BLOCK_D])
    do = do_smem.index(INDEX).reshape([ROWS, BLOCK_D])
    out_buffer = out_smem.index(INDEX)  # of out, then of dq
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, block = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        b, h = rank // heads, rank % heads
        start_m = block * TILE + INDEX * ROWS
        statistics = rank.to(gl.int64) * lse_stride + start_m + gl.arange(0, ROWS, row_layout(KEYS))
        table = TABLE + (h.to(gl.int64) * table_stride + TABLE_PADDING + DISTANCE0) * WIDTH
        derivatives = DERIVATIVES + (h.to(gl.int64) * table_stride + TABLE_PADDING + DISTANCE0) * DERIV_WIDTH
        lse = gl.load(LSE + statistics)
        mbarrier.wait(q_full, turn & 1)
        out = out_buffer.reshape([ROWS, BLOCK_D]).load(tile_layout(BLOCK_D))
        grad_out = do.load(tile_layout(BLOCK_D))
        delta = gl.sum(out.to(gl.float32) * grad_out.to(gl.float32), 1)
        delta = gl.convert_layout(delta, row_layout(KEYS), assert_trivial=True)
        gl.store(DELTA + statistics, delta)
        dq = gl.zeros([ROWS, BLOCK_D], gl.float32, tile_layout(BLOCK_D))
        g0 = gl.zeros([4, 8, 8], gl.float32, sums_layout(KEYS))
        g1 = gl.zeros([4, 8, 8], gl.float32, sums_layout(KEYS))
        g2 = gl.zeros([4, 8, 8], gl.float32, sums_layout(KEYS))
        token, ds16, g0, g1, g2 = dq_first_step(
            q, do, lse, delta, warpgroup_mma_init(dq), g0, g1, g2, table, derivatives, k_smem, v_smem, k_full, v_full, v_empty,
            turns, qk_scale, DISTANCE0, done, INDEX, HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, BLOCK_D,
        )  # fmt: skip
        for i in range(1, block + 1):
            token, ds16, g0, g1, g2 = dq_step(
                q, do, lse, delta, token, ds16, g0, g1, g2, table + i * KEYS * WIDTH, derivatives + i * KEYS * DERIV_WIDTH,
                k_smem, v_smem, k_full, v_full, k_empty, v_empty, turns, qk_scale, done + i, INDEX, EARLY, HAS_SCORE_SCALE,
                HAS_BIAS, DERIVS, DERIV_WIDTH, BLOCK_D,
            )  # fmt: skip
        dq, ds16 = warpgroup_mma_wait(num_outstanding=0, deps=(token, ds16))
        done += block + 1
        mbarrier.arrive(k_empty.index((done - 1) % STAGES), count=1)
        dq = dq * qk_grad_scale
        # a sum for each warp: to add them up here, through shared memory, costs registers in the loop
        sums = PARTIAL_SUMS + ((rank.to(gl.int64) * blocks + block) * CONSUMERS + INDEX) * (WARPS * NUM_SLOTS)
        if DERIVS > 0:
            store_warp_sums(sums, g0, KEYS)
        if DERIVS > 1:
            store_warp_sums(sums + 1, g1, KEYS)
        if DERIVS > 2:
            store_warp_sums(sums + 2, g2, KEYS)
        if AMPLITUDE:
            q_again = q.load(tile_layout(BLOCK_D)).to(gl.float32)
            store_warp_sums(sums + AMPLITUDE_SLOT, sum_registers(as_diagonals(dq * q_again, BLOCK_D)), BLOCK_D)
        mbarrier.arrive(q_empty, count=1)
        out_buffer.reshape([ROWS, BLOCK_D]).store(dq.to(out_smem.dtype))
        fence_async_shared()
        role_barrier()
        tma.async_copy_shared_to_global(DQ, [b, h, start_m, 0], out_buffer)
        tma.store_wait(0)
        mbarrier.arrive(out_empty, count=1)


@gluon.jit(
    do_not_specialize=[
        "heads", "group_size", "lse_stride", "table_stride", "tiles", "blocks", "unit_heads", "rounds", "begun", "taken",
        "whole",
    ]
)  # fmt: skip
def gluon_dq_kernel(
    Q, K, V, GRAD_OUT, OUT, DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, heads, group_size, lse_stride, table_stride,
    qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds, begun, taken, whole,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, DERIVS: gl.constexpr, DERIV_WIDTH: gl.constexpr,
    AMPLITUDE: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """dq, delta and sums for parameters. Descriptors of K and V have 128 rows, the others 64."""
    q_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], Q.layout)
    do_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], GRAD_OUT.layout)
    out_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], OUT.layout)
    k_smem = gl.allocate_shared_memory(K.dtype, [STAGES, 1, 1, KEYS, BLOCK_D], K.layout)
    v_smem = gl.allocate_shared_memory(V.dtype, [STAGES, 1, 1, KEYS, BLOCK_D], V.layout)
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
                DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, q_smem, do_smem, out_smem, k_smem, v_smem, q_full,
                q_empty, out_empty, k_full, k_empty, v_full, v_empty, turns, heads, lse_stride, table_stride, qk_scale, qk_grad_scale,
                tiles, blocks, unit_heads, rounds, begun, taken, whole, 0, HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, AMPLITUDE, BLOCK_D,
            )),
            (dq_consumer, (
                DQ, LSE, DELTA, TABLE, DERIVATIVES, PARTIAL_SUMS, q_smem, do_smem, out_smem, k_smem, v_smem, q_full,
                q_empty, out_empty, k_full, k_empty, v_full, v_empty, turns, heads, lse_stride, table_stride, qk_scale, qk_grad_scale,
                tiles, blocks, unit_heads, rounds, begun, taken, whole, 1, HAS_SCORE_SCALE, HAS_BIAS, DERIVS, DERIV_WIDTH, AMPLITUDE, BLOCK_D,
            )),
            (dq_producer, (
                Q, K, V, GRAD_OUT, OUT, q_smem, do_smem, out_smem, k_smem, v_smem, q_full, q_empty, out_empty, k_full, k_empty,
                v_full, v_empty, heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, BLOCK_D,
            )),
        ],
        [WARPS, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
