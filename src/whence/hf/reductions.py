"""Watchers of all queries: each row of weights is reduced as soon as it is made, for all watchers at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.hf.interface import Attending
from whence.hf.recorders import Watching

SCORES = 1 << 22  # weights that exist at any moment


@dataclass(frozen=True)
class Block:
    """Some queries of a forward against the keys up to the last of them."""

    weights: Tensor  # [B, H, n, S'], zero for queries that are padding
    seen: Tensor  # [B or 1, 1, n, S'], 1 where a real query sees a key
    distance: Tensor  # [n, S'], in slots; never below 0 where a key is seen


class OfAllRows(Watching, ABC):
    """A watcher that adds up two numbers for each place: the weight, and how many queries it came from.

    Its result is the mean; ``totals`` and ``counts`` hold the sums, by layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}

    @abstractmethod
    def add(self, sums: Tensor, block: Block, numbers: Tensor) -> None:
        """Add a block's ``numbers`` ``[B or 1, H or 1, n, S']`` into ``sums`` ``[B or 1, H or 1, S]``."""


class ByKey(OfAllRows):
    """The mean weight that each key gets from the queries that see it: ``[B, H, S]``; 0 where none does."""

    def add(self, sums: Tensor, block: Block, numbers: Tensor) -> None:
        sums[:, :, : numbers.shape[3]] += numbers.sum(2)


class ByDistance(OfAllRows):
    """The mean weight at each distance, over the queries that have a key there: ``[B, H, distances]``.

    The share of all attention that goes to a distance is its total over the number of queries.
    """

    def add(self, sums: Tensor, block: Block, numbers: Tensor) -> None:
        sums.index_add_(2, block.distance.clamp(min=0).flatten(), numbers.flatten(2))


def reduce_all(watchers: Sequence[OfAllRows], layer: int, attending: Attending) -> None:
    """Show one layer's attention to all of them, a block of rows at a time."""
    batch, heads, count, _ = attending.q.shape
    sight, keys = attending.sight, attending.k.shape[2]
    texts = batch if sight.real is not None or sight.segment_ids is not None else 1
    wide = torch.promote_types(attending.q.dtype, torch.float32)
    totals = [attending.q.new_zeros(batch, heads, keys, dtype=wide) for _ in watchers]
    counts = [attending.q.new_zeros(texts, 1, keys, dtype=wide) for _ in watchers]
    for rows in torch.arange(count, device=attending.q.device).split(max(1, SCORES // (batch * heads * keys))):
        block = _block(attending, rows, wide)
        for watcher, total, number in zip(watchers, totals, counts, strict=True):
            watcher.add(total, block, block.weights)
            watcher.add(number, block, block.seen)
    for watcher, total, number in zip(watchers, totals, counts, strict=True):
        watcher.totals[layer], watcher.counts[layer] = total.cpu(), number.cpu()
        watcher.layers[layer] = watcher.totals[layer] / watcher.counts[layer].clamp(min=1)


def _block(attending: Attending, rows: Tensor, wide: torch.dtype) -> Block:
    sight = attending.sight
    keys = sight.reach(rows)
    weights = attending.weights(rows, keys).to(wide)
    seen = sight.visible(rows)[:, None, :, :keys].to(wide)
    queries = sight.real_queries()
    if queries is not None:
        here = queries[:, rows][:, None, :, None].to(wide)
        weights, seen = weights * here, seen * here
    return Block(weights, seen, sight.q_slots[rows][:, None] - sight.k_slots[:keys])
