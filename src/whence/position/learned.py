"""Learned absolute positions (Gehring et al. 2017, arXiv 1705.03122; Devlin et al. 2018, arXiv 1810.04805).

One learnable vector a position is added to the input. A position that was never trained has no vector worth adding, so
the table ends at ``max_length`` and says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence import tracing
from whence.errors import usage_error
from whence.position.base import Position
from whence.validation import require_dim, require_integer, require_std, require_table


class Learned(Position):
    """Adds a learnable vector for each position to the input.

    A negative position marks left padding and takes the vector of position 0; attention masks such places anyway.
    Inside ``torch.compile`` and ``torch.export`` the values of positions are not known, so a position beyond the table
    is there left to PyTorch's own index error.

    Args:
        embed_dim: the width of the input.
        max_length: number of positions in the table.
        std: standard deviation of the normal distribution the table starts from.

    >>> Learned(4, max_length=8).embed(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])).shape
    torch.Size([1, 3, 4])
    """

    relative = False

    def __init__(self, embed_dim: int, max_length: int, *, std: float = 0.02) -> None:
        super().__init__()
        self.embed_dim = require_dim("Learned", "embed_dim", embed_dim)
        self.max_length = require_integer("Learned", "max_length", max_length)
        require_std("Learned", std)
        self.table = nn.Parameter(torch.randn(require_table("Learned", max_length, embed_dim)) * std)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if x.shape[-1] != self.embed_dim:
            raise usage_error(
                f"Learned({self.embed_dim}, ...)",
                f"an input of width {x.shape[-1]}",
                "both widths are one",
                "build it with the input's width",
            )
        index = positions.round().long() if positions.is_floating_point() else positions.long()
        if index.numel() and tracing.can_read_values(index) and int(index.max()) >= self.max_length:
            raise usage_error(
                f"Learned(max_length={self.max_length})",
                f"position {int(index.max())}",
                f"its table ends at position {self.max_length - 1}",
                "build it longer, or use a mechanism that extrapolates",
            )
        return (x + F.embedding(index.clamp(min=0), self.table)).to(x.dtype)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "embed_dim", self.embed_dim
        yield "max_length", self.max_length
