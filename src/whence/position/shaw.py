"""Relative position representations (Shaw, Uszkoreit & Vaswani 2018, arXiv 1803.02155).

With ``r = min(max(j - i, -clip), clip)`` the offset from query i to key j, two tables of learnable vectors act:

    score_ij += scale * q_i . key_table[r]        output_i += sum_j weight_ij * value_table[r]

Nothing of size rows x keys x width is made: each query meets the 2 * clip + 1 vectors once and the keys pick from
those scores; weights are first summed by offset and then meet the value vectors. On a GPU both are products with a
matrix of zeros and ones: sums by index there add up in no fixed order or, where an order is asked for, sort all scores.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position, Rows
from whence.validation import require_choice, require_dim, require_integer, require_std, require_table

ACTS_ON = {"keys and values": {"content_bias", "value_bias"}, "keys": {"content_bias"}, "values": {"value_bias"}}


class Shaw(Position):
    """A learnable vector for each clipped offset, added to keys and to values.

    Args:
        head_dim: width of a query head.
        clip: offsets beyond this share one vector on each side.
        acts_on: ``"keys and values"`` as published, ``"keys"`` or ``"values"``.
        heads: tables of their own for so many heads; ``None`` for tables that all heads share, as published.
        value_dim: width of a value head; ``None`` for ``head_dim``.
        std: standard deviation of the normal distribution the tables start from.

    >>> shaw = Shaw(8, clip=2)
    >>> shaw.key_table.shape, sorted(shaw.effects)
    (torch.Size([5, 8]), ['content', 'values'])
    """

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

    def content_bias(self, rows: Rows) -> Tensor | None:
        if "content_bias" not in self.effects:
            return None
        if rows.q.shape[-1] != self.head_dim:
            got = f"queries of width {rows.q.shape[-1]}"
            raise usage_error(f"Shaw({self.head_dim})", got, "both widths are one", "build it with the width of a head")
        dtype = torch.promote_types(rows.q.dtype, self.key_table.dtype)
        by_offset = rows.scale * (rows.q.to(dtype) @ self.key_table.to(dtype).mT)  # [B, H, T, 2 * clip + 1]
        return picked(by_offset, self._index(rows)).to(rows.scores.dtype)

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        if "value_bias" not in self.effects:
            return None
        dtype = torch.promote_types(weights.dtype, self.value_table.dtype)
        by_offset = summed(weights.to(dtype), self._index(rows), 2 * self.clip + 1)
        return (by_offset @ self.value_table.to(dtype)).to(weights.dtype)

    def _index(self, rows: Rows) -> Tensor:
        """The table row of each query and key, ``[B or 1, T, S]``."""
        offset = -rows.distance
        if offset.is_floating_point():
            offset = offset.round()
        return offset.long().clamp(-self.clip, self.clip) + self.clip

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "clip", self.clip
        yield "acts_on", self.acts_on
        if "value_bias" in self.effects and self.value_dim != self.head_dim:
            yield "value_dim", self.value_dim


def by_products(x: Tensor) -> bool:
    return x.is_cuda


def picked(by_offset: Tensor, index: Tensor) -> Tensor:
    """Of ``[B, H, T, n]`` the entry that each key's index names: ``[B, H, T, S]``.

    >>> picked(torch.tensor([[[[5.0, 7.0]]]]), torch.tensor([[[1, 0, 1]]])).tolist()
    [[[[7.0, 5.0, 7.0]]]]
    """
    if by_products(by_offset):
        return torch.einsum("bhtn,btsn->bhts", by_offset, _ones(index, by_offset))
    return by_offset.gather(-1, index[:, None].expand(*by_offset.shape[:-1], index.shape[-1]))


def summed(weights: Tensor, index: Tensor, count: int) -> Tensor:
    """``[B, H, T, S]`` summed over the keys of each index: ``[B, H, T, count]``.

    >>> summed(torch.tensor([[[[0.5, 0.25, 0.25]]]]), torch.tensor([[[1, 0, 1]]]), 2).tolist()
    [[[[0.25, 0.75]]]]
    """
    empty = weights.new_zeros(*weights.shape[:-1], count)
    if by_products(weights):
        return torch.einsum("bhts,btsn->bhtn", weights, _ones(index, empty))
    return empty.scatter_add(-1, index[:, None].expand(weights.shape), weights)


def _ones(index: Tensor, like: Tensor) -> Tensor:
    """``[B or 1, T, S, n]``: 1 where an index names the place, of as many places as ``like`` has."""
    return (index[..., None] == torch.arange(like.shape[-1], device=index.device)).to(like.dtype)
