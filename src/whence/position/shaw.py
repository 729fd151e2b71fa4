"""Relative position representations (Shaw, Uszkoreit & Vaswani 2018, arXiv 1803.02155).

With ``r = min(max(j - i, -clip), clip)`` the offset from query i to key j, two tables of learnable vectors act:

    score_ij += scale * q_i . key_table[r]        output_i += sum_j weight_ij * value_table[r]

Each query is multiplied with the 2 * clip + 1 vectors once, and keys select from these scores; weights are first summed by
offset, then multiplied with the value vectors. See ``whence.position.distance_table``.

Use it for encoders and short inputs, where a vector for each near distance is worth its products. It cannot tell
distances beyond ``clip`` apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position
from whence.position.distance_table import DistanceTable
from whence.validation import require_choice, require_dim, require_integer, require_std, require_table

ACTS_ON = {"keys and values": {"content_bias", "value_bias"}, "keys": {"content_bias"}, "values": {"value_bias"}}


class Shaw(Position):
    """A learnable vector for each clipped offset, added to keys and to values.

    Args:
        head_dim: dimension of a query head.
        clip: larger offsets share one vector on each side.
        acts_on: ``"keys and values"`` as published, ``"keys"`` or ``"values"``.
        heads: one pair of tables per head; ``None`` for tables shared by all heads, as published.
        value_dim: dimension of a value head; ``None`` for ``head_dim``.
        std: standard deviation of the normal distribution that initializes the tables.

    >>> shaw = Shaw(8, clip=2)
    >>> shaw.key_table.shape, sorted(shaw.effects)
    (torch.Size([5, 8]), ['content_bias', 'value_bias'])
    """

    head_axes = {"key_table": 0, "value_table": 0}

    def __init__(
        self,
        head_dim: int,
        *,
        clip: int = 16,
        acts_on: str = "keys and values",
        heads: int | None = None,
        value_dim: int | None = None,
        std: float = 0.02,
    ) -> None:
        super().__init__(heads=heads)
        value_dim = head_dim if value_dim is None else value_dim
        self.head_dim = require_dim("Shaw", "head_dim", head_dim)
        self.value_dim = require_dim("Shaw", "value_dim", value_dim)
        self.clip = require_integer("Shaw", "clip", clip)
        self.acts_on = require_choice("Shaw", "acts_on", acts_on, ACTS_ON)
        require_std("Shaw", std)
        require_table("Shaw", heads or 1, 2 * clip + 1, max(head_dim, value_dim))
        shape = (2 * clip + 1,) if heads is None else (heads, 2 * clip + 1)
        if "content_bias" in self.effects:
            self.key_table = nn.Parameter(torch.randn(*shape, head_dim) * std)
        if "value_bias" in self.effects:
            self.value_table = nn.Parameter(torch.randn(*shape, value_dim) * std)

    @property
    def effects(self) -> frozenset[str]:
        return frozenset(ACTS_ON[self.acts_on])

    def content_bias_table(self, q: Tensor, unrotated_q: Tensor, scale: float) -> DistanceTable | None:
        if "content_bias" not in self.effects:
            return None
        if q.shape[-1] != self.head_dim:
            head_dim = q.shape[-1]
            rule, remedy = "head_dim must match the queries", f"build it with head_dim={head_dim}"
            raise usage_error(f"Shaw({self.head_dim})", f"queries of dimension {head_dim}", rule, remedy)
        dtype = torch.promote_types(q.dtype, self.key_table.dtype)
        # the published table is in the order of offsets, which are negative distances
        by_distance = scale * (q.to(dtype) @ self.key_table.to(dtype).flip(-2).mT)  # [B, H, T, 2 * clip + 1]
        return DistanceTable(by_distance, -self.clip, clipped=True)

    def value_bias_table(self) -> DistanceTable | None:
        if "value_bias" not in self.effects:
            return None
        return DistanceTable(self.value_table.flip(-2), -self.clip, clipped=True)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "clip", self.clip
        yield "acts_on", self.acts_on
        if "value_bias" in self.effects and self.value_dim != self.head_dim:
            yield "value_dim", self.value_dim
