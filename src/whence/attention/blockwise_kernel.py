"""Exact tiled attention with distance tables: forward, and a backward that recomputes, with the tables' own gradients.

The work is cut into tiles: a block of query rows of some heads against every key those rows can see. A tile's softmax
is complete, so there is no running rescale; memory is linear in length. Keys that padding or segments hide from all rows of a
tile are left out. Three things make it as fast as a fused kernel on
a CPU: logits are in units of log 2 (an exponential costs as much as a matrix product there, and exp2 a third less), tiles
use scratch memory allocated once (fresh pages cost more than the arithmetic), and position enters as a slice of a band
(see ``toeplitz``) in one pass over a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whence import torch_modes
from whence.attention.block_visibility import block_range
from whence.attention.toeplitz import Span, band_to_table, mask_table, table_to_band

LOG2E = math.log2(math.e)
BLOCK = 128  # query rows in a tile
CLOCK_ROWS = 8  # neighbouring rows whose clocks differ by a few steps
TILE = 1 << 21  # scores in a tile: 8 MB in float32, small enough for cache and large enough to hide Python's overhead


@dataclass(frozen=True)
class Tables:
    """Tables over distances ``[H, distances]``, a logit for each row ``[B, H, T]``, the clock at each row ``[B, H, T]`` and key
    ``[B, H, S]`` in float64, and masks that are not distance."""

    score_scale: Tensor | None
    bias: Tensor | None
    sink: Tensor | None
    q_clock: Tensor | None
    k_clock: Tensor | None
    real: Tensor | None  # [B, S]
    q_segment_ids: Tensor | None  # [B or 1, T]
    k_segment_ids: Tensor | None  # [B or 1, S]


@dataclass(frozen=True)
class Settings:
    scale: float
    temperature: float
    dropout: float
    seed: int


@dataclass(frozen=True)
class Tile:
    pairs: slice  # of the B * G pairs of a sequence and a key-value head
    batch: slice
    rows: slice
    keys: slice
    number: int


def find_key_ranges(tables: Tables, block: int) -> list[list[list[int]]] | None:
    """For each sequence and block of rows, the first key that padding and segments leave visible, and one past the last.

    ``[B or 1][row blocks or 1][2]``; both are 0 where no key is left. None without padding and segments, or where values
    cannot be read. The range of a block with several segments covers the keys of all ids between its smallest and largest.
    """
    real, q_ids, k_ids = tables.real, tables.q_segment_ids, tables.k_segment_ids
    known = [x for x in (real, q_ids, k_ids) if x is not None]
    if not known or not torch_modes.can_read_values(*known):
        return None
    visible = torch.ones((), dtype=torch.bool, device=known[0].device) if real is None else real[:, None, :]
    if q_ids is not None and k_ids is not None:
        low, high = (x[:, :, None] for x in block_range(q_ids, block))
        visible = visible & (low <= k_ids[:, None, :]) & (k_ids[:, None, :] <= high)
    keys, some = visible.shape[-1], visible.any(-1)
    first = torch.where(some, visible.byte().argmax(-1), 0)
    last = torch.where(some, keys - visible.flip(-1).byte().argmax(-1), 0)
    ranges: list[list[list[int]]] = torch.stack([first, last], -1).tolist()
    return ranges


class BlockPlan:
    """How the work is cut. A tile holds some heads of one sequence, or all heads of some sequences."""

    def __init__(self, q: Tensor, k: Tensor, span: Span, tables: Tables | None = None) -> None:
        self.batch, self.heads, self.groups = q.shape[0], q.shape[1], k.shape[1]
        self.span = span
        self.block = min(BLOCK, span.queries)
        self.share = self.heads // self.groups  # query heads on one key-value head
        self.columns = span.columns(self.block)
        widest = max(1, min(span.keys, self.columns[1] - self.columns[0]))
        one = self.share * self.block * widest
        self.group_step = max(1, min(self.groups, TILE // one))
        self.batch_step = max(1, min(self.batch, TILE // (one * self.groups)))
        self.scores = one * self.group_step * self.batch_step
        self.key_ranges = None if tables is None else find_key_ranges(tables, self.block)

    def head_groups(self) -> Iterator[slice]:
        """Key-value heads a few at a time, outermost, so that bands exist for a few heads only."""
        for first in range(0, self.groups, self.group_step):
            yield slice(first, min(first + self.group_step, self.groups))

    def tiles(self, groups: slice) -> Iterator[Tile]:
        number = groups.start * self.batch * self.span.queries
        for b in range(0, self.batch, self.batch_step):
            batch = slice(b, min(b + self.batch_step, self.batch))
            pairs = slice(b * self.groups + groups.start, (batch.stop - 1) * self.groups + groups.stop)
            for r in range(0, self.span.queries, self.block):
                rows = slice(r, min(r + self.block, self.span.queries))
                low, high = self.span.visible_keys(rows.start, rows.stop)
                first, last = self.range_of_tokens(batch, r // self.block)
                low, high = max(low, first), min(high, last)
                number += 1
                if high > low:
                    yield Tile(pairs, batch, rows, slice(low, high), number)

    def range_of_tokens(self, batch: slice, block: int) -> tuple[int, int]:
        """The range of keys outside which padding and segments hide every key from a block of rows of some sequences."""
        if self.key_ranges is None:
            return 0, self.span.keys
        sequences = self.key_ranges if len(self.key_ranges) == 1 else self.key_ranges[batch]
        ranges = [blocks[0 if len(blocks) == 1 else block] for blocks in sequences]
        ranges = [pair for pair in ranges if pair[1] > pair[0]]  # the others have no visible key
        return min((pair[0] for pair in ranges), default=0), max((pair[1] for pair in ranges), default=0)


class Work:
    """State shared by the tiles of a call: views by pair, scratch memory, and the bands of the current heads."""

    def __init__(self, q: Tensor, k: Tensor, span: Span, tables: Tables, settings: Settings, buffers: int) -> None:
        self.span, self.tables, self.settings = span, tables, settings
        self.plan = BlockPlan(q, k, span, tables)
        self.unit = LOG2E / settings.temperature
        self.q_scale = settings.scale if tables.score_scale is not None else settings.scale * self.unit
        mask = mask_table(span, q)
        self.mask = None if mask is None or tables.bias is not None else table_to_band(mask, span, self.plan.block)
        self.masked_bias = tables.bias if mask is None or tables.bias is None else tables.bias + mask
        self.scratch = [q.new_empty(self.plan.scores) for _ in range(buffers)]
        self.score_scale: Tensor | None = None
        self.bias: Tensor | None = None
        self.heads = slice(0, 0)

    def build_bands(self, groups: slice) -> slice:
        """Build the bands of some key-value heads and return the slice of their query heads."""
        self.heads = heads = slice(groups.start * self.plan.share, groups.stop * self.plan.share)
        score_scale, bias, block = self.tables.score_scale, self.masked_bias, self.plan.block
        self.score_scale = (
            None if score_scale is None else table_to_band(score_scale[heads] * self.unit, self.span, block)
        )
        self.bias = None if bias is None else table_to_band(scale_finite(bias[heads], self.unit), self.span, block)
        return heads

    def by_pair(self, x: Tensor) -> Tensor:
        """``[B, H, T, n]`` as ``[B * G, share, T, n]``."""
        return x.reshape(-1, self.plan.share, *x.shape[2:])

    def rows_of(self, x: Tensor, tile: Tile) -> Tensor:
        """The tile's rows of a tensor by pair, heads of a group side by side: ``[pairs, share * rows, n]``."""
        return x[tile.pairs, :, tile.rows].flatten(1, 2)

    def space(self, buffer: int, tile: Tile) -> Tensor:
        """Scratch for the tile's scores: ``[pairs, share * rows, keys]``."""
        pairs, keys = tile.pairs.stop - tile.pairs.start, tile.keys.stop - tile.keys.start
        rows = self.plan.share * (tile.rows.stop - tile.rows.start)
        return self.scratch[buffer][: pairs * rows * keys].view(pairs, rows, keys)

    def by_head(self, x: Tensor, tile: Tile) -> Tensor:
        """``[pairs, share * rows, n]`` seen as ``[B, H, rows, n]``."""
        return x.view(tile.batch.stop - tile.batch.start, -1, tile.rows.stop - tile.rows.start, x.shape[-1])

    def slice_band(self, band: Tensor, tile: Tile) -> Tensor:
        """The tile's part of a band: ``[heads, rows, keys]``."""
        start = self.span.column(tile.rows.start, tile.keys.start) - self.plan.columns[0]
        return band[:, : tile.rows.stop - tile.rows.start, start : start + tile.keys.stop - tile.keys.start]

    def logits(self, scores: Tensor, into: Tensor, tile: Tile) -> Tensor:
        """Logits in units of log 2 as ``[B, H, rows, keys]``; ``into`` may be the scores.

        The forward and the backward pass round them alike: where logits are far from 0, another order of the additions
        would change every weight.
        """
        s, z = self.by_head(scores, tile), self.by_head(into, tile)
        if self.score_scale is not None:
            torch.mul(s, self.slice_band(self.score_scale, tile), out=z)
        if self.bias is not None:
            z.add_(self.slice_band(self.bias, tile))
        elif self.mask is not None:
            self.mask_edges(z, tile)
        if self.tables.k_clock is not None:
            self.add_clock(z, tile)
        hidden = self.hidden_pairs(tile)
        return z if hidden is None else z.masked_fill_(hidden[:, None], -torch.inf)

    def add_clock(self, z: Tensor, tile: Tile) -> None:
        """Add the clock to the logits of a tile, up to a number for each row.

        A number that is the same for all keys of a row cancels in the softmax, so the first of a few rows stands for all of
        them. The difference of a key from it is rounded, and not the running sum, which is larger.
        """
        q, k = self.tables.q_clock, self.tables.k_clock
        assert q is not None and k is not None
        keys = k[tile.batch, self.heads, tile.keys]
        for row in range(0, tile.rows.stop - tile.rows.start, CLOCK_ROWS):
            first = q[tile.batch, self.heads, tile.rows.start + row, None]
            z[:, :, row : row + CLOCK_ROWS].add_(((first - keys) * self.unit).to(z.dtype)[:, :, None])

    def sink(self) -> Tensor | None:
        """The sink of every row in the units of its tile's logits, ``[B, H, T]``."""
        if self.tables.sink is None:
            return None
        sink, clock = scale_finite(self.tables.sink, self.unit), self.tables.q_clock
        if clock is None:
            return sink
        rows = torch.arange(clock.shape[-1], device=clock.device)
        since_first = clock - clock[..., rows - rows % self.plan.block % CLOCK_ROWS]
        return sink - (since_first * self.unit).to(sink.dtype)

    def mask_edges(self, z: Tensor, tile: Tile) -> None:
        """Causality and window, on those keys of a tile that some of its rows do not see."""
        assert self.mask is not None
        band, (low, high) = (
            self.slice_band(self.mask, tile),
            self.span.keys_visible_to_all(tile.rows.start, tile.rows.stop),
        )
        first, count = tile.keys.start, tile.keys.stop - tile.keys.start
        left, right = min(max(low - first, 0), count), min(max(high - first, 0), count)
        for edge in (slice(0, left), slice(max(left, right), count)):
            z[..., edge].add_(band[..., edge])

    def hidden_pairs(self, tile: Tile) -> Tensor | None:
        """The pairs that padding or segments hide, ``[B or 1, rows or 1, keys]``; None if there are neither."""
        t, hidden = self.tables, None
        if t.real is not None:
            hidden = ~t.real[tile.batch, None, tile.keys]
        if t.q_segment_ids is not None and t.k_segment_ids is not None:
            q, k = (d if d.shape[0] == 1 else d[tile.batch] for d in (t.q_segment_ids, t.k_segment_ids))
            other = q[:, tile.rows, None] != k[:, None, tile.keys]
            hidden = other if hidden is None else hidden | other
        return hidden

    def dropout_mask(self, like: Tensor, tile: Tile) -> Tensor:
        """The scaled dropout mask of a tile, the same in the forward and the backward pass."""
        generator = torch.Generator(like.device).manual_seed(self.settings.seed + tile.number)
        p = self.settings.dropout
        noise = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        return (noise >= p).to(like.dtype).div_(1 - p)


def forward(
    q: Tensor, k: Tensor, v: Tensor, span: Span, tables: Tables, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """The output ``[B, H, T, E]``, and for every row ``[B, H, T]`` its largest logit and the sum of its exponentials.

    The weight of a key is ``exp2(logit - top) / total``. A row without visible keys has top 0 and total 1. The log-sum-exp,
    ``top + log2(total)``, would be one number, but it loses ``log2(total)`` to rounding where all logits are far from 0.
    """
    work = Work(q, k, span, tables, settings, buffers=1)
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    sink = work.sink()
    tops = q.new_zeros(q.shape[:3]) if sink is None else torch.where(torch.isneginf(sink), 0.0, sink).contiguous()
    totals = torch.ones_like(tops)
    queries, outs = work.by_pair(q), work.by_pair(out)
    keys, values = k.flatten(0, 1).transpose(1, 2).contiguous(), v.flatten(0, 1)
    for groups in work.plan.head_groups():
        heads = work.build_bands(groups)
        for tile in work.plan.tiles(groups):
            scores = work.space(0, tile)
            torch.bmm(work.rows_of(queries, tile) * work.q_scale, keys[tile.pairs, :, tile.keys], out=scores)
            z = work.logits(scores, scores, tile)
            top = z.amax(-1)
            extra = None if sink is None else sink[tile.batch, heads, tile.rows]
            if extra is not None:
                top = torch.maximum(top, extra)
            top = torch.where(torch.isneginf(top), 0.0, top)
            z.sub_(top[..., None]).exp2_()
            total = z.sum(-1)
            if extra is not None:
                total += torch.exp2(extra - top)
            total = torch.where(total == 0, 1.0, total)
            tops[tile.batch, heads, tile.rows], totals[tile.batch, heads, tile.rows] = top, total
            if settings.dropout > 0:
                z.mul_(work.dropout_mask(z, tile))
            part = torch.bmm(scores, values[tile.pairs, tile.keys]).unflatten(1, (work.plan.share, -1))
            outs[tile.pairs, :, tile.rows] = part / total.view(*part.shape[:3], 1)
    return out, tops, totals


def backward(
    grad: Tensor,
    out: Tensor,
    tops: Tensor,
    totals: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    span: Span,
    tables: Tables,
    settings: Settings,
    needed: list[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k and v, and of the table of score scales, the bias table, the sink and the clock at the rows and at
    the keys where they are needed."""
    work = Work(q, k, span, tables, settings, buffers=2 if tables.score_scale is None else 3)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    dq = torch.zeros_like(q)
    d_score_scale = None if tables.score_scale is None or not needed[0] else torch.zeros_like(tables.score_scale)
    d_bias = None if tables.bias is None or not needed[1] else torch.zeros_like(tables.bias)
    d_k_clock = None if tables.k_clock is None or not needed[4] else torch.zeros_like(tables.k_clock)
    # tiles hold weights times their row's total, so the upstream gradient of the row is divided by it
    delta = (grad * out).sum(-1).div_(totals)
    # the factor from a gradient of a tile's logits to a gradient of q.k, without the band of score scales
    back = settings.scale / LOG2E if tables.score_scale is not None else settings.scale / settings.temperature
    queries, grads, dqs = work.by_pair(q), work.by_pair(grad), work.by_pair(dq)
    shares = work.by_pair(totals[..., None].reciprocal())
    keys = k.flatten(0, 1)
    # keys and values are transposed, [pairs, dim, keys], where that makes the matrix product faster
    keys_across, values_across = (x.flatten(0, 1).transpose(1, 2).contiguous() for x in (k, v))
    dk_across, dv_across = torch.zeros_like(keys_across), torch.zeros_like(values_across)
    for groups in work.plan.head_groups():
        heads = work.build_bands(groups)
        score_scale_sum = (
            None if d_score_scale is None or work.score_scale is None else torch.zeros_like(work.score_scale)
        )
        bias_sum = None if d_bias is None or work.bias is None else torch.zeros_like(work.bias)
        for tile in work.plan.tiles(groups):
            q_rows = work.rows_of(queries, tile)
            g_rows = work.rows_of(grads, tile) * work.rows_of(shares, tile)
            scores, upstream = work.space(0, tile), work.space(1, tile)
            weights = scores if work.score_scale is None else work.space(2, tile)
            torch.bmm(q_rows * work.q_scale, keys_across[tile.pairs, :, tile.keys], out=scores)
            p = work.logits(scores, weights, tile).sub_(tops[tile.batch, heads, tile.rows, None]).exp2_()
            torch.bmm(g_rows, values_across[tile.pairs, :, tile.keys], out=upstream)
            dz = work.by_head(upstream, tile)
            used = weights
            if settings.dropout > 0:
                mask = work.dropout_mask(p, tile)
                used = (p * mask).view_as(weights)
                dz.mul_(mask)
            dv_across[tile.pairs, :, tile.keys].baddbmm_(g_rows.transpose(1, 2), used)
            dz.sub_(delta[tile.batch, heads, tile.rows, None]).mul_(p)
            if d_k_clock is not None:
                d_k_clock[tile.batch, heads, tile.keys].sub_(dz.sum(2))
            if bias_sum is not None:
                work.slice_band(bias_sum, tile).add_(dz.sum(0) if dz.shape[0] > 1 else dz[0])
            if work.score_scale is not None:
                if score_scale_sum is not None:
                    _accumulate(work.slice_band(score_scale_sum, tile), dz, work.by_head(scores, tile))
                dz.mul_(work.slice_band(work.score_scale, tile))
            rows = torch.bmm(upstream, keys[tile.pairs, tile.keys]).mul_(back)
            dqs[tile.pairs, :, tile.rows] = rows.unflatten(1, (work.plan.share, -1))
            dk_across[tile.pairs, :, tile.keys].baddbmm_(q_rows.transpose(1, 2), upstream, alpha=back)
        if d_score_scale is not None and score_scale_sum is not None:
            d_score_scale[heads] = band_to_table(score_scale_sum, span, work.plan.block).div_(settings.temperature)
        if d_bias is not None and bias_sum is not None:
            d_bias[heads] = band_to_table(bias_sum, span, work.plan.block).div_(settings.temperature)
    if d_k_clock is not None:
        d_k_clock.div_(settings.temperature)
    d_sink = d_q_clock = None
    sink = work.sink()
    if sink is not None and (needed[2] or needed[3]):
        d_sink = torch.exp2(sink - tops).mul_(-delta).div_(settings.temperature)
    if tables.q_clock is not None and needed[3]:
        # a row's clock moves all its keys, which has an effect against the sink alone
        d_q_clock = torch.zeros_like(tables.q_clock) if d_sink is None else -d_sink.double()
    dk, dv = dk_across.transpose(1, 2).reshape(k.shape), dv_across.transpose(1, 2).reshape(v.shape)
    return dq, dk, dv, d_score_scale, d_bias, d_sink if needed[2] else None, d_q_clock, d_k_clock


def _accumulate(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the products of ``[B, H, rows, keys]``, summed over the batch."""
    if a.shape[0] == 1:
        into.addcmul_(a[0], b[0])
    else:
        into.add_((a * b).sum(0))


def scale_finite(x: Tensor, factor: float) -> Tensor:
    """x times a factor, where a finite number stays finite: a bias of finfo.min at every key of a row must not become -inf."""
    scaled, largest = x * factor, torch.finfo(x.dtype).max
    return torch.where(torch.isinf(x), scaled, scaled.clamp(-largest, largest))
