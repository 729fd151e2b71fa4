"""Score scale or bias as a function of a scaled distance, evaluated for each pair of a query and a key.

Where a mechanism divides by the query's length, no table over distances exists. Such an effect is ``f(x)`` with
``x = scale[query] * table[distance]``, where the table does not decrease with the distance and f is one of two functions:

* decay, a score scale: ``floor + span * 2 ** -(rate * x)``;
* pieces, a bias: a continuous, piecewise linear function, which is what a network of one ReLU layer is. A tile of pairs covers a short
  range of x. If no knot is inside, f is linear there: one multiplication and one addition for a pair. Otherwise the tile
  adds one ReLU for each knot inside. Both are exact.

Kernels take ``(table, numbers, constexpr number of knots)`` in place of a table; no knots means decay. ``numbers`` holds for each
head ``floor, span, rate``, or the knots in ascending order, then slope and intercept of all pieces; then ``scale`` ``[B, T]``.
``whence.attention.fused.scaled_distance`` computes them. ``head_table`` turns them into a function of one head:
``(table at a distance, that distance, numbers of the head, scale, its minimum, its maximum, knots)``, where the knots of a decay
are a scalar.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import diagonal_pointers, load_f32, sum_registers


@triton.jit
def head_table(TABLE, table_offset, b, h, heads, queries, q_len):
    """A pointer to the table of one head, or the function of one head, or of a tensor of heads, for a block of queries.

    ``table_offset``: from the start of all tables to distance 0 of the head.
    """
    if isinstance(TABLE, tl.tensor):
        return TABLE + table_offset
    else:
        NUM_KNOTS: tl.constexpr = TABLE[2]
        WIDTH: tl.constexpr = 3 if NUM_KNOTS == 0 else 3 * NUM_KNOTS + 2
        scale = tl.load(TABLE[1] + heads * WIDTH + b * q_len + tl.minimum(queries, q_len - 1))
        lowest = tl.min(scale, 0)
        knots = lowest
        if NUM_KNOTS > 0:  # all heads have the same knots
            knots = tl.load(TABLE[1] + tl.arange(0, NUM_KNOTS))
        return (TABLE[0] + table_offset, 0, TABLE[1] + h * WIDTH, scale, lowest, tl.max(scale, 0), knots)


@triton.jit
def move_table(table, distance0, TABLE_WIDTH: tl.constexpr):
    """A table or a function at ``distance0``, the distance of the first query and the first key of a tile."""
    if isinstance(table, tl.tensor):
        return table + distance0 * TABLE_WIDTH
    else:
        return (table[0] + distance0, distance0, table[2], table[3], table[4], table[5], table[6])


@triton.jit
def load_distances(function, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr):
    """The tile ``[ROWS, COLUMNS]`` of the table; rows are queries, or keys if SIGN is -1."""
    return tl.reshape(load_f32(diagonal_pointers(function[0], ROWS, COLUMNS, SIGN, 1)), [ROWS, COLUMNS])


@triton.jit
def count_knots(function, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The number of knots below all x of a tile, and the number of knots below its largest x."""
    pointer, knots = function[0], function[6]
    nearest = tl.minimum(tl.maximum(0 - function[1], 1 - KEYS), QUERIES - 1)
    smallest = function[4] * load_f32(pointer + nearest)
    largest = function[5] * tl.maximum(load_f32(pointer + (1 - KEYS)), load_f32(pointer + (QUERIES - 1)))
    return tl.sum((knots < smallest).to(tl.int32), 0), tl.sum((knots < largest).to(tl.int32), 0)


@triton.jit
def add_pieces(logits, x, function, first, last):
    """Add f at all x, of which none is below knot ``first - 1`` or above knot ``last``.

    The loop carries the logits, which come from a matrix product, so that x and they are in the same registers.
    """
    NUM_KNOTS: tl.constexpr = function[6].shape[0]
    slopes = function[2] + NUM_KNOTS
    logits += load_f32(slopes + first) * x + load_f32(slopes + (NUM_KNOTS + 1) + first)
    if first < last:
        for knot in range(first, last):
            change = load_f32(slopes + knot + 1) - load_f32(slopes + knot)
            logits += change * tl.maximum(x - load_f32(function[2] + knot), 0.0)
    return logits


@triton.jit
def evaluate_decay(x, function):
    exponential = tl.exp2(-load_f32(function[2] + 2) * x)
    return load_f32(function[2]) + load_f32(function[2] + 1) * exponential, exponential


@triton.jit
def function_logits(
    qk, function, qk_scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr
):  # fmt: skip
    """Base-2 logits of a tile ``[ROWS, COLUMNS]``, and its score scale (of pieces: the logits)."""
    distances = load_distances(function, ROWS, COLUMNS, SIGN)
    if SIGN > 0:
        x = distances * function[3][:, None]
    else:
        x = distances * function[3][None, :]
    if len(function[6].shape) == 0:
        score_scale, _ = evaluate_decay(x, function)
        return qk * score_scale, score_scale
    else:
        first, last = count_knots(function, ROWS if SIGN > 0 else COLUMNS, COLUMNS if SIGN > 0 else ROWS)
        logits = add_pieces(qk * qk_scale, x, function, first, last)
        return logits, logits


@triton.jit
def row_function_logits(qk, function, distances, qk_scale):
    """The same for rows that are queries of several heads, where ``function[2]`` holds a pointer for each row."""
    x = distances * function[3][:, None]
    if len(function[6].shape) == 0:
        return qk * evaluate_decay(x, function)[0]
    else:
        knots = function[6]
        first = tl.sum((knots < tl.min(tl.min(x, 1), 0)).to(tl.int32), 0)
        last = tl.sum((knots < tl.max(tl.max(x, 1), 0)).to(tl.int32), 0)
        return add_pieces(qk * qk_scale, x, function, first, last)


# --- gradients -------------------------------------------------------------------------------------------------------
#
# decay: the sums over all pairs of the gradient of f, times 1, the exponential, and x times the exponential.
#
# pieces: the sums of the gradient of f, and of that times x, over the pairs of each piece. ``g0`` and ``g1`` hold those of the
# tiles since ``piece`` last changed, where piece is the number of knots below all x of a tile. ``SUMS`` ``[4, knots + 1]`` of a
# program holds the sums of earlier tiles for each piece, and for each knot the sums over the pairs above it in tiles that
# have it inside. Only this program writes them, so the result is deterministic. ``g2`` is the gradient of the parameter of the
# table, whose derivative is ``derivatives``, and ``row_grad`` that of the scale.


@triton.jit
def add_function_gradients(
    dlogits, qk, function, derivatives, SUMS, g0, g1, g2, row_grad, piece, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Add a tile's part of all gradients of a function; rows are queries."""
    distances = load_distances(function, ROWS, COLUMNS, 1)
    x = distances * function[3][:, None]
    if len(function[6].shape) == 0:
        weighted = dlogits * qk
        decayed = weighted * evaluate_decay(x, function)[1]
        g0 += sum_tile_registers(weighted, ROWS, COLUMNS)
        g1 += sum_tile_registers(decayed, ROWS, COLUMNS)
        g2 += sum_tile_registers(decayed * x, ROWS, COLUMNS)
    else:
        NUM_KNOTS: tl.constexpr = function[6].shape[0]
        first, last = count_knots(function, ROWS, COLUMNS)
        if first != piece:
            add_piece_sums(SUMS, piece, g0, g1, NUM_KNOTS)
            g0 = tl.zeros_like(g0)
            g1 = tl.zeros_like(g1)
        piece = first
        g0 += sum_tile_registers(dlogits, ROWS, COLUMNS)
        g1 += sum_tile_registers(dlogits * x, ROWS, COLUMNS)
        slopes = function[2] + NUM_KNOTS
        slope = load_f32(slopes + first)
        row_part = dlogits * distances
        table_part = dlogits * load_distances((derivatives, 0), ROWS, COLUMNS, 1) * function[3][:, None]
        row_grad += slope * tl.sum(row_part, 1)
        g2 += slope * sum_tile_registers(table_part, ROWS, COLUMNS)
        if first < last:
            for knot in range(first, last):
                change = load_f32(slopes + knot + 1) - load_f32(slopes + knot)
                is_above = x > load_f32(function[2] + knot)
                row_grad += change * tl.sum(tl.where(is_above, row_part, 0.0), 1)
                g2 += change * sum_tile_registers(tl.where(is_above, table_part, 0.0), ROWS, COLUMNS)
                above = tl.where(is_above, dlogits, 0.0)
                sums = SUMS + 2 * (NUM_KNOTS + 1) + knot
                tl.atomic_add(sums, tl.sum(tl.sum(above, 1), 0), sem="relaxed")
                tl.atomic_add(sums + (NUM_KNOTS + 1), tl.sum(tl.sum(above * x, 1), 0), sem="relaxed")
    return g0, g1, g2, row_grad, piece


@triton.jit
def add_piece_sums(SUMS, piece, g0, g1, NUM_KNOTS: tl.constexpr):
    tl.atomic_add(SUMS + piece, tl.sum(tl.ravel(g0), 0), sem="relaxed")
    tl.atomic_add(SUMS + (NUM_KNOTS + 1) + piece, tl.sum(tl.ravel(g1), 0), sem="relaxed")


@triton.jit
def sum_tile_registers(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return sum_registers(tl.reshape(tile, [ROWS // 16, 2, 8, COLUMNS // 8, 8]))
