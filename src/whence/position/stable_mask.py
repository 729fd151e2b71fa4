"""StableMask: causal rows whose weights sum to less than 1, approaching 1 in later rows (Yin et al. 2024, arXiv 2402.04779).

In the paper the future keys of a causal row stay in the softmax with logits ``-gamma * t`` at position t and are masked
afterwards. They only enlarge the softmax denominator of the row, so one extra logit without a value is equivalent and
needs no future keys. For a query at position p of N = ``context``, positions counted from 0:

    sink = log( sum over t = p+1 .. N-1 of exp(-gamma * t) )

In the last row the sum is empty, the logit is -inf, and the weights sum to 1. The paper does not define the sum past the
context; here the sink is the next position alone, ``-gamma * (p + 1)``.

Use it in decoders to give early queries a way to attend to nothing. It is added to a trained model as a cure, too
(``whence.mend``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.position.alibi import slopes
from whence.position.base import Position
from whence.position.parameter import BoundedParameter
from whence.validation import require_flag


class StableMask(Position):
    """An extra logit that decreases along the context, which encodes the absolute position of a row.

    Args:
        heads: number of query heads.
        context: the N of the sum, the training length.
        gamma: decay, at least 0, one number or one per head; ALiBi's slopes by default.
        learnable: make gamma learnable; it stays above 0.

    >>> StableMask(1, context=4, gamma=0.0).sink(torch.arange(5.0), 4).exp()
    tensor([[3., 2., 1., 0., 1.]])
    """

    relative = False
    causal_only = True

    needs_heads = True

    def __init__(
        self, heads: int, *, context: int, gamma: float | Sequence[float] | None = None, learnable: bool = False
    ) -> None:
        super().__init__(heads=heads, length="context", context=context)
        require_flag("StableMask", "learnable", learnable)
        self.gamma = BoundedParameter(
            "StableMask.gamma", slopes(heads) if gamma is None else gamma, heads=heads, learnable=learnable
        )

    def sink(self, position: Tensor, length: Any) -> Tensor:
        gamma = self.gamma()
        p = position if position.is_floating_point() else position.to(gamma.dtype)
        first = -gamma * (p + 1)
        terms = length - 1 - p
        count = terms.clamp(min=1)
        # a geometric series: exp(first) * (1 - exp(-gamma * count)) / (1 - exp(-gamma))
        inside = first + count.log() + _log_mean_decay(gamma * count) - _log_mean_decay(gamma)
        return torch.where(terms > 0, inside, torch.where(terms == 0, float("-inf"), first))

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "gamma", self.gamma()


def _log_mean_decay(x: Tensor) -> Tensor:
    """``log((1 - exp(-x)) / x)`` for x of at least 0, smooth through 0.

    Near 0 the quotient and its derivative lose precision by cancellation, so a series replaces them there. Each branch
    gets only arguments in its domain, because a NaN in the branch not taken would still reach the gradient.
    """
    near = x < 1e-2  # the first term left out is x**6 / 181440, below double precision
    small, large = torch.where(near, x, 0.0), torch.where(near, 1.0, x)
    series = small * (-1 / 2 + small * (1 / 24 - small * small / 2880))
    return torch.where(near, series, torch.log(-torch.expm1(-large) / large))
