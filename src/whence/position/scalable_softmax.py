"""Scalable softmax: a query is multiplied by a learned multiple of ln n (Nakanishi 2025, arXiv 2501.19399).

    logit_ij = (s_h * ln(n_i) + b_h) * scale * q_i . k_j          n_i = i + 1 keys that query i sees

The largest weight of a softmax vanishes as the number n of keys grows; with a factor proportional to ln n it does not.
s starts at 0.168, the reciprocal of the mean of ln n over n = 1..1024, so that the factor is 1 on average at that training
length. The formula was checked against quotations of the paper, whose figure 1 (s = 0.43) the test repeats, and against axolotl's
code, which has the same ``s * ln(n) + b`` with n the position + 1. The whole text was not at hand; 0.168 comes from a summary.

Sources differ. axolotl and the package ``scalable-softmax`` start at the figure's 0.43, and axolotl does not learn s and takes n as
at least 2. The package reports that the paper's b helps training and can harm longer lengths, so b is optional here.

n is the query's position + 1: with a window, fewer keys are visible and the factor stays the same.

Use it beside another mechanism where inputs at test time are longer than in training and one important key must keep
its weight among many.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.position.parameter import make_unbounded
from whence.validation import require_flag

Number = float | Sequence[float]


class ScalableSoftmax(Position):
    """Multiplies queries by ``s * ln(position + 1) + b``, with learnable numbers for each head.

    Args:
        heads: number of query heads.
        s: initial slope, one number or one per head.
        intercept: also learn b, which starts at 0.

    >>> q = torch.ones(1, 2, 3, 1)
    >>> ScalableSoftmax(2, s=[1.0, 2.0]).rotate(q, q, torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]]))[0][0, :, :, 0]
    tensor([[0.0000, 0.6931, 1.0986],
            [0.0000, 1.3863, 2.1972]], grad_fn=<SelectBackward0>)
    """

    relative = False
    causal_only = True  # without a causal mask, n would be the length of the sequence
    rotates = False
    needs_heads = True
    head_axes = {"s": 0, "b": 0}

    def __init__(self, heads: int, *, s: Number = 0.168, intercept: bool = False) -> None:
        super().__init__(heads=heads)
        self.s = nn.Parameter(make_unbounded("ScalableSoftmax.s", s, heads))
        self.intercept = require_flag("ScalableSoftmax", "intercept", intercept)
        self.b = nn.Parameter(torch.zeros(heads, 1)) if intercept else None

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        log_n = torch.log1p(q_positions.to(dtype).clamp(min=0))[:, None, :]
        factor = self.s.to(dtype) * log_n
        if self.b is not None:
            factor = factor + self.b.to(dtype)
        return (q * factor[..., None]).to(q.dtype), k
