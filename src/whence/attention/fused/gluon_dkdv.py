"""The warp-specialised kernel of dk and dv; ``gluon_roles`` has its roles and barriers.

A tile holds 128 keys, 64 of each consumer. Steps go over 64 queries, from the diagonal to the last query, for each query head that
shares the keys.
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
    column_layout,
    load_table,
    multiply_by_scale,
    operand_layout,
    row_layout,
    tile_layout,
)

STEP = gl.constexpr(64)  # queries of a step

# Arrivals. A consumer arrives at ``empty`` at step i + 1 for that of step i, after the last product that reads it has ended, or after
# the loop for the last step. Keys and values have two pairs of buffers, for this tile and the next. The results leave from this
# tile's pair, so a consumer arrives at its kv_empty after the first step of the next tile, when the copies have read it. After the
# last tile nobody waits for that.
#
# No deadlock. kv_empty of a tile needs only that the consumers end the first step of the tile before.


@gluon.jit
def dkdv_producer(
    Q, K, V, GRAD_OUT, LSE, DELTA, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty, full, empty,
    heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, STAGES: gl.constexpr,
    BLOCK_D: gl.constexpr,
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
        mbarrier.expect(kv_full.index(pair), 2 * TILE * BLOCK_D * 2)
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
                mbarrier.expect(full.index(slot), 2 * STEP * BLOCK_D * 2 + 2 * STEP * 4)
                tma.async_copy_global_to_shared(Q, [b, h, i * STEP, 0], full.index(slot), q_smem.index(slot))
                tma.async_copy_global_to_shared(LSE, [b * heads + h, i * STEP], full.index(slot), lse_smem.index(slot))
                tma.async_copy_global_to_shared(GRAD_OUT, [b, h, i * STEP, 0], full.index(slot), do_smem.index(slot))
                tma.async_copy_global_to_shared(
                    DELTA, [b * heads + h, i * STEP], full.index(slot), delta_smem.index(slot)
                )
                position += 1


@gluon.jit
def dkdv_weights(
    s, lse, table, qk_scale, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr
):  # fmt: skip
    """The weights of 64 keys and 64 queries. MASKED: both begin at the same token."""
    scale, bias = load_table(table, STEP, -1, HAS_SCORE_SCALE, HAS_BIAS)
    if HAS_SCORE_SCALE and HAS_BIAS:
        p = exp2(s * scale + (bias - lse[None, :]))
    elif HAS_SCORE_SCALE:
        p = exp2(s * scale - lse[None, :])
    elif HAS_BIAS:
        p = exp2(s * qk_scale + (bias - lse[None, :]))
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
    INDEX: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """One step. The product of dk that the last step began is finished here, and this step's begins.

    Products end in the order in which they begin: (dk of the last step), s, dp, dv, dk.
    """
    slot = position % STAGES
    mbarrier.wait(full.index(slot), (position // STAGES) & 1)
    wait_turn(turns, position, INDEX, TURNS)
    s = issue_scores(k, q_smem, slot, STEP, BLOCK_D)
    dp = issue_scores(v, do_smem, slot, STEP, BLOCK_D)
    end_turn(turns, INDEX, TURNS)
    if MASKED:
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
    else:
        s, dk, ds16 = warpgroup_mma_wait(num_outstanding=1, deps=(s, dk, ds16))
        mbarrier.arrive(empty.index((position - 1) % STAGES), count=1)
    lse = lse_smem.index(slot).reshape([STEP]).load(column_layout(STEP))
    p = dkdv_weights(s, lse, table, qk_scale, HAS_SCORE_SCALE, HAS_BIAS, MASKED)
    p16 = gl.convert_layout(p.to(q_smem.dtype), operand_layout(BLOCK_D), assert_trivial=True)
    dv = warpgroup_mma(p16, do_smem.index(slot).reshape([STEP, BLOCK_D]), dv, is_async=True)
    delta = delta_smem.index(slot).reshape([STEP]).load(column_layout(STEP))
    dp = warpgroup_mma_wait(num_outstanding=1, deps=(dp,))
    ds = p * (dp - delta[None, :])
    if HAS_SCORE_SCALE:
        ds = multiply_by_scale(ds, table, STEP, -1, HAS_BIAS)
    ds16 = gl.convert_layout(ds.to(q_smem.dtype), operand_layout(BLOCK_D), assert_trivial=True)
    dk = warpgroup_mma(ds16, q_smem.index(slot).reshape([STEP, BLOCK_D]), dk, is_async=True)
    dv, p16 = warpgroup_mma_wait(num_outstanding=1, deps=(dv, p16))
    return dk, dv, ds16


@gluon.jit
def dkdv_consumer(
    DK, DV, TABLE, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty, full, empty, turns,
    heads, group_size, table_stride, qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds, begun, taken, whole,
    INDEX: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    program, programs = gl.program_id(0), gl.num_programs(0)
    kv_heads = heads // group_size
    done = 0  # steps of earlier tiles and heads
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, place = find_tile(program, programs, turn, blocks, unit_heads, rounds, begun, taken, whole)
        block = blocks - 1 - place
        b, h_kv = rank // kv_heads, rank % kv_heads
        steps = (blocks - block) * (TILE // STEP)
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, tile_layout(BLOCK_D))
        dv = gl.zeros([ROWS, BLOCK_D], gl.float32, tile_layout(BLOCK_D))
        pair = turn % 2
        k_buffer = k_smem.index(pair * CONSUMERS + INDEX)
        v_buffer = v_smem.index(pair * CONSUMERS + INDEX)
        k = k_buffer.reshape([ROWS, BLOCK_D])
        v = v_buffer.reshape([ROWS, BLOCK_D])
        mbarrier.wait(kv_full.index(pair), (turn // 2) & 1)
        for member in range(group_size):
            h = h_kv * group_size + member
            table = TABLE + (h.to(gl.int64) * table_stride + TABLE_PADDING) * WIDTH
            if INDEX == 1:  # these queries come before the keys of the second consumer
                slot = done % STAGES
                mbarrier.wait(full.index(slot), (done // STAGES) & 1)
                wait_turn(turns, done, INDEX, TURNS)
                end_turn(turns, INDEX, TURNS)
                mbarrier.arrive(empty.index(slot), count=1)
            ds16 = gl.zeros([ROWS, STEP], q_smem.dtype, operand_layout(BLOCK_D))
            dk_token, dv, ds16 = dkdv_step(
                k, v, warpgroup_mma_init(dk), dv, ds16, q_smem, do_smem, lse_smem, delta_smem, full, empty, turns, table,
                qk_scale, done + INDEX, INDEX, STAGES, TURNS, HAS_SCORE_SCALE, HAS_BIAS, True, BLOCK_D,
            )  # fmt: skip
            if (member == 0) & (turn > 0):  # the copies of the last tile's results have read the buffers
                tma.store_wait(0)
                mbarrier.arrive(kv_empty.index(1 - pair), count=1)
            for i in range(INDEX + 1, steps):
                dk_token, dv, ds16 = dkdv_step(
                    k, v, dk_token, dv, ds16, q_smem, do_smem, lse_smem, delta_smem, full, empty, turns,
                    table + (i - INDEX) * STEP * WIDTH, qk_scale, done + i, INDEX, STAGES, TURNS, HAS_SCORE_SCALE, HAS_BIAS,
                    False, BLOCK_D,
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
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, BLOCK_D: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """dk and dv of causal attention. All descriptors have 64 rows; those of LSE and DELTA are of ``[heads, 64]``.

    ``STAGES``: buffers of queries. ``TURNS``: whether the consumers begin their products in turn.
    """
    k_smem = gl.allocate_shared_memory(K.dtype, [2 * CONSUMERS, 1, 1, ROWS, BLOCK_D], K.layout)
    v_smem = gl.allocate_shared_memory(V.dtype, [2 * CONSUMERS, 1, 1, ROWS, BLOCK_D], V.layout)
    q_smem = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, STEP, BLOCK_D], Q.layout)
    do_smem = gl.allocate_shared_memory(Q.dtype, [STAGES, 1, 1, STEP, BLOCK_D], GRAD_OUT.layout)
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
                begun, taken, whole, 0, STAGES, TURNS, HAS_SCORE_SCALE, HAS_BIAS, BLOCK_D,
            )),
            (dkdv_consumer, (
                DK, DV, TABLE, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty,
                full, empty, turns, heads, group_size, table_stride, qk_scale, qk_grad_scale, tiles, blocks, unit_heads, rounds,
                begun, taken, whole, 1, STAGES, TURNS, HAS_SCORE_SCALE, HAS_BIAS, BLOCK_D,
            )),
            (dkdv_producer, (
                Q, K, V, GRAD_OUT, LSE, DELTA, k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem, kv_full, kv_empty,
                full, empty, heads, group_size, tiles, blocks, unit_heads, rounds, begun, taken, whole, STAGES, BLOCK_D,
            )),
        ],
        [WARPS, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
