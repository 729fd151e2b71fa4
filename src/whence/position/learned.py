"""Learned absolute positions (Gehring et al. 2017, arXiv 1705.03122; Devlin et al. 2018, arXiv 1810.04805).

One learnable vector per position is added to the input. There is no vector for untrained positions, so a position of
``max_length`` or more is an error.

Use it for encoders and models of a fixed maximum length, as in BERT and GPT-2. It cannot read a position beyond
``max_length``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence import torch_modes
from whence.errors import usage_error
from whence.position.base import Position
from whence.validation import require_dim, require_integer, require_std, require_table


class Learned(Position):
    """Adds a learnable vector for each position to the input.

    A negative position is left padding and uses the vector of position 0; attention masks it. Inside ``torch.compile``
    and ``torch.export`` the values of positions cannot be read, so a position beyond the table raises PyTorch's own
    index error.

    Args:
        embed_dim: dimension of the input.
        max_length: number of positions in the table.
        std: standard deviation of the normal distribution that initializes the table.

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
                f"an input of dimension {x.shape[-1]}",
                "embed_dim must match the input",
                f"build it with embed_dim={x.shape[-1]}",
            )
        index = positions.round().long() if positions.is_floating_point() else positions.long()
        if index.numel() and torch_modes.can_read_values(index) and int(index.max()) >= self.max_length:
            raise usage_error(
                f"Learned(max_length={self.max_length})",
                f"position {int(index.max())}",
                f"the last position of its table is {self.max_length - 1}",
                "increase max_length, or use a mechanism that extrapolates",
            )
        return (x + F.embedding(index.clamp(min=0), self.table)).to(x.dtype)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "embed_dim", self.embed_dim
        yield "max_length", self.max_length
