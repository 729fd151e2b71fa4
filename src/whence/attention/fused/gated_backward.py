"""Backward kernels with score terms by gated counts; see ``gated_tiles``.

The gradient of a gate is a sum over all keys at its left, and the count a sum over all keys at its right. The kernel for dq walks along
a row in both directions. For each tile of keys that is not plain attention it stores both sums at the edge of the tile, so that the
kernel for dk and dv can treat every tile alone. They are ``[B, H, key tiles, stored rows]``: the host runs both kernels
for a limited number of rows at a time, and memory stays linear in length.

The gradient of the table belongs to one program: one thread at a time adds to an entry, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.gated_tiles import (
    NO_LIMIT,
    gated_terms,
    last_terms,
    load_segments,
    table_rows,
    tile_gates,
    tile_mask,
)
from whence.attention.fused.tile_ops import key_bounds, load_tile, place_program, query_bounds, store_tile

SCANNED_ROWS = tl.constexpr(1024)  # per step of find_gated_rows


@triton.jit
def add_table_gradients(rows, gradient, counts, count, largest, factor, in_range):
    """Add the gradients of the terms of a tile to the two entries between which each was interpolated.

    Along a row, counts differ by less than the number of keys. Step by step, the pairs near one entry are summed.
    """
    base = tl.floor(tl.minimum(count, largest))
    above = counts - base[:, None]
    steps = tl.max(tl.max(tl.ceil(above), 1), 0).to(tl.int32)
    for step in range(0, steps + 1):
        weight = tl.maximum(1.0 - tl.abs(above - step), 0.0)
        entry = base + step
        sums = tl.sum(gradient * weight, 1) * factor
        tl.atomic_add(rows[0] + (rows[1] + entry.to(tl.int32)), sums, mask=in_range & (entry <= largest), sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "heads", "q_len", "lse_stride", "kv_len", "q_offset", "window", "entries", "first_row", "stored_rows",
    ]
)  # fmt: skip
def gated_dq_kernel(
    Q, K, V, GRAD_OUT, OUT, DQ, LSE, DELTA, CLAMPED, TABLE, TABLE_GRAD, COUNTS, PASSED, Q_SEGMENTS, K_SEGMENTS, SEGMENT_RANGES,
    heads, q_len, lse_stride, kv_len, q_offset, window, entries, first_row, stored_rows, scale, logit_scale, temperature,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """dq, delta, the gradient of the table, and the sums at the edges of blocks, for rows from ``first_row``."""
    blocks = tl.cdiv(tl.minimum(q_len - first_row, stored_rows), BLOCK_M)
    rank, place = place_program(blocks, kv_len, BLOCK_D + BLOCK_DV, GROUP_SIZE, CAUSAL and not HAS_WINDOW)
    h = rank % heads
    b = rank // heads
    batch_head = rank.to(tl.int64)
    h_kv = h // GROUP_SIZE
    start_m = first_row + (blocks - 1 - place) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    in_range = offs_m < q_len
    q = load_tile(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
    grad_out = load_tile(GRAD_OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
    out = load_tile(OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
    tl.store(DELTA + batch_head * lse_stride + offs_m, delta)
    delta = delta[:, None]
    lse = tl.load(LSE + batch_head * lse_stride + offs_m, mask=in_range, other=float("inf"))[:, None]
    rows = table_rows(TABLE, batch_head, start_m, q_len, entries, BLOCK_M)
    rows_grad = table_rows(TABLE_GRAD, batch_head, start_m, q_len, entries, BLOCK_M)
    largest = (entries - 1).to(tl.float32)
    qk_scale = scale * logit_scale
    q_segment = 0
    segment_low = 0
    segment_high = 0
    if HAS_SEGMENTS:
        q_segment = load_segments(Q_SEGMENTS, b, start_m, q_len, BLOCK_M, 0)
        ranges = SEGMENT_RANGES + (b * tl.cdiv(q_len, BLOCK_M) + start_m // BLOCK_M) * 2
        segment_low = tl.load(ranges)
        segment_high = tl.load(ranges + 1)
    bounds = key_bounds(
        start_m, q_offset, kv_len, window, 0, segment_low, segment_high, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW, False,
        HAS_SEGMENTS,
    )  # fmt: skip
    low = bounds[0]
    high = bounds[1]
    clamped = tl.min(tl.load(CLAMPED + batch_head * lse_stride + offs_m, mask=in_range, other=NO_LIMIT), 0)
    gated_low = tl.maximum(clamped // BLOCK_N * BLOCK_N, low)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    last = (last_terms(rows, entries) * logit_scale)[:, None]
    last_sums = tl.zeros([BLOCK_M], tl.float32)
    for start_n in tl.range(low, gated_low, BLOCK_N, num_stages=NUM_STAGES):
        k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
        v = load_tile(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
        logits = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * qk_scale + last
        p = tl.exp2(logits - lse)
        if HAS_WINDOW or HAS_SEGMENTS:
            k_segment = load_segments(K_SEGMENTS, b, start_n, kv_len, BLOCK_N, -1) if HAS_SEGMENTS else 0
            mask = tile_mask(
                start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_M, BLOCK_N, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, 1,
            )  # fmt: skip
            p = tl.where(mask, p, 0.0)
        gradient = p * (tl.dot(grad_out, tl.trans(v), input_precision=INPUT_PRECISION) - delta)
        last_sums += tl.sum(gradient, 1)
        acc = tl.dot(gradient.to(k.dtype), k, acc, input_precision=INPUT_PRECISION)
    # from right to left: the counts
    edges = batch_head * (tl.cdiv(kv_len, BLOCK_N) * (BLOCK_N // BLOCK_G)) * stored_rows + (offs_m - first_row)
    count = tl.zeros([BLOCK_M], tl.float32)
    start_n = tl.cdiv(high, BLOCK_N) * BLOCK_N - BLOCK_G
    while start_n >= gated_low:
        tl.store(COUNTS + edges + (start_n // BLOCK_G).to(tl.int64) * stored_rows, count)
        k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_G, BLOCK_D)
        k_segment = load_segments(K_SEGMENTS, b, start_n, kv_len, BLOCK_G, -1) if HAS_SEGMENTS else 0
        mask = tile_mask(
            start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_M, BLOCK_G, CAUSAL, HAS_WINDOW,
            HAS_SEGMENTS, 1,
        )  # fmt: skip
        score = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale
        count += tl.sum(tile_gates(score, mask), 1)
        start_n -= BLOCK_G
    tl.debug_barrier()  # another thread may read the count that this one stored
    # from left to right: the gradients of the gates
    passed = tl.zeros([BLOCK_M], tl.float32)
    for start_n in tl.range(gated_low, high, BLOCK_G, num_stages=1):
        edge = edges + (start_n // BLOCK_G + b * 0).to(tl.int64) * stored_rows
        tl.store(PASSED + edge, passed)
        count = tl.load(COUNTS + edge)
        k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_G, BLOCK_D)
        v = load_tile(V, b, h_kv, start_n, kv_len, BLOCK_G, BLOCK_DV)
        k_segment = load_segments(K_SEGMENTS, b, start_n, kv_len, BLOCK_G, -1) if HAS_SEGMENTS else 0
        mask = tile_mask(
            start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_M, BLOCK_G, CAUSAL, HAS_WINDOW,
            HAS_SEGMENTS, 1,
        )  # fmt: skip
        score = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale
        gates = tile_gates(score, mask)
        counts, terms, slope = gated_terms(gates, mask, rows, count, largest, 1)
        p = tl.where(mask, tl.exp2((score + terms) * logit_scale - lse), 0.0)
        gradient = p * (tl.dot(grad_out, tl.trans(v), input_precision=INPUT_PRECISION) - delta)
        add_table_gradients(rows_grad, gradient, counts, count, largest, 1.0 / temperature, in_range)
        by_count = gradient * slope
        by_gate = passed[:, None] + tl.cumsum(by_count, 1)
        passed += tl.sum(by_count, 1)
        gradient += by_gate * gates * (1.0 - gates)
        acc = tl.dot(gradient.to(k.dtype), k, acc, input_precision=INPUT_PRECISION)
    tl.debug_barrier()  # another thread may have added to this entry: keep the order
    tl.atomic_add(rows_grad[0] + (rows_grad[1] + (entries - 1)), last_sums / temperature, mask=in_range, sem="relaxed")
    store_tile(DQ, b, h, start_m, q_len, acc * (scale / temperature), BLOCK_M, BLOCK_D)


@triton.jit
def find_gated_rows(CLAMPED, low, high, end_n):
    """One past the last row between low and high for which some key before ``end_n`` has not the last count."""
    last = low
    for first in range(low, high, SCANNED_ROWS):
        rows = first + tl.arange(0, SCANNED_ROWS)
        clamped = tl.load(CLAMPED + rows, mask=rows < high, other=NO_LIMIT)
        last = tl.maximum(last, tl.max(tl.where(clamped < end_n, rows + 1, 0), 0))
    return last


@triton.jit(
    do_not_specialize=[
        "heads", "q_len", "lse_stride", "kv_len", "q_offset", "window", "entries", "first_row", "stored_rows",
    ]
)  # fmt: skip
def gated_dkdv_kernel(
    Q, K, V, GRAD_OUT, DK, DV, LSE, DELTA, CLAMPED, TABLE, COUNTS, PASSED, Q_SEGMENTS, K_SEGMENTS, SEGMENT_RANGES,
    heads, q_len, lse_stride, kv_len, q_offset, window, entries, first_row, stored_rows, scale, logit_scale, temperature,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, NUM_STAGES: tl.constexpr, EDGE: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """dk and dv from the rows from ``first_row``; ADD: to what DK and DV hold already."""
    blocks = tl.cdiv(kv_len, BLOCK_N)
    kv_heads = heads // GROUP_SIZE
    rank, block = place_program(  # the first keys are visible to the most queries, so they start first
        blocks, q_len, (BLOCK_D + BLOCK_DV) * GROUP_SIZE, 1, CAUSAL and not HAS_WINDOW
    )
    h_kv = rank % kv_heads
    b = rank // kv_heads
    start_n = block * BLOCK_N
    k = load_tile(K, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
    v = load_tile(V, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
    largest = (entries - 1).to(tl.float32)
    qk_scale = scale * logit_scale
    k_segment = 0
    segment_low = 0
    segment_high = 0
    if HAS_SEGMENTS:
        k_segment = load_segments(K_SEGMENTS, b, start_n, kv_len, BLOCK_N, -1)
        segment_low = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2)
        segment_high = tl.load(SEGMENT_RANGES + (b * blocks + block) * 2 + 1)
    bounds = query_bounds(
        start_n, q_offset, q_len, window, 0, segment_low, segment_high, BLOCK_N, BLOCK_M, CAUSAL, HAS_WINDOW, False,
        HAS_SEGMENTS,
    )  # fmt: skip
    low = tl.maximum(bounds[0], first_row)
    high = tl.minimum(bounds[1], first_row + stored_rows)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for member in range(0, GROUP_SIZE):
        h = h_kv * GROUP_SIZE + member
        batch_head = (b * heads + h).to(tl.int64)
        numbers = batch_head * lse_stride
        edges = (batch_head * blocks + block) * (BLOCK_N // EDGE) * stored_rows - first_row
        end = tl.cdiv(find_gated_rows(CLAMPED + numbers, low, high, start_n + BLOCK_N), BLOCK_M) * BLOCK_M
        for start_m in tl.range(low, tl.minimum(end, high), BLOCK_G, num_stages=1):
            offs_m = start_m + tl.arange(0, BLOCK_G)
            in_range = offs_m < q_len
            q = load_tile(Q, b, h, start_m, q_len, BLOCK_G, BLOCK_D)
            grad_out = load_tile(GRAD_OUT, b, h, start_m, q_len, BLOCK_G, BLOCK_DV)
            lse = tl.load(LSE + numbers + offs_m, mask=in_range, other=float("inf"))[None, :]
            delta = tl.load(DELTA + numbers + offs_m, mask=in_range, other=0.0)[None, :]
            clamped = tl.load(CLAMPED + numbers + offs_m, mask=in_range, other=NO_LIMIT)
            stored = clamped < start_n + BLOCK_N
            count = tl.load(COUNTS + edges + (BLOCK_N // EDGE - 1) * stored_rows + offs_m, mask=stored, other=largest)
            passed = tl.load(PASSED + edges + offs_m, mask=stored, other=0.0)[None, :]
            rows = table_rows(TABLE, batch_head, start_m, q_len, entries, BLOCK_G)
            q_segment = load_segments(Q_SEGMENTS, b, start_m, q_len, BLOCK_G, 0) if HAS_SEGMENTS else 0
            mask = tile_mask(
                start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_G, BLOCK_N, CAUSAL, HAS_WINDOW,
                HAS_SEGMENTS, 0,
            )  # fmt: skip
            score = tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION) * scale
            gates = tile_gates(score, mask)
            gated = gated_terms(gates, mask, rows, count, largest, 0)
            p = tl.where(mask, tl.exp2((score + gated[1]) * logit_scale - lse), 0.0)
            dv = tl.dot(p.to(grad_out.dtype), grad_out, dv, input_precision=INPUT_PRECISION)
            gradient = p * (tl.dot(v, tl.trans(grad_out), input_precision=INPUT_PRECISION) - delta)
            by_gate = passed + tl.cumsum(gradient * gated[2], 0)
            gradient += by_gate * gates * (1.0 - gates)
            dk = tl.dot(gradient.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
        for start_m in tl.range(end, high, BLOCK_M, num_stages=NUM_STAGES):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            in_range = offs_m < q_len
            q = load_tile(Q, b, h, start_m, q_len, BLOCK_M, BLOCK_D)
            grad_out = load_tile(GRAD_OUT, b, h, start_m, q_len, BLOCK_M, BLOCK_DV)
            lse = tl.load(LSE + numbers + offs_m, mask=in_range, other=float("inf"))
            delta = tl.load(DELTA + numbers + offs_m, mask=in_range, other=0.0)[None, :]
            rows = table_rows(TABLE, batch_head, start_m, q_len, entries, BLOCK_M)
            shift = (last_terms(rows, entries) * logit_scale - lse)[None, :]
            p = tl.exp2(tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION) * qk_scale + shift)
            if HAS_WINDOW or HAS_SEGMENTS:
                q_segment = load_segments(Q_SEGMENTS, b, start_m, q_len, BLOCK_M, 0) if HAS_SEGMENTS else 0
                mask = tile_mask(
                    start_m, start_n, q_offset, kv_len, window, q_segment, k_segment, BLOCK_M, BLOCK_N, CAUSAL,
                    HAS_WINDOW, HAS_SEGMENTS, 0,
                )  # fmt: skip
                p = tl.where(mask, p, 0.0)
            dv = tl.dot(p.to(grad_out.dtype), grad_out, dv, input_precision=INPUT_PRECISION)
            gradient = p * (tl.dot(v, tl.trans(grad_out), input_precision=INPUT_PRECISION) - delta)
            dk = tl.dot(gradient.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
    dk *= scale / temperature
    if ADD:
        dk += load_tile(DK, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_D)
        dv += load_tile(DV, b, h_kv, start_n, kv_len, BLOCK_N, BLOCK_DV)
    store_tile(DK, b, h_kv, start_n, kv_len, dk, BLOCK_N, BLOCK_D)
    store_tile(DV, b, h_kv, start_n, kv_len, dv, BLOCK_N, BLOCK_DV)
