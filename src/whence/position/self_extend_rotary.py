"""SelfExtend: exact distances near the query, floored ones far from it (Jin et al. 2024, arXiv 2401.01325).

With a window w and groups of g tokens, the query at i and the key at j are rotated as if their distance were

    i - j                            if i - j < w
    i // g + w - w / g - j // g      otherwise

so that distances of a model of trained length L stay below L up to ``(L - w) g + w`` tokens. w is a multiple of g; then the second
line continues the first. The formula is that of the authors' code (``datamllab/LongLM``), which takes w / g as a fraction. Their
temperature is ``LogTemperature(form="log", original=L)`` beside it.

Use it on inputs longer than a rotary model was trained on: train with ``Rotary`` and evaluate with this. In a pretrained model it
is the cure ``self-extend``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from whence.errors import usage_error
from whence.position.regions import Region, RegionRotary, pair_distances
from whence.validation import require_integer


class SelfExtendRotary(RegionRotary):
    """Rotary with distances beyond a window floored to multiples of a group size.

    Args:
        group: tokens of a group. 1 is plain rotary.
        window: distances below it stay exact; a multiple of ``group``.
        base: determines the lowest frequency of the rotation.
        layout: ``"half"`` or ``"interleaved"``: which columns form a pair.
        rotary_dim: number of leading columns that are rotated; ``None`` for the whole head.

    >>> import torch
    >>> near, far = SelfExtendRotary(group=4, window=8).regions(torch.tensor([[20]]), torch.tensor([[13, 12, 11, 0]]))
    >>> pair_distances(far.q_positions, far.k_positions)[far.where], near.where
    (tensor([ 8,  9, 11]), tensor([[[ True, False, False, False]]]))
    """

    def __init__(
        self,
        *,
        group: int = 4,
        window: int = 64,
        base: float = 10000.0,
        layout: str = "half",
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__(base=base, layout=layout, rotary_dim=rotary_dim)
        self.group, self.window = require_groups("SelfExtendRotary", group, window)

    def regions(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Region, Region]:
        return self_extend_regions(q_positions, k_positions, self.group, self.window)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "group", self.group
        yield "window", self.window
        yield from super().repr_items()


def self_extend_regions(
    i: Tensor, j: Tensor, group: int, window: int, factor: Tensor | float = 1.0
) -> tuple[Region, Region]:
    """The exact and the floored region of queries i ``[..., n]`` and keys j ``[..., S]``."""
    distance = pair_distances(i, j)
    near = (distance >= 0) & (distance < window)
    far_i = i // group + window - window // group
    return Region(i, j, near, factor), Region(far_i, j // group, distance >= window, factor)


def require_groups(owner: str, group: int, window: int | None) -> tuple[int, Any]:
    """Refuse a group size and a window that leave a jump between the regions."""
    require_integer(owner, "group", group, remedy="pass 1 for no change")
    if window is not None:
        require_integer(owner, "window", window, remedy="pass a number of tokens")
        if window % group:
            raise usage_error(
                f"{owner}(window=...)",
                f"{window} with group={group}",
                "window must be a multiple of group, so that distances continue without a jump",
                f"pass window={max(group, window // group * group)}",
            )
    return group, window
