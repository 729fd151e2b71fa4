"""What can be kept of a model's attention while it runs. Each holds, by layer, what the latest forward showed.

These look at some of the queries, so memory grows with the length; ``reductions`` has those that look at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.interface import Attending


class Watching:
    """The base: results by layer. ``watcher[layer]`` reads one."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.layers:
            raise usage_error(
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
        return torch.stack([self[layer] for layer in self])


class OfRows(Watching, ABC):
    """A watcher of some queries, which are told by ``rows``."""

    at_once: int | None = None  # rows of attention that exist together; all, where they are what is kept

    def __init__(self, rows: Sequence[int] | Tensor) -> None:
        super().__init__()
        self.rows = torch.as_tensor(rows, dtype=torch.long)

    @abstractmethod
    def kept(self, weights: Tensor) -> Tensor:
        """What is kept of some rows' weights, ``[B, H, n, S]``: rows stay the third axis."""

    def see(self, layer: int, attending: Attending) -> None:
        rows = chosen(self.rows, attending)
        blocks = rows.split(self.at_once or max(1, rows.shape[-1]), -1)
        self.layers[layer] = torch.cat([self.kept(attending.weights(block)).cpu() for block in blocks], 2)


class Rows(OfRows):
    """Whole attention rows of some queries: ``[B, H, n, S]``.

    Args:
        rows: numbers of queries in the forward, negative from its end: a list, or a tensor ``[B, n]`` with other queries
            for each sequence (the last real ones of right-padded texts, say).
    """

    def __init__(self, rows: Sequence[int] | Tensor = (-1,)) -> None:
        super().__init__(rows)

    def kept(self, weights: Tensor) -> Tensor:
        return weights


class LastRow(Rows):
    """The attention of the last query: ``[B, H, S]``."""

    def __init__(self) -> None:
        super().__init__((-1,))

    def see(self, layer: int, attending: Attending) -> None:
        super().see(layer, attending)
        self.layers[layer] = self.layers[layer][:, :, 0]


class BySegment(OfRows):
    """The weight that some queries give to each segment of the text: ``[B, H, n, segments]``; all queries of a long text
    may be asked for.

    Args:
        segments: the number of the segment that each key belongs to, ``[S]`` or ``[B, S]``; below 0 for none.
        rows: which queries, as in ``Rows``; the last by default.
    """

    at_once = 128

    def __init__(self, segments: Sequence[int] | Tensor, rows: Sequence[int] | Tensor = (-1,)) -> None:
        super().__init__(rows)
        self.segments = torch.as_tensor(segments, dtype=torch.long)

    def kept(self, weights: Tensor) -> Tensor:
        keys = weights.shape[-1]
        if self.segments.shape[-1] != keys:
            raise usage_error(
                "BySegment(segments=...)",
                f"{self.segments.shape[-1]} numbers for {keys} keys",
                "every key has the number of its segment",
                "give one number a token; -1 for those of no segment",
            )
        numbers = self.segments.to(weights.device).reshape(-1, keys)
        count = max(0, int(numbers.max())) + 1
        member = torch.nn.functional.one_hot(numbers.clamp(min=0), count) * (numbers >= 0)[..., None]
        wide = torch.promote_types(weights.dtype, torch.float32)
        return weights.to(wide) @ member.to(wide)[:, None]


def chosen(rows: Tensor, attending: Attending) -> Tensor:
    """Numbers of queries, counted from the first; those that are not there are refused."""
    count = attending.q.shape[2]
    if bool(((rows < -count) | (rows >= count)).any()):
        raise usage_error("rows=...", str(rows.tolist()), f"this forward has {count} queries", "give numbers of theirs")
    if rows.ndim == 2 and rows.shape[0] != attending.q.shape[0]:
        raise usage_error(
            "rows=...",
            f"rows for {rows.shape[0]} sequences",
            f"the batch has {attending.q.shape[0]}",
            "give one line for each",
        )
    return (rows % count).to(attending.q.device)
