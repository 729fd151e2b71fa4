"""ALiBi: a penalty linear in distance (Press, Smith & Lewis 2021, arXiv 2108.12409).

``bias = -scale * slope_h * |distance|``. For H a power of two the slopes are ``2^(-8h/H)``, h = 1..H; for other H the
slopes of the power of two below, followed by every second slope of the power of two above.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from whence.position.base import HookGradients, ParameterGradient, Position
from whence.position.parameter import Quantity
from whence.validation import require_choice, require_flag, require_number


def slopes(heads: int) -> list[float]:
    """The paper's slope for each head.

    >>> slopes(8)[:3], slopes(3)
    ([0.5, 0.25, 0.125], [0.0625, 0.00390625, 0.25])
    """
    below = 2 ** int(math.log2(heads))
    own = [2.0 ** (-8 * h / below) for h in range(1, below + 1)]
    if below == heads:
        return own
    above = [2.0 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1)]
    return own + above[::2][: heads - below]


class Alibi(Position):
    """A linear penalty on distance, one slope a head.

    Args:
        heads: number of query heads.
        form: ``"causal"`` (keys at or before the query, as published) or ``"symmetric"`` (both sides, by ``|distance|``).
        scale: multiplies every slope.
        learnable: let the slopes learn; they stay above zero.
        slope: slopes of your own, one a head.

    >>> import torch
    >>> Alibi(2).bias(torch.tensor([0.0, 1.0, 2.0]), None)
    tensor([[-0.0000, -0.0625, -0.1250],
            [-0.0000, -0.0039, -0.0078]])
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
        slope: list[float] | None = None,
    ) -> None:
        super().__init__(heads=heads)
        self.form = require_choice("Alibi", "form", form, ("causal", "symmetric"))
        self.scale = require_number("Alibi", "scale", scale, low=0, remedy="use 1, as published")
        require_flag("Alibi", "learnable", learnable)
        self.slope = Quantity("slope", slopes(heads) if slope is None else slope, heads=heads, learnable=learnable)
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
