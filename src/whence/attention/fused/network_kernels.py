"""Kernels for a network over the scores of all heads at one pair (``Position.head_network``), on a block of query rows.

The scores ``[B * H, rows, keys]`` of a block are in memory, because heads meet before the softmax. A program takes ROWS rows, and
PAIRS neighbouring diagonals of them: at row r, its pairs are the keys ``first + r`` and following. All rows then have the same
distances, so the tables are read once, and their gradients are summed in registers and stored without atomics.

    hidden = f(z @ first + hidden_table[distance])        [PAIRS, hidden units]
    logits = z + hidden @ last + output_table[distance]   [PAIRS, heads]

Heads and hidden units are padded with zeros to HEADS and HIDDEN; padding changes no sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.tile_ops import visible


@triton.jit
def place_of_diagonals(
    rows, keys, block_offset, window,
    ROWS: tl.constexpr, PAIRS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """The sequence, the part of the rows and its first row, the first keys ``[PAIRS]``, the distances, and which are visible."""
    parts = tl.cdiv(rows, ROWS)
    diagonals = tl.cdiv(keys + ROWS - 1, PAIRS)
    program = tl.program_id(0)
    part = program // diagonals
    b = part // parts
    start = part % parts * ROWS
    first = (program % diagonals) * PAIRS - (ROWS - 1) + tl.arange(0, PAIRS)
    distance = block_offset + start - first
    near = visible(distance, first, keys, window, 0, 0, CAUSAL, HAS_WINDOW, False)
    return b, part, start, first, distance, near


@triton.jit
def load_table(TABLE, entry, known, COLUMNS: tl.constexpr):
    """The entries of a table ``[n, COLUMNS]`` of distances."""
    pointers = TABLE + entry[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return tl.load(pointers, mask=known[:, None], other=0.0)


@triton.jit
def load_weights(WEIGHTS, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    return tl.load(WEIGHTS + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]).to(DTYPE)


@triton.jit
def see_keys(
    near, key, row, b, row_start, key_start, q_len, kv_len, keys, Q_SEGMENTS, K_SEGMENTS, HAS_SEGMENTS: tl.constexpr
):
    """Which keys are in the block, and which of them a row attends to."""
    inside = (key >= 0) & (key < keys)
    sees = inside & near
    if HAS_SEGMENTS:
        q_segment = tl.load(Q_SEGMENTS + b.to(tl.int64) * q_len + row_start + row)
        k_segment = tl.load(K_SEGMENTS + b.to(tl.int64) * kv_len + key_start + key, mask=inside, other=0)
        sees = sees & (q_segment == k_segment)
    return inside, sees


@triton.jit
def apply_network(z, of_hidden, of_logits, first, last, negative_slope, INPUT_PRECISION: tl.constexpr):
    """The hidden units before and after the activation, and the logits."""
    before = tl.dot(z.to(first.dtype), first, of_hidden, input_precision=INPUT_PRECISION)
    hidden = tl.where(before > 0, before, before * negative_slope).to(last.dtype)
    return before, hidden, tl.dot(hidden, last, z + of_logits, input_precision=INPUT_PRECISION)


@triton.jit(
    do_not_specialize=[
        "heads", "rows", "keys", "row_start", "key_start", "q_len", "kv_len", "block_offset", "window", "first_distance",
        "entries",
    ]
)  # fmt: skip
def network_logits_kernel(
    SCORES, FIRST, LAST, OF_HIDDEN, OF_LOGITS, Q_SEGMENTS, K_SEGMENTS,
    heads, rows, keys, row_start, key_start, q_len, kv_len, block_offset, window, first_distance, entries,
    scale, logit_scale, negative_slope,
    ROWS: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, HIDDEN: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, DTYPE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Replace ``q . k`` by base-2 logits; -inf where the query does not attend to the key."""
    b, _part, start, first_key, distance, near = place_of_diagonals(
        rows, keys, block_offset, window, ROWS, PAIRS, CAUSAL, HAS_WINDOW
    )
    entry = distance - first_distance
    known = (entry >= 0) & (entry < entries)
    of_hidden = load_table(OF_HIDDEN, entry, known, HIDDEN)
    of_logits = load_table(OF_LOGITS, entry, known, HEADS)
    first = load_weights(FIRST, HEADS, HIDDEN, DTYPE)
    last = load_weights(LAST, HIDDEN, HEADS, DTYPE)
    head = tl.arange(0, HEADS)
    block = SCORES + b.to(tl.int64) * heads * rows * keys
    for row in range(start, tl.minimum(start + ROWS, rows)):
        key = first_key + (row - start)
        inside, sees = see_keys(
            near, key, row, b, row_start, key_start, q_len, kv_len, keys, Q_SEGMENTS, K_SEGMENTS, HAS_SEGMENTS
        )
        stored = inside[:, None] & (head < heads)[None, :]
        pointers = block + (head[None, :] * rows + row) * keys + key[:, None]
        z = tl.load(pointers, mask=stored, other=0.0) * scale
        logits = apply_network(z, of_hidden, of_logits, first, last, negative_slope, INPUT_PRECISION)[2]
        tl.store(pointers, tl.where(sees[:, None], logits * logit_scale, -float("inf")), mask=stored)


@triton.jit(do_not_specialize=["rows", "keys", "weight_stride", "row_start", "q_len"])
def network_softmax_kernel(
    LOGITS, WEIGHTS, TOP, TOTAL, rows, keys, weight_stride, row_start, q_len, BLOCK: tl.constexpr,
):  # fmt: skip
    """The exponentials of one row, its largest base-2 logit, and their sum; 0 and 1 where it sees nothing.

    They are rounded before the division by the sum: of many keys, each has a weight that half precision holds with few digits.
    """
    program = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    logits = LOGITS + program * keys
    top = tl.full([], -float("inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for start in range(0, keys, BLOCK):
        x = tl.load(logits + start + offsets, mask=start + offsets < keys, other=-float("inf"))
        higher = tl.maximum(top, tl.max(x, 0))
        finite = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp2(top - finite) + tl.sum(tl.exp2(x - finite), 0)
        top = higher
    top = tl.where(top == -float("inf"), 0.0, top)
    total = tl.where(total == 0.0, 1.0, total)
    for start in range(0, keys, BLOCK):
        x = tl.load(logits + start + offsets, mask=start + offsets < keys, other=-float("inf"))
        weights = tl.exp2(x - top).to(WEIGHTS.dtype.element_ty)
        tl.store(WEIGHTS + program * weight_stride + start + offsets, weights, mask=start + offsets < keys)
    place = program // rows * q_len + row_start + program % rows
    tl.store(TOP + place, top)
    tl.store(TOTAL + place, total)


@triton.jit(
    do_not_specialize=[
        "heads", "rows", "keys", "weight_stride", "row_start", "key_start", "q_len", "kv_len", "block_offset", "window",
        "first_distance", "entries",
    ]
)  # fmt: skip
def network_backward_kernel(
    SCORES, UPSTREAM, WEIGHTS, D_SCORES, TOP, TOTAL, DELTA, FIRST, LAST, OF_HIDDEN, OF_LOGITS,
    D_FIRST, D_LAST, D_OF_HIDDEN, D_OF_LOGITS, Q_SEGMENTS, K_SEGMENTS,
    heads, rows, keys, weight_stride, row_start, key_start, q_len, kv_len, block_offset, window, first_distance, entries,
    scale, logit_scale, inverse_temperature, negative_slope,
    ROWS: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, HIDDEN: tl.constexpr, LEARNS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SEGMENTS: tl.constexpr, DTYPE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """The weights again and the gradients of the scores, from ``q . k`` and the gradients of the weights.

    The gradients of the tables and of the network are added to the sums of this program, or of its rows, from earlier blocks.
    """
    b, part, start, first_key, distance, near = place_of_diagonals(
        rows, keys, block_offset, window, ROWS, PAIRS, CAUSAL, HAS_WINDOW
    )
    entry = distance - first_distance
    known = (entry >= 0) & (entry < entries)
    of_hidden = load_table(OF_HIDDEN, entry, known, HIDDEN)
    of_logits = load_table(OF_LOGITS, entry, known, HEADS)
    first = load_weights(FIRST, HEADS, HIDDEN, DTYPE)
    last = load_weights(LAST, HIDDEN, HEADS, DTYPE)
    head = tl.arange(0, HEADS)
    d_first = tl.zeros([HEADS, HIDDEN], tl.float32)
    d_last = tl.zeros([HIDDEN, HEADS], tl.float32)
    d_of_hidden = tl.zeros([PAIRS, HIDDEN], tl.float32)
    d_of_logits = tl.zeros([PAIRS, HEADS], tl.float32)
    first_head = b.to(tl.int64) * heads
    for row in range(start, tl.minimum(start + ROWS, rows)):
        key = first_key + (row - start)
        inside, sees = see_keys(
            near, key, row, b, row_start, key_start, q_len, kv_len, keys, Q_SEGMENTS, K_SEGMENTS, HAS_SEGMENTS
        )
        stored = inside[:, None] & (head < heads)[None, :]
        offsets = first_head * rows * keys + ((head[None, :] * rows + row) * keys + key[:, None])
        z = tl.load(SCORES + offsets, mask=stored, other=0.0) * scale
        upstream = tl.load(UPSTREAM + offsets, mask=stored, other=0.0)
        of_row = first_head * q_len + (head * q_len + row_start + row)
        top = tl.load(TOP + of_row, mask=head < heads, other=0.0)
        share = 1.0 / tl.load(TOTAL + of_row, mask=head < heads, other=1.0)
        delta = tl.load(DELTA + of_row, mask=head < heads, other=0.0)
        before, hidden, logits = apply_network(z, of_hidden, of_logits, first, last, negative_slope, INPUT_PRECISION)
        # a hidden pair may have any logit, and 0 times an infinite exponential is no number
        seen = sees[:, None] & (head < heads)[None, :]
        weights = tl.exp2(tl.where(seen, logits * logit_scale - top[None, :], -float("inf"))) * share[None, :]
        d_logits = weights * (upstream - delta[None, :]) * inverse_temperature
        d_low = d_logits.to(DTYPE)
        d_hidden = tl.dot(d_low, tl.trans(last), input_precision=INPUT_PRECISION)
        d_before = tl.where(before > 0, d_hidden, d_hidden * negative_slope)
        d_before_low = d_before.to(DTYPE)
        d_scores = tl.dot(d_before_low, tl.trans(first), d_logits, input_precision=INPUT_PRECISION)
        if LEARNS:
            d_last = tl.dot(tl.trans(hidden), d_low, d_last, input_precision=INPUT_PRECISION)
            d_first = tl.dot(tl.trans(z.to(DTYPE)), d_before_low, d_first, input_precision=INPUT_PRECISION)
            d_of_hidden += d_before
            d_of_logits += d_logits
        offsets = first_head * rows * weight_stride + ((head[None, :] * rows + row) * weight_stride + key[:, None])
        tl.store(WEIGHTS + offsets, weights.to(WEIGHTS.dtype.element_ty), mask=stored)
        tl.store(D_SCORES + offsets, d_scores.to(D_SCORES.dtype.element_ty), mask=stored)
    if LEARNS:
        add_weights(D_FIRST, d_first, HEADS, HIDDEN)
        add_weights(D_LAST, d_last, HIDDEN, HEADS)
        own = part.to(tl.int64) * entries
        add_table(D_OF_HIDDEN + own * HIDDEN, d_of_hidden, entry, known, HIDDEN)
        add_table(D_OF_LOGITS + own * HEADS, d_of_logits, entry, known, HEADS)


@triton.jit
def add_weights(SUMS, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Add to the sums of this program."""
    own = SUMS + tl.program_id(0) * (ROWS * COLUMNS)
    pointers = own + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(pointers, tl.load(pointers) + x)


@triton.jit
def add_table(SUMS, x, entry, known, COLUMNS: tl.constexpr):
    """Add to a table of distances; no other program adds to the same entries of these rows."""
    pointers = SUMS + entry[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(pointers, tl.load(pointers, mask=known[:, None], other=0.0) + x, mask=known[:, None])
