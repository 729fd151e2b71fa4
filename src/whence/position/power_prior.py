"""The power prior: a power of distance with a learnable scale and a learnable exponent.

    phi(d) = -|alpha * d| ** beta

The probabilistic positional prior that its authors (2025) proposed without an implementation, initialized with
alpha = beta = 1. With beta = 1 it is ALiBi with the learnable slope ``|alpha|``, with beta = 2 a Gaussian window; a small
beta has a heavy tail.

Use it beside rotary where a penalty on distance should have a learned reach and shape. Begin with a small ``alpha``:
with the authors' value of 1 almost all attention is on the nearest keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.position.hook_types import HookGradients, ParameterGradient
from whence.position.parameter import BoundedParameter, make_unbounded
from whence.validation import require_flag

Number = float | Sequence[float]
# beyond exp(40) = 2e17 the weight is 0 in any precision, and squared gradients would overflow in an optimizer
MAX_EXPONENT = 40.0


class PowerPrior(Position):
    """A learnable prior over ``|distance|``.

    alpha = 1 subtracts 1 from the logit per step of distance (the steepest of ALiBi's 8 heads subtracts 1/2), so every
    head is initially almost local. Smaller alphas, one per head, start wider. At exactly alpha = 0 the prior is flat
    and its gradient is 0.

    Args:
        heads: one alpha and beta per head; ``None`` for one pair shared by all heads.
        alpha: scale; its sign has no effect.
        beta: exponent; stays above 0 in training.
        learnable: make both learnable.

    >>> PowerPrior(alpha=0.5, beta=2.0, learnable=False).bias(torch.tensor([0.0, 1.0, -4.0]), None)
    tensor([-0.0000, -0.2500, -4.0000])
    """

    decays = True
    model_arguments = ("heads",)

    def __init__(
        self, heads: int | None = None, *, alpha: Number = 1.0, beta: Number = 1.0, learnable: bool = True
    ) -> None:
        super().__init__(heads=heads)
        initial = make_unbounded(
            "PowerPrior.alpha", alpha, heads, largest=1e30
        )  # the bias is clamped at MAX_EXPONENT, so alpha cannot overflow it
        require_flag("PowerPrior", "learnable", learnable)
        if learnable:
            self.alpha = nn.Parameter(initial)
        else:
            self.register_buffer("alpha", initial)
        self.beta = BoundedParameter("PowerPrior.beta", beta, heads=heads, learnable=learnable, zero_allowed=False)

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        x, beta = (self.alpha * distance).abs(), self.beta()
        # the derivative of x ** beta is not finite at 0 (0 * log 0 is NaN) and after overflow: replace x there before
        # the power and the result after it, so that no branch propagates a NaN
        is_zero = x < torch.finfo(x.dtype).tiny
        x = torch.where(is_zero, 1.0, x)
        huge = beta.detach() * x.detach().log() > MAX_EXPONENT
        power = torch.where(huge, 1.0, x) ** beta
        power = torch.where(huge, math.exp(MAX_EXPONENT), power)
        return -torch.where(is_zero, 0.0, power)

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients:
        alpha, beta = self.alpha, self.beta()
        with torch.no_grad():
            x = (alpha * distance).abs()
            is_zero = x < torch.finfo(x.dtype).tiny
            log = torch.where(is_zero, 1.0, x).log()
            exponent = beta * log
            huge = exponent > MAX_EXPONENT  # the bias is clamped there
            power = torch.exp(torch.where(is_zero, -torch.inf, exponent.clamp(max=MAX_EXPONENT)))
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
