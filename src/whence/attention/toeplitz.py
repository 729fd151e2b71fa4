"""Toeplitz bands: a table over distances, laid out so that every tile of scores is a plain slice of it.

The distance of query row i and key j is ``offset + i - j``. For blocks of m rows, row a of the band is the reversed table
shifted by a, so the tile of rows ``r0..`` and keys ``j0..j1`` is ``band[:, :, column(r0, j0) : column(r0, j1)]``. The band has
m times the entries of the table (linear in length). The gradients of all tiles are summed in a band of the same form,
which is reduced to the table once, in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """The numbers of query rows and keys, their offset, and which pairs the causal mask and the window leave visible."""

    queries: int
    keys: int
    offset: int  # distance(i, j) = offset + i - j
    causal: bool
    window: int | None

    @property
    def distances(self) -> tuple[int, int]:
        """The first distance of a table and one past the last."""
        return self.offset - self.keys + 1, self.offset + self.queries

    def visible_keys(self, first: int, last: int) -> tuple[int, int]:
        """The range of keys that at least one of the rows first..last-1 attends to."""
        low, high = 0, self.keys
        if self.causal:
            high = min(high, self.offset + last)
        if self.window is not None:
            low = max(low, self.offset + first - self.window + 1)
            high = min(high, self.offset + last - 1 + self.window)
        return low, max(low, high)

    def keys_visible_to_all(self, first: int, last: int) -> tuple[int, int]:
        """The range of keys that all of the rows first..last-1 attend to."""
        low, high = 0, self.keys
        if self.causal:
            high = min(high, self.offset + first + 1)
        if self.window is not None:
            low = max(low, self.offset + last - self.window)
            high = min(high, self.offset + first + self.window)
        return low, max(low, high)

    def columns(self, block: int) -> tuple[int, int]:
        """The range of band columns that any tile of ``block`` rows uses."""
        low, high = 0, self.queries + self.keys
        if self.causal:
            high = min(high, self.queries + self.offset + block)
        if self.window is not None:
            low = max(low, self.queries + self.offset - self.window + 1)
            high = min(high, self.queries + self.offset + block - 1 + self.window)
        low = min(low, self.queries + self.keys)  # a window may end before the first key
        return low, max(low, high)

    def column(self, row: int, key: int) -> int:
        return key - row + self.queries


def table_to_band(table: Tensor, span: Span, block: int) -> Tensor:
    """The band ``[heads, block, columns]`` of a table ``[heads, distances]``."""
    low, high = span.columns(block)
    padded = torch.nn.functional.pad(table.flip(-1), (block, 0))
    return padded[:, low : high + block - 1].unfold(-1, high - low, 1).flip(1).contiguous()


def band_to_table(band: Tensor, span: Span, block: int) -> Tensor:
    """The transpose of ``table_to_band``: the sum of a band's entries by distance, as a table."""
    heads, _, num_columns = band.shape
    low, _ = span.columns(block)
    # shift row x right by x: pad every row by `block` and read the memory again with rows one shorter
    skewed = torch.nn.functional.pad(band.flip(1), (0, block)).reshape(heads, -1)[
        :, : block * (num_columns + block - 1)
    ]
    sums = skewed.reshape(heads, block, num_columns + block - 1).sum(1)
    reversed_table = band.new_zeros(heads, span.queries + span.keys - 1 + block)
    reversed_table[:, low : low + num_columns + block - 1] = sums
    return reversed_table[:, block:].flip(-1)


def mask_table(span: Span, like: Tensor) -> Tensor | None:
    """0 at visible distances and -inf at the others, ``[1, distances]``; None if all are visible."""
    if not span.causal and span.window is None:
        return None
    distance = torch.arange(*span.distances, device=like.device)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if span.causal:
        hidden |= distance < 0
    if span.window is not None:
        hidden |= distance.abs() >= span.window
    return torch.zeros(distance.shape, dtype=like.dtype, device=like.device).masked_fill(hidden, -torch.inf)[None]
