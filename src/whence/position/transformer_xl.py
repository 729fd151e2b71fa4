"""Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860).

    score_ij = scale * ((q_i + u) . k_j + (q_i + v) . W r_{i-j})

``r_d`` is the sinusoid of the distance d (all sines, then all cosines), W projects it to a key for each head, and u
and v are learnable vectors, one pair a head, that stand where an absolute query position would have stood.

The paper makes ``W r_d`` for each distance and shifts a matrix into place, which holds for consecutive positions. Here
``(W^T (q_i + v)) . r_{i-j}`` is split by the angle sum rules into a vector of query i times a vector of key j, which
holds for any positions and makes nothing larger than the scores.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position, Rows
from whence.position.sinusoidal import sinusoid
from whence.validation import require_base, require_dim, require_even, require_std, require_table


class TransformerXL(Position):
    """Scores by content and by a learned view of the distance.

    Args:
        heads: number of query heads.
        head_dim: width of a query head.
        embed_dim: width of the sinusoid, even; ``None`` for ``heads * head_dim``.
        base: sets the sinusoid's slowest wavelength.
        std: standard deviation of the normal distribution that u, v and W start from.

    >>> TransformerXL(2, 8)
    TransformerXL(heads=2, head_dim=8, embed_dim=16, base=10000, learnable)
    """

    needs_heads = True

    def __init__(
        self, heads: int, head_dim: int, *, embed_dim: int | None = None, base: float = 10000.0, std: float = 0.02
    ) -> None:
        super().__init__(heads=heads)
        remedy = "give the width of a query head"
        self.head_dim = require_dim("TransformerXL", "head_dim", head_dim, remedy=remedy)
        embed_dim = heads * head_dim if embed_dim is None else embed_dim
        remedy = "each sine has its cosine, so give an even number"
        self.embed_dim = require_even("TransformerXL", "embed_dim", embed_dim, remedy=remedy)
        self.base = require_base("TransformerXL", base)
        require_std("TransformerXL", std)
        require_table("TransformerXL", heads, head_dim, embed_dim)
        self.u = nn.Parameter(torch.randn(heads, head_dim) * std)
        self.v = nn.Parameter(torch.randn(heads, head_dim) * std)
        self.projection = nn.Parameter(torch.randn(heads * head_dim, embed_dim) * std)

    def content_bias(self, rows: Rows) -> Tensor:
        heads, embed_dim = rows.q.shape[1], rows.q.shape[-1]
        if (heads, embed_dim) != (self.heads, self.head_dim):
            got = f"{heads} heads of width {embed_dim}"
            rule = "heads and widths are those it was built for"
            raise usage_error(f"TransformerXL({self.heads}, {self.head_dim})", got, rule, "build it for this attention")
        # angles lose their meaning below float32
        dtype = torch.promote_types(torch.promote_types(rows.q.dtype, self.v.dtype), torch.float32)
        by_key = torch.einsum("hd,bhsd->bhs", self.u.to(dtype), rows.k.to(dtype))[:, :, None, :]
        project = self.projection.to(dtype).reshape(heads, embed_dim, self.embed_dim)
        asked = torch.einsum("bhtd,hdw->bhtw", rows.q.to(dtype) + self.v.to(dtype)[:, None, :], project)
        return (rows.scale * (by_key + self._by_distance(asked, rows, dtype))).to(rows.scores.dtype)

    def _by_distance(self, asked: Tensor, rows: Rows, dtype: torch.dtype) -> Tensor:
        """``asked_i . r_{i-j}`` for ``asked`` ``[B, H, T, width]``: ``[B, H, T, S]``."""
        origin = rows.k_positions[:, :1]  # only differences count, and small angles have exact sines
        q_angles = sinusoid((rows.q_positions - origin).to(dtype), self.embed_dim, self.base, "concatenated")
        k_angles = sinusoid((rows.k_positions - origin).to(dtype), self.embed_dim, self.base, "concatenated")
        sin, cos = q_angles[:, None].chunk(2, dim=-1)
        for_sin, for_cos = asked.chunk(2, dim=-1)
        # sin(a - b) = sin a cos b - cos a sin b and cos(a - b) = sin a sin b + cos a cos b, gathered by sin b and cos b
        query = torch.cat((for_cos * sin - for_sin * cos, for_sin * sin + for_cos * cos), dim=-1)
        return query @ k_angles[:, None].mT

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "embed_dim", self.embed_dim
        yield "base", self.base
