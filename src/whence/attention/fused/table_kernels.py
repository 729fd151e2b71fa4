"""Kernels of launch plans for tables, and for the gradients of what the tables come from; see ``planned_tables``.

``backend.score_effects`` evaluates and packs any mechanism with torch, in tens of small operators. For the mechanisms of
``closed_forms``, ``table_kernel`` writes the packed table, the derivative tables and the values per head in one launch, and
``parameter_gradient_kernel`` turns the partial sums of the backward pass into the gradients of the parameters in another.
``bucket_table_kernel`` and ``bucket_gradient_kernel`` do so for the buckets of T5, from the sums over each distance.
``pack_kernel`` packs the outputs of any hooks, and ``table_gradient_kernel`` computes their gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused import closed_forms
from whence.attention.fused.diagonals import TABLE_PADDING
from whence.position.power_prior import MAX_EXPONENT

EPAR_ENHANCED = tl.constexpr(closed_forms.EPAR_ENHANCED)
SLOPE = tl.constexpr(closed_forms.SLOPE)
LINEAR = tl.constexpr(closed_forms.LINEAR)
POWER = tl.constexpr(closed_forms.POWER)
LARGEST_POWER = tl.constexpr(MAX_EXPONENT)
MAX_SLOPE = tl.constexpr(160.0)  # as device_call.MAX_SLOPE
TINY = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32
TABLE_BLOCK = 1024  # entries per program of table_kernel
SUM_ROWS = 32  # per step of parameter_gradient_kernel
GRADIENT_BLOCK = 256  # distances per step of bucket_gradient_kernel and table_gradient_kernel
GRADIENT_ROWS = 16  # sequences or heads per step


@triton.jit
def softplus(x):
    """``log(1 + exp(x))`` as torch computes it, and at least the smallest normal number."""
    e = tl.exp(tl.minimum(x, 20.0))
    u = 1.0 + e
    # log(u) loses the digits of e that u lost; the quotient restores them
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(tl.where(x > 20.0, x, log1p), TINY)


@triton.jit
def load_value(X, h, SHARED: tl.constexpr, BOUNDED: tl.constexpr):
    """A number of one head."""
    x = tl.load(X if SHARED else X + h).to(tl.float32)
    if BOUNDED:
        x = softplus(x)
    return x


@triton.jit
def softplus_gradient(X, h, gradient, SHARED: tl.constexpr, BOUNDED: tl.constexpr):
    """The gradient of the unbounded number behind a value."""
    if BOUNDED:
        x = tl.load(X if SHARED else X + h).to(tl.float32)
        gradient = tl.where(x > 20.0, gradient, gradient * tl.sigmoid(x))
    return gradient


@triton.jit(do_not_specialize=["entries", "first_distance"])
def table_kernel(
    A, B, C, TABLE, DERIVATIVES, HEAD_VALUES, entries, first_distance, constant, table_scale,
    FAMILY: tl.constexpr, SHARED: tl.constexpr, BOUNDED: tl.constexpr, HAS_DERIVATIVES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of the packed table ``[H, entries + 2 * padding, 1]`` of a head and of its derivatives ``[.., 1 or 2]``.

    ``HEAD_VALUES`` ``[H, 3]`` are floor, span and rate of EPAR's decay; ``[H]`` the slope of ALiBi. ``table_scale`` turns a
    value into base-2 logits.
    """
    stride = entries + 2 * TABLE_PADDING
    blocks = tl.cdiv(stride, BLOCK)
    h = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    entry = block * BLOCK + tl.arange(0, BLOCK)
    in_table = (entry >= TABLE_PADDING) & (entry < entries + TABLE_PADDING)
    distance = tl.abs((entry - TABLE_PADDING + first_distance).to(tl.float32))
    row = h.to(tl.int64) * stride
    exists = entry < stride
    a = load_value(A, h, SHARED, BOUNDED and FAMILY != POWER)
    if FAMILY == SLOPE:
        slope = -constant * a * table_scale
        # a steeper slope gives weight 0 in any precision, but its query and key parts would cancel with large errors
        tl.store(HEAD_VALUES + h, tl.minimum(tl.maximum(slope, -MAX_SLOPE), MAX_SLOPE))
    elif FAMILY == LINEAR:
        by_slope = -constant * distance
        tl.store(TABLE + row + entry, tl.where(in_table, a * by_slope * table_scale, 0.0), mask=exists)
        if HAS_DERIVATIVES:
            tl.store(DERIVATIVES + row + entry, tl.where(in_table, by_slope, 0.0), mask=exists)
    elif FAMILY == POWER:
        beta = load_value(B, h, SHARED, BOUNDED)
        x = tl.abs(a * distance)
        is_zero = x < TINY
        log = tl.log(tl.where(is_zero, 1.0, x))
        exponent = beta * log
        power = tl.where(is_zero, 0.0, tl.exp(tl.minimum(exponent, LARGEST_POWER)))
        tl.store(TABLE + row + entry, tl.where(in_table, -power * table_scale, 0.0), mask=exists)
        if HAS_DERIVATIVES:
            moving = tl.where(exponent > LARGEST_POWER, 0.0, power)  # the bias is clamped there
            by_alpha = -beta * moving / tl.where(a == 0, 1.0, a)
            tl.store(DERIVATIVES + (row + entry) * 2, tl.where(in_table, by_alpha, 0.0), mask=exists)
            tl.store(DERIVATIVES + (row + entry) * 2 + 1, tl.where(in_table, -moving * log, 0.0), mask=exists)
    else:
        beta = load_value(B, h, SHARED, BOUNDED)
        floor = 0.0
        span = a
        gamma = 0.0
        if FAMILY == EPAR_ENHANCED:
            gamma = load_value(C, h, SHARED, BOUNDED)
            floor = a / (1.0 + gamma)
            span = floor * gamma
        far = distance / constant
        decay = tl.exp(-beta * far)
        tl.store(TABLE + row + entry, tl.where(in_table, (floor + span * decay) * table_scale, 0.0), mask=exists)
        if block == 0:
            tl.store(HEAD_VALUES + h * 3, floor)
            tl.store(HEAD_VALUES + h * 3 + 1, span)
            tl.store(HEAD_VALUES + h * 3 + 2, beta / constant)
        if HAS_DERIVATIVES:
            WIDTH: tl.constexpr = 2 if FAMILY == EPAR_ENHANCED else 1
            by_beta = -span * (far * decay)
            tl.store(DERIVATIVES + (row + entry) * WIDTH, tl.where(in_table, by_beta, 0.0), mask=exists)
            if FAMILY == EPAR_ENHANCED:
                by_gamma = floor / (1.0 + gamma) * (decay - 1.0)
                tl.store(DERIVATIVES + (row + entry) * WIDTH + 1, tl.where(in_table, by_gamma, 0.0), mask=exists)


@triton.jit(do_not_specialize=["rows", "heads", "blocks"])
def parameter_gradient_kernel(
    PARTIAL_SUMS, A, B, C, D_A, D_B, D_C, rows, heads, blocks, constant, derivative_scale,
    FAMILY: tl.constexpr, SHARED: tl.constexpr, BOUNDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of one head's parameters, or of those that all heads share, from sums ``[B, H, blocks, 8]``.

    ``rows`` is ``B * blocks``. ``derivative_scale`` turns sums over base-2 logits into gradients. Heads and blocks are added
    in a fixed order.
    """
    first = tl.program_id(0)
    last = heads if SHARED else first + 1
    slot = tl.arange(0, 8)
    total = tl.zeros([8], tl.float32)
    for h in range(first, last):
        sums = tl.zeros([ROWS, 8], tl.float32)
        for start in range(0, rows, ROWS):
            row = start + tl.arange(0, ROWS)
            index = ((row // blocks).to(tl.int64) * heads + h) * blocks + row % blocks
            pointers = PARTIAL_SUMS + index[:, None] * 8 + slot[None, :]
            sums += tl.load(pointers, mask=(row < rows)[:, None], other=0.0)
        total += tl.sum(sums, 0)
    # kernels do not write the slots that nobody reads: select before adding
    first_sum = tl.sum(tl.where(slot == 0, total, 0.0), 0) * derivative_scale
    second_sum = tl.sum(tl.where(slot == 1, total, 0.0), 0) * derivative_scale
    if FAMILY == SLOPE:
        by_slope = tl.sum(tl.where(slot == 4, total, 0.0), 0) * derivative_scale
        tl.store(D_A + first, softplus_gradient(A, first, -constant * by_slope, SHARED, BOUNDED))
    elif FAMILY == LINEAR:
        tl.store(D_A + first, softplus_gradient(A, first, first_sum, SHARED, BOUNDED))
    elif FAMILY == POWER:
        tl.store(D_A + first, first_sum)
        tl.store(D_B + first, softplus_gradient(B, first, second_sum, SHARED, BOUNDED))
    else:
        by_alpha = tl.sum(tl.where(slot == 5, total, 0.0), 0) / load_value(A, first, SHARED, BOUNDED)
        tl.store(D_A + first, softplus_gradient(A, first, by_alpha, SHARED, BOUNDED))
        tl.store(D_B + first, softplus_gradient(B, first, first_sum, SHARED, BOUNDED))
        if FAMILY == EPAR_ENHANCED:
            tl.store(D_C + first, softplus_gradient(C, first, second_sum, SHARED, BOUNDED))


@triton.jit(do_not_specialize=["entries", "scale_head", "scale_step", "bias_head", "bias_step"])
def pack_kernel(
    SCORE_SCALE, BIAS, TABLE, entries, scale_head, scale_step, bias_head, bias_step, scale_factor, bias_factor, limit,
    HAS_SCORE_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of the packed table ``[H, entries + 2 * padding, 1 or 2]`` of a head, from the outputs of hooks.

    Finite numbers of the bias stay finite: they are limited as in ``packing.limit_finite``.
    """
    WIDTH: tl.constexpr = 2 if HAS_SCORE_SCALE and HAS_BIAS else 1
    stride = entries + 2 * TABLE_PADDING
    blocks = tl.cdiv(stride, BLOCK)
    h = tl.program_id(0) // blocks
    entry = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    in_table = (entry >= TABLE_PADDING) & (entry < entries + TABLE_PADDING)
    source = tl.where(in_table, entry - TABLE_PADDING, 0).to(tl.int64)
    target = TABLE + (h.to(tl.int64) * stride + entry) * WIDTH
    exists = entry < stride
    if HAS_SCORE_SCALE:
        x = tl.load(SCORE_SCALE + h.to(tl.int64) * scale_head + source * scale_step, mask=in_table, other=0.0)
        tl.store(target, x * scale_factor, mask=exists)
    if HAS_BIAS:
        x = tl.load(BIAS + h.to(tl.int64) * bias_head + source * bias_step, mask=in_table, other=0.0)
        x = tl.where(tl.abs(x) < float("inf"), tl.minimum(tl.maximum(x, -limit), limit), x)
        tl.store(target + WIDTH - 1, x * bias_factor, mask=exists)


@triton.jit
def sum_rows(TABLE_SUMS, first, step, count, entries, entry, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of some rows of table sums ``[rows, entries + 2 * padding]`` at some entries, in a fixed order."""
    total = tl.zeros([BLOCK], tl.float32)
    stride = entries + 2 * TABLE_PADDING
    for start in range(0, count, ROWS):
        index = start + tl.arange(0, ROWS)
        row = TABLE_SUMS + (first + index * step).to(tl.int64)[:, None] * stride + TABLE_PADDING
        mask = (index < count)[:, None] & ((entry >= 0) & (entry < entries))[None, :]
        total += tl.sum(tl.load(row + entry[None, :], mask=mask, other=0.0), 0)
    return total


@triton.jit
def store_table_gradient(
    TABLE_SUMS, GRADIENT, h, batch, heads, entries, entry, factor, SHARED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a row of hook outputs from the sums of one head, or of all heads that share it."""
    if SHARED:
        if h == 0:
            total = sum_rows(TABLE_SUMS, 0, 1, batch * heads, entries, entry, ROWS, BLOCK)
            tl.store(GRADIENT + entry, total * factor, mask=entry < entries)
    else:
        total = sum_rows(TABLE_SUMS, h, heads, batch, entries, entry, ROWS, BLOCK)
        tl.store(GRADIENT + h.to(tl.int64) * entries + entry, total * factor, mask=entry < entries)


@triton.jit(do_not_specialize=["batch", "heads", "entries"])
def table_gradient_kernel(
    TABLE_SUMS, D_SCORE_SCALE, D_BIAS, batch, heads, entries, scale_factor, bias_factor,
    SCORE_SCALE: tl.constexpr, BIAS: tl.constexpr, SHARED_SCORE_SCALE: tl.constexpr, SHARED_BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients ``[H or 1, entries]`` of hook outputs from table sums ``[1 or 2, B, H, entries + 2 * padding]``."""
    blocks = tl.cdiv(entries, BLOCK)
    h = tl.program_id(0) // blocks
    entry = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    bias_sums = TABLE_SUMS
    if SCORE_SCALE:
        store_table_gradient(
            TABLE_SUMS, D_SCORE_SCALE, h, batch, heads, entries, entry, scale_factor, SHARED_SCORE_SCALE, ROWS, BLOCK
        )  # fmt: skip
        bias_sums = TABLE_SUMS + (batch * heads).to(tl.int64) * (entries + 2 * TABLE_PADDING)
    if BIAS:
        store_table_gradient(bias_sums, D_BIAS, h, batch, heads, entries, entry, bias_factor, SHARED_BIAS, ROWS, BLOCK)


@triton.jit(do_not_specialize=["heads", "num_boundaries", "entries", "first_distance"])
def bucket_table_kernel(
    VALUES, BOUNDARIES, TABLE, heads, num_boundaries, entries, first_distance, factor,
    BIDIRECTIONAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of the packed table of a head from T5's values ``[buckets, H]``; see ``whence.position.t5``."""
    stride = entries + 2 * TABLE_PADDING
    blocks = tl.cdiv(stride, BLOCK)
    h = tl.program_id(0) // blocks
    entry = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    in_table = (entry >= TABLE_PADDING) & (entry < entries + TABLE_PADDING)
    distance = entry - TABLE_PADDING + first_distance
    magnitude = tl.abs(distance) if BIDIRECTIONAL else tl.maximum(distance, 0)
    bucket = tl.zeros([BLOCK], tl.int32)
    for i in range(0, num_boundaries):
        bucket += (magnitude >= tl.load(BOUNDARIES + i)).to(tl.int32)
    if BIDIRECTIONAL:
        bucket += tl.where(distance < 0, num_boundaries + 1, 0)
    value = tl.load(VALUES + bucket * heads + h, mask=in_table, other=0.0)
    tl.store(TABLE + h.to(tl.int64) * stride + entry, value * factor, mask=entry < stride)


@triton.jit(do_not_specialize=["batch", "heads", "num_boundaries", "entries", "first_distance"])
def bucket_gradient_kernel(
    TABLE_SUMS, BOUNDARIES, GRADIENT, batch, heads, num_boundaries, entries, first_distance, factor,
    BIDIRECTIONAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one bucket of one head: the sum over its distances, which are adjacent."""
    h = tl.program_id(0) % heads
    bucket = tl.program_id(0) // heads
    side = bucket % (num_boundaries + 1)
    end_of_table = first_distance + entries
    low = tl.where(side > 0, tl.load(BOUNDARIES + tl.maximum(side - 1, 0)), 0).to(tl.int32)
    high = tl.load(BOUNDARIES + tl.minimum(side, num_boundaries - 1)).to(tl.int32)  # one past the largest magnitude
    high = tl.where(side < num_boundaries, high, tl.maximum(tl.abs(first_distance), end_of_table) + 1)
    start = low
    end = high
    if BIDIRECTIONAL:
        is_negative = bucket > num_boundaries
        start = tl.where(is_negative, 1 - high, low)
        end = tl.where(is_negative, tl.minimum(1 - low, 0), high)
    start = tl.maximum(start, first_distance) - first_distance
    end = tl.minimum(end, end_of_table) - first_distance
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(start, end, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        sums = sum_rows(TABLE_SUMS, h, heads, batch, entries, entry, ROWS, BLOCK)
        total += tl.where(entry < end, sums, 0.0)
    tl.store(GRADIENT + bucket * heads + h, tl.sum(total, 0) * factor)
