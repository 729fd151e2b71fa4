"""``DistanceTable``: content terms at consecutive distances. Keys select from it, and weights are summed by it.

No tensor of size rows x keys x head_dim is built: each query has n numbers, and a key at distance d selects number
``d - first``; weights are first summed by distance, then multiplied with the value vectors. On a GPU both steps are products with
a one-hot matrix for small tables, because scatter-add is nondeterministic there or, if deterministic, sorts all scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error

MAX_ONE_HOT = 128  # entries; beyond, a one-hot matrix needs more memory than its speed is worth


@dataclass(frozen=True)
class DistanceTable:
    """Numbers or vectors at the distances ``first``, ``first + 1``, and so on.

    >>> table = DistanceTable(torch.tensor([[[[5.0, 7.0]]]]), 0, clipped=True)
    >>> table.gather(torch.tensor([[[3, 1, 0, -1]]])).tolist()
    [[[[7.0, 7.0, 5.0, 5.0]]]]
    """

    values: Tensor  # [B, H, T, n] of a content_bias_table, [n, E] or [heads, n, E] of a value_bias_table
    first: int
    clipped: bool  # distances beyond the table use its nearest entry; False: they have no term

    @property
    def entries(self) -> int:
        return self.values.shape[-1 if self.values.ndim == 4 else -2]

    def gather(self, distance: Tensor) -> Tensor:
        """The number of each query and key at distances ``[B or 1, T, S]``: ``[B, H, T, S]``."""
        index, inside = self._index(distance)
        if uses_one_hot(self.values, self.entries):
            return torch.einsum("bhtn,btsn->bhts", self.values, self._one_hot(index, inside, self.values.dtype))
        terms = self.values.gather(-1, index[:, None].expand(*self.values.shape[:-1], index.shape[-1]))
        return terms if inside is None else torch.where(inside[:, None], terms, 0.0)

    def sum_weights(self, weights: Tensor, distance: Tensor) -> Tensor:
        """The sum of ``[B, H, T, S]`` over the keys of each entry: ``[B, H, T, n]``.

        >>> table = DistanceTable(torch.zeros(2, 1), 0, clipped=True)
        >>> table.sum_weights(torch.tensor([[[[0.5, 0.25, 0.25]]]]), torch.tensor([[[2, 0, 1]]])).tolist()
        [[[[0.25, 0.75]]]]
        """
        index, inside = self._index(distance)
        if uses_one_hot(weights, self.entries):
            return torch.einsum("bhts,btsn->bhtn", weights, self._one_hot(index, inside, weights.dtype))
        weights = weights if inside is None else torch.where(inside[:, None], weights, 0.0)
        empty = weights.new_zeros(*weights.shape[:-1], self.entries)
        return empty.scatter_add(-1, index[:, None].expand(weights.shape), weights)

    def _index(self, distance: Tensor) -> tuple[Tensor, Tensor | None]:
        """The entry of each distance, and which distances have one if not all do."""
        if distance.is_floating_point():
            distance = distance.round()
        entry = distance.long() - self.first
        index = entry.clamp(0, self.entries - 1)
        return index, None if self.clipped else index == entry

    def _one_hot(self, index: Tensor, inside: Tensor | None, dtype: torch.dtype) -> Tensor:
        """One-hot vectors ``[B or 1, T, S, n]``; zeros where a distance has no entry."""
        entries = torch.arange(self.entries, device=index.device)
        one_hot = index[..., None] == entries
        return (one_hot if inside is None else one_hot & inside[..., None]).to(dtype)


def require_distance_table(mechanism: str, hook: str, table: object, shape: tuple[int, ...]) -> DistanceTable:
    """The output of a hook that returns a ``DistanceTable``, with values of this shape; -1 is any size of at least 1.

    Axes of a ``value_bias_table`` for all heads may be left out or have size 1.
    """
    subject = f"{mechanism}.{hook}"
    if not isinstance(table, DistanceTable) or not isinstance(table.values, Tensor):
        rule, remedy = "it must return a whence.DistanceTable", "return DistanceTable(values, first, clipped)"
        raise usage_error(subject, f"an output of type {type(table).__name__}", rule, remedy)
    if not isinstance(table.first, int):
        remedy = "pass the distance of the first entry, such as 0"
        raise usage_error(f"{subject} with first", repr(table.first), "the first distance is an integer", remedy)
    values, shared = table.values, hook == "value_bias_table"
    allowed = [shape, (1, *shape[1:]), shape[1:]] if shared else [shape]
    if not any(_fits(values, sizes) for sizes in allowed):
        names = "[n, E] or [heads, n, E]" if shared else "[B, H, T, n]"
        sizes = f"{shape[0]} heads" if shared else f"B, H, T = {', '.join(map(str, shape[:3]))}"
        rule = f"its values have shape {names}, here with {sizes}"
        raise usage_error(subject, f"values of shape {list(values.shape)}", rule, "return one entry per distance")
    return table


def _fits(values: Tensor, shape: tuple[int, ...]) -> bool:
    return values.ndim == len(shape) and all(
        size == wanted or (wanted == -1 and size > 0) for size, wanted in zip(values.shape, shape, strict=True)
    )


def uses_one_hot(x: Tensor, entries: int) -> bool:
    return x.is_cuda and entries <= MAX_ONE_HOT
