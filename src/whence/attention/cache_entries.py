"""The tensors that a ``KVCache`` stores for its tokens, and what is read from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.attention.token_positions import is_interrupted


@dataclass
class CacheEntries:
    """The tensors that a cache stores for its tokens, all with the tokens on axis 1."""

    k: Tensor  # [B, S, G, D]
    v: Tensor  # [B, S, G, E]
    positions: Tensor  # [B, S]
    real: Tensor  # [B, S]
    segment_ids: Tensor  # [B, S]
    clock: Tensor | None = None  # [B, S, H], the steps of a mechanism with a clock

    def tensors(self) -> tuple[Tensor, ...]:
        always = self.k, self.v, self.positions, self.real, self.segment_ids
        return always if self.clock is None else (*always, self.clock)

    def tokens(self, start: int, end: int) -> CacheEntries:
        """The tokens ``start`` to ``end - 1``, without copies."""
        return CacheEntries(*(t[:, start:end] for t in self.tensors()))

    def clone(self) -> CacheEntries:
        """A copy of every tensor."""
        return CacheEntries(*(t.clone() for t in self.tensors()))

    def last_real_position(self, has_segments: bool) -> Tensor:
        """The position of the last real token of each row's last segment, -1 where it has none yet: ``[B, 1]``."""
        counts = self.real
        if has_segments:
            counts = counts & (self.segment_ids == self.segment_ids[:, -1:])
        index = torch.where(counts, torch.arange(counts.shape[1], device=counts.device), -1).amax(1, keepdim=True)
        return torch.where(index < 0, -1, self.positions.gather(1, index.clamp(min=0)))

    def resumes_segment(self, segments: Tensor) -> bool:
        """Whether new tokens belong to a segment before the last one, whose tokens are then not adjacent."""
        return is_interrupted(torch.cat([self.segment_ids, segments.expand(self.segment_ids.shape[0], -1)], 1))


def heads_first(stored: Tensor, start: int, count: int) -> Tensor:
    """Some tokens of a store ``[B, S, G, D]`` as ``[B, G, count, D]``: one view, where narrow and transpose would be two."""
    (batch, _, groups, dim), (step_b, step_t, step_g, step_d) = stored.shape, stored.stride()
    strides = (step_b, step_g, step_t, step_d)
    return stored.as_strided((batch, groups, count, dim), strides, stored.storage_offset() + start * step_t)
