"""Operations on one tile that the kernels share: loads and stores, logits, masking, dropout, loop bounds."""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import load_table_tiles
from whence.attention.fused.scaled_distance_kernels import function_logits

#: in bits. Rounding changes an lse by at most |lse| * 2 ** -24, here by 2 ** -15 bits: 0.002 % of a weight, the error that
#: the rounding of the logits themselves causes. Scores rarely exceed it, so that ordinary rows keep their factor of 1
MAX_LSE = tl.constexpr(512.0)


UNLIMITED = tl.constexpr(2**30)  # a distance; sums with an offset fit into 32 bits
#: numbers that programs at work share: in half precision, half the L2 cache of an H100
RESIDENT_NUMBERS = tl.constexpr(12 * 2**20)
SECTION_PROGRAMS = tl.constexpr(1024)  # the fewest of a section (see place_program): about four rounds on an H100


@triton.jit
def load_tile(x, b, h, start, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FROM: tl.constexpr = 0):
    """A tile ``[ROWS, COLUMNS]`` of ``[B, H, length, dim]`` from column FROM; elements outside are zero.

    ``x`` is a TMA descriptor, or a pointer with strides and dim (see ``DeviceCall.describe``).
    """
    if isinstance(x, tl.core.tensor_descriptor_base):
        return tl.reshape(x.load([b, h, start, FROM]), [ROWS, COLUMNS])
    else:
        pointers, mask = tile_pointers(x, b, h, start, length, ROWS, COLUMNS, FROM)
        return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def store_tile(x, b, h, start, length, tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FROM: tl.constexpr = 0):
    """Store a tile in the dtype of x; elements outside are dropped."""
    if isinstance(x, tl.core.tensor_descriptor_base):
        x.store([b, h, start, FROM], tl.reshape(tile.to(x.dtype), [1, 1, ROWS, COLUMNS]))
    else:
        pointers, mask = tile_pointers(x, b, h, start, length, ROWS, COLUMNS, FROM)
        tl.store(pointers, tile.to(x[0].dtype.element_ty), mask=mask)


@triton.jit
def tile_pointers(x, b, h, start, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FROM: tl.constexpr):
    """Pointers and mask of a tile of ``x = (pointer, batch stride, head stride, row stride, dim)``."""
    rows = tl.arange(0, ROWS)
    columns = FROM + tl.arange(0, COLUMNS)
    # offsets of whole tensors exceed 32 bits, those within a tile do not; an interpreted loop counts in Python integers
    first = x[0] + b.to(tl.int64) * x[1] + h.to(tl.int64) * x[2] + (start + b * 0).to(tl.int64) * x[3]
    pointers = first + rows[:, None] * x[3] + columns[None, :]
    return pointers, (start + rows < length)[:, None] & (columns < x[4])[None, :]


@triton.jit
def compute_logits(
    qk, table, qk_scale, key_bias,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIGN: tl.constexpr, HAS_SCORE_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEY_BIAS: tl.constexpr,
):  # fmt: skip
    """Base-2 logits and the tile of score scales. ``key_bias`` is what a slope or a clock adds along the keys.

    ``table`` is a pointer at the tile's first query and key, or a function; see ``scaled_distance_kernels.move_table``.
    """
    if not isinstance(table, tl.tensor):
        logits, score_scale = function_logits(qk, table, qk_scale, ROWS, COLUMNS, SIGN)
        if HAS_KEY_BIAS:
            logits = logits + key_bias
        return logits, score_scale
    elif HAS_SCORE_SCALE or HAS_BIAS:
        score_scale, bias = load_table_tiles(table, ROWS, COLUMNS, SIGN, HAS_SCORE_SCALE, HAS_BIAS)
        if HAS_SCORE_SCALE and HAS_BIAS:
            logits = qk * score_scale + bias
        elif HAS_SCORE_SCALE:
            logits = qk * score_scale
        else:
            logits = qk * qk_scale + bias
        if HAS_KEY_BIAS:
            logits = logits + key_bias
        return logits, score_scale
    else:
        logits = qk * qk_scale
        if HAS_KEY_BIAS:
            logits = logits + key_bias
        return logits, logits


@triton.jit
def store_log_sum_exp(pointers, factor_offset, row_max, row_sum, lse, hides, HAS_FACTORS: tl.constexpr):
    """Store for the backward pass the log-sum-exp of rows and, where they have them, their factors ``factor_offset`` later.

    The backward pass computes the weights ``exp2(logits - lse)``. Beyond MAX_LSE, for example in a row with a bias of
    -1e9 at every key, rounding would lose ``log2(row_sum)``. There lse is the largest logit alone, which gives the
    weights before the division by ``row_sum``, and the factor ``1 / row_sum`` multiplies the gradient of the row's
    output. ``hides`` marks rows without visible keys and padding rows: lse = inf gives them p = 0.
    """
    if HAS_FACTORS:
        is_beyond = (tl.abs(row_max) > MAX_LSE) & ~hides
        lse = tl.where(is_beyond, row_max, lse)
        factor = tl.where(is_beyond, 1.0 / tl.where(is_beyond, row_sum, 1.0), 1.0)  # exactly 1 in all other rows
        tl.store(pointers + factor_offset, factor)
    tl.store(pointers, tl.where(hides, float("inf"), lse))


@triton.jit
def visible(
    distance,
    offs_n,
    kv_len,
    window,
    q_segment,
    k_segment,
    CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr,
):
    """The boolean mask of a tile: True where the query attends to the key."""
    mask = offs_n < kv_len
    if CAUSAL:
        mask = mask & (distance >= 0)
    if HAS_WINDOW:
        mask = mask & (distance < window) & (distance > -window)
    if HAS_SEGMENTS:
        mask = mask & (q_segment == k_segment)
    return mask


@triton.jit
def dropout_multiplier(seed, batch_head, offs_m, offs_n, q_len, kv_len, dropout):
    """0 or 1 / (1 - dropout) per pair. The counter depends on the pair alone, so forward and backward kernels agree."""
    counter = (batch_head.to(tl.int64) * q_len + offs_m) * kv_len + offs_n
    return tl.where(tl.rand(seed, counter) >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def limit_of_block(max_distance, HIDDEN, start_m, ROWS: tl.constexpr):
    """The distance up to which ROWS queries from start_m need keys, where the own keys of some queries may be hidden.

    The bound of ``block_skipping`` relies on the own key. ``HIDDEN`` points to the range of queries that do not see theirs.
    """
    hides = (start_m < tl.load(HIDDEN + 1)) & (start_m + ROWS > tl.load(HIDDEN))
    return tl.where(hides, UNLIMITED, max_distance)


@triton.jit
def key_bounds(
    start_m, q_offset, kv_len, window, max_distance, segment_low, segment_high,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    SKIP_BLOCKS: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Keys low to high for ROWS queries from start_m, in multiples of BLOCK; full_low to full_high need no mask."""
    low = 0
    high = kv_len
    full_low = 0
    full_high = kv_len
    if CAUSAL:
        high = tl.minimum(high, q_offset + start_m + ROWS)
        full_high = tl.minimum(full_high, q_offset + start_m + 1)
    if HAS_WINDOW:
        low = tl.maximum(low, q_offset + start_m - window + 1)
        full_low = tl.maximum(full_low, q_offset + start_m + ROWS - window)
        if not CAUSAL:
            high = tl.minimum(high, q_offset + start_m + ROWS - 1 + window)
            full_high = tl.minimum(full_high, q_offset + start_m + window)
    if SKIP_BLOCKS:
        low = tl.maximum(low, q_offset + start_m - max_distance)
    if HAS_SEGMENTS:
        low = tl.maximum(low, segment_low)
        high = tl.minimum(high, segment_high)
    high = tl.maximum(high, 0)
    low = tl.where(low < high, low // BLOCK * BLOCK, high)  # an empty range has no blocks, not even a masked one
    if HAS_SEGMENTS:
        full_low = high
        full_high = high
    else:
        full_low = tl.minimum(tl.maximum(low, (full_low + BLOCK - 1) // BLOCK * BLOCK), high)
        full_high = tl.maximum(full_high, 0) // BLOCK * BLOCK
        full_high = tl.minimum(tl.maximum(full_low, full_high), high)
    return low, high, full_low, full_high


@triton.jit
def query_bounds(
    start_n, q_offset, q_len, window, max_distance, segment_low, segment_high,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    SKIP_BLOCKS: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Queries low to high for COLUMNS keys from start_n, in multiples of BLOCK; full_low to full_high need no mask."""
    low = 0
    high = q_len
    full_low = 0
    full_high = (q_len + BLOCK - 1) // BLOCK * BLOCK  # padding rows have p = 0
    if CAUSAL:
        low = tl.maximum(low, start_n - q_offset)
        full_low = tl.maximum(full_low, start_n + COLUMNS - 1 - q_offset)
    if HAS_WINDOW:
        high = tl.minimum(high, start_n + COLUMNS - 1 - q_offset + window)
        full_high = tl.minimum(full_high, tl.maximum(start_n - q_offset + window, 0)) // BLOCK * BLOCK
        if not CAUSAL:
            low = tl.maximum(low, start_n - q_offset - window + 1)
            full_low = tl.maximum(full_low, start_n + COLUMNS - q_offset - window)
    if SKIP_BLOCKS:
        high = tl.minimum(high, start_n + COLUMNS - q_offset + max_distance)
    if HAS_SEGMENTS:
        low = tl.maximum(low, segment_low)
        high = tl.minimum(high, segment_high)
    high = tl.maximum(high, 0)
    low = tl.where(low < high, low // BLOCK * BLOCK, high)  # an empty range has no blocks, not even a masked one
    if HAS_SEGMENTS:
        full_low = high
        full_high = high
    else:
        full_low = tl.minimum(tl.maximum(low, (full_low + BLOCK - 1) // BLOCK * BLOCK), high)
        full_high = tl.minimum(tl.maximum(full_low, full_high), high)
    return low, high, full_low, full_high


@triton.jit
def place_program(blocks, tokens, COLUMNS: tl.constexpr, GROUP: tl.constexpr, LONGEST_FIRST: tl.constexpr):
    """The rank (sequence and head) of this program, and its block, of ``blocks`` for each rank.

    LONGEST_FIRST: the blocks of a rank go from long to short. The first blocks of many ranks start before their second ones, so
    that no long block starts last and runs alone. The ranks are divided into equal sections, which follow each other. The
    programs of GROUP ranks read the same COLUMNS numbers for each of the ``tokens``; a section is as large as the L2 cache
    holds, and larger where too few programs would be left for the last one. Otherwise rank after rank.
    """
    return place_of(tl.program_id(0), tl.num_programs(0), blocks, tokens, COLUMNS, GROUP, LONGEST_FIRST)


@triton.jit
def place_of(
    program, programs, blocks, tokens, COLUMNS: tl.constexpr, GROUP: tl.constexpr, LONGEST_FIRST: tl.constexpr
):
    """See ``place_program``."""
    rank = program // blocks
    place = program % blocks
    if LONGEST_FIRST:
        groups = programs // blocks // GROUP
        zero = groups * 0  # an interpreter divides tensors alone
        resident = tl.maximum((zero + RESIDENT_NUMBERS // COLUMNS) // tokens, 1)
        sections = tl.minimum((groups + resident - 1) // resident, programs // SECTION_PROGRAMS)
        sections = tl.maximum(tl.minimum(sections, (zero + 2**30) // groups), 1)  # products fit into 32 bits
        section = ((program // (blocks * GROUP) + 1) * sections - 1) // groups
        first = section * groups // sections * GROUP
        count = (section + 1) * groups // sections * GROUP - first
        within = program - first * blocks
        rank = first + within % count
        place = within // count
    return rank, place
