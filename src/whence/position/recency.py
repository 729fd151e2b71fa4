"""Recency: a learned bias by position from the end, for pointer attention over a history.

    bias(d) = table[min(d + 1, max_length - 1)]

A pointer has one query, at the last valid position, so the position of key j from the end is length - j = d + 1 with
positions counted from 0: the last item has index 1. Index 0 occurs only for keys after the query, which are padding.

Use it for pointer attention over a history with one query at its end, such as next-location prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.validation import require_integer, require_table


class Recency(Position):
    """One learnable number per position from the end, initially 0; older items share the last number.

    Args:
        max_length: entries of the table; distances from 0 to ``max_length - 2`` have an entry of their own.
        heads: one table per head; ``None`` for one table shared by all heads.

    >>> recency = Recency(4)
    >>> with torch.no_grad():
    ...     _ = recency.table.copy_(torch.tensor([9.0, 1.0, 2.0, 3.0]))
    >>> recency.bias(torch.tensor([-1.0, 0.0, 1.0, 2.0, 50.0]), None).detach()
    tensor([9., 1., 2., 3., 3.])
    """

    def __init__(self, max_length: int, *, heads: int | None = None) -> None:
        super().__init__(heads=heads)
        # index 0 is never visible, so one entry is not enough
        remedy = "pass the longest history + 1"
        self.max_length = require_integer("Recency", "max_length", max_length, low=2, remedy=remedy)
        shape = (max_length,) if heads is None else (heads, max_length)
        self.table = nn.Parameter(torch.zeros(require_table("Recency", *shape)))

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        index = (distance + 1).round().clamp(0, self.max_length - 1).long()
        return self.table[..., index]

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "max_length", self.max_length
