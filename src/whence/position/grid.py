"""Positions with axes: tokens on a grid of rows and columns, or of frames, rows and columns.

A position stays one number, the index of the token in reading order: ``row * columns + column``. Causality, caches, padding and
segments then work as for text, and the tokens of an image in reading order need no positions at all. A mechanism with a ``grid``
splits the number again. Tokens in another order, or a crop of an image, pass ``positions=grid_positions(coordinates, grid)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.validation import format_value, require_integer

MAX_SIZE = 2**12  # of an axis


def require_grid(owner: str, name: str, grid: Sequence[int]) -> tuple[int, ...]:
    """The sizes of two or three axes, as a tuple."""
    if not isinstance(grid, list | tuple) or len(grid) not in (2, 3):
        raise usage_error(
            f"{owner}({name}=...)",
            format_value(grid),
            "a grid has the sizes of two or three axes, rows before columns",
            f"pass {name}=(14, 14)",
        )
    for size in grid:
        require_integer(owner, name, size, high=MAX_SIZE, remedy=f"pass {name}=(14, 14)")
    return tuple(grid)


def grid_coordinates(positions: Tensor, grid: Sequence[int]) -> Tensor:
    """Positions ``[...]`` as coordinates ``[..., axes]``. The first axis has no end; the others repeat.

    >>> grid_coordinates(torch.arange(6), (2, 3)).tolist()
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    """
    coordinates, rest = [], positions
    for size in reversed(grid[1:]):
        coordinates.append(rest.remainder(size))
        rest = torch.div(rest, size, rounding_mode="floor")
    return torch.stack([rest, *reversed(coordinates)], -1)


def grid_positions(coordinates: Tensor, grid: Sequence[int]) -> Tensor:
    """Coordinates ``[..., axes]`` as positions ``[...]``, the inverse of ``grid_coordinates``.

    >>> grid_positions(torch.tensor([[0, 2], [1, 0]]), (2, 3))
    tensor([2, 3])
    """
    grid = require_grid("grid_positions", "grid", grid)
    if coordinates.ndim == 0 or coordinates.shape[-1] != len(grid):
        raise usage_error(
            "grid_positions(coordinates)",
            f"shape {list(coordinates.shape)}",
            f"the last axis has the {len(grid)} coordinates of a token",
            "stack them: torch.stack([row, column], -1)",
        )
    positions = coordinates[..., 0]
    for axis, size in enumerate(grid[1:], 1):
        positions = positions * size + coordinates[..., axis]
    return positions
