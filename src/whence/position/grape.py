"""GRAPE-A: ALiBi whose slope depends on content (Zhang et al. 2025, arXiv 2512.07805, additive form).

    bias_ij = -(i - j) * omega_h * m_h * (softplus(v_h . q_i / sqrt(D)) + softplus(u_h . k_j / sqrt(D)))

m are the slopes of ALiBi, u and v learned unit vectors, omega a learned factor above 0 that starts at 1. ``gate`` keeps both
terms or one of them; the authors train all three. Formula and values come from a reading of the authors' code
(``model-architectures/GRAPE``, the query- and key-gated models); the test repeats the formula by hand. The authors' configurations
start one number per head at the slopes instead of omega * m, which is the same at the start, and normalize u and v. q and k are
those before any rotation. The authors normalize them with RMSNorm first; that is a setting of the layer here. One pair of vectors per head is this module's choice: the
source at hand does not say whether heads share them.

The authors write the bias as extra columns of q and k, which is exact on paper; positions as columns lose whole tokens in half
precision. Here it is a score term, computed in float32 or better.

Use it where some tokens should be forgotten faster than others and ALiBi's slopes are too rigid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.position.alibi import slopes
from whence.position.base import Position
from whence.position.hook_types import Rows
from whence.position.parameter import BoundedParameter
from whence.validation import require_choice, require_dim, require_table

GATES = ("query and key", "query", "key")


class GrapeA(Position):
    """A penalty linear in distance, with a slope that query and key set.

    Args:
        heads: number of query heads.
        head_dim: dimension of a head.
        gate: ``"query and key"``, ``"query"`` or ``"key"``: which side sets the slope.

    >>> from whence.position.hook_types import Rows
    >>> q, at = torch.zeros(1, 1, 1, 2), torch.arange(5)[None]
    >>> k = torch.zeros(1, 1, 5, 2)
    >>> rows = Rows(q, k, q @ k.mT, at[:, -1:], at, torch.ones(1, 1, 1, 5, dtype=torch.bool), 1.0)
    >>> GrapeA(1, 2, gate="key").content_bias(rows).detach() / slopes(1)[0]  # a gate of 0 content is log 2
    tensor([[[[-2.7726, -2.0794, -1.3863, -0.6931, -0.0000]]]])
    """

    causal_only = True
    needs_heads = True
    reads_rotated = False
    head_axes = {"omega": 0, "v": 0, "u": 0, "_slope": 0}

    def __init__(self, heads: int, head_dim: int, *, gate: str = "query and key") -> None:
        super().__init__(heads=heads)
        remedy = "pass the dimension of a query head"
        self.head_dim = require_dim("GrapeA", "head_dim", head_dim, remedy=remedy)
        self.gate = require_choice("GrapeA", "gate", gate, GATES)
        require_table("GrapeA", heads, head_dim)
        self.omega = BoundedParameter("GrapeA.omega", 1.0, heads=heads, learnable=True)
        self.v = nn.Parameter(torch.randn(heads, head_dim)) if "query" in gate else None
        self.u = nn.Parameter(torch.randn(heads, head_dim)) if "key" in gate else None
        self.register_buffer("_slope", torch.tensor(slopes(heads)).reshape(heads, 1), persistent=False)

    def content_bias(self, rows: Rows) -> Tensor:
        dtype = rows.scores.dtype
        of_queries, of_keys = self.distance_slopes(rows.unrotated_q, rows.unrotated_k)
        # few operations on all pairs: their slope, and its product with the distance
        terms = [] if of_queries is None else [of_queries[..., None]]
        terms += [] if of_keys is None else [of_keys[..., None, :]]
        slopes = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        return rows.distance.to(dtype)[:, None] * slopes.to(dtype)

    def distance_slopes(self, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
        slope = -self.omega().to(q.dtype) * self.get_buffer("_slope").to(q.dtype)  # [H, 1]
        return (
            None if self.v is None else slope * self._gates(q, self.v),
            None if self.u is None else slope * self._gates(k, self.u),
        )

    def _gates(self, x: Tensor, direction: Tensor) -> Tensor:
        """The gate of each token of x ``[B, H, n, D]``: ``[B, H, n]``."""
        unit = F.normalize(direction.to(x.dtype), dim=-1)
        return F.softplus((x * unit[:, None, :]).sum(-1) / math.sqrt(self.head_dim))

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "gate", self.gate
