"""``Layout``: the position of every query and key, and which keys each query attends to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence import shapes
from whence.attention.arguments import Arguments
from whence.attention.pair_mask import PairMask
from whence.attention.token_positions import common_offset, count_tokens, leaves_gaps, require_contiguous_segments
from whence.errors import usage_error
from whence.position.base import Position


@dataclass(frozen=True)
class Layout:
    """Positions and masks of one attention call.

    ``offset`` is the number with ``distance(i, j) = offset + i - j`` for every row i and every key j it attends to, where
    the host knows it; fast paths then evaluate a mechanism on the few distances that occur. ``None``: any positions.
    """

    q_positions: Tensor  # [B or 1, T]
    k_positions: Tensor  # [B or 1, S]
    offset: int | None
    causal: bool
    window: int | None
    real: Tensor | None  # [B, S], False on padding
    q_segment_ids: Tensor | None  # [B or 1, T]
    k_segment_ids: Tensor | None  # [B or 1, S]
    pair_mask: PairMask | None = None  # attn_mask and mask_fn

    @property
    def mask_rows(self) -> int:
        """How many sequences of the batch need a mask of their own."""
        shared = [
            x.shape[0] for x in (self.q_positions, self.k_positions, self.real, self.q_segment_ids) if x is not None
        ]
        return max(*shared, 1 if self.pair_mask is None else self.pair_mask.batch_size)

    @property
    def plain(self) -> bool:
        """No mask but causality and window."""
        return self.real is None and self.q_segment_ids is None and self.pair_mask is None

    @property
    def is_plain_causal(self) -> bool:
        """Whether every key is visible, or exactly those that causality from the first token on leaves."""
        square = self.offset == 0 and self.q_positions.shape[1] == self.k_positions.shape[1]
        return self.plain and self.window is None and (not self.causal or square)

    def distance(self, rows: slice | None = None) -> Tensor:
        """``[B or 1, T, S]``"""
        return _select_rows(self.q_positions, rows)[:, :, None] - self.k_positions[:, None, :]

    def hook_distances(self, dtype: torch.dtype, rows: slice | None = None) -> Tensor:
        """The distances that hooks receive: ``[B or 1, T, S]``. Those outside the causal or window range are clamped to it,
        because a function may be undefined or infinite there."""
        return self.clamp_distance(self.distance(rows).to(dtype))

    def clamp_distance(self, distance: Tensor) -> Tensor:
        """Distances, clamped to the causal and window range."""
        reach: float | None = None
        if self.window is not None:
            # the largest visible distance is window - 1 for whole positions, and just below window for fractional ones
            fractional = self.q_positions.is_floating_point() or self.k_positions.is_floating_point()
            reach = float_below(self.window, distance.dtype) if fractional else self.window - 1
        low = 0 if self.causal else None if reach is None else -reach
        return distance if low is None and reach is None else distance.clamp(min=low, max=reach)

    def visible_keys(self, rows: slice) -> slice:
        """A range of keys outside of which causality and window hide every key from these rows; all keys if it is not known."""
        keys = self.k_positions.shape[1]
        if self.offset is None:
            return slice(0, keys)
        first, end = 0, keys
        if self.causal:
            end = self.offset + rows.stop
        elif self.window is not None:
            end = self.offset + rows.stop + self.window - 1
        if self.window is not None:
            first = self.offset + rows.start - self.window + 1
        first = min(max(first, 0), keys - 1)  # rows that see no key get one, which is hidden
        return slice(first, max(min(end, keys), first + 1))

    def select_keys(self, keys: slice) -> Layout:
        """The layout of all queries and some keys. No mask is of single pairs, and no length is that of all keys."""
        assert self.pair_mask is None
        segment_ids = self.k_segment_ids
        return replace(
            self,
            k_positions=self.k_positions[:, keys],
            offset=None if self.offset is None else self.offset - keys.start,
            real=None if self.real is None else self.real[:, keys],
            k_segment_ids=None if segment_ids is None else segment_ids[:, keys],
        )

    def token_mask(self, rows: slice | None = None) -> Tensor | None:
        """Which keys are real and in the segment of the query, at any distance: ``[B or 1, T or 1, S]``; None if all are."""
        mask = None if self.real is None else self.real[:, None, :]
        if self.q_segment_ids is not None and self.k_segment_ids is not None:
            same = _select_rows(self.q_segment_ids, rows)[:, :, None] == self.k_segment_ids[:, None, :]
            mask = same if mask is None else mask & same
        return mask

    def visible(self, rows: slice | None = None) -> Tensor:
        """Which keys each query attends to: ``[B or 1, H or 1, T, S]``."""
        distance = self.distance(rows)
        visible = self.token_mask(rows)
        if visible is None:
            visible = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            visible = visible & (distance >= 0)
        if self.window is not None:
            visible = visible & (distance.abs() < self.window)
        visible = visible[:, None]
        if self.pair_mask is not None:
            visible = visible & self.pair_mask.visible(_select_rows(self.q_positions, rows), self.k_positions, rows)
        return visible

    def additive_mask(self, dtype: torch.dtype, rows: slice | None = None) -> Tensor | None:
        """What is added to the logits of each pair, ``[B or 1, H or 1, T or 1, S or 1]``; None without a float mask."""
        return None if self.pair_mask is None else self.pair_mask.additive(dtype, rows)

    def query_lengths(self, rows: slice | None = None) -> Tensor:
        """The length of ``length="query"``, ``[B or 1, T]``; left padding has positions below 0."""
        return (_select_rows(self.q_positions, rows) + 1).clamp(min=1)

    def length_of(self, part: Position, rows: slice | None = None) -> Any:
        """The length that a part's hooks receive: None, a number, or ``[B or 1, T, 1]``."""
        if part.length is None:
            return None
        if part.length == "context":
            return part.context
        if part.length == "query":
            return self.query_lengths(rows)[:, :, None]
        mask = self.token_mask(rows)
        if mask is None:
            return self.k_positions.shape[1]
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        return count.expand(-1, _select_rows(self.q_positions, rows).shape[1], -1)


def float_below(number: int, dtype: torch.dtype) -> float:
    """The largest number of a float dtype below a whole number of at least 1.

    >>> float_below(1, torch.float64) < 1
    True
    """
    return float(torch.nextafter(torch.tensor(float(number), dtype=dtype), torch.tensor(0.0, dtype=dtype)))


def _select_rows(x: Tensor, rows: slice | None) -> Tensor:
    return x if rows is None else x[:, rows]


def resolve_layout(
    arguments: Arguments, *, needs_positions: bool = True, below: int = shapes.EXACT_IN_FLOAT32
) -> Layout:
    """The layout of a call without a cache. Positions that are not passed count the real tokens of each segment from 0.

    Positions that are passed must be under ``below``.
    """
    q, q_positions, k_positions = arguments.q, arguments.q_positions, arguments.k_positions
    batch, rows, keys, device = q.shape[0], q.shape[2], arguments.k.shape[2], q.device
    real = resolve_key_mask(arguments.lengths, arguments.key_mask, batch, keys, device, heads=arguments.k.shape[1])
    q_segments, k_segments = _resolve_segment_ids(arguments.segment_ids, batch, rows, keys, device)
    if (q_positions is None) != (k_positions is None) and rows != keys:
        raise usage_error(
            "attend(q_positions=..., k_positions=...)",
            "only one of them",
            "q and k have different lengths, so neither can be derived from the other",
            "pass both q_positions and k_positions",
        )
    if q_positions is None and k_positions is None:
        ordered = arguments.causal or arguments.window is not None or needs_positions
        _require_derivable_positions(arguments, ordered)
        require_contiguous_segments(k_segments)
        if rows != keys:
            require_contiguous_segments(q_segments)
        k_pos = count_tokens(real, k_segments, keys, device)
        q_pos = k_pos if rows == keys else torch.arange(rows, device=device)[None]
        mask = arguments.key_mask  # lengths pad on the right only
        offset = 0 if mask is None or not leaves_gaps(mask, k_segments, k_pos) else None
    else:
        passed = {
            name: shapes.validate_positions(name, tensor, batch, length, device, below=below)
            for name, tensor, length in (("q_positions", q_positions, rows), ("k_positions", k_positions, keys))
            if tensor is not None
        }
        q_pos = passed["q_positions" if q_positions is not None else "k_positions"]
        k_pos = passed["k_positions" if k_positions is not None else "q_positions"]
        offset = common_offset(q_pos, k_pos)
    return Layout(q_pos, k_pos, offset, arguments.causal, arguments.window, real, q_segments, k_segments)


def _require_derivable_positions(arguments: Arguments, ordered: bool) -> None:
    """Refuse a call whose result depends on positions that were not passed and cannot be counted."""
    q, k = arguments.q, arguments.k
    rows, keys = q.shape[2], k.shape[2]
    if isinstance(arguments.segment_ids, tuple) and ordered:
        raise usage_error(
            "attend(segment_ids=(..., ...))",
            "a pair and no positions",
            "queries and keys with segment ids of their own need explicit positions",
            "pass q_positions and k_positions",
        )
    if rows != keys and ordered:
        raise usage_error(
            "attend(q, k)",
            f"{shapes.format_count(rows, 'query', 'queries')} for {shapes.format_count(keys, 'key')} and no positions",
            "q and k have different lengths, so their positions cannot be counted",
            shapes.transpose_remedy("q")
            if q.shape[1:3] == (keys, k.shape[1])
            else f"if the queries are the last tokens, pass q_positions=torch.arange({keys - rows}, {keys}) and "
            f"k_positions=torch.arange({keys})"
            if rows < keys
            else "pass q_positions and k_positions",
        )


def resolve_key_mask(
    lengths: Tensor | None,
    key_mask: Tensor | None,
    batch: int,
    keys: int,
    device: torch.device,
    heads: int | None = None,
) -> Tensor | None:
    """Which keys are real, from lengths or a padding mask. ``heads`` is the number of key heads, for the error text."""
    if lengths is not None and key_mask is not None:
        raise usage_error(
            "attend(lengths=..., key_mask=...)", "both", "both state which tokens are real", "drop one of them"
        )
    if lengths is not None:
        return shapes.mask_from_lengths(lengths, batch, keys, device)
    return None if key_mask is None else shapes.validate_key_mask(key_mask, batch, keys, device, heads)


def _resolve_segment_ids(
    segment_ids: Tensor | tuple[Tensor, Tensor] | None, batch: int, rows: int, keys: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    if segment_ids is None:
        return None, None
    if rows != keys and isinstance(segment_ids, Tensor):
        raise usage_error(
            "attend(segment_ids=...)",
            f"one tensor for {shapes.format_count(rows, 'query', 'queries')} and {shapes.format_count(keys, 'key')}",
            "queries and keys of different lengths have segment ids of their own",
            "pass a pair, for the queries and for the keys",
        )
    if isinstance(segment_ids, tuple) and len(segment_ids) != 2:
        raise usage_error(
            "attend(segment_ids=...)",
            f"{len(segment_ids)} tensors",
            "segment_ids is one tensor or a pair, for the queries and for the keys",
            "pass one or two",
        )
    if isinstance(segment_ids, tuple):
        return shapes.validate_segment_ids(segment_ids[0], batch, rows, device), shapes.validate_segment_ids(
            segment_ids[1], batch, keys, device
        )
    numbers = shapes.validate_segment_ids(segment_ids, batch, rows, device)
    return numbers, numbers
