"""A table made by the query: each query mixes learned profiles over distance into a bias of its own.

    r_i = W_h q_i                                   rank numbers per query and head
    bias_ij = r_i . P[:, i - j]                     for 0 <= i - j < extent, else 0

P ``[rank, extent]`` is shared by all heads. The form is that of Inkling in transformers (``InklingRelativeLogits``: rank 16,
extent 1024 in full layers), whose r is a projection of the layer input x instead. Here r is a projection of the query before
rotation, so that ``attend`` needs no further argument and a cache holds keys and values alone; every r of this form is also one
of Inkling's, and not the reverse. As there, the bias is not scaled. Inkling's q and k are normalized and not rotated; those are
settings of the layer.

Use it where each query should choose its own curve over distance. It cannot tell distances beyond ``extent`` apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.position.distance_table import DistanceTable
from whence.validation import require_dim, require_integer, require_std, require_table


class QueryTable(Position):
    """A bias over distance that each query mixes from learned profiles.

    Args:
        heads: number of query heads.
        head_dim: dimension of a query head.
        rank: number of profiles.
        extent: distances that have a bias, from 0; beyond them it is 0.
        std: standard deviation of the normal distribution that initializes W and P.

    >>> QueryTable(2, 8, rank=4, extent=64)
    QueryTable(heads=2, head_dim=8, rank=4, extent=64, learnable)
    """

    needs_heads = True
    reads_rotated = False
    head_axes = {"projection": 0}

    def __init__(self, heads: int, head_dim: int, *, rank: int = 16, extent: int = 1024, std: float = 0.02) -> None:
        super().__init__(heads=heads)
        remedy = "pass the dimension of a query head"
        self.head_dim = require_dim("QueryTable", "head_dim", head_dim, remedy=remedy)
        self.rank = require_dim("QueryTable", "rank", rank, remedy="use 16, as Inkling")
        self.extent = require_integer("QueryTable", "extent", extent, remedy="use 1024, as Inkling")
        require_std("QueryTable", std)
        require_table("QueryTable", heads, head_dim, rank)
        require_table("QueryTable", rank, extent)
        self.projection = nn.Parameter(torch.randn(heads, head_dim, rank) * std)
        self.profiles = nn.Parameter(torch.randn(rank, extent) * std)

    def content_bias_table(self, q: Tensor, unrotated_q: Tensor, scale: float) -> DistanceTable:
        dtype = unrotated_q.dtype
        mixed = unrotated_q @ self.projection.to(dtype)
        return DistanceTable(mixed @ self.profiles.to(dtype), 0, clipped=False)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "rank", self.rank
        yield "extent", self.extent
