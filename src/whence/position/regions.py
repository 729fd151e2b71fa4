"""Regions: several rotations of one score, chosen by where query and key are.

A rotary score depends on the difference of the two rotated positions. ``RegionRotary`` rotates the same query and key to other
positions in each region of pairs, and the softmax runs over all regions together. This equals one attention per region whose
outputs are merged by their log-sum-exp, without the rounding of the merge.

A subclass writes ``regions``. It is a score term (``content_bias``), so it composes with other mechanisms, runs on ``reference``
and ``blockwise``, and in caches, which store keys before rotation. The fused kernels rotate a key once for all queries and refuse
it. The cures of ``whence.mend`` use the same regions in pretrained models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.position.base import Position
from whence.position.hook_types import Rows
from whence.position.rotary import Rotary


@dataclass(frozen=True)
class Region:
    """Some pairs of query and key, and the positions they are rotated to. Positions may be fractions.

    In a ``Position`` the tensors have no head axis: ``[B or 1, n]`` and ``[B or 1, n, S]``. In an edit of a pretrained model they
    have one, as here.
    """

    q_positions: Tensor  # [B or 1, H or 1, n]
    k_positions: Tensor  # [B or 1, H or 1, S]
    where: Tensor | None = None  # bool, broadcasts to [B, H, n, S]; all pairs by default
    factor: Tensor | float = 1.0  # multiplies the scores; broadcasts to [B, H, n, 1]


class RegionRotary(Position):
    """Rotary whose positions depend on the pair of query and key. Subclass it and write ``regions``.

    Args:
        base: determines the lowest frequency of the rotation.
        layout: ``"half"`` or ``"interleaved"``: which columns form a pair.
        rotary_dim: number of leading columns that are rotated; ``None`` for the whole head.
    """

    causal_only = True
    relative = False
    rotates_by_regions = True

    def __init__(self, *, base: float = 10000.0, layout: str = "half", rotary_dim: int | None = None) -> None:
        super().__init__()
        self.rotary = Rotary(base=base, layout=layout, rotary_dim=rotary_dim)

    def regions(self, q_positions: Tensor, k_positions: Tensor) -> Sequence[Region]:
        """The regions of queries ``[B or 1, n]`` and keys ``[B or 1, S]``. Where they overlap, the last one counts."""
        raise NotImplementedError

    def content_bias(self, rows: Rows) -> Tensor:
        """The scores of the regions instead of those of the queries and keys as they are."""
        scores = rows.scores
        for region in self.regions(rows.q_positions, rows.k_positions):
            q, k = self.rotary.rotate(rows.q, rows.k, region.q_positions, region.k_positions)
            factor = region.factor[:, None] if isinstance(region.factor, Tensor) else region.factor
            own = rows.scale * factor * (q @ k.transpose(-1, -2))
            scores = own if region.where is None else torch.where(region.where[:, None], own, scores)
        return scores - rows.scores

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield from self.rotary.repr_items()


def pair_distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Query position minus key position: ``[..., n, S]`` for ``[..., n]`` and ``[..., S]``."""
    return q_positions[..., :, None] - k_positions[..., None, :]
