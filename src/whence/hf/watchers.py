"""What can be kept of a model's attention while it runs. Each holds, by layer, what the latest forward showed.

Whole rows are kept for few queries. Over all queries, weights are made for a block of rows at a time and reduced at once,
so memory grows with the length and not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from whence.errors import refusal
from whence.hf.interface import Attending

SCORES = 1 << 22  # weights that exist at any moment where all queries are reduced


class Watching:
    """The base: results by layer. ``watcher[layer]`` reads one."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.layers:
            raise refusal(
                f"{type(self).__name__}[{layer}]",
                f"results for the layers {sorted(self.layers)}",
                "a layer is seen when it is chosen and the model has run",
                "run the model inside the capture, or choose the layer",
            )
        return self.layers[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.layers))

    def __len__(self) -> int:
        return len(self.layers)

    def stacked(self) -> Tensor:
        """All layers together, ``[layers, ...]``, in their order."""
        return torch.stack([self.layers[layer] for layer in self])


class OfAttention(Watching):
    """A watcher that is shown each layer's attention."""

    def see(self, layer: int, attending: Attending) -> None:
        raise NotImplementedError


class Rows(OfAttention):
    """Whole attention rows of some queries: ``[B, H, n, S]``.

    Args:
        rows: numbers of queries in the forward, negative from its end: a list, or a tensor ``[B, n]`` with other queries
            for each sequence (the last real ones of right-padded texts, say).
    """

    def __init__(self, rows: Sequence[int] | Tensor = (-1,)) -> None:
        super().__init__()
        self.rows = torch.as_tensor(rows, dtype=torch.long)

    def see(self, layer: int, attending: Attending) -> None:
        self.layers[layer] = attending.weights(chosen(self.rows, attending)).cpu()


class BySegment(OfAttention):
    """The weight that queries give to each segment of the text: ``[B, H, rows, segments]``.

    Args:
        segments: the number of the segment that each key belongs to, ``[S]`` or ``[B, S]``; below 0 for none.
        rows: which queries, as in ``Rows``; ``None`` for all.
    """

    def __init__(self, segments: Sequence[int] | Tensor, rows: Sequence[int] | Tensor | None = (-1,)) -> None:
        super().__init__()
        self.segments = torch.as_tensor(segments, dtype=torch.long)
        self.rows = None if rows is None else torch.as_tensor(rows, dtype=torch.long)

    def see(self, layer: int, attending: Attending) -> None:
        keys = attending.k.shape[2]
        if self.segments.shape[-1] != keys:
            raise refusal(
                "BySegment(segments=...)",
                f"{self.segments.shape[-1]} numbers for {keys} keys",
                "every key has the number of its segment",
                "give one number a token; -1 for those of no segment",
            )
        numbers = self.segments.to(attending.q.device).reshape(-1, keys)
        count = max(0, int(numbers.max())) + 1
        member = torch.nn.functional.one_hot(numbers.clamp(min=0), count) * (numbers >= 0)[..., None]
        member = member.to(torch.promote_types(attending.q.dtype, torch.float32))[:, None]  # [B or 1, 1, S, segments]
        blocks = blocks_of(attending) if self.rows is None else [chosen(self.rows, attending)]
        parts = [attending.weights(rows).to(member.dtype) @ member for rows in blocks]
        self.layers[layer] = torch.cat(parts, 2).cpu()


class ByKey(OfAttention):
    """The mean weight that each key gets from the queries that see it: ``[B, H, S]``; 0 where none does."""

    def see(self, layer: int, attending: Attending) -> None:
        sums = [[part.sum(2) for part in counted(attending, rows)] for rows in blocks_of(attending)]
        total, count = (torch.stack(parts).sum(0) for parts in zip(*sums, strict=True))
        self.layers[layer] = (total / count.clamp(min=1)).cpu()


class ByDistance(OfAttention):
    """The mean weight at each distance, over the queries that have a key there: ``[B, H, distances]``.

    ``totals`` has the sums instead, and ``counts`` (``[B or 1, 1, distances]``) how many there were: the share of all
    attention at a distance is its total over the number of queries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}

    def see(self, layer: int, attending: Attending) -> None:
        sight, heads = attending.sight, attending.q.shape[1]
        farthest = int(sight.q_slots[-1] - sight.k_slots[0]) + 1
        total = count = None
        for rows in blocks_of(attending):
            weights, seen = counted(attending, rows)
            distance = (sight.q_slots[rows][:, None] - sight.k_slots).clamp(min=0).flatten()
            if total is None or count is None:
                total = weights.new_zeros(weights.shape[0], heads, farthest)
                count = weights.new_zeros(seen.shape[0], 1, farthest)
            total.index_add_(2, distance, weights.flatten(2))
            count.index_add_(2, distance, seen.flatten(2))
        assert total is not None and count is not None
        self.totals[layer], self.counts[layer] = total.cpu(), count.cpu()
        self.layers[layer] = (total / count.clamp(min=1)).cpu()


class LastRow(Rows):
    """The attention of the last query: ``[B, H, S]``."""

    def __init__(self) -> None:
        super().__init__((-1,))

    def see(self, layer: int, attending: Attending) -> None:
        super().see(layer, attending)
        self.layers[layer] = self.layers[layer][:, :, 0]


def chosen(rows: Tensor, attending: Attending) -> Tensor:
    """Numbers of queries, counted from the first; those that are not there are refused."""
    count = attending.q.shape[2]
    if bool(((rows < -count) | (rows >= count)).any()):
        raise refusal(
            "Rows(rows=...)", str(rows.tolist()), f"this forward has {count} queries", "give numbers of theirs"
        )
    if rows.ndim == 2 and rows.shape[0] != attending.q.shape[0]:
        raise refusal(
            "Rows(rows=...)",
            f"rows for {rows.shape[0]} sequences",
            f"the batch has {attending.q.shape[0]}",
            "give one line for each",
        )
    return (rows % count).to(attending.q.device)


def blocks_of(attending: Attending) -> Iterator[Tensor]:
    """The numbers of all queries, a block at a time."""
    batch, heads, count, _ = attending.q.shape
    step = max(1, SCORES // (batch * heads * attending.k.shape[2]))
    return iter(torch.arange(count, device=attending.q.device).split(step))


def counted(attending: Attending, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The weights ``[B, H, n, S]`` of real queries (zero for padding), and which keys they see, ``[B or 1, 1, n, S]``."""
    sight = attending.sight
    weights = attending.weights(rows)
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    seen = sight.visible(rows)[:, None].to(weights.dtype)
    queries = sight.real_queries()
    if queries is not None:
        here = queries[:, rows][:, None, :, None].to(weights.dtype)
        weights, seen = weights * here, seen * here
    return weights, seen
