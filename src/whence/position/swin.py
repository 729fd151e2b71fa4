"""Swin's bias on a grid: a value for each difference of rows and of columns (Liu et al. 2021, arXiv 2103.14030).

    bias_ij = table_h[row_i - row_j + R - 1, column_i - column_j + C - 1]        a table of (2R - 1) x (2C - 1) per head

``form="continuous"`` is that of Swin V2 (arXiv 2111.09883), a network in place of the table, which also serves grids of another
size than the trained one:

    bias = 16 sigmoid(f(u)),  u = sign(d) log2(1 + 8 |d| / (R0 - 1)) / 3         f: axes -> 512 -> ReLU -> heads, no bias at the end

R0 is the size of the axis in training (``trained_grid``). The cosine scores of V2 are a setting of the layer. Checked against
``SwinRelativePositionBias`` and ``Swinv2SelfAttention`` in transformers. The paper's table starts from a normal distribution of
standard deviation 0.02, transformers' from 0 (``std=0``).

Differences beyond the table use its edge. A ``grid`` of three sizes has frames, rows and columns, as in Video Swin. Positions are
indices in reading order; see ``whence.position.grid``.

Use it for images and videos of a fixed size, or with ``form="continuous"`` for several sizes, where the bias should be
learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.position.base import Position
from whence.position.coordinate_table import CoordinateTable
from whence.position.grid import require_grid
from whence.validation import require_choice, require_dim, require_std, require_table

LARGEST_BIAS = 16.0  # of the continuous form
EDGE = 8.0  # where the largest difference of the trained grid lies before the logarithm


class SwinBias(Position):
    """A learned bias for each difference of coordinates on a grid.

    Args:
        heads: number of query heads.
        grid: sizes of the axes, ``(rows, columns)`` or ``(frames, rows, columns)``.
        form: ``"table"``, or ``"continuous"`` for a network of the difference, as in Swin V2.
        std: standard deviation of the normal distribution that initializes the table.
        hidden_dim: hidden units of the network.
        trained_grid: the grid that scales the input of the network; ``None`` for ``grid``.

    >>> swin = SwinBias(1, (2, 2))
    >>> swin.table.data = torch.arange(9.0)[None]
    >>> at = torch.arange(4)[None]
    >>> swin.evaluate(at, at)[0, 0]
    tensor([[4., 3., 1., 0.],
            [5., 4., 2., 1.],
            [7., 6., 4., 3.],
            [8., 7., 5., 4.]], grad_fn=<SelectBackward0>)
    """

    needs_heads = True
    relative = False  # a shift of indices is no shift of the grid
    reads_rotated = False

    head_axes = {"table": 0, "network.2": 0}

    def __init__(
        self,
        heads: int,
        grid: Sequence[int],
        *,
        form: str = "table",
        std: float = 0.02,
        hidden_dim: int = 512,
        trained_grid: Sequence[int] | None = None,
    ) -> None:
        super().__init__(heads=heads)
        self.grid = require_grid("SwinBias", "grid", grid)
        self.form = require_choice("SwinBias", "form", form, ("table", "continuous"))
        self.hidden_dim = require_dim("SwinBias", "hidden_dim", hidden_dim, remedy="use 512, as published")
        self.trained_grid = (
            self.grid if trained_grid is None else require_grid("SwinBias", "trained_grid", trained_grid)
        )
        require_std("SwinBias", std)
        if form == "table":
            sizes = (2 * size - 1 for size in self.grid)
            self.table = nn.Parameter(torch.randn(require_table("SwinBias", heads, math.prod(sizes))) * std)
        else:
            require_table("SwinBias", heads, hidden_dim)
            self.network = nn.Sequential(
                nn.Linear(len(self.grid), hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, heads, bias=False)
            )

    def coordinate_bias_table(self, dtype: torch.dtype) -> CoordinateTable:
        return CoordinateTable(self.make_table(dtype), self.grid)

    def evaluate(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bias of queries at ``[B or 1, T]`` for keys at ``[B or 1, S]``: ``[B or 1, H, T, S]``."""
        return self.coordinate_bias_table(dtype).gather(q_positions, k_positions)

    def make_table(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bias at each difference, ``[H, (2R - 1) * (2C - 1)]``; the last axis changes fastest."""
        if self.form == "table":
            return self.table.to(dtype)
        first, last = self.network[0], self.network[2]
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        ranges = [torch.arange(1 - size, size, dtype=dtype) for size in self.grid]
        inputs = torch.stack(torch.meshgrid(*ranges, indexing="ij"), -1).flatten(0, -2)
        largest = torch.tensor([max(size - 1, 1) for size in self.trained_grid], dtype=dtype)
        inputs = inputs.sign() * torch.log2(1 + EDGE * inputs.abs() / largest) / math.log2(EDGE)
        hidden = F.linear(inputs.to(first.weight.device), first.weight.to(dtype), first.bias.to(dtype)).relu()
        return LARGEST_BIAS * torch.sigmoid(F.linear(hidden, last.weight.to(dtype))).T

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "grid", self.grid
        yield "form", self.form
        if self.trained_grid != self.grid:
            yield "trained_grid", self.trained_grid
