"""A table made by the query: each query mixes learned profiles over distance into a bias of its own.

    r_i = W_h x_i   or   r_i = W_h q_i              rank numbers per query and head
    bias_ij = r_i . P[:, i - j]                     for 0 <= i - j < extent, else 0

P ``[rank, extent]`` is shared by all heads. The form is that of Inkling in transformers (``InklingRelativeLogits``: rank 16,
extent 1024 in full layers), where x is the layer input: ``source="input"``. With ``source="query"`` r comes from the query before
rotation, so that ``attend`` needs no further argument; every r of this form is also one of the first, and not the reverse. A cache
holds keys and values alone in both. As in Inkling, the bias is not scaled. Inkling's q and k are normalized and not rotated;
those are settings of the layer. There is no paper: formula and sizes were checked against that code, whose table and projection
the test compares. Another public port gives W a bias term, which Inkling has not.

Use it where each query should choose its own curve over distance. It cannot tell distances beyond ``extent`` apart. With
``source="input"`` it needs the layer input: ``whence.Attention`` and models pass it, and a call of ``attend`` passes ``q_input=x``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position
from whence.position.distance_table import DistanceTable
from whence.validation import require_choice, require_dim, require_integer, require_std, require_table


class QueryTable(Position):
    """A bias over distance that each query mixes from learned profiles.

    Args:
        heads: number of query heads.
        head_dim: dimension of a query head.
        source: ``"query"`` or ``"input"``: whether the mixture is a projection of the query or of the layer input.
        embed_dim: for ``"input"``, the dimension of the layer input.
        rank: number of profiles.
        extent: distances that have a bias, from 0; beyond them it is 0.
        std: standard deviation of the normal distribution that initializes W and P.

    >>> QueryTable(2, 8, rank=4, extent=64)
    QueryTable(heads=2, head_dim=8, rank=4, extent=64, learnable)
    >>> QueryTable(2, 8, source="input", embed_dim=32, rank=4, extent=64)
    QueryTable(heads=2, head_dim=8, source='input', embed_dim=32, rank=4, extent=64, learnable)
    """

    needs_heads = True
    reads_rotated = False
    head_axes = {"projection": 0}
    model_arguments = ("embed_dim",)

    def __init__(
        self, heads: int, head_dim: int, *, source: str = "query", embed_dim: int | None = None, rank: int = 16,
        extent: int = 1024, std: float = 0.02,
    ) -> None:  # fmt: skip
        super().__init__(heads=heads)
        remedy = "pass the dimension of a query head"
        self.head_dim = require_dim("QueryTable", "head_dim", head_dim, remedy=remedy)
        self.source = require_choice("QueryTable", "source", source, ("query", "input"))
        if embed_dim is not None:
            require_dim("QueryTable", "embed_dim", embed_dim)
        self.reads_input = source == "input"
        columns = embed_dim if self.reads_input else head_dim
        if columns is None:
            rule = "source='input' projects the layer input"
            raise usage_error("QueryTable(embed_dim=...)", "None", rule, "pass the dimension of the layer input")
        self.rank = require_dim("QueryTable", "rank", rank, remedy="use 16, as Inkling")
        self.extent = require_integer("QueryTable", "extent", extent, remedy="use 1024, as Inkling")
        require_std("QueryTable", std)
        require_table("QueryTable", heads, columns, rank)
        require_table("QueryTable", rank, extent)
        if self.reads_input:
            self.embed_dim = columns
        self.projection = nn.Parameter(torch.randn(heads, columns, rank) * std)
        self.profiles = nn.Parameter(torch.randn(rank, extent) * std)

    def content_bias_table(
        self, q: Tensor, unrotated_q: Tensor, scale: float, q_input: Tensor | None = None
    ) -> DistanceTable:
        x = unrotated_q
        if self.reads_input:
            if q_input is None:
                rule = "the table is made from the layer input"
                raise usage_error("QueryTable(source='input')", "no layer input", rule, "pass q_input=x")
            x = q_input[:, None]
        mixed = x @ self.projection.to(x.dtype)  # [B, H, T, rank]
        return DistanceTable(mixed @ self.profiles.to(x.dtype), 0, clipped=False)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        if self.reads_input:
            yield "source", self.source
            yield "embed_dim", self.embed_dim
        yield "rank", self.rank
        yield "extent", self.extent
