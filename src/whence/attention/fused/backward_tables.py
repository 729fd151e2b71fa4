"""Deterministic kernel for dense table gradients, without atomics.

One program per block diagonal of one head loops over that diagonal in every sequence of the batch. All its tiles cover
the same distances, so they accumulate in registers; the sums along the diagonals are computed once at the end and
stored.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused import tile_configs
from whence.attention.fused.clock_terms import EXACT, clock_stride, clock_tile, load_clock
from whence.attention.fused.device_call import DeviceCall
from whence.attention.fused.diagonals import TABLE_PADDING, diagonal_offsets, diagonal_sums
from whence.attention.fused.head_parts import dot_heads, load_parts
from whence.attention.fused.packing import ceil_div, num_multiprocessors
from whence.attention.fused.row_tables import add_rows, load_rows
from whence.attention.fused.tile_ops import compute_logits, dropout_multiplier, visible


@triton.jit(
    do_not_specialize=[
        "batch",
        "heads",
        "q_len",
        "lse_stride",
        "kv_len",
        "q_offset",
        "first_distance",
        "window",
        "table_stride",
        "SEED",
        "first_diagonal",
        "splits",
    ]
)
def table_gradient_kernel(
    Q, Q_REST, K, K_REST, V, V_REST, GRAD_OUT, GRAD_OUT_REST, LSE, DELTA, TABLE, PARTIAL_GRADS, Q_CLOCK, K_CLOCK, Q_SEGMENTS, K_SEGMENTS, MAX_DISTANCE, CONTENT,
    SUMS_GRAD, batch, heads, q_len, lse_stride, kv_len, q_offset, first_distance, window, table_stride, qk_scale, dropout, SEED,
    first_diagonal, splits,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, CLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, SKIP_BLOCKS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr, INPUT_PRECISION: tl.constexpr, DENSE_SCALE_GRAD: tl.constexpr,
    DENSE_BIAS_GRAD: tl.constexpr, PADDED_TILES: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    seed = 0
    if HAS_DROPOUT:
        seed = tl.load(SEED)
    Q, K, V, GRAD_OUT = (Q, Q_REST), (K, K_REST), (V, V_REST), (GRAD_OUT, GRAD_OUT_REST)
    diagonal_index = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2)
    h_kv = h // GROUP_SIZE
    m_minus_n = (first_diagonal + diagonal_index) * BLOCK_N  # the same for every tile of the diagonal
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    TABLE_WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    table = (
        TABLE + (h.to(tl.int64) * table_stride + TABLE_PADDING - first_distance + q_offset + m_minus_n) * TABLE_WIDTH
    )
    low = tl.cdiv(tl.maximum(m_minus_n, 0), BLOCK_M)
    high = tl.minimum(tl.cdiv(q_len, BLOCK_M), tl.cdiv(tl.maximum(kv_len + m_minus_n, 0), BLOCK_M))
    num_tiles = tl.maximum(high - low, 0)
    if SKIP_BLOCKS:
        num_tiles = tl.where(q_offset + m_minus_n - BLOCK_N > tl.load(MAX_DISTANCE + h), 0, num_tiles)
    tiles_per_split = tl.cdiv(num_tiles * batch, splits)
    distance = q_offset + m_minus_n + offs_m[:, None] - offs_n[None, :]
    scale_grad = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    bias_grad = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in tl.range(
        split * tiles_per_split, tl.minimum(num_tiles * batch, (split + 1) * tiles_per_split), num_stages=NUM_STAGES
    ):
        b = step // num_tiles
        start_m = (low + step % num_tiles) * BLOCK_M
        start_n = start_m - m_minus_n
        batch_head = (b * heads + h).to(tl.int64)
        q = load_parts(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
        k = load_parts(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
        qk = dot_heads(q, k, INPUT_PRECISION)
        distance0 = q_offset + m_minus_n
        content = load_rows(CONTENT, batch_head, start_m, q_len, BLOCK_M)
        qk = add_rows(qk, content, distance0, start_n, BLOCK_M, BLOCK_N, False)
        grad_out = load_parts(GRAD_OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
        v = load_parts(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
        dp = dot_heads(grad_out, v, INPUT_PRECISION)
        sums_grad = load_rows(SUMS_GRAD, batch_head, start_m, q_len, BLOCK_M)
        dp = add_rows(dp, sums_grad, distance0, start_n, BLOCK_M, BLOCK_N, False)
        lse = tl.load(LSE + batch_head * lse_stride + start_m + offs_m)
        delta = tl.load(DELTA + batch_head * lse_stride + start_m + offs_m)
        key_bias = 0.0
        if CLOCK > 0:
            q_base, q_rest = load_clock(Q_CLOCK, batch_head, lse_stride, start_m, BLOCK_M, EXACT)
            k_base, k_rest = load_clock(K_CLOCK, batch_head, clock_stride(kv_len), start_n, BLOCK_N, EXACT)
            key_bias = clock_tile(q_base[:, None], q_rest[:, None], k_base[None, :], k_rest[None, :])
        logits, _ = compute_logits(
            qk, table, qk_scale, key_bias, BLOCK_M, BLOCK_N, 1, HAS_SCORE_SCALE, HAS_BIAS, CLOCK > 0
        )
        p = tl.exp2(logits - lse[:, None])
        if PADDED_TILES or HAS_SEGMENTS:
            q_segment = 0
            k_segment = 0
            if HAS_SEGMENTS:
                q_segment = tl.load(Q_SEGMENTS + b * q_len + start_m + offs_m, mask=start_m + offs_m < q_len, other=0)[
                    :, None
                ]
                k_segment = tl.load(
                    K_SEGMENTS + b * kv_len + start_n + offs_n, mask=start_n + offs_n < kv_len, other=-1
                )[None, :]
            p = tl.where(
                visible(
                    distance,
                    (start_n + offs_n)[None, :],
                    kv_len,
                    window,
                    q_segment,
                    k_segment,
                    False,
                    False,
                    HAS_SEGMENTS,
                ),
                p,
                0.0,
            )
        if HAS_DROPOUT:
            dp = dp * dropout_multiplier(
                seed, batch_head, (start_m + offs_m)[:, None], (start_n + offs_n)[None, :], q_len, kv_len, dropout
            )
        dlogits = p * (dp - delta[:, None])
        if DENSE_SCALE_GRAD:
            scale_grad += dlogits * qk
        if DENSE_BIAS_GRAD:
            bias_grad += dlogits
    # masked distances may hold any value, including infinity: zero them before summing
    mask = visible(distance, 0, 1, window, 0, 0, CAUSAL, HAS_WINDOW, False)
    offsets = diagonal_offsets(BLOCK_M, BLOCK_N)
    out = PARTIAL_GRADS + ((split * heads + h).to(tl.int64) * tl.num_programs(0) + diagonal_index) * 4 * BLOCK_M
    if DENSE_SCALE_GRAD:
        upper, lower = diagonal_sums(tl.where(mask, scale_grad, 0.0), BLOCK_M, BLOCK_N)
        tl.store(out + offsets, tl.sum(upper, 2))
        tl.store(out + BLOCK_M + offsets, tl.sum(lower, 2))
    if DENSE_BIAS_GRAD:
        upper, lower = diagonal_sums(tl.where(mask, bias_grad, 0.0), BLOCK_M, BLOCK_N)
        tl.store(out + 2 * BLOCK_M + offsets, tl.sum(upper, 2))
        tl.store(out + 3 * BLOCK_M + offsets, tl.sum(lower, 2))


def table_gradients(
    call: DeviceCall, grad_out: Tensor, lse: Tensor, delta: Tensor, max_distance: Tensor, sums_grad: Any,
    dense: tuple[bool, bool],
) -> list[Tensor]:  # fmt: skip
    """The dense gradients ``[H, entries]`` of the wanted columns: score scale, bias. ``sums_grad`` is a kernel's argument."""
    m, first, entries = call.mask, call.effects.first_distance, call.table_entries
    tile = tile_configs.table_gradient_config(
        call.max_block_d, call.q.element_size(), call.has_tma and not call.has_row_tables
    )
    # a block diagonal covers the distances q_offset + m_minus_n - block_n < d < q_offset + m_minus_n + block_m
    lowest = (first - m.q_offset - tile.block_m + 1) // tile.block_n
    highest = (first + entries - 1 - m.q_offset + tile.block_n - 1) // tile.block_n
    lowest = max(lowest, -ceil_div(call.kv_len, tile.block_n) + 1)
    highest = min(highest, ceil_div(call.q_len, tile.block_n))
    diagonals = highest - lowest + 1
    if diagonals < 1:  # no query sees any key
        return [lse.new_zeros(call.heads, entries) for _ in range(sum(dense))]
    splits = max(1, min(call.batch, ceil_div(4 * num_multiprocessors(call.q.device), diagonals * call.heads)))
    partial_grads = lse.new_zeros(splits, call.heads, diagonals, 2, 2, tile.block_m // tile.block_n, tile.block_n)
    flags = {name: value for name, value in call.flags.items() if name != "HAS_SLOPE"}
    table_gradient_kernel[(diagonals, call.heads, splits)](
        *call.describe_parts(call.q, tile.block_m, call.parts_d), *call.describe_parts(call.k, tile.block_n, call.parts_d),
        *call.describe_parts(call.v, tile.block_n, call.parts_dv), *call.describe_parts(grad_out, tile.block_m, call.parts_dv), lse,
        delta, call.table, partial_grads, *call.clocks, *call.segment_ids, max_distance if max_distance.numel() else call.dummy,
        call.content_table, sums_grad, *call.sizes, call.qk_scale, call.softmax.dropout, call.seed, lowest, splits,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        SKIP_BLOCKS=max_distance.numel() > 0 and call.segments is None,  # a diagonal crosses queries that may not be skipped
        DENSE_SCALE_GRAD=dense[0],
        DENSE_BIAS_GRAD=dense[1], NUM_STAGES=tile.num_stages,
        PADDED_TILES=call.kv_len % tile.block_n != 0 or call.q_len % tile.block_m != 0 or tile.block_m != tile.block_n,
        **flags, **tile.options,
    )  # fmt: skip
    summed = partial_grads.sum(0)  # [H, diagonals, column, upper or lower, blocks, block_n]
    blocks = tile.block_m // tile.block_n
    gradients: list[Tensor] = []
    for column in (column for column, wanted in enumerate(dense) if wanted):
        # entry t of block b on diagonal c has, in `upper`, the distance q_offset + (lowest + c + b) * block_n + t; in
        # `lower` it is one block_n less
        by_distance = lse.new_zeros(call.heads, diagonals + blocks, tile.block_n)
        for b in range(blocks):
            by_distance[:, b + 1 : b + 1 + diagonals] += summed[:, :, column, 0, b]
            by_distance[:, b : b + diagonals] += summed[:, :, column, 1, b]
        start = first - (m.q_offset + (lowest - 1) * tile.block_n)
        flat = by_distance.flatten(1)
        flat = torch.nn.functional.pad(flat, (max(0, -start), max(0, start + entries - flat.shape[1])))
        gradients.append(flat[:, max(0, start) : max(0, start) + entries])
    return gradients
