"""Count the positions of tokens: padding takes no position, and each segment counts from 0.

A segment is a run of tokens with one segment id: one document of a packed row, or the whole row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence import torch_modes
from whence.errors import usage_error


def count_tokens(
    real: Tensor | None, segment_ids: Tensor | None, length: int, device: torch.device, before: Tensor | None = None
) -> Tensor:
    """Positions ``[B or 1, length]``: the number of real tokens of the same segment before each token.

    Padding takes no position, wherever it lies. A padded place itself gets a number that no real token depends on: the
    position it would have if everything from its segment's first real token on were real, below 0 before that token.

    ``before`` ``[B, 1]`` is the position of the last real token of the cache, from which the first segment continues;
    below 0 where there is none.
    """
    index = torch.arange(length, device=device)[None]
    if before is None:
        if segment_ids is None and real is None:
            return index
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
    earlier = torch.where(starts, total - real.long(), 0).cummax(-1).values  # real tokens of earlier segments
    goes_on = goes_on & (starts.cumsum(-1) == 0)
    counted = total - earlier + torch.where(goes_on, before, -1)
    first = (
        torch.where(real & (total - earlier == 1), index, 0).cummax(-1).values
    )  # of this segment, after its first real token
    coming = torch.where(real, index, length).flip(-1).cummin(-1).values.flip(-1)
    padded = torch.where(total > earlier, index - first, index - coming)
    return torch.where(real, counted, torch.where(goes_on, before + 1 + index, padded))


def leaves_gaps(
    key_mask: Tensor, segment_ids: Tensor | None, positions: Tensor, last: tuple[Tensor, Tensor] | None = None
) -> bool:
    """Whether padding lies between two real tokens of one segment, so that distances are not differences of indices.

    ``last``: whether the token before the first was real, and its segment id, each ``[B, 1]``. Where values cannot be
    read, a gap inside the padding raises an error when the graph runs; after a cache, a gap is assumed.
    """
    if last is not None:
        key_mask = torch.cat([last[0], key_mask], 1)
        positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], 1)
        if segment_ids is not None:
            segment_ids = torch.cat([last[1], segment_ids.expand(key_mask.shape[0], -1)], 1)
    gaps = ~key_mask[:, :-1] & key_mask[:, 1:] & (positions[:, 1:] > 0)
    if segment_ids is not None:
        gaps = gaps & (segment_ids[:, 1:] == segment_ids[:, :-1])
    if torch_modes.can_read_values(gaps):
        return bool(gaps.any())
    if torch_modes.is_exporting() or torch_modes.is_transforming() or last is not None:
        return True
    torch._assert_async(~gaps.any(), GAP_WHILE_TRACING)
    return False


GAP_WHILE_TRACING = (
    "attend(key_mask=...) got padding between two real tokens inside torch.compile, which cannot be detected while "
    "tracing; pass q_positions and k_positions too."
)


def is_interrupted(segment_ids: Tensor) -> bool:
    """Whether another segment lies between two tokens of one segment."""
    changes, kinds = ((d[:, 1:] != d[:, :-1]).sum(-1) for d in (segment_ids, segment_ids.sort(-1).values))
    return not bool((changes == kinds).all())


def require_contiguous_segments(segment_ids: Tensor | None) -> None:
    """Positions are counted along a segment, so its tokens must be adjacent."""
    if segment_ids is not None and torch_modes.can_read_values(segment_ids) and is_interrupted(segment_ids):
        raise usage_error(
            "attend(segment_ids=...)",
            "a segment in several pieces",
            "positions are counted along adjacent tokens of one segment",
            "give each piece its own segment id, or pass q_positions and k_positions",
        )


def common_offset(q_positions: Tensor, k_positions: Tensor) -> int | None:
    """The offset when both are consecutive whole numbers with one offset for the whole batch; otherwise None."""
    if q_positions.is_floating_point() or k_positions.is_floating_point():
        return None
    if not torch_modes.can_read_values(q_positions, k_positions):
        return None
    start = q_positions[0, 0] - k_positions[0, 0]
    for run in (q_positions, k_positions):
        if not bool((run[:, 1:] - run[:, :-1] == 1).all()):
            return None
    same = q_positions[:, :1] - k_positions[:, :1] == start
    return int(start) if bool(same.all()) else None
