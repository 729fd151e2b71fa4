"""ALiBi: a penalty linear in distance (Press, Smith & Lewis 2021, arXiv 2108.12409).

``bias = -scale * slope_h * |distance|``. For H a power of two the slopes are ``2^(-8h/H)``, h = 1..H; for other H the
slopes for the next smaller power of two, followed by every second slope for the next larger one.

Use it for decoders that must read longer inputs than they were trained on, or where no parameter should be learned. Its
heads prefer near keys, so it is a poor choice for tasks that copy from far away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from whence.position.base import Position
from whence.position.hook_types import HookGradients, ParameterGradient
from whence.position.parameter import BoundedParameter
from whence.validation import require_choice, require_flag, require_number


def slopes(heads: int) -> list[float]:
    """The published slope of each head.

    >>> slopes(8)[:3], slopes(3)
    ([0.5, 0.25, 0.125], [0.0625, 0.00390625, 0.25])
    """
    power = 2 ** int(math.log2(heads))
    smaller = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    if power == heads:
        return smaller
    larger = [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1)]
    return smaller + larger[::2][: heads - power]


class Alibi(Position):
    """A linear penalty on distance, with one slope per head.

    Args:
        heads: number of query heads.
        form: ``"causal"`` (keys at or before the query, as published) or ``"symmetric"`` (both sides, by ``|distance|``).
        scale: multiplies every slope.
        learnable: make the slopes learnable; they stay above 0.
        slope: other slopes, one per head; one number is the slope of every head.

    >>> import torch
    >>> Alibi(2).bias(torch.tensor([0.0, 1.0, 2.0]), None)
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0000, -0.0039, -0.0078]])
    >>> Alibi(2, slope=1.5).bias(torch.tensor([0.0, 1.0, 2.0]), None)
    tensor([[-0.0000, -1.5000, -3.0000],
            [-0.0000, -1.5000, -3.0000]])
    """

    needs_heads = True
    decays = True
    noncausal_arguments = {"form": "symmetric"}

    def __init__(
        self,
        heads: int,
        *,
        form: str = "causal",
        scale: float = 1.0,
        learnable: bool = False,
        slope: float | list[float] | None = None,
    ) -> None:
        super().__init__(heads=heads)
        self.form = require_choice("Alibi", "form", form, ("causal", "symmetric"))
        self.scale = require_number("Alibi", "scale", scale, low=0, remedy="use 1, as published")
        require_flag("Alibi", "learnable", learnable)
        self.slope = BoundedParameter(
            "Alibi.slope", slopes(heads) if slope is None else slope, heads=heads, learnable=learnable
        )
        self.causal_only = form == "causal"

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        return -self.scale * self.slope() * distance.abs()

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients:
        slope = self.slope()
        by_slope = -self.scale * distance.abs()
        return HookGradients(None, slope.detach() * by_slope, (ParameterGradient(slope, "bias", by_slope),))

    def bias_slope(self) -> Tensor:
        return -self.scale * self.slope()

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "form", self.form
        yield "scale", self.scale
        yield "slope", self.slope()
