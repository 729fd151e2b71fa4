"""Sink: one extra logit per head in the softmax, without a value vector.

    weight_ij = exp(logit_ij) / (exp(sink_h) + sum over k of exp(logit_ik))

Xiao et al. 2023 (arXiv 2309.17453) found that trained models put unused attention on the first tokens and named these
attention sinks. A learnable logit absorbs it instead, as in the gpt-oss models. Miller's "softmax off by one" (2023) is
the fixed logit 0, a 1 in the denominator.

Use it where heads need a way to attend to nothing; it keeps that weight off the first tokens. It adds no order, so
combine it with another mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from whence.position.base import Position
from whence.position.parameter import make_unbounded
from whence.validation import require_flag

Number = float | Sequence[float]


class Sink(Position):
    """One extra logit per head, the same at every position.

    Args:
        heads: number of query heads.
        value: the logit, one number or one per head, of any sign.
        learnable: make it learnable; ``Sink(heads, value=0.0, learnable=False)`` is softmax off by one.

    >>> import torch
    >>> Sink(2, value=[0.0, -1.0], learnable=False).sink(torch.arange(3.0), None)
    tensor([[ 0.,  0.,  0.],
            [-1., -1., -1.]])
    """

    needs_heads = True

    def __init__(self, heads: int, *, value: Number = 0.0, learnable: bool = True) -> None:
        super().__init__(heads=heads)
        initial = make_unbounded("Sink.value", value, heads)
        require_flag("Sink", "learnable", learnable)
        if learnable:
            self.value = nn.Parameter(initial)
        else:
            self.register_buffer("value", initial)

    def sink(self, position: Tensor, length: Any) -> Tensor:
        return self.value.expand(-1, position.shape[0])
