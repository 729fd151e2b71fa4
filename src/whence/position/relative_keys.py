"""``RelativeKeys``: a key for each distance, which each query is multiplied with (``Position.relative_keys``).

    content_bias_ij = scale * (u . k_j + (q_i + v) . W r_{i-j})

A mechanism of this form has a score term of every query at every distance. The numbers of all queries at all distances are as many
as the scores, so the fused kernels get them for a block of queries at a time. ``W r`` is computed once; for a few queries,
``W^T (q_i + v)`` costs less.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from whence.errors import usage_error


@dataclass(frozen=True)
class RelativeKeys:
    """The vectors of the formula at n distances. A part that is None is left out.

    >>> import torch
    >>> relative = RelativeKeys(torch.eye(3)[None, :, :2], projection=torch.ones(1, 4, 2))
    >>> relative.keys().tolist()  # of three distances
    [[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]]
    """

    vectors: Tensor  # [heads or 1, n, C], r; C is D without a projection
    projection: Tensor | None = None  # [heads, D, C], W
    u: Tensor | None = None  # [heads, D]
    v: Tensor | None = None  # [heads, D]

    def keys(self) -> Tensor:
        """``W r``, ``[heads or 1, n, D]``."""
        return self.vectors if self.projection is None else self.vectors @ self.projection.mT

    def shift(self, q: Tensor, by: Tensor | None) -> Tensor:
        """Queries ``[B, H, T, D]`` plus a vector of each head, in the dtype of q."""
        return q if by is None else q + by.to(q.dtype)[:, None, :]


def require_relative_keys(mechanism: str, relative: object, n: int, heads: int, head_dim: int) -> RelativeKeys:
    """The output of ``relative_keys`` for n distances and queries of these sizes."""
    subject = f"{mechanism}.relative_keys"
    if not isinstance(relative, RelativeKeys):
        rule, remedy = "it must return RelativeKeys", "return RelativeKeys(vectors, projection, u, v)"
        raise usage_error(subject, f"an output of type {type(relative).__name__}", rule, remedy)
    columns = head_dim if relative.projection is None else relative.projection.shape[-1]
    shapes: dict[str, tuple[int, ...]] = {"vectors": (heads, n, columns), "projection": (heads, head_dim, columns)}
    shapes |= {"u": (heads, head_dim), "v": (heads, head_dim)}
    for name, shape in shapes.items():
        got = getattr(relative, name)
        shared = name == "vectors" and got.shape == (1, *shape[1:])
        if got is not None and got.shape != shape and not shared:
            rule = f"it has shape {list(shape)} for {n} distances and {heads} query heads of dimension {head_dim}"
            remedy = f"build {mechanism} for these heads"
            raise usage_error(subject, f"{name} of shape {list(got.shape)}", rule, remedy)
    return relative
