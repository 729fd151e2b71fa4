"""Where every query and key stands, and which keys each query may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence import shapes
from whence.errors import usage_error
from whence.position.base import Position


@dataclass(frozen=True)
class Layout:
    """Positions and masks of one attention call.

    ``offset`` is the number with ``distance(i, j) = offset + i - j`` for all rows i and keys j that see each other,
    where the host knows it; fast paths evaluate a mechanism on the few distances that occur. ``None``: any positions.
    """

    q_positions: Tensor  # [B or 1, T]
    k_positions: Tensor  # [B or 1, S]
    offset: int | None
    causal: bool
    window: int | None
    real: Tensor | None  # [B, S], False on padding
    q_segment_ids: Tensor | None  # [B or 1, T]
    k_segment_ids: Tensor | None  # [B or 1, S]

    @property
    def mask_rows(self) -> int:
        """How many sequences of the batch need a mask of their own."""
        shared = [
            x.shape[0] for x in (self.q_positions, self.k_positions, self.real, self.q_segment_ids) if x is not None
        ]
        return max(shared)

    @property
    def plain(self) -> bool:
        """No mask but causality and window."""
        return self.real is None and self.q_segment_ids is None

    def distance(self, rows: slice | None = None) -> Tensor:
        """``[B or 1, T, S]``"""
        return _cut(self.q_positions, rows)[:, :, None] - self.k_positions[:, None, :]

    def measured(self, dtype: torch.dtype, rows: slice | None = None) -> Tensor:
        """The distances that hooks are asked about: those that causality or the window hides are moved to the nearest
        that is seen, because a function may have no value, or an endless one, where it is never used."""
        return self.within(self.distance(rows).to(dtype))

    def within(self, distance: Tensor) -> Tensor:
        reach: float | None = None
        if self.window is not None:
            # between whole positions window - 1 is the farthest that is seen; fractional ones come closer to the window
            fractional = self.q_positions.is_floating_point() or self.k_positions.is_floating_point()
            reach = float_below(self.window, distance.dtype) if fractional else self.window - 1
        low = 0 if self.causal else None if reach is None else -reach
        return distance if low is None and reach is None else distance.clamp(min=low, max=reach)

    def related(self, rows: slice | None = None) -> Tensor | None:
        """Which keys belong to the query's text, near or far, past or future: ``[B or 1, T, S]``; None if all."""
        seen = None if self.real is None else self.real[:, None, :]
        if self.q_segment_ids is not None and self.k_segment_ids is not None:
            same = _cut(self.q_segment_ids, rows)[:, :, None] == self.k_segment_ids[:, None, :]
            seen = same if seen is None else seen & same
        return seen

    def visible(self, rows: slice | None = None) -> Tensor:
        """Which keys each query attends to: ``[B or 1, T, S]``."""
        distance = self.distance(rows)
        seen = self.related(rows)
        if seen is None:
            seen = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            seen = seen & (distance >= 0)
        if self.window is not None:
            seen = seen & (distance.abs() < self.window)
        return seen

    def length_of(self, part: Position, rows: slice | None = None) -> Any:
        """The length that a part's hooks receive: None, a number, or ``[B or 1, T, 1]``."""
        if part.length is None:
            return None
        if part.length == "context":
            return part.context
        if part.length == "query":
            return (_cut(self.q_positions, rows)[:, :, None] + 1).clamp(min=1)  # left padding stands before 0
        related = self.related(rows)
        if related is None:
            return self.k_positions.shape[1]
        count = related.sum(-1, keepdim=True).clamp(min=1)
        return count.expand(-1, _cut(self.q_positions, rows).shape[1], -1)


def float_below(number: int, dtype: torch.dtype) -> float:
    """The largest number of a float dtype below a whole number of at least 1.

    >>> float_below(1, torch.float64) < 1
    True
    """
    return float(torch.nextafter(torch.tensor(float(number), dtype=dtype), torch.tensor(0.0, dtype=dtype)))


def _cut(x: Tensor, rows: slice | None) -> Tensor:
    return x if rows is None else x[:, rows]


def resolve(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool,
    window: int | None,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    lengths: Tensor | None,
    key_mask: Tensor | None,
    segment_ids: Tensor | tuple[Tensor, Tensor] | None,
    needs_positions: bool,
    below: int = shapes.EXACT_IN_FLOAT32,
) -> Layout:
    """The layout of a call without a cache. Positions that are not given count the real tokens of each text from 0.

    Positions that are given stay under ``below``.
    """
    batch, rows, keys, device = q.shape[0], q.shape[2], k.shape[2], q.device
    real = resolve_key_mask(lengths, key_mask, batch, keys, device)
    q_segments, k_segments = _documents(segment_ids, batch, rows, keys, device)
    if (q_positions is None) != (k_positions is None) and rows != keys:
        raise usage_error(
            "attend(q_positions=..., k_positions=...)",
            "only one of them",
            "the other cannot be guessed when lengths differ",
            "give both",
        )
    if q_positions is None and k_positions is None:
        if isinstance(segment_ids, tuple) and (causal or window is not None or needs_positions):
            raise usage_error(
                "attend(segment_ids=(..., ...))",
                "a pair and no positions",
                "queries and keys of different texts stand where the caller says",
                "pass q_positions and k_positions",
            )
        if rows != keys and (causal or window is not None or needs_positions):
            raise usage_error(
                "attend(q, k)",
                f"{shapes.many(rows, 'query', 'queries')} for {shapes.many(keys, 'key')} and no positions",
                "where each query stands must be said when the lengths differ",
                f"if the queries are the last tokens, pass q_positions=torch.arange({keys - rows}, {keys}) and "
                f"k_positions=torch.arange({keys})"
                if rows < keys
                else "pass q_positions and k_positions",
            )
        require_whole_documents(k_segments)
        if rows != keys:
            require_whole_documents(q_segments)
        k_pos = count_tokens(real, k_segments, keys, device)
        q_pos = k_pos if rows == keys else torch.arange(rows, device=device)[None]
        whole = key_mask is None or not leaves_gaps(key_mask, k_segments, k_pos)  # lengths pad on the right only
        return Layout(q_pos, k_pos, 0 if whole else None, causal, window, real, q_segments, k_segments)
    given = {
        name: shapes.positions(name, tensor, batch, length, device, below=below)
        for name, tensor, length in (("q_positions", q_positions, rows), ("k_positions", k_positions, keys))
        if tensor is not None
    }
    q_pos = given["q_positions" if q_positions is not None else "k_positions"]
    k_pos = given["k_positions" if k_positions is not None else "q_positions"]
    return Layout(q_pos, k_pos, run_offset(q_pos, k_pos), causal, window, real, q_segments, k_segments)


def resolve_key_mask(
    lengths: Tensor | None, key_mask: Tensor | None, batch: int, keys: int, device: torch.device
) -> Tensor | None:
    """Which keys are real, from lengths or a padding mask."""
    if lengths is not None and key_mask is not None:
        raise usage_error(
            "attend(lengths=..., key_mask=...)", "both", "one of them says which tokens are real", "drop one of them"
        )
    if lengths is not None:
        return shapes.lengths(lengths, batch, keys, device)
    return None if key_mask is None else shapes.key_mask(key_mask, batch, keys, device)


def _documents(
    given: Tensor | tuple[Tensor, Tensor] | None, batch: int, rows: int, keys: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    if given is None:
        return None, None
    if rows != keys and isinstance(given, Tensor):
        raise usage_error(
            "attend(segment_ids=...)",
            f"one tensor for {shapes.many(rows, 'query', 'queries')} and {shapes.many(keys, 'key')}",
            "queries and keys of different lengths have document numbers of their own",
            "pass a pair, for the queries and for the keys",
        )
    if isinstance(given, tuple) and len(given) != 2:
        raise usage_error(
            "attend(segment_ids=...)",
            f"{len(given)} tensors",
            "segment_ids is one tensor or a pair, for the queries and for the keys",
            "pass one or two",
        )
    if isinstance(given, tuple):
        return shapes.segment_ids(given[0], batch, rows, device), shapes.segment_ids(given[1], batch, keys, device)
    numbers = shapes.segment_ids(given, batch, rows, device)
    return numbers, numbers


def count_tokens(
    real: Tensor | None, segment_ids: Tensor | None, length: int, device: torch.device, before: Tensor | None = None
) -> Tensor:
    """Positions ``[B or 1, length]``: how many real tokens of the same text stand before each token.

    Padding takes no position, wherever it lies. A padded place itself gets a number that no real token depends on: the
    one it would have if everything from its text's first real token on were real, below 0 before that token.

    ``before`` ``[B, 1]`` is the position of the last real token that came earlier, which the first document goes on
    from; below 0 where there is none.
    """
    index = torch.arange(length, device=device)[None]
    if before is None:
        before = torch.full((1, 1), -1, device=device)
    goes_on = before >= 0
    if segment_ids is None:
        if real is None:
            return torch.where(goes_on, before + 1 + index, index)
        # the first token after left padding; past the end where nothing is real
        first = torch.where(real.any(-1), real.long().argmax(-1), length)[:, None]
        padded = torch.where(goes_on, before + 1 + index, index - first)
        counted = real.cumsum(-1) + torch.where(goes_on, before, -1)
        return torch.where(real, counted, padded)
    batch = segment_ids.shape[0] if real is None else real.shape[0]
    segment_ids = segment_ids.expand(batch, length)
    real = torch.ones_like(segment_ids, dtype=torch.bool) if real is None else real
    starts = torch.zeros_like(real)
    starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    total = real.cumsum(-1)
    earlier = torch.where(starts, total - real.long(), 0).cummax(-1).values  # real tokens of the documents before
    goes_on = goes_on & (starts.cumsum(-1) == 0)
    counted = total - earlier + torch.where(goes_on, before, -1)
    first = torch.where(real & (total - earlier == 1), index, 0).cummax(-1).values  # of this document, once it came
    coming = torch.where(real, index, length).flip(-1).cummin(-1).values.flip(-1)
    padded = torch.where(total > earlier, index - first, index - coming)
    return torch.where(real, counted, torch.where(goes_on, before + 1 + index, padded))


def leaves_gaps(
    key_mask: Tensor, segment_ids: Tensor | None, positions: Tensor, last: tuple[Tensor, Tensor] | None = None
) -> bool:
    """Whether padding lies between two real tokens of one text, so that distances are not differences of places.

    ``last``: whether the place before the first was real, and its document, each ``[B, 1]``. Where values cannot be
    read, a gap inside the padding is refused when the graph runs; one behind the last place is taken to be there.
    """
    if last is not None:
        key_mask = torch.cat([last[0], key_mask], 1)
        positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], 1)
        if segment_ids is not None:
            segment_ids = torch.cat([last[1], segment_ids.expand(key_mask.shape[0], -1)], 1)
    gaps = ~key_mask[:, :-1] & key_mask[:, 1:] & (positions[:, 1:] > 0)
    if segment_ids is not None:
        gaps = gaps & (segment_ids[:, 1:] == segment_ids[:, :-1])
    if shapes.readable(gaps):
        return bool(gaps.any())
    if shapes.exporting() or shapes.transformed() or last is not None:
        return True
    torch._assert_async(~gaps.any(), GAP_WHILE_TRACING)
    return False


GAP_WHILE_TRACING = (
    "attend(key_mask=...) got padding between two real tokens inside torch.compile, where that cannot be seen in time; "
    "pass q_positions and k_positions too."
)


def in_pieces(segment_ids: Tensor) -> bool:
    """Whether a document is interrupted by another one."""
    changes, kinds = ((d[:, 1:] != d[:, :-1]).sum(-1) for d in (segment_ids, segment_ids.sort(-1).values))
    return not bool((changes == kinds).all())


def require_whole_documents(segment_ids: Tensor | None) -> None:
    """Positions are counted along a document, so its tokens must stand side by side."""
    if segment_ids is not None and shapes.readable(segment_ids) and in_pieces(segment_ids):
        raise usage_error(
            "attend(segment_ids=...)",
            "a document in several pieces",
            "positions are counted along tokens that stand side by side",
            "number the pieces differently, or give positions",
        )


def run_offset(q_positions: Tensor, k_positions: Tensor) -> int | None:
    """The offset when both are consecutive whole numbers with one offset for the whole batch; otherwise None."""
    if q_positions.is_floating_point() or k_positions.is_floating_point():
        return None
    if not shapes.readable(q_positions, k_positions):
        return None
    start = q_positions[0, 0] - k_positions[0, 0]
    for run in (q_positions, k_positions):
        if not bool((run[:, 1:] - run[:, :-1] == 1).all()):
            return None
    same = q_positions[:, :1] - k_positions[:, :1] == start
    return int(start) if bool(same.all()) else None
