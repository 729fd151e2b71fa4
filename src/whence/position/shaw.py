"""Relative position representations (Shaw, Uszkoreit & Vaswani 2018, arXiv 1803.02155).

With ``r = min(max(j - i, -clip), clip)`` the offset from query i to key j, two tables of learnable vectors act:

    score_ij += scale * q_i . key_table[r]        output_i += sum_j weight_ij * value_table[r]

No tensor of size rows x keys x head_dim is built: each query is multiplied with the 2 * clip + 1 vectors once, and keys
select from these scores; weights are first summed by offset, then multiplied with the value vectors. On a GPU both steps
are products with a one-hot matrix, because scatter-add is nondeterministic there or, if deterministic, sorts all scores.

Use it for encoders and short inputs, where a vector for each near distance is worth its products. It cannot tell
distances beyond ``clip`` apart.
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

    def content_bias(self, rows: Rows) -> Tensor | None:
        if "content_bias" not in self.effects:
            return None
        if rows.q.shape[-1] != self.head_dim:
            head_dim = rows.q.shape[-1]
            rule, remedy = "head_dim must match the queries", f"build it with head_dim={head_dim}"
            raise usage_error(f"Shaw({self.head_dim})", f"queries of dimension {head_dim}", rule, remedy)
        dtype = torch.promote_types(rows.q.dtype, self.key_table.dtype)
        by_offset = rows.scale * (rows.q.to(dtype) @ self.key_table.to(dtype).mT)  # [B, H, T, 2 * clip + 1]
        return gather_by_offset(by_offset, self._index(rows)).to(rows.scores.dtype)

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        if "value_bias" not in self.effects:
            return None
        dtype = torch.promote_types(weights.dtype, self.value_table.dtype)
        by_offset = sum_by_offset(weights.to(dtype), self._index(rows), 2 * self.clip + 1)
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


def uses_one_hot(x: Tensor) -> bool:
    return x.is_cuda


def gather_by_offset(by_offset: Tensor, index: Tensor) -> Tensor:
    """The entries of ``[B, H, T, n]`` at each key's index: ``[B, H, T, S]``.

    >>> gather_by_offset(torch.tensor([[[[5.0, 7.0]]]]), torch.tensor([[[1, 0, 1]]])).tolist()
    [[[[7.0, 5.0, 7.0]]]]
    """
    if uses_one_hot(by_offset):
        return torch.einsum("bhtn,btsn->bhts", by_offset, _one_hot(index, by_offset))
    return by_offset.gather(-1, index[:, None].expand(*by_offset.shape[:-1], index.shape[-1]))


def sum_by_offset(weights: Tensor, index: Tensor, count: int) -> Tensor:
    """The sum of ``[B, H, T, S]`` over the keys of each index: ``[B, H, T, count]``.

    >>> sum_by_offset(torch.tensor([[[[0.5, 0.25, 0.25]]]]), torch.tensor([[[1, 0, 1]]]), 2).tolist()
    [[[[0.25, 0.75]]]]
    """
    empty = weights.new_zeros(*weights.shape[:-1], count)
    if uses_one_hot(weights):
        return torch.einsum("bhts,btsn->bhtn", weights, _one_hot(index, empty))
    return empty.scatter_add(-1, index[:, None].expand(weights.shape), weights)


def _one_hot(index: Tensor, like: Tensor) -> Tensor:
    """One-hot vectors ``[B or 1, T, S, n]`` of the indices, with n and the dtype from ``like``."""
    return (index[..., None] == torch.arange(like.shape[-1], device=index.device)).to(like.dtype)
