"""Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860).

    score_ij = scale * ((q_i + u) . k_j + (q_i + v) . W r_{i-j})

``r_d`` is the sinusoid of the distance d (all sines, then all cosines), W projects it to a key for each head, and u
and v are learnable vectors, one pair per head, in place of an absolute query position.

The paper computes ``W r_d`` for each distance and shifts a matrix, which requires consecutive positions. So do the fused kernels,
for blocks of queries (``relative_keys``). ``content_bias`` splits ``(W^T (q_i + v)) . r_{i-j}`` by the angle sum formulas into a
vector of query i times a vector of key j, which works for any positions and needs no tensor larger than the scores.

Use it where the effect of distance should depend on the query's content, as in models with recurrence over segments. Every query
is multiplied with the vectors of all distances, so it is slower than a function of distance.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position
from whence.position.hook_types import Rows
from whence.position.relative_keys import RelativeKeys
from whence.position.sinusoidal import sinusoid
from whence.validation import require_base, require_dim, require_even, require_std, require_table


class TransformerXL(Position):
    """Scores from content and from a learned projection of the distance.

    Args:
        heads: number of query heads.
        head_dim: dimension of a query head.
        embed_dim: dimension of the sinusoid, even; ``None`` for ``heads * head_dim``.
        base: determines the longest wavelength of the sinusoid.
        std: standard deviation of the normal distribution that initializes u, v and W.

    >>> TransformerXL(2, 8)
    TransformerXL(heads=2, head_dim=8, embed_dim=16, base=10000, learnable)
    """

    needs_heads = True

    head_axes = {"u": 0, "v": 0, "projection": 0}

    def __init__(
        self, heads: int, head_dim: int, *, embed_dim: int | None = None, base: float = 10000.0, std: float = 0.02
    ) -> None:
        super().__init__(heads=heads)
        remedy = "pass the dimension of a query head"
        self.head_dim = require_dim("TransformerXL", "head_dim", head_dim, remedy=remedy)
        embed_dim = heads * head_dim if embed_dim is None else embed_dim
        remedy = "sines and cosines come in pairs, so pass an even number"
        self.embed_dim = require_even("TransformerXL", "embed_dim", embed_dim, remedy=remedy)
        self.base = require_base("TransformerXL", base)
        require_std("TransformerXL", std)
        require_table("TransformerXL", heads, head_dim, embed_dim)
        self.u = nn.Parameter(torch.randn(heads, head_dim) * std)
        self.v = nn.Parameter(torch.randn(heads, head_dim) * std)
        self.projection = nn.Parameter(torch.randn(heads * head_dim, embed_dim) * std)

    def content_bias(self, rows: Rows) -> Tensor:
        heads, head_dim = rows.q.shape[1], rows.q.shape[-1]
        if (heads, head_dim) != (self.heads, self.head_dim):
            got = f"{heads} heads of dimension {head_dim}"
            rule, remedy = "both must match the queries", f"build it with heads={heads} and head_dim={head_dim}"
            raise usage_error(f"TransformerXL({self.heads}, {self.head_dim})", got, rule, remedy)
        # angles need float32 or better
        dtype = torch.promote_types(torch.promote_types(rows.q.dtype, self.v.dtype), torch.float32)
        by_key = torch.einsum("hd,bhsd->bhs", self.u.to(dtype), rows.k.to(dtype))[:, :, None, :]
        project = self.projection.to(dtype).reshape(heads, head_dim, self.embed_dim)
        projected = torch.einsum("bhtd,hdw->bhtw", rows.q.to(dtype) + self.v.to(dtype)[:, None, :], project)
        return (rows.scale * (by_key + self._by_distance(projected, rows, dtype))).to(rows.scores.dtype)

    def relative_keys(self, distance: Tensor) -> RelativeKeys:
        dtype = torch.promote_types(torch.promote_types(distance.dtype, self.v.dtype), torch.float32)
        r = sinusoid(distance.to(dtype), self.embed_dim, self.base, "concatenated")
        project = self.projection.to(dtype).reshape(-1, self.head_dim, self.embed_dim)
        return RelativeKeys(r[None], project, self.u, self.v)

    def _by_distance(self, projected: Tensor, rows: Rows, dtype: torch.dtype) -> Tensor:
        """``projected_i . r_{i-j}`` for ``projected`` ``[B, H, T, embed_dim]``: ``[B, H, T, S]``."""
        origin = rows.k_positions[:, :1]  # only differences matter, and small angles have accurate sines
        q_angles = sinusoid((rows.q_positions - origin).to(dtype), self.embed_dim, self.base, "concatenated")
        k_angles = sinusoid((rows.k_positions - origin).to(dtype), self.embed_dim, self.base, "concatenated")
        sin, cos = q_angles[:, None].chunk(2, dim=-1)
        for_sin, for_cos = projected.chunk(2, dim=-1)
        # sin(a - b) = sin a cos b - cos a sin b and cos(a - b) = sin a sin b + cos a cos b, grouped by sin b and cos b
        query = torch.cat((for_cos * sin - for_sin * cos, for_sin * sin + for_cos * cos), dim=-1)
        return query @ k_angles[:, None].mT

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "embed_dim", self.embed_dim
        yield "base", self.base
