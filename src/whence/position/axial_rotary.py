"""Axial rotary embedding: a part of each head rotates by the row of a token, another by its column.

    angle of pair c of an axis = coordinate * base^(-2c/w)          w = 2 * (D // (2 * axes)) columns for each axis

For two axes, w is D/2 and the frequencies are base^(-4c/D). Scores depend on the differences of rows and of columns. Two
layouts exist, and weights trained with one do not work with the other: ``"blocks"`` gives each axis a block of columns,
[row, row, column, column], and pairs columns inside it (the vision part of Gemma 4 in transformers); ``"across"`` pairs columns c
and c + D/2, [row, column, row, column] (Qwen2-VL). Pixtral, which gives even frequencies to rows and odd ones to columns, is neither.
There is no single paper: the formula was checked against the code of these two models, which the tests compare.

A ``grid`` of three sizes has frames, rows and columns. Positions are indices in reading order; see ``whence.position.grid``.

Use it for images and videos, where a token has a row and a column and the distance in reading order means little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.base import Position
from whence.position.grid import grid_coordinates, require_grid
from whence.position.rotary import rotate_by_angle
from whence.validation import require_base, require_choice


class AxialRotary(Position):
    """Rotates queries and keys by the coordinates of their tokens on a grid.

    Args:
        grid: sizes of the axes, ``(rows, columns)`` or ``(frames, rows, columns)``. The first axis may be longer.
        base: determines the lowest frequency.
        layout: ``"blocks"`` or ``"across"``: which columns belong to an axis.

    >>> q, at = torch.tensor([1.0, 0.0, 1.0, 0.0]).reshape(1, 1, 1, 4), torch.tensor([[5]])  # row 1, column 2
    >>> AxialRotary((3, 3)).rotate(q, q, at, at)[0].flatten()
    tensor([ 0.5403,  0.8415, -0.4161,  0.9093])
    """

    relative = False  # a shift of indices is no shift of the grid

    def __init__(self, grid: Sequence[int], *, base: float = 100.0, layout: str = "blocks") -> None:
        super().__init__()
        self.grid = require_grid("AxialRotary", "grid", grid)
        self.base = require_base("AxialRotary", base, remedy="use 100, as in vision models")
        self.layout = require_choice("AxialRotary", "layout", layout, ("blocks", "across"))

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._turn(q, q_positions), self._turn(k, k_positions)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        axes, head_dim = len(self.grid), x.shape[-1]
        width = 2 * (head_dim // (2 * axes))
        if width == 0:
            rule = f"each of {axes} axes rotates a pair of columns"
            raise usage_error("AxialRotary", f"head_dim {head_dim}", rule, f"use a head_dim of at least {2 * axes}")
        exponent = torch.arange(0, width, 2, dtype=dtype, device=x.device) / width
        coordinates = grid_coordinates(positions.to(dtype), self.grid)
        angle = (coordinates[..., None] * torch.pow(self.base, -exponent))[:, None]  # [B, 1, n, axes, width/2]
        if self.layout == "across":
            return rotate_by_angle(x, angle.flatten(-2), "half")
        blocks = [
            rotate_by_angle(x[..., axis * width : (axis + 1) * width], angle[..., axis, :], "half")
            for axis in range(axes)
        ]
        return torch.cat((*blocks, x[..., axes * width :]), -1)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "grid", self.grid
        yield "base", self.base
        yield "layout", self.layout
