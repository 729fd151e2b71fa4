"""A sink: one extra logit a head that takes weight and gives no value.

    weight_ij = exp(logit_ij) / (exp(sink_h) + sum over k of exp(logit_ik))

Xiao et al. 2023 (arXiv 2309.17453) found that trained models park unused attention on the first tokens and named them
attention sinks; a learnable logit gives it a place of its own, as in the gpt-oss models. Miller's "softmax off by one"
(2023) is the fixed logit 0: a 1 in the denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.validation import LARGEST_NUMBER, require_flag, require_numbers

Number = float | Sequence[float]


class Sink(Position):
    """One extra logit a head, the same at every position.

    Args:
        heads: number of query heads.
        value: the logit, one number or one a head; any sign.
        learnable: let it learn; ``Sink(heads, value=0.0, learnable=False)`` is softmax off by one.

    >>> Sink(2, value=[0.0, -1.0], learnable=False).sink(torch.arange(3.0), None)
    tensor([[ 0.,  0.,  0.],
            [-1., -1., -1.]])
    """

    needs_heads = True

    def __init__(self, heads: int, *, value: Number = 0.0, learnable: bool = True) -> None:
        super().__init__(heads=heads)
        start = per_head("value", value, heads)
        require_flag("Sink", "learnable", learnable)
        if learnable:
            self.value = nn.Parameter(start)
        else:
            self.register_buffer("value", start)

    def sink(self, position: Tensor, length: Any) -> Tensor:
        return self.value.expand(-1, position.shape[0])


def per_head(name: str, value: Number, heads: int | None, *, largest: float = LARGEST_NUMBER) -> Tensor:
    """Finite numbers of any sign as a scalar tensor, or ``[heads, 1]``: what ``Quantity`` does for bounded ones.

    >>> per_head("value", -1.0, None), per_head("value", 2.0, 2)
    (tensor(-1.), tensor([[2.],
            [2.]]))
    """
    values = require_numbers(name, value, heads, largest=largest)
    if heads is None:
        return torch.tensor(values[0])
    return torch.tensor(values * heads if len(values) == 1 else values).reshape(-1, 1)
