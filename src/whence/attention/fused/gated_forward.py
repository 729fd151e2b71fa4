"""Forward kernel with score terms by gated counts; see ``gated_tiles``.

One program per block of queries of one head walks from the latest visible keys to the first. As soon as all its queries have
reached the last count, it treats the remaining keys as plain attention. It stores where that was for the backward pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.gated_tiles import gated_terms, last_terms, load_segments, table_rows, tile_gates, tile_mask
from whence.attention.fused.tile_ops import key_bounds, load_tile, place_program, store_log_sum_exp, store_tile


@triton.jit
def softmax_step(logits, v, acc, row_sum, row_max, INPUT_PRECISION: tl.constexpr):
    """Add a tile of base-2 logits and its values to the running sums of an online softmax."""
    new_max = tl.maximum(row_max, tl.max(logits, 1))
    safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # no visible key so far: any finite value works
    p = tl.exp2(logits - safe_max[:, None])
    rescale = tl.exp2(row_max - safe_max)
    row_sum = row_sum * rescale + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=INPUT_PRECISION)
    return acc, row_sum, new_max


@triton.jit(do_not_specialize=["heads", "q_len", "lse_stride", "kv_len", "q_offset", "window", "entries"])
def gated_forward_kernel(
    Q, K, V, OUT, LSE, CLAMPED, TABLE, Q_SEGMENTS, K_SEGMENTS, SEGMENT_RANGES,
    heads, q_len, lse_stride, kv_len, q_offset, window, entries, scale, logit_scale,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(q_len, BLOCK_M)
    rank, place = place_program(blocks, kv_len, BLOCK_D + BLOCK_DV, GROUP_SIZE, CAUSAL and not HAS_WINDOW)
    block = blocks - 1 - place  # blocks with the most visible keys start first
    h = rank % heads
    b = rank // heads
    batch_head = rank.to(tl.int64)
    h_kv = h // GROUP_SIZE
    start_m = block * BLOCK_M
    offs_m = tl.arange(0, BLOCK_M)
    in_range = start_m + offs_m < q_len
    q = load_tile(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
    rows = table_rows(TABLE, batch_head, start_m, q_len, entries, BLOCK_M)
    largest = (entries - 1).to(tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    q_segment = 0
    segment_low = 0
    segment_high = 0
    if HAS_SEGMENTS:
        q_segment = load_segments(Q_SEGMENTS, b, start_m, q_len, BLOCK_M, 0)
        segment_low = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2)
        segment_high = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2 + 1)
    bounds = key_bounds(
        start_m, q_offset, kv_len, window, 0, segment_low, segment_high, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW, False,
        HAS_SEGMENTS,
    )  # fmt: skip
    low = bounds[0]
    high = bounds[1]
    count = tl.where(in_range, 0.0, largest)
    start_n = tl.cdiv(high, BLOCK_N) * BLOCK_N - BLOCK_G
    while (start_n >= low) & ((tl.min(count, 0) < largest) | ((start_n + BLOCK_G) % BLOCK_N > 0)):
        k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_G, BLOCK_D)
        v = load_tile(V, b, h_kv, start_n, kv_len, BLOCK_G, BLOCK_DV)
        k_segment = load_segments(K_SEGMENTS, b, start_n, kv_len, BLOCK_G, -1) if HAS_SEGMENTS else 0
        mask = tile_mask(
            start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_M, BLOCK_G, CAUSAL, HAS_WINDOW,
            HAS_SEGMENTS, 1,
        )  # fmt: skip
        score = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale
        gates = tile_gates(score, mask)
        terms = gated_terms(gates, mask, rows, count, largest, 1)[1]
        logits = tl.where(mask, (score + terms) * logit_scale, -float("inf"))
        acc, row_sum, row_max = softmax_step(logits, v, acc, row_sum, row_max, INPUT_PRECISION)
        count += tl.sum(gates, 1)
        start_n -= BLOCK_G
    clamped = start_n + BLOCK_G  # all keys before this one have the last count
    last = (last_terms(rows, entries) * logit_scale)[:, None]
    for start_n in tl.range(low, clamped, BLOCK_N, num_stages=NUM_STAGES):
        k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
        logits = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * (scale * logit_scale) + last
        if HAS_WINDOW or HAS_SEGMENTS:
            k_segment = load_segments(K_SEGMENTS, b, start_n, kv_len, BLOCK_N, -1) if HAS_SEGMENTS else 0
            mask = tile_mask(
                start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, 1,
            )  # fmt: skip
            logits = tl.where(mask, logits, -float("inf"))
        v = load_tile(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
        acc, row_sum, row_max = softmax_step(logits, v, acc, row_sum, row_max, INPUT_PRECISION)
    sees_nothing = row_sum == 0.0
    pointers = batch_head * lse_stride + start_m + offs_m
    lse = row_max + tl.log2(row_sum)
    store_log_sum_exp(LSE + pointers, 0, row_max, row_sum, lse, sees_nothing | ~in_range, False)
    tl.store(CLAMPED + pointers, offs_m * 0 + clamped)
    store_tile(OUT, b, h, start_m, q_len, acc / tl.where(sees_nothing, 1.0, row_sum)[:, None], BLOCK_M, BLOCK_DV)
