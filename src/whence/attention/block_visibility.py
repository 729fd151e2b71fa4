"""Which blocks of queries and keys can hold a visible pair, from the smallest and largest position and segment of a block.

Nothing of the size of all pairs is formed. The answer for "some pair" may be yes for a block without one; it is never no for
a block with one. The answer for "every pair" is exact in the other direction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whence.attention.layout import Layout


class BlockVisibility(NamedTuple):
    """Blocks ``[B or 1, query blocks, key blocks]``."""

    some: Tensor  # False: no pair of the block is visible
    every: Tensor  # True: all pairs of the block are visible


def find_visible_blocks(layout: Layout, q_block: int, k_block: int) -> BlockVisibility:
    """Blocks of so many queries and keys. ``attn_mask`` and ``mask_fn`` are not considered."""
    q_index, k_index = distance_indices(layout)
    q_low, q_high = (x[:, :, None] for x in block_range(q_index, q_block))
    k_low, k_high = (x[:, None, :] for x in block_range(k_index, k_block))
    some = torch.ones(1, q_low.shape[1], k_low.shape[2], dtype=torch.bool, device=q_index.device)
    every = some
    if layout.causal:
        some, every = some & (q_high >= k_low), every & (q_low >= k_high)
    if layout.window is not None:
        nearest = torch.maximum(q_low - k_high, k_low - q_high)  # at most 0 where the ranges meet
        farthest = torch.maximum(q_high - k_low, k_high - q_low)
        some, every = some & (nearest < layout.window), every & (farthest < layout.window)
    if layout.q_segment_ids is not None and layout.k_segment_ids is not None:
        (q_low, q_high), (k_low, k_high) = (
            block_range(ids, block) for ids, block in ((layout.q_segment_ids, q_block), (layout.k_segment_ids, k_block))
        )
        meet = (q_low[:, :, None] <= k_high[:, None, :]) & (k_low[:, None, :] <= q_high[:, :, None])
        single = (q_low == q_high)[:, :, None] & (k_low == k_high)[:, None, :]
        some, every = some & meet, every & meet & single
    if layout.real is not None:
        fewest, most = block_range(layout.real.long(), k_block)  # 0 with some padding, 1 with some real token
        some, every = some & (most > 0)[:, None, :], every & (fewest > 0)[:, None, :]
    return BlockVisibility(some, every)


def distance_indices(layout: Layout) -> tuple[Tensor, Tensor]:
    """Numbers ``[B or 1, T]`` and ``[B or 1, S]`` whose differences are the distances of all visible pairs."""
    if layout.offset is None:
        return layout.q_positions, layout.k_positions
    device = layout.q_positions.device
    queries, keys = layout.q_positions.shape[1], layout.k_positions.shape[1]
    return torch.arange(queries, device=device)[None] + layout.offset, torch.arange(keys, device=device)[None]


def block_range(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest entry of each block of ``[B or 1, n]``."""
    blocks = -(-x.shape[1] // block)
    index = torch.arange(blocks * block, device=x.device).clamp(max=x.shape[1] - 1)
    entries = x[:, index].view(x.shape[0], blocks, block)
    return entries.amin(-1), entries.amax(-1)
