"""What every kernel does to a tile: the logits, who sees whom, dropout, and the bounds of a row of tiles."""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import factor_and_bias


@triton.jit
def load_tile(descriptor, b, h, start, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile ``[ROWS, COLUMNS]`` of ``[B, H, length, width]``; what lies outside reads as zero."""
    return tl.reshape(descriptor.load([b, h, start, 0]), [ROWS, COLUMNS])


@triton.jit
def store_tile(descriptor, b, h, start, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    descriptor.store([b, h, start, 0], tl.reshape(tile, [1, 1, ROWS, COLUMNS]))


@triton.jit
def logits(qk, table, unit, incline, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr,
           FACTOR: tl.constexpr, BIAS: tl.constexpr, SLOPED: tl.constexpr):  # fmt: skip
    """Logits in units of log 2 and the factor tile. ``incline`` is what a slope adds along the keys."""
    if FACTOR or BIAS:
        score_scale, bias = factor_and_bias(table, ROWS, COLUMNS, SIGN, FACTOR, BIAS)
        if FACTOR and BIAS:
            z = qk * score_scale + bias
        elif FACTOR:
            z = qk * score_scale
        else:
            z = qk * unit + bias
        return z, score_scale
    else:
        z = qk * unit
        if SLOPED:
            z = z + incline
        return z, z


@triton.jit
def seen(distance, key, keys, window, q_id, k_id, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, IDS: tl.constexpr):
    """Which pairs of a tile see each other."""
    ok = key < keys
    if CAUSAL:
        ok = ok & (distance >= 0)
    if WINDOWED:
        ok = ok & (distance < window) & (distance > -window)
    if IDS:
        ok = ok & (q_id == k_id)
    return ok


@triton.jit
def kept(seed, pair, row, key, rows, keys, dropout):
    """The dropout of each pair: 0 or 1 / (1 - dropout), the same wherever it is asked."""
    place = (pair.to(tl.int64) * rows + row) * keys + key
    return tl.where(tl.rand(seed, place) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def key_bounds(row0, offset, keys, window, reach, ids_low, ids_high, ROWS: tl.constexpr, BLOCK: tl.constexpr,
               CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SKIP: tl.constexpr, IDS: tl.constexpr):  # fmt: skip
    """For query rows row0...: keys from low to high, of which full_low to full_high need no mask; in whole blocks."""
    low = 0
    high = keys
    full_low = 0
    full_high = keys
    if CAUSAL:
        high = tl.minimum(high, offset + row0 + ROWS)
        full_high = tl.minimum(full_high, offset + row0 + 1)
    if WINDOWED:
        low = tl.maximum(low, offset + row0 - window + 1)
        full_low = tl.maximum(full_low, offset + row0 + ROWS - window)
        if not CAUSAL:
            high = tl.minimum(high, offset + row0 + ROWS - 1 + window)
            full_high = tl.minimum(full_high, offset + row0 + window)
    if SKIP:
        low = tl.maximum(low, offset + row0 - reach)
    if IDS:
        low = tl.maximum(low, ids_low)
        high = tl.minimum(high, ids_high)
    high = tl.maximum(high, 0)
    low = tl.where(low < high, low // BLOCK * BLOCK, high)  # an empty stretch has no block, not even a masked one
    if IDS:
        full_low = high
        full_high = high
    else:
        full_low = tl.minimum(tl.maximum(low, (full_low + BLOCK - 1) // BLOCK * BLOCK), high)
        full_high = tl.maximum(full_high, 0) // BLOCK * BLOCK
        full_high = tl.minimum(tl.maximum(full_low, full_high), high)
    return low, high, full_low, full_high


@triton.jit
def query_bounds(key0, offset, rows, window, reach, ids_low, ids_high, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
                 CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SKIP: tl.constexpr, IDS: tl.constexpr):  # fmt: skip
    """For keys key0...: query rows from low to high, of which full_low to full_high need no mask; in whole blocks."""
    low = 0
    high = rows
    full_low = 0
    full_high = (rows + BLOCK - 1) // BLOCK * BLOCK  # rows past the last weigh nothing
    if CAUSAL:
        low = tl.maximum(low, key0 - offset)
        full_low = tl.maximum(full_low, key0 + COLUMNS - 1 - offset)
    if WINDOWED:
        high = tl.minimum(high, key0 + COLUMNS - 1 - offset + window)
        full_high = tl.minimum(full_high, tl.maximum(key0 - offset + window, 0)) // BLOCK * BLOCK
        if not CAUSAL:
            low = tl.maximum(low, key0 - offset - window + 1)
            full_low = tl.maximum(full_low, key0 + COLUMNS - offset - window)
    if SKIP:
        high = tl.minimum(high, key0 + COLUMNS - offset + reach)
    if IDS:
        low = tl.maximum(low, ids_low)
        high = tl.minimum(high, ids_high)
    high = tl.maximum(high, 0)
    low = tl.where(low < high, low // BLOCK * BLOCK, high)  # an empty stretch has no block, not even a masked one
    if IDS:
        full_low = high
        full_high = high
    else:
        full_low = tl.minimum(tl.maximum(low, (full_low + BLOCK - 1) // BLOCK * BLOCK), high)
        full_high = tl.minimum(tl.maximum(full_low, full_high), high)
    return low, high, full_low, full_high
