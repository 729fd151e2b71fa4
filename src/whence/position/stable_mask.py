"""StableMask: causal rows that sum to less than 1, and to more the later they are (Yin et al. 2024, arXiv 2402.04779).

The paper leaves the future keys of a causal row in the softmax, with logits ``-gamma * t`` at position t, and masks
them afterwards. All they do is to widen the row's normaliser, so one extra logit without a value says the same and
needs no future keys. For a query at position p of N = ``context``, positions counted from 0:

    sink = log( sum over t = p+1 .. N-1 of exp(-gamma * t) )

The last row has an empty sum, -inf, and sums to 1. Past the context the sum has no terms to name; there the sink is
the one next position, ``-gamma * (p + 1)`` (our choice: the paper speaks of positions inside the context).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.position.alibi import slopes
from whence.position.base import Position
from whence.position.parameter import Quantity
from whence.validation import require_flag


class StableMask(Position):
    """An extra logit that fades along the context, which tells a row where it stands.

    Args:
        heads: number of query heads.
        context: the N of the sum, the length trained on.
        gamma: decay, at least 0, one number or one a head; ALiBi's slopes by default.
        learnable: let gamma learn; it stays above 0.

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
        self.gamma = Quantity("gamma", slopes(heads) if gamma is None else gamma, heads=heads, learnable=learnable)

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

    Near 0 both the quotient and its slope lose their digits to cancellation, so a series takes over there; each branch
    is fed only what it can digest, for a NaN in the branch not taken would still reach the gradient.
    """
    near = x < 1e-2  # the first term left out is x**6 / 181440, below double precision
    small, large = torch.where(near, x, 0.0), torch.where(near, 1.0, x)
    series = small * (-1 / 2 + small * (1 / 24 - small * small / 2880))
    return torch.where(near, series, torch.log(-torch.expm1(-large) / large))
