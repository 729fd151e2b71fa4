"""KERPLE: a learnable kernel of distance (Chi, Fan, Ramadge & Rudnicky 2022, arXiv 2205.09921).

    log      -r1 * log(1 + r2 * |d|)      r1, r2 above 0
    power    -r1 * |d| ** r2              r1 above 0, r2 above 0 and at most 2

Within these bounds both are conditionally positive definite kernels; a power above 2 is not. The authors clamp the
parameters after each optimizer step; here the parametrization enforces the bounds.

Use it where ALiBi's straight line is too steep for far keys: the logarithm falls slowly, and strength and scale are
learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.position.hook_types import HookGradients, ParameterGradient
from whence.position.parameter import BoundedParameter
from whence.validation import require_choice, require_flag, require_numbers

Number = float | Sequence[float]
LARGEST_R1 = 1e6  # its product with the square of the largest distance, 2**53, is finite in float32
FLOOR = 1e-4  # lower bound of a learnable exponent: at 0 the kernel is constant and has no gradient


class Kerple(Position):
    """A penalty that grows with the logarithm, or with a power, of ``|distance|``.

    Args:
        heads: number of query heads.
        form: ``"log"`` or ``"power"``.
        r1: strength, one number or one per head. By default the midpoints of ``heads`` equal parts of (0, 2) for
            ``"log"`` or (0, 1) for ``"power"``, increasing. The authors draw at random from the same ranges.
        r2: scale (log) or exponent (power). By default the midpoints for (0, 1) or (0, 2), decreasing, so that no head
            starts with both the strongest and the steepest kernel.
        learnable: make r1 and r2 learnable within their bounds.

    >>> Kerple(2, r1=1.0, r2=1.0).bias(torch.tensor([0.0, 1.0, -3.0]), None).detach()
    tensor([[-0.0000, -0.6931, -1.3863],
            [-0.0000, -0.6931, -1.3863]])
    """

    needs_heads = True

    def __init__(
        self,
        heads: int,
        *,
        form: str = "log",
        r1: Number | None = None,
        r2: Number | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__(heads=heads)
        self.form = require_choice("Kerple", "form", form, ("log", "power"))
        require_flag("Kerple", "learnable", learnable)
        midpoints = [(h + 0.5) / heads for h in range(heads)]
        top1, top2 = (2.0, 1.0) if form == "log" else (1.0, 2.0)
        r1 = [top1 * m for m in midpoints] if r1 is None else r1
        r2 = [top2 * m for m in reversed(midpoints)] if r2 is None else r2
        self.r1 = BoundedParameter(
            "Kerple.r1", r1, heads=heads, learnable=learnable, zero_allowed=False, largest=LARGEST_R1
        )
        kind = BoundedParameter if form == "log" else Exponent
        self.r2 = kind("Kerple.r2", r2, heads=heads, learnable=learnable, zero_allowed=False)

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        far = distance.abs()
        if self.form == "log":
            return -self.r1() * torch.log1p(self.r2() * far)
        here = far == 0
        power = torch.where(here, 1.0, far) ** self.r2()  # the derivative of |d|**r2 at 0 is infinite for r2 < 1
        return -self.r1() * torch.where(here, 0.0, power)

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients:
        r1, r2 = self.r1(), self.r2()
        with torch.no_grad():
            far = distance.abs()
            if self.form == "log":
                by_r1, by_r2 = -torch.log1p(r2 * far), -r1 * far / (1 + r2 * far)
            else:
                here = far == 0
                log = torch.where(here, 1.0, far).log()
                by_r1 = -torch.where(here, 0.0, torch.exp(r2 * log))
                by_r2 = r1 * by_r1 * log
            return HookGradients(
                None, r1 * by_r1, (ParameterGradient(r1, "bias", by_r1), ParameterGradient(r2, "bias", by_r2))
            )

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "form", self.form
        yield "r1", self.r1()
        yield "r2", self.r2()


class Exponent(BoundedParameter):
    """A ``BoundedParameter`` above 0 and at most 2, for every value of ``raw``."""

    def __init__(self, name: str, value: Number, *, heads: int, learnable: bool, zero_allowed: bool) -> None:
        if learnable:
            remedy = "pass a number inside that range, or learnable=False"
            require_numbers(name, value, heads, above=FLOOR, below=2, remedy=remedy)
        else:
            require_numbers(name, value, heads, above=0, high=2)
        super().__init__(name, value, heads=heads, learnable=False, zero_allowed=zero_allowed)
        if learnable:
            initial = self.fixed
            del self.fixed
            self.raw = nn.Parameter(torch.logit((2 - initial) / (2 - FLOOR)))

    def forward(self) -> Tensor:
        # subtracted from 2, so that a saturated sigmoid gives exactly 2 and rounding never exceeds it
        return self.fixed if self.raw is None else 2 - (2 - FLOOR) * torch.sigmoid(self.raw)
