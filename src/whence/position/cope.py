"""CoPE: positions counted by content (Golovneva, Wang, Weston & Sukhbaatar 2024, arXiv 2405.18719).

    g_it = sigmoid(score_it)                        gate of query i for key t; 0 for masked keys
    p_ij = min(sum of g_it for t from j to i, positions - 1)
    term = q_i . e[p_ij]                            linear interpolation between two rows of e

As in the authors' code, the gate uses the scaled score, and q . e is not scaled. The products ``q_i . e`` are interpolated
instead of the rows of e: the result is the same and needs no tensor of size queries x keys x head_dim.

Use it where what counts is the number of certain tokens, such as sentences or commas, and not the number of all tokens.
On a GPU one fused kernel computes it, up to head dim 128. It is slower than a function of distance where many keys have a position below
``positions - 1``: beyond, all keys of a query share one term.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.position.gated_count import count_gates
from whence.position.hook_types import Rows
from whence.validation import require_dim, require_integer, require_table


class Cope(Position):
    """A score term that depends on the gated number of keys between key and query.

    Args:
        head_dim: dimension D of a query head.
        positions: rows of the table e; positions are clamped to ``positions - 1``.
        heads: one table per head; ``None`` for one table shared by all heads.

    >>> from whence.position.hook_types import Rows
    >>> q, k, at = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 3, 2), torch.arange(3)[None]
    >>> rows = Rows(q, k, q @ k.mT, at[:, -1:], at, torch.ones(1, 1, 1, 3, dtype=torch.bool), 1.0)
    >>> cope = Cope(2, positions=4)
    >>> cope.contextual_positions(rows)  # every gate is sigmoid(0) = 0.5
    tensor([[[[1.5000, 1.0000, 0.5000]]]])
    """

    causal_only = True
    head_axes = {"e": 0}

    def __init__(self, head_dim: int, *, positions: int = 64, heads: int | None = None) -> None:
        super().__init__(heads=heads)
        remedy = "pass the dimension of a query head"
        self.head_dim = require_dim("Cope", "head_dim", head_dim, remedy=remedy)
        self.positions = require_integer("Cope", "positions", positions, low=2, remedy="try positions=64")
        shape = (positions, head_dim) if heads is None else (heads, positions, head_dim)
        self.e = nn.Parameter(torch.empty(require_table("Cope", *shape)))
        nn.init.normal_(self.e, std=0.02)

    def gated_bias_table(self, q: Tensor, unrotated_q: Tensor, scale: float) -> Tensor:
        dtype = torch.promote_types(q.dtype, self.e.dtype)
        return q.to(dtype) @ self.e.to(dtype).mT  # [B, H, T, positions]

    def contextual_positions(self, rows: Rows) -> Tensor:
        """The contextual position of every key for every query, ``[B, H, T, S]``, in float32 or float64.

        For reading. A class that counts in another way writes ``content_bias``.
        """
        return count_gates(rows, self.positions - 1)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "positions", self.positions
