"""Sandwich: the inner product of sinusoidal encodings as a bias (Chi, Fan, Rudnicky & Ramadge 2022, arXiv 2212.10356).

    bias_h(d) = sum over i = 0 .. dim / 2 - 1 of cos(d / base^(2i / dim)),  divided by 8h / heads,  h = 1 .. heads

The sum is the inner product ``p_m . p_n`` of two sinusoidal encodings and decreases about logarithmically with distance.
It starts at i = 0 and is not shifted, as for the encodings themselves. Other implementations start at i = 1, or subtract
``dim / 2`` so that distance 0 has bias 0. The second is a constant per head, which changes nothing in a softmax without
an extra logit (a sink).

Use it instead of ALiBi for a fixed penalty that falls about logarithmically, so that far keys keep more weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence.position.base import Position
from whence.validation import require_base, require_even


class Sandwich(Position):
    """A fixed bias from sinusoids of ``|distance|``, flatter for later heads.

    Args:
        heads: number of query heads.
        dim: dimension of the encoding, an even number; 128 in the paper. It is not the dimension of the model.
        base: the longest wavelength divided by ``2 pi``, as in the sinusoidal encoding.

    >>> Sandwich(2, dim=4).bias(torch.tensor([0.0, 1.0, 100.0]), None)
    tensor([[0.5000, 0.3851, 0.3507],
            [0.2500, 0.1925, 0.1753]])
    """

    needs_heads = True

    def __init__(self, heads: int, *, dim: int = 128, base: float = 10000.0) -> None:
        super().__init__(heads=heads)
        self.dim = require_even("Sandwich", "dim", dim, high=2**16, remedy="use dim=128, as published")
        self.base = require_base("Sandwich", base, above=0, remedy="use base=10000.0, as published")
        self.ratios = [8 * h / heads for h in range(1, heads + 1)]

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        # computed in the precision of the distances; a stored table would keep its own
        i = torch.arange(self.dim // 2, dtype=distance.dtype, device=distance.device)
        total = torch.cos(distance[:, None] * self.base ** (-2 * i / self.dim)).sum(-1)
        ratio = torch.tensor(self.ratios, dtype=distance.dtype, device=distance.device)
        return total / ratio[:, None]

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "dim", self.dim
        yield "base", self.base
