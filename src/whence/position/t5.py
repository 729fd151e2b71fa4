"""T5's bias: a learnable number for each bucket of distances (Raffel et al. 2019, arXiv 1910.10683).

Of n buckets for one side, the first e = n // 2 hold one distance each. Bucket e + k holds the distances d for which
``(n - e) * log(d / e) / log(max_distance / e)`` lies in [k, k + 1), and the last one all farther ones. The causal form
gives all buckets to keys at or before the query; the bidirectional form gives half of them to each side.

T5 itself does not scale its scores: attend with ``scale=1`` to reproduce it.
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
MOST_BUCKETS = 1024  # the boundaries are found with powers of the number of buckets


def bucket(distance: Tensor, form: str = "causal", buckets: int = 32, max_distance: int = 128) -> Tensor:
    """The bucket of each signed distance (query position minus key position), as whole numbers.

    >>> bucket(torch.tensor([0, 15, 16, 100, 1000]))
    tensor([ 0, 15, 16, 30, 31])
    >>> bucket(torch.tensor([1, -1]), "bidirectional")
    tensor([ 1, 17])
    """
    return _count(distance, form, torch.tensor(first_distances(form, buckets, max_distance), device=distance.device))


def first_distances(form: str, buckets: int, max_distance: int) -> list[int]:
    """The smallest distance in each bucket of one side but bucket 0.

    >>> first_distances("causal", 8, 16)
    [1, 2, 3, 4, 6, 8, 12]
    """
    sides = FORMS.index(require_choice("T5Bias", "form", form, FORMS)) + 1
    remedy = "use 32, as published"
    require_integer("T5Bias", "buckets", buckets, low=2 * sides, high=MOST_BUCKETS, remedy=remedy)
    if buckets % sides:
        raise usage_error("T5Bias(buckets=...)", repr(buckets), "both sides have equally many buckets", remedy)
    exact = buckets // sides // 2  # distances that have a bucket of their own
    remedy = "use 128, as published, or fewer buckets"
    require_integer("T5Bias", "max_distance", max_distance, low=exact + 1, remedy=remedy)
    firsts = list(range(1, exact + 1))
    shared = buckets // sides - exact
    for k in range(1, shared):
        # in whole numbers, since a rounded logarithm lands on either side of a boundary that a distance meets exactly
        least, span = max_distance**k * exact ** (shared - k), range(firsts[-1], max_distance + 1)
        firsts.append(span[bisect_left(span, least, key=lambda distance: distance**shared)])
    return firsts


def _count(distance: Tensor, form: str, firsts: Tensor) -> Tensor:
    near = distance.clamp(min=0) if form == "causal" else distance.abs()
    if near.is_floating_point():
        near = near.round()
    found = torch.bucketize(near, firsts.to(near.dtype), right=True)
    return found if form == "causal" else found + (distance < 0).long() * (firsts.shape[0] + 1)


class T5Bias(Position):
    """A learnable bias for each bucket of distances and each head.

    Args:
        heads: number of query heads.
        form: ``"causal"`` or ``"bidirectional"``.
        buckets: number of buckets; even when bidirectional.
        max_distance: from about here on, all distances share the last bucket.
        std: standard deviation of the normal distribution the table starts from.

    >>> T5Bias(2).bias(torch.tensor([0.0, 1.0, 2.0]), None).shape
    torch.Size([2, 3])
    """

    needs_heads = True
    noncausal_arguments = {"form": "bidirectional"}
    firsts: Tensor

    def __init__(
        self, heads: int, *, form: str = "causal", buckets: int = 32, max_distance: int = 128, std: float = 0.02
    ) -> None:
        super().__init__(heads=heads)
        firsts = first_distances(form, buckets, max_distance)
        self.form = form
        self.buckets = buckets
        self.max_distance = max_distance
        self.causal_only = form == "causal"
        require_std("T5Bias", std)
        # on the device from the start: to send it there on each call would make the host wait
        self.register_buffer("firsts", torch.tensor(firsts), persistent=False)
        self.table = nn.Parameter(torch.randn(buckets, heads) * std)

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        # the gradient of index_select is one addition per distance, where an embedding's would sort them first
        return self.table.mT.index_select(1, _count(distance, self.form, self.firsts))

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "form", self.form
        yield "buckets", self.buckets
        yield "max_distance", self.max_distance
