"""The warp-specialised forward kernel of Hopper GPUs; ``gluon_roles`` has its roles and barriers.

Each consumer computes attention of its rows with an online softmax. The consumers start their matrix products in turn, so that one
computes its softmax while the tensor cores work for the other. Within one consumer, the softmax of a block also runs beside the
product of the previous block's weights with its values.

Logits are in base 2, and tables are read along diagonals in the accumulator's own layout. Import this module late.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from whence.attention.fused import tile_ops
from whence.attention.fused.gluon_roles import (
    CONSUMER_REGISTERS,
    CONSUMERS,
    PRODUCER_REGISTERS,
    ROWS,
    TABLE_PADDING,
    TILE,
    WARPS,
    count_tiles,
    exp2,
    find_tile,
    issue_scores,
    role_barrier,
)
from whence.attention.fused.gluon_tiles import load_table, operand_layout, row_layout, tile_layout

BLOCK = TILE  # rows of a tile and keys of a block, so that the diagonal crosses one block of a tile
STAGES = gl.constexpr(2)  # buffers of keys, and of values
MAX_LSE = gl.constexpr(tile_ops.MAX_LSE.value)
S_LAYOUT = gl.constexpr(tile_layout(128))
ROW_LAYOUT = gl.constexpr(row_layout(128))


@gluon.jit
def softmax_step(
    s, scale, bias, qk_scale, row_max, row_sum, distance0,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Weights of a block of scores, the factor of what earlier blocks gave, and the rows' new maxima and sums."""
    if HAS_SCORE_SCALE and HAS_BIAS:
        logits = s * scale + bias
    elif HAS_SCORE_SCALE:
        logits = s * scale
    elif HAS_BIAS:
        logits = s * qk_scale + bias
    else:
        logits = s  # the positive scale is one multiply-add with the maximum below
    if MASKED:
        rows = gl.arange(0, ROWS, ROW_LAYOUT)
        columns = gl.arange(0, BLOCK, gl.SliceLayout(0, S_LAYOUT))
        logits = gl.where((distance0 + rows)[:, None] >= columns[None, :], logits, -float("inf"))
    block_max = gl.max(logits, 1)
    if not (HAS_SCORE_SCALE or HAS_BIAS):
        block_max = block_max * qk_scale
    new_max = gl.maximum(row_max, block_max)
    safe_max = gl.where(new_max == -float("inf"), 0.0, new_max)  # a bias may be -inf at all keys so far
    if HAS_SCORE_SCALE or HAS_BIAS:
        p = exp2(logits - safe_max[:, None])
    else:
        p = exp2(logits * qk_scale - safe_max[:, None])
    rescale = exp2(row_max - safe_max)
    return p, rescale, new_max, row_sum * rescale + gl.sum(p, 1)


# --- roles -----------------------------------------------------------------------------------------------------------


@gluon.jit
def find_head(MAX_DISTANCE, rank, block, batch, heads, SKIP_BLOCKS: gl.constexpr):
    """Sequence and head, and the number of key blocks that a tile needs before that of the diagonal."""
    if SKIP_BLOCKS:  # heads with the largest max_distance first, so that programs go through similar heads together
        h = gl.load(MAX_DISTANCE + heads + rank // batch)
        low = gl.maximum(block * BLOCK - gl.load(MAX_DISTANCE + h), 0)
        return rank % batch, h, block - low // BLOCK
    else:
        return rank // heads, rank % heads, block


@gluon.jit
def load_block(X, buffers, full, empty, position, b, h, start, BLOCK_D: gl.constexpr):
    """Copy a block of keys or values into its buffer; ``position`` counts the blocks of a program."""
    slot = position % STAGES
    mbarrier.wait(empty.index(slot), ((position // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(slot), BLOCK * BLOCK_D * 2)
    tma.async_copy_global_to_shared(X, [b, h, start, 0], full.index(slot), buffers.index(slot))


@gluon.jit
def producer(
    Q, K, V, MAX_DISTANCE, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, batch, heads, group_size,
    tiles, row_blocks, unit_heads, rounds, begun, taken, whole,
    SKIP_BLOCKS: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    program, programs = gl.program_id(0), gl.num_programs(0)
    done = 0  # key blocks of earlier tiles
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, block = find_tile(program, programs, turn, row_blocks, unit_heads, rounds, begun, taken, whole)
        b, h, earlier = find_head(MAX_DISTANCE, rank, block, batch, heads, SKIP_BLOCKS)
        h_kv = h // group_size
        mbarrier.wait(q_empty, (turn & 1) ^ 1)
        mbarrier.expect(q_full, BLOCK * BLOCK_D * 2)
        for c in gl.static_range(CONSUMERS):
            tma.async_copy_global_to_shared(Q, [b, h, block * BLOCK + ROWS * c, 0], q_full, q_smem.index(c))
        load_block(
            K, k_smem, k_full, k_empty, done, b, h_kv, block * BLOCK, BLOCK_D
        )  # from the diagonal to the farthest key
        for i in range(earlier):  # consumers need keys one block before values
            load_block(K, k_smem, k_full, k_empty, done + i + 1, b, h_kv, (block - 1 - i) * BLOCK, BLOCK_D)
            load_block(V, v_smem, v_full, v_empty, done + i, b, h_kv, (block - i) * BLOCK, BLOCK_D)
        load_block(V, v_smem, v_full, v_empty, done + earlier, b, h_kv, (block - earlier) * BLOCK, BLOCK_D)
        done += earlier + 1


@gluon.jit
def consumer(
    OUT, LSE, TABLE, MAX_DISTANCE, q_smem, k_smem, v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns,
    batch, heads, q_len, lse_stride, table_stride, qk_scale, tiles, row_blocks, unit_heads, rounds, begun, taken, whole,
    INDEX: gl.constexpr, HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, SKIP_BLOCKS: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    FIRST: gl.constexpr = 1 if INDEX == 0 else 0  # this consumer's first turn needs no signal
    program, programs = gl.program_id(0), gl.num_programs(0)
    turn_mine = turns.index(INDEX)
    turn_other = turns.index(1 - INDEX)
    done = 0  # key blocks of earlier tiles
    done_turns = 0  # turns of earlier tiles: a tile has one for each block but its first
    for turn in range(count_tiles(program, programs, tiles, rounds)):
        rank, block = find_tile(program, programs, turn, row_blocks, unit_heads, rounds, begun, taken, whole)
        b, h, earlier = find_head(MAX_DISTANCE, rank, block, batch, heads, SKIP_BLOCKS)
        start_m = block * BLOCK + INDEX * ROWS
        table = TABLE + (h.to(gl.int64) * table_stride + TABLE_PADDING) * WIDTH
        # the block of the diagonal: its scores and weights; its values follow in the loop
        scale, bias = load_table(table + INDEX * ROWS * WIDTH, BLOCK, 1, HAS_SCORE_SCALE, HAS_BIAS)
        mbarrier.wait(q_full, turn & 1)
        q = q_smem.index(INDEX).reshape([ROWS, BLOCK_D])
        slot = done % STAGES
        mbarrier.wait(k_full.index(slot), (done // STAGES) & 1)
        s = issue_scores(q, k_smem, slot, BLOCK, BLOCK_D)
        s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
        mbarrier.arrive(k_empty.index(slot), count=1)
        row_max = gl.full([ROWS], -float("inf"), gl.float32, ROW_LAYOUT)
        row_sum = gl.full([ROWS], 0.0, gl.float32, ROW_LAYOUT)
        p32, rescale, row_max, row_sum = softmax_step(
            s, scale, bias, qk_scale, row_max, row_sum, INDEX * ROWS, HAS_SCORE_SCALE, HAS_BIAS, True
        )
        p = gl.convert_layout(p32.to(v_smem.dtype), operand_layout(BLOCK_D))
        o = gl.zeros([ROWS, BLOCK_D], gl.float32, tile_layout(BLOCK_D))
        for i in range(1, earlier + 1):
            # scores of block i, then weights of block i - 1 times its values; the softmax of block i runs beside the latter
            position = done + i
            slot = position % STAGES
            last_slot = (position - 1) % STAGES
            mbarrier.wait(k_full.index(slot), (position // STAGES) & 1)
            mbarrier.wait(turn_mine, (done_turns + i - 1 + FIRST) & 1)
            s = issue_scores(q, k_smem, slot, BLOCK, BLOCK_D)
            mbarrier.wait(v_full.index(last_slot), ((position - 1) // STAGES) & 1)
            o = warpgroup_mma(p, v_smem.index(last_slot).reshape([BLOCK, BLOCK_D]), o, is_async=True)
            mbarrier.arrive(turn_other, count=1)
            distance0 = INDEX * ROWS + i * BLOCK
            scale, bias = load_table(table + distance0 * WIDTH, BLOCK, 1, HAS_SCORE_SCALE, HAS_BIAS)
            s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
            mbarrier.arrive(k_empty.index(slot), count=1)
            p32, rescale, row_max, row_sum = softmax_step(
                s, scale, bias, qk_scale, row_max, row_sum, 0, HAS_SCORE_SCALE, HAS_BIAS, False
            )
            o, p = warpgroup_mma_wait(num_outstanding=0, deps=(o, p))
            mbarrier.arrive(v_empty.index(last_slot), count=1)
            o = o * gl.convert_layout(rescale, row_layout(BLOCK_D), assert_trivial=True)[:, None]
            p = gl.convert_layout(p32.to(v_smem.dtype), operand_layout(BLOCK_D))
        mbarrier.arrive(q_empty, count=1)
        position = done + earlier
        slot = position % STAGES
        mbarrier.wait(v_full.index(slot), (position // STAGES) & 1)
        o = warpgroup_mma(p, v_smem.index(slot).reshape([BLOCK, BLOCK_D]), o, is_async=True)
        o, p = warpgroup_mma_wait(num_outstanding=0, deps=(o, p))
        mbarrier.arrive(v_empty.index(slot), count=1)
        lse_pointers = LSE + (b * heads + h).to(gl.int64) * lse_stride
        factor_offset = (batch * heads).to(gl.int64) * lse_stride
        store_rows(
            OUT,
            lse_pointers,
            factor_offset,
            o_smem.index(INDEX),
            o,
            row_max,
            row_sum,
            b,
            h,
            start_m,
            q_len,
            HAS_BIAS,
            BLOCK_D,
        )
        done += earlier + 1
        done_turns += earlier
    tma.store_wait(0)


@gluon.jit
def store_rows(
    OUT,
    lse_pointers,
    factor_offset,
    buffer,
    o,
    row_max,
    row_sum,
    b,
    h,
    start_m,
    q_len,
    HAS_BIAS: gl.constexpr,
    BLOCK_D: gl.constexpr,
):
    """Store the output by TMA, which drops rows beyond the end, and the log-sum-exp; see ``tile_ops.store_log_sum_exp``."""
    offs_m = start_m + gl.arange(0, ROWS, ROW_LAYOUT)
    hides = (row_sum == 0.0) | (offs_m >= q_len)
    safe_sum = gl.where(row_sum == 0.0, 1.0, row_sum)
    lse = row_max + gl.log2(safe_sum)
    if HAS_BIAS:
        is_beyond = (gl.abs(row_max) > MAX_LSE) & (~hides)
        lse = gl.where(is_beyond, row_max, lse)
        gl.store(lse_pointers + factor_offset + offs_m, gl.where(is_beyond, 1.0 / safe_sum, 1.0))
    gl.store(lse_pointers + offs_m, gl.where(hides, float("inf"), lse))
    o = o * gl.convert_layout(1.0 / safe_sum, row_layout(BLOCK_D), assert_trivial=True)[:, None]
    tma.store_wait(0)  # the previous tile's copy has read the buffer
    role_barrier()
    buffer.reshape([ROWS, BLOCK_D]).store(o.to(buffer.dtype))
    fence_async_shared()
    role_barrier()
    tma.async_copy_shared_to_global(OUT, [b, h, start_m, 0], buffer)


@gluon.jit(
    do_not_specialize=[
        "batch", "heads", "group_size", "q_len", "lse_stride", "table_stride", "tiles", "row_blocks", "unit_heads", "rounds",
        "begun", "taken", "whole",
    ]
)  # fmt: skip
def gluon_forward_kernel(
    Q, K, V, OUT, LSE, TABLE, MAX_DISTANCE, batch, heads, group_size, q_len, lse_stride, table_stride, qk_scale, tiles, row_blocks,
    unit_heads, rounds, begun, taken, whole,
    HAS_SCORE_SCALE: gl.constexpr, HAS_BIAS: gl.constexpr, SKIP_BLOCKS: gl.constexpr, BLOCK_D: gl.constexpr,
):  # fmt: skip
    """Causal attention with a table over distance. Q and OUT are descriptors of 64 rows, K and V of 128."""
    q_smem = gl.allocate_shared_memory(Q.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], Q.layout)
    k_smem = gl.allocate_shared_memory(K.dtype, [STAGES, 1, 1, BLOCK, BLOCK_D], K.layout)
    v_smem = gl.allocate_shared_memory(V.dtype, [STAGES, 1, 1, BLOCK, BLOCK_D], V.layout)
    o_smem = gl.allocate_shared_memory(OUT.dtype, [CONSUMERS, 1, 1, ROWS, BLOCK_D], OUT.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=CONSUMERS)
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
            (consumer, (
                OUT, LSE, TABLE, MAX_DISTANCE, q_smem, k_smem, v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full,
                v_empty, turns, batch, heads, q_len, lse_stride, table_stride, qk_scale, tiles, row_blocks, unit_heads, rounds,
                begun, taken, whole, 0, HAS_SCORE_SCALE, HAS_BIAS, SKIP_BLOCKS,
                BLOCK_D,
            )),
            (consumer, (
                OUT, LSE, TABLE, MAX_DISTANCE, q_smem, k_smem, v_smem, o_smem, q_full, q_empty, k_full, k_empty, v_full,
                v_empty, turns, batch, heads, q_len, lse_stride, table_stride, qk_scale, tiles, row_blocks, unit_heads, rounds,
                begun, taken, whole, 1, HAS_SCORE_SCALE, HAS_BIAS, SKIP_BLOCKS,
                BLOCK_D,
            )),
            (producer, (
                Q, K, V, MAX_DISTANCE, q_smem, k_smem, v_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty, batch,
                heads, group_size, tiles, row_blocks, unit_heads, rounds, begun, taken, whole, SKIP_BLOCKS, BLOCK_D,
            )),
        ],
        [WARPS, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
