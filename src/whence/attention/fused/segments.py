"""Which tokens belong together: padding and packed documents as one number a token, and the stretches worth looking at."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
PADDING = torch.iinfo(torch.int64).min


class Texts:
    """A number for each query ``[B, T]`` and key ``[B, S]``; equal numbers see each other, and padding has its own."""

    def __init__(
        self,
        batch: int,
        rows: int,
        keys: int,
        device: torch.device,
        real: Tensor | None,
        q_segment_ids: Tensor | None,
        k_segment_ids: Tensor | None,
    ) -> None:
        if q_segment_ids is None or k_segment_ids is None:
            queries, numbers = (torch.zeros(1, n, dtype=torch.int64, device=device) for n in (rows, keys))
        else:
            queries, numbers = q_segment_ids.long(), k_segment_ids.long()
        if real is not None:
            numbers = torch.where(real, numbers, PADDING)
        self.queries = queries.expand(batch, -1).contiguous()
        self.keys = numbers.expand(batch, -1).contiguous()

    def stretches(self, block: int, by_query: bool) -> Tensor:
        """``[B, blocks, 2]``: for each block of one side, the stretch of the other that can hold an equal number."""
        of, among = (self.queries, self.keys) if by_query else (self.keys, self.queries)
        mine, theirs = _extremes(of, block), _extremes(among, BLOCK)
        # one byte for each pair of blocks: 16 MB for 262,144 tokens
        meet = (mine[0][:, :, None] <= theirs[1][:, None, :]) & (mine[1][:, :, None] >= theirs[0][:, None, :])
        some, count = meet.any(-1), meet.shape[2]
        low = torch.where(some, meet.byte().argmax(-1), 0)
        high = torch.where(some, count - meet.flip(-1).byte().argmax(-1), 0)
        return torch.stack([low, high], -1).mul(BLOCK).to(torch.int32).contiguous()


def _extremes(ids: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number in each block, ``[B, blocks]`` each."""
    short = -ids.shape[1] % block
    blocks = torch.cat([ids, ids[:, -1:].expand(-1, short)], 1).unflatten(1, (-1, block))
    return blocks.amin(-1), blocks.amax(-1)
