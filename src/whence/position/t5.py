"""T5's bias: a learnable number per bucket of distances (Raffel et al. 2019, arXiv 1910.10683).

Of n buckets for one side, the first e = n // 2 contain one distance each. Bucket e + k contains the distances d for which
``(n - e) * log(d / e) / log(max_distance / e)`` is in [k, k + 1), and the last one all larger distances. In the causal form
all buckets are for keys at or before the query; in the bidirectional form each side has half of them.

T5 does not scale its scores: use ``attend(..., scale=1)`` to reproduce it.

Use it where the shape of the bias over distance should be learned and inputs at test time are about as long as in
training, in encoders and decoders alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position
from whence.validation import require_choice, require_integer, require_std

FORMS = ("causal", "bidirectional")
MAX_BUCKETS = 1024  # boundaries are computed with powers of this size


def bucket(distance: Tensor, form: str = "causal", buckets: int = 32, max_distance: int = 128) -> Tensor:
    """The bucket index of each signed distance (query position minus key position).

    >>> bucket(torch.tensor([0, 15, 16, 100, 1000]))
    tensor([ 0, 15, 16, 30, 31])
    >>> bucket(torch.tensor([1, -1]), "bidirectional")
    tensor([ 1, 17])
    """
    return _bucket_index(
        distance, form, torch.tensor(bucket_boundaries(form, buckets, max_distance), device=distance.device)
    )


def bucket_boundaries(form: str, buckets: int, max_distance: int) -> list[int]:
    """The smallest distance in each bucket of one side, except bucket 0.

    >>> bucket_boundaries("causal", 8, 16)
    [1, 2, 3, 4, 6, 8, 12]
    """
    sides = FORMS.index(require_choice("T5Bias", "form", form, FORMS)) + 1
    remedy = "use 32, as published"
    require_integer("T5Bias", "buckets", buckets, low=2 * sides, high=MAX_BUCKETS, remedy=remedy)
    if buckets % sides:
        raise usage_error(
            "T5Bias(buckets=...)", repr(buckets), "both sides must have the same number of buckets", remedy
        )
    exact = buckets // sides // 2  # number of distances with a bucket of their own
    remedy = "use 128, as published, or fewer buckets"
    require_integer("T5Bias", "max_distance", max_distance, low=exact + 1, remedy=remedy)
    boundaries = list(range(1, exact + 1))
    shared = buckets // sides - exact
    for k in range(1, shared):
        # in integers, because a rounded logarithm may fall on either side of an exact boundary
        least, span = max_distance**k * exact ** (shared - k), range(boundaries[-1], max_distance + 1)
        boundaries.append(span[bisect_left(span, least, key=lambda distance: distance**shared)])
    return boundaries


def _bucket_index(distance: Tensor, form: str, boundaries: Tensor) -> Tensor:
    magnitude = distance.clamp(min=0) if form == "causal" else distance.abs()
    if magnitude.is_floating_point():
        magnitude = magnitude.round()
    index = torch.bucketize(magnitude, boundaries.to(magnitude.dtype), right=True)
    return index if form == "causal" else index + (distance < 0).long() * (boundaries.shape[0] + 1)


class T5Bias(Position):
    """A learnable bias per bucket of distances and head.

    Args:
        heads: number of query heads.
        form: ``"causal"`` or ``"bidirectional"``.
        buckets: number of buckets; even when bidirectional.
        max_distance: distances from about this one on share the last bucket.
        std: standard deviation of the normal distribution that initializes the table.

    >>> T5Bias(2).bias(torch.tensor([0.0, 1.0, 2.0]), None).shape
    torch.Size([2, 3])
    """

    needs_heads = True
    noncausal_arguments = {"form": "bidirectional"}
    boundaries: Tensor

    def __init__(
        self, heads: int, *, form: str = "causal", buckets: int = 32, max_distance: int = 128, std: float = 0.02
    ) -> None:
        super().__init__(heads=heads)
        boundaries = bucket_boundaries(form, buckets, max_distance)
        self.form = form
        self.buckets = buckets
        self.max_distance = max_distance
        self.causal_only = form == "causal"
        require_std("T5Bias", std)
        # a buffer, because a transfer to the device in each call would synchronize
        self.register_buffer("boundaries", torch.tensor(boundaries), persistent=False)
        self.table = nn.Parameter(torch.randn(buckets, heads) * std)

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        # the backward pass of index_select adds once per distance; that of an embedding would sort the distances first
        return self.table.mT.index_select(1, _bucket_index(distance, self.form, self.boundaries))

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "form", self.form
        yield "buckets", self.buckets
        yield "max_distance", self.max_distance
