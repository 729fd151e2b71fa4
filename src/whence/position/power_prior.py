"""The power prior: a power of distance with both its scale and its exponent learned.

    phi(d) = -|alpha * d| ** beta

The probabilistic positional prior left unbuilt by its authors (2025), who name alpha = beta = 1 as its start. With
beta = 1 it is ALiBi with the learnable slope ``|alpha|``; with beta = 2 a Gaussian window; small beta a heavy tail.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.position.base import HookGradients, ParameterGradient, Position
from whence.position.parameter import Quantity
from whence.position.sink import per_head
from whence.validation import require_flag

Number = float | Sequence[float]
# beyond exp(40) = 2e17 the weight is 0 in any precision, while the gradients would soon overflow an optimiser's squares
HIGHEST = 40.0


class PowerPrior(Position):
    """A learnable prior over distance, symmetric in its sign.

    Mind the start: alpha = 1 takes 1 off the logit for every step of distance (the steepest of ALiBi's 8 heads takes
    off 1/2), so every head begins almost local. Give smaller alphas, one a head, to begin wider. At exactly alpha = 0
    the prior is flat and gets no gradient to leave it.

    Args:
        heads: one alpha and beta a head; ``None`` for one pair for all heads.
        alpha: scale, a free number whose sign does not matter.
        beta: exponent, above 0 also under learning.
        learnable: let both learn.

    >>> PowerPrior(alpha=0.5, beta=2.0, learnable=False).bias(torch.tensor([0.0, 1.0, -4.0]), None)
    tensor([-0.0000, -0.2500, -4.0000])
    """

    decays = True
    model_arguments = ("heads",)

    def __init__(
        self, heads: int | None = None, *, alpha: Number = 1.0, beta: Number = 1.0, learnable: bool = True
    ) -> None:
        super().__init__(heads=heads)
        start = per_head("alpha", alpha, heads, largest=1e30)  # the bias stops at HIGHEST, so alpha cannot overflow it
        require_flag("PowerPrior", "learnable", learnable)
        if learnable:
            self.alpha = nn.Parameter(start)
        else:
            self.register_buffer("alpha", start)
        self.beta = Quantity("beta", beta, heads=heads, learnable=learnable, zero_allowed=False)

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        x, beta = (self.alpha * distance).abs(), self.beta()
        # x ** beta has no finite slope at 0 (and 0 * log 0 is NaN), nor once it overflows: replace x there before the
        # power and the value after it, so that neither branch ever hands on a NaN
        none = x < torch.finfo(x.dtype).tiny
        x = torch.where(none, 1.0, x)
        huge = beta.detach() * x.detach().log() > HIGHEST
        power = torch.where(huge, 1.0, x) ** beta
        power = torch.where(huge, math.exp(HIGHEST), power)
        return -torch.where(none, 0.0, power)

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients:
        alpha, beta = self.alpha, self.beta()
        with torch.no_grad():
            x = (alpha * distance).abs()
            none = x < torch.finfo(x.dtype).tiny
            log = torch.where(none, 1.0, x).log()
            exponent = beta * log
            huge = exponent > HIGHEST  # there the bias is held where it is
            power = torch.exp(torch.where(none, -torch.inf, exponent.clamp(max=HIGHEST)))
            moving = torch.where(huge, 0.0, power)
            by_alpha = -beta * moving / torch.where(alpha == 0, 1.0, alpha)
            return HookGradients(
                None,
                -power,
                (ParameterGradient(alpha, "bias", by_alpha), ParameterGradient(beta, "bias", -moving * log)),
            )

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "alpha", self.alpha
        yield "beta", self.beta()
