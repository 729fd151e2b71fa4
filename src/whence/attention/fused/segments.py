"""Padding and packed documents as one integer per token, and the range of blocks each block can attend to."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention.fused.fused_call import Mask

BLOCK = 64
PADDING_ID = torch.iinfo(torch.int64).min


class Segments:
    """An id for each query ``[B, T]`` and key ``[B, S]``; a query attends to keys with the same id. Padding has its own."""

    def __init__(self, batch: int, q_len: int, kv_len: int, device: torch.device, mask: Mask) -> None:
        if mask.q_segment_ids is None or mask.k_segment_ids is None:
            q_ids, k_ids = (torch.zeros(1, n, dtype=torch.int64, device=device) for n in (q_len, kv_len))
        else:
            q_ids, k_ids = mask.q_segment_ids.long(), mask.k_segment_ids.long()
        if mask.key_mask is not None:
            k_ids = torch.where(mask.key_mask, k_ids, PADDING_ID)
        self.q_ids = q_ids.expand(batch, -1).contiguous()
        self.k_ids = k_ids.expand(batch, -1).contiguous()

    def block_ranges(self, block: int, by_query: bool) -> Tensor:
        """``[B, blocks, 2]``: for each block of one side, the range of the other side that can have the same id."""
        own, other = (self.q_ids, self.k_ids) if by_query else (self.k_ids, self.q_ids)
        own_min, own_max = (x[:, :, None] for x in _block_extremes(own, block))
        other_min, other_max = (x[:, None, :] for x in _block_extremes(other, BLOCK))
        overlap = (own_min <= other_max) & (own_max >= other_min)  # one byte per pair: 16 MB for 262,144 tokens
        some, count = overlap.any(-1), overlap.shape[2]
        low = torch.where(some, overlap.byte().argmax(-1), 0)
        high = torch.where(some, count - overlap.flip(-1).byte().argmax(-1), 0)
        return torch.stack([low, high], -1).mul(BLOCK).to(torch.int32).contiguous()


def _block_extremes(ids: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest id of each block, ``[B, blocks]`` each."""
    padding = -ids.shape[1] % block
    blocks = torch.cat([ids, ids[:, -1:].expand(-1, padding)], 1).unflatten(1, (-1, block))
    return blocks.amin(-1), blocks.amax(-1)
