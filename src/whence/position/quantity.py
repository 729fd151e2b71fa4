"""One number, or one a head, that learning cannot push out of its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import refusal


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
        learn: bool,
        zero_allowed: bool = True,
    ) -> None:
        super().__init__()
        value = value.tolist() if isinstance(value, Tensor) else value
        values = [float(v) for v in value] if isinstance(value, Sequence) else [float(value)]
        if isinstance(value, Sequence) and len(values) != heads:
            raise refusal(
                f"{name}=...",
                f"{len(values)} numbers for heads={heads}",
                "there is one number a head",
                f"give {heads} numbers or one for all" if heads else f"pass heads={len(values)}, or one number",
            )
        rule = (
            f"{name} is at least 0"
            if zero_allowed and not learn
            else f"{name} is above 0" + (" when it learns" if zero_allowed else "")
        )
        if not all(math.isfinite(v) and (v > 0 or (v == 0 and zero_allowed and not learn)) for v in values):
            raise refusal(f"{name}=...", repr(value), rule, "give a number inside that range")
        full = torch.tensor(values * heads if heads is not None and len(values) == 1 else values)
        shaped = full.reshape(-1, 1) if heads is not None else full.reshape(())
        if learn:
            self.raw: Tensor | None = nn.Parameter(shaped + torch.log(-torch.expm1(-shaped)))  # the inverse of softplus
        else:
            self.register_buffer("fixed", shaped)
            self.raw = None

    def forward(self) -> Tensor:
        if self.raw is None:
            return self.fixed
        # softplus of a very low number rounds to 0, which a strict bound may not reach
        return F.softplus(self.raw).clamp(min=torch.finfo(self.raw.dtype).tiny)
