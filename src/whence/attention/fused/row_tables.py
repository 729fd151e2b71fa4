"""Tables of single queries in the kernels: numbers at the distances first to last, ``[B, H, T, last - first + 1]``.

Two effects of content need them. A score term of the query and the distance (``Position.content_bias_table``) is gathered from such
a table and added to ``q . k``; its gradient is stored in one of the same form. A vector added to the values
(``Position.value_bias_table``) needs the weights of each query summed by distance: the forward kernel stores a base-2 logit for
every entry, and the backward kernels gather the gradient of the sums and add it to the gradient of the weights.

Each pair of a query and a key inside the table has an entry of its own, so gradients and logits are plain stores in a fixed
order. If the table is clipped, its first and last entry belong to all pairs beyond, and a program sums them in registers. Tiles
beyond the table read one number per query, or none if the table is not clipped.

Kernels take ``(table, first, last, factor, constexpr clipped)``, or any pointer where there is no table. ``load_rows`` turns it into
the tables of a block of queries: ``(pointer of the first query, offsets of all queries, first, last, factor, first entries,
last entries)``, where the entries of a table that is not clipped are scalars.

A table of coordinates (``Position.coordinate_bias_table``) is shared by the queries of a head: ``[H, 2 * center + 1]``. Each query and
key has a place, an integer, and the difference of two places selects the entry. Kernels take ``(table, places of queries [B, T],
places of keys [B, S], factor, constexpr COORDINATES, center, heads, kv_len, head stride)``, and the tables of a block are ``(pointer at the center,
places of the queries, pointer to the places of keys, kv_len, factor, [QUERIES, 1], center)``. Several pairs share an entry, so its
gradient is added by atomics, in an order that varies.

Slopes of tokens (``Position.distance_slopes``) are ``[B, H, T + S]``, those of the queries before those of the keys. The term of a pair is
its distance times the sum of two slopes. Kernels take ``(slopes, kv_len, kv_len, factor, constexpr SLOPES)``, and the tables of a
block are ``(pointer to the slopes of keys, pointers to those of the queries, kv_len, kv_len, factor, [QUERIES, 1, 1], slopes of the
queries)``. A program sums the gradients of its queries in registers and adds those of keys by atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from whence.attention.fused.diagonals import load_f32

COORDINATES = tl.constexpr(2)  # in place of clipped
SLOPES = tl.constexpr(3)
#: of a table of coordinates: blocks of queries add to several, which are summed at the end
GRADIENT_COPIES = tl.constexpr(16)


@triton.jit
def load_rows(TABLE, batch_head, start_m, q_len, QUERIES: tl.constexpr):
    """The tables of queries from ``start_m`` of one head. Queries of padding repeat the last one."""
    if isinstance(TABLE, tl.tensor):
        return TABLE
    elif TABLE[4] == COORDINATES:
        center, heads = TABLE[5], TABLE[6]
        queries = tl.minimum(start_m + tl.arange(0, QUERIES), q_len - 1)
        b = batch_head // heads
        places = tl.load(TABLE[1] + b * q_len + queries)
        pointer = TABLE[0] + (batch_head % heads) * TABLE[8] + center
        return (pointer, places, TABLE[2] + b * TABLE[7], TABLE[7], TABLE[3], places[:, None], center)
    elif TABLE[4] == SLOPES:
        pointer = TABLE[0] + batch_head * (q_len + TABLE[1])
        queries = pointer + tl.minimum(start_m + tl.arange(0, QUERIES), q_len - 1)
        slopes = load_f32(queries)
        return (pointer + q_len, queries, TABLE[1], TABLE[2], TABLE[3], slopes[:, None, None], slopes)
    else:
        entries = TABLE[2] - TABLE[1] + 1
        pointer = TABLE[0] + (batch_head * q_len + start_m) * entries
        offsets = tl.minimum(tl.arange(0, QUERIES), q_len - 1 - start_m) * entries
        if TABLE[4]:
            lows = load_f32(pointer + offsets)
            highs = load_f32(pointer + offsets + (entries - 1))
            return (pointer, offsets, TABLE[1], TABLE[2], TABLE[3], lows, highs)
        else:
            entry = load_f32(pointer)
            return (pointer, offsets, TABLE[1], TABLE[2], TABLE[3], entry, entry)


@triton.jit
def tile_distances(distance0, QUERIES: tl.constexpr, KEYS: tl.constexpr, BY_KEY: tl.constexpr):
    """The distance of every pair of a tile, whose rows are queries, or keys if BY_KEY."""
    offs_m = tl.arange(0, QUERIES)
    offs_n = tl.arange(0, KEYS)
    if BY_KEY:
        return distance0 + offs_m[None, :] - offs_n[:, None]
    else:
        return distance0 + offs_m[:, None] - offs_n[None, :]


@triton.jit
def add_rows(tile, rows, distance0, start_n, QUERIES: tl.constexpr, KEYS: tl.constexpr, BY_KEY: tl.constexpr):
    """Add to every pair the entry of its query at its distance. ``distance0``: of the tile's first query and first key."""
    if isinstance(rows, tl.tensor):
        return tile
    elif len(rows[5].shape) == 2:
        return tile + load_f32(rows[0] + place_differences(rows, start_n, KEYS, BY_KEY)) * rows[4]
    elif len(rows[5].shape) == 3:
        k_slopes = load_f32(rows[0] + tl.minimum(start_n + tl.arange(0, KEYS), rows[2] - 1))
        distance = tile_distances(distance0, QUERIES, KEYS, BY_KEY).to(tl.float32)
        if BY_KEY:
            slopes = rows[6][None, :] + k_slopes[:, None]
        else:
            slopes = rows[6][:, None] + k_slopes[None, :]
        return tile + distance * slopes * rows[4]
    else:
        CLIPPED: tl.constexpr = len(rows[5].shape) > 0
        first, last = rows[2], rows[3]
        lowest = distance0 - (KEYS - 1)
        highest = distance0 + (QUERIES - 1)
        if CLIPPED:  # before the branch, because Triton 3.6 cannot pipeline a loop with work in both branches
            ends = tl.where(lowest > last, rows[6], tl.where(highest < first, rows[5], 0.0)) * rows[4]
            tile += ends[None, :] if BY_KEY else ends[:, None]
        if (highest >= first) & (lowest <= last):
            distance = tile_distances(distance0, QUERIES, KEYS, BY_KEY)
            offsets = rows[1][None, :] if BY_KEY else rows[1][:, None]
            entry = tl.minimum(tl.maximum(distance, first), last) - first
            terms = load_f32(rows[0] + (offsets + entry)) * rows[4]
            if not CLIPPED:
                terms = tl.where((distance >= first) & (distance <= last), terms, 0.0)
            tile += terms
        return tile


@triton.jit
def place_differences(rows, start_n, KEYS: tl.constexpr, BY_KEY: tl.constexpr):
    """The entry of every pair in a table of coordinates, from the center. Hidden pairs may be anywhere, so it is clamped."""
    places = tl.load(rows[2] + tl.minimum(start_n + tl.arange(0, KEYS), rows[3] - 1))
    if BY_KEY:
        difference = rows[1][None, :] - places[:, None]
    else:
        difference = rows[1][:, None] - places[None, :]
    return tl.minimum(tl.maximum(difference, 0 - rows[6]), rows[6])


@triton.jit
def add_entries(tile, TABLE, batch_head, queries, q_len, start_n, distance, KEYS: tl.constexpr):
    """The same for rows that are queries of several heads, given by ``batch_head`` and ``queries``."""
    if TABLE[4] == COORDINATES:
        center, heads = TABLE[5], TABLE[6]
        b = batch_head // heads
        places = tl.load(TABLE[1] + b * q_len + queries)
        k_places = tl.load(
            TABLE[2] + (b * TABLE[7])[:, None] + tl.minimum(start_n + tl.arange(0, KEYS), TABLE[7] - 1)[None, :]
        )
        difference = tl.minimum(tl.maximum(places[:, None] - k_places, 0 - center), center)
        pointers = (TABLE[0] + (batch_head % heads) * (2 * center + 1) + center)[:, None] + difference
        return tile + load_f32(pointers) * TABLE[3]
    elif TABLE[4] == SLOPES:
        pointers = TABLE[0] + batch_head * (q_len + TABLE[1])
        keys = tl.minimum(start_n + tl.arange(0, KEYS), TABLE[1] - 1)
        slopes = load_f32(pointers + queries)[:, None] + load_f32((pointers + q_len)[:, None] + keys[None, :])
        return tile + distance.to(tl.float32) * slopes * TABLE[3]
    else:
        return tile + load_entries(TABLE, batch_head * q_len + queries, distance)


@triton.jit
def load_entries(TABLE, row, distance):
    first, last = TABLE[1], TABLE[2]
    entry = tl.minimum(tl.maximum(distance, first), last) - first
    terms = load_f32(TABLE[0] + (row * (last - first + 1))[:, None] + entry) * TABLE[3]
    if not TABLE[4]:
        terms = tl.where((distance >= first) & (distance <= last), terms, 0.0)
    return terms


@triton.jit
def zero_sums(rows, QUERIES: tl.constexpr):
    """The sums of one end of the tables before the first tile."""
    if isinstance(rows, tl.tensor):
        return tl.zeros([1], tl.float32)
    else:
        return tl.zeros([QUERIES], tl.float32)


@triton.jit
def store_pairs(
    inner,
    outer,
    rows,
    low_sums,
    high_sums,
    distance0,
    start_m,
    start_n,
    q_len,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Store ``inner`` of every pair in the entry of its query, and add ``outer`` of the pairs at both ends to their sums."""
    if isinstance(rows, tl.tensor):
        return low_sums, high_sums
    elif len(rows[5].shape) == 2:
        offs_n = start_n + tl.arange(0, KEYS)
        copy = rows[0] + start_m // QUERIES % GRADIENT_COPIES * (2 * rows[6] + 1)
        exists = (start_m + tl.arange(0, QUERIES) < q_len)[:, None] & (offs_n < rows[3])[None, :]
        tl.atomic_add(copy + place_differences(rows, start_n, KEYS, False), inner * rows[4], mask=exists, sem="relaxed")
        return low_sums, high_sums
    elif len(rows[5].shape) == 3:
        offs_n = start_n + tl.arange(0, KEYS)
        exists = (start_m + tl.arange(0, QUERIES) < q_len)[:, None] & (offs_n < rows[2])[None, :]
        terms = tl.where(exists, inner, 0.0) * tile_distances(distance0, QUERIES, KEYS, False).to(tl.float32)
        tl.atomic_add(rows[0] + offs_n, tl.sum(terms, 0) * rows[4], mask=offs_n < rows[2], sem="relaxed")
        return low_sums + tl.sum(terms, 1), high_sums
    else:
        in_range = start_m + tl.arange(0, QUERIES) < q_len
        CLIPPED: tl.constexpr = len(rows[5].shape) > 0
        first, last = rows[2], rows[3]
        lowest = distance0 - (KEYS - 1)
        highest = distance0 + (QUERIES - 1)
        if CLIPPED:
            sums = tl.sum(outer, 1)
            low_sums += tl.where(highest < first, sums, 0.0)
            high_sums += tl.where(lowest > last, sums, 0.0)
        if (highest >= first) & (lowest <= last):
            distance = tile_distances(distance0, QUERIES, KEYS, False)
            if CLIPPED:
                inside = (distance > first) & (distance < last)
                low_sums += tl.sum(tl.where(distance <= first, outer, 0.0), 1)
                high_sums += tl.sum(tl.where(distance >= last, outer, 0.0), 1)
            else:
                inside = (distance >= first) & (distance <= last)
            tl.store(
                rows[0] + (rows[1][:, None] + (distance - first)), inner * rows[4], mask=inside & in_range[:, None]
            )
        return low_sums, high_sums


@triton.jit
def store_ends(rows, lows, highs, in_range):
    """Store the first and the last entry of clipped tables, or the slopes of queries."""
    if not isinstance(rows, tl.tensor):
        if len(rows[5].shape) == 3:
            tl.store(rows[1], lows * rows[4], mask=in_range)
        elif len(rows[5].shape) == 1:
            pointers = rows[0] + rows[1]
            tl.store(pointers, lows * rows[4], mask=in_range)
            tl.store(pointers + (rows[3] - rows[2]), highs * rows[4], mask=in_range)
