"""CoPE: positions counted by content (Golovneva, Wang, Weston & Sukhbaatar 2024, arXiv 2405.18719).

    g_it = sigmoid(score_it)                        how much query i counts key t; 0 for keys it does not see
    p_ij = min(sum of g_it for t from j to i, positions - 1)
    term = q_i . e[p_ij]                            between two rows of e by linear interpolation

Following the paper's code the gate reads the scaled score, and q meets e without the scale. Interpolating the products
``q_i . e`` instead of the rows of e is the same number and needs no tensor of size queries x keys x width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.position.base import Position, Rows
from whence.validation import require_dim, require_integer, require_table


class Cope(Position):
    """A score term for how many keys, as the query itself counts them, lie between key and query.

    Args:
        head_dim: width D of a query head.
        positions: rows of the table e; counts stop at ``positions - 1``.
        heads: one table a head; ``None`` for one table shared by all heads.

    >>> from whence.position.base import Rows
    >>> q, k, at = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 3, 2), torch.arange(3)[None]
    >>> rows = Rows(q, k, q @ k.mT, at[:, -1:], at, torch.ones(1, 1, 1, 3, dtype=torch.bool), 1.0)
    >>> cope = Cope(2, positions=4)
    >>> cope.count(rows)  # every gate is sigmoid(0), one half
    tensor([[[[1.5000, 1.0000, 0.5000]]]])
    """

    causal_only = True

    def __init__(self, head_dim: int, *, positions: int = 64, heads: int | None = None) -> None:
        super().__init__(heads=heads)
        remedy = "give the width of one query head"
        self.head_dim = require_dim("Cope", "head_dim", head_dim, remedy=remedy)
        self.positions = require_integer("Cope", "positions", positions, low=2, remedy="try positions=64")
        shape = (positions, head_dim) if heads is None else (heads, positions, head_dim)
        self.e = nn.Parameter(torch.empty(require_table("Cope", *shape)))
        nn.init.normal_(self.e, std=0.02)

    def content_bias(self, rows: Rows) -> Tensor:
        count = self.count(rows)
        below = count.floor()
        dtype = torch.promote_types(rows.q.dtype, self.e.dtype)
        products = rows.q.to(dtype) @ self.e.to(dtype).mT  # [B, H, T, positions]
        low = products.gather(-1, below.long())
        high = products.gather(-1, count.ceil().long())
        return torch.lerp(low.to(count.dtype), high.to(count.dtype), count - below).to(rows.scores.dtype)

    def count(self, rows: Rows) -> Tensor:
        """The contextual position of every key for every query, ``[B, H, T, S]``, in single precision or better."""
        scores = rows.scores.to(torch.promote_types(rows.scores.dtype, torch.float32))
        gates = torch.where(rows.visible, torch.sigmoid(scores), 0.0)
        # keys may be stored in any order: sum from the latest position backwards, then put the keys back
        # a stable sort matters to equal positions only, and ONNX has none
        exact = {} if torch.compiler.is_exporting() else {"stable": True}
        latest_first = rows.k_positions.sort(dim=-1, descending=True, **exact).indices
        back = latest_first.argsort(dim=-1)[:, None, None, :].expand_as(gates)
        sums = gates.gather(-1, latest_first[:, None, None, :].expand_as(gates)).cumsum(-1)
        return sums.gather(-1, back).clamp(max=self.positions - 1)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "positions", self.positions
