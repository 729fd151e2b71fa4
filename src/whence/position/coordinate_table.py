"""``CoordinateTable``: a number for each difference of coordinates on a grid, in place of a distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.grid import grid_coordinates


@dataclass(frozen=True)
class CoordinateTable:
    """Values at all differences of coordinates on a ``grid``, the last axis fastest. Differences beyond the grid use its edge.

    >>> table = CoordinateTable(torch.arange(9.0)[None], (2, 2))
    >>> at = torch.arange(4)[None]
    >>> table.gather(at[:, :1], at)
    tensor([[[[4., 3., 1., 0.]]]])
    """

    values: Tensor  # [heads or 1, (2 * size - 1) * ...]
    grid: tuple[int, ...]

    @property
    def entries(self) -> int:
        entries = 1
        for size in self.grid:
            entries *= 2 * size - 1
        return entries

    def gather(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """The value of queries at ``[B or 1, T]`` for keys at ``[B or 1, S]``: ``[B or 1, heads or 1, T, S]``."""
        q, k = (grid_coordinates(x, self.grid) for x in (q_positions, k_positions))
        difference = q[:, :, None] - k[:, None, :]
        if difference.is_floating_point():
            difference = difference.round()
        index = torch.zeros_like(difference[..., 0], dtype=torch.long)
        for axis, size in enumerate(self.grid):
            index = index * (2 * size - 1) + difference[..., axis].long().clamp(1 - size, size - 1) + size - 1
        return self.values[:, index.flatten()].unflatten(1, index.shape).transpose(0, 1)

    def extend(self, distance: int) -> Tensor:
        """The values with the first axis so extended that no position at most ``distance`` apart is beyond it."""
        stride = 1  # loops, because torch.compile traces them
        for size in self.grid[1:]:
            stride *= size
        missing = distance // stride + 1 - (self.grid[0] - 1)
        if missing <= 0:
            return self.values
        rows = self.values.unflatten(1, (2 * self.grid[0] - 1, -1))
        first, last = rows[:, :1].expand(-1, missing, -1), rows[:, -1:].expand(-1, missing, -1)
        return torch.cat([first, rows, last], 1).flatten(1)

    def places(self, positions: Tensor) -> Tensor:
        """One integer per position, so that a difference of two is that of their values in the table.

        >>> CoordinateTable(torch.zeros(1, 15), (2, 3)).places(torch.arange(6)).tolist()
        [0, 1, 2, 5, 6, 7]
        """
        if positions.is_floating_point():
            positions = positions.floor()
        coordinates = grid_coordinates(positions.long(), self.grid)
        place = coordinates[..., 0]
        for axis, size in enumerate(self.grid[1:], 1):
            place = place * (2 * size - 1) + coordinates[..., axis]
        return place


def require_coordinate_table(mechanism: str, table: object, heads: int) -> CoordinateTable:
    """The output of a ``coordinate_bias_table``, with one value per difference of coordinates on its grid."""
    subject = f"{mechanism}.coordinate_bias_table"
    if not isinstance(table, CoordinateTable) or not isinstance(table.values, Tensor):
        rule, remedy = "it must return a whence.CoordinateTable", "return CoordinateTable(values, grid)"
        raise usage_error(subject, f"an output of type {type(table).__name__}", rule, remedy)
    if tuple(table.values.shape) not in ((heads, table.entries), (1, table.entries)):
        sizes = " * ".join(f"(2 * {size} - 1)" for size in table.grid)
        rule = f"the grid {table.grid} and {heads} heads need values of shape [{heads}, {table.entries}] or [1, {table.entries}]"
        remedy = f"return one value per difference of coordinates, {sizes}"
        raise usage_error(subject, f"values of shape {list(table.values.shape)}", rule, remedy)
    return table
