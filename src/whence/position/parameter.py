"""One number, or one a head, that learning cannot push out of its bounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.validation import LARGEST_NUMBER, require_numbers


class Quantity(nn.Module):
    """A named quantity of a mechanism: fixed (a buffer) or learnable (a parameter), never below zero.

    A learnable quantity is the softplus of a free parameter, so every step of any optimiser leaves it above zero.
    Calling it gives a scalar tensor, or ``[heads, 1]``, ready to meet distances ``[n]``.
    """

    fixed: Tensor

    def __init__(
        self,
        name: str,
        value: float | Sequence[float] | Tensor,
        *,
        heads: int | None,
        learnable: bool,
        zero_allowed: bool = True,
        largest: float = LARGEST_NUMBER,
    ) -> None:
        super().__init__()
        if zero_allowed and not learnable:
            values = require_numbers(name, value, heads, low=0, largest=largest)
        else:
            remedy = "pass a number inside that range" + (", or learnable=False" if zero_allowed else "")
            values = require_numbers(name, value, heads, above=0, largest=largest, remedy=remedy)
        full = torch.tensor(values * heads if heads is not None and len(values) == 1 else values)
        shaped = full.reshape(-1, 1) if heads is not None else full.reshape(())
        if learnable:
            self.raw: Tensor | None = nn.Parameter(shaped + torch.log(-torch.expm1(-shaped)))  # the inverse of softplus
        else:
            self.register_buffer("fixed", shaped)
            self.raw = None

    def forward(self) -> Tensor:
        if self.raw is None:
            return self.fixed
        # softplus of a very low number rounds to 0, which a strict bound may not reach
        return F.softplus(self.raw).clamp(min=torch.finfo(self.raw.dtype).tiny)
