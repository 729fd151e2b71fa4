"""A free table over distance: one learnable number per knot, without a formula.

The knots are the distances 0, 1, ..., ``exact``, and beyond them ``per_octave`` in every doubling up to ``max_distance``.
Between two knots the value is linear in log(1 + |d|), so every distance has a value. Beyond the last knot the value of
the last knot continues.

A knot that no training distance comes near has no gradient from the data and keeps its initial value. With
``smoothness`` above 0 ``penalty`` extends the curve there: it is the mean squared second difference of neighbouring
knots, and is 0 for a curve that is linear in the knots. ``whence.lab`` adds the penalty of every Position to the loss; a
training loop of your own adds it too.

``whence.discover`` fits formulas to trained tables.

Use it to find out which curve a task wants, before there is a formula; ``whence.discover`` then names it. It learns
nothing about distances beyond those of the training.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.position.base import Position
from whence.validation import require_choice, require_integer, require_number, require_table

ACTS_ON = ("bias", "scale", "bias and scale")
MAX_PER_OCTAVE = 64


def table_knots(exact: int, per_octave: int, max_distance: int) -> list[int]:
    """The distances of the knots, increasing from 0 to ``max_distance``.

    >>> table_knots(4, 2, 32)
    [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32]
    """
    knots = list(range(min(exact, max_distance) + 1))
    step, far = 1, exact
    while far < max_distance:
        far = min(round(exact * 2 ** (step / per_octave)), max_distance)
        step += 1
        if far > knots[-1]:  # the knots of a small octave coincide
            knots.append(far)
    return knots


class FreeTable(Position):
    """A learnable value per knot of distance, added to the score, multiplied with it, or both.

    Args:
        heads: one table per head; ``None`` for one table shared by all heads.
        acts_on: ``"bias"``, ``"scale"`` or ``"bias and scale"``.
        exact: distances up to this one have a knot each.
        per_octave: knots in every doubling of the distance beyond ``exact``.
        max_distance: the last knot. The longest distance in training is a good choice.
        smoothness: weight of ``penalty``; 0 for none.

    A bias is initially 0 and a scale 1, so an untrained table has no effect.

    >>> table = FreeTable(exact=2, per_octave=1, max_distance=8)
    >>> table.knots.tolist()
    [0, 1, 2, 4, 8]
    >>> _ = table.load_state_dict({"bias_table": torch.arange(5.0)[None]})
    >>> table.bias(torch.tensor([0.0, 2.0, 3.0, -8.0, 100.0]), None).detach()
    tensor([0.0000, 2.0000, 2.5632, 4.0000, 4.0000])
    """

    model_arguments = ("heads",)
    knots: Tensor

    def __init__(
        self,
        heads: int | None = None,
        *,
        acts_on: str = "bias",
        exact: int = 16,
        per_octave: int = 4,
        max_distance: int = 4096,
        smoothness: float = 0.0,
    ) -> None:
        super().__init__(heads=heads)
        self.acts_on = require_choice("FreeTable", "acts_on", acts_on, ACTS_ON)
        self.exact = require_integer("FreeTable", "exact", exact, remedy="pass 16")
        self.per_octave = require_integer("FreeTable", "per_octave", per_octave, high=MAX_PER_OCTAVE, remedy="pass 4")
        remedy = "pass the longest distance in training"
        self.max_distance = require_integer("FreeTable", "max_distance", max_distance, low=2, high=2**40, remedy=remedy)
        remedy = "pass 0 for no penalty"
        self.smoothness = float(require_number("FreeTable", "smoothness", smoothness, low=0, remedy=remedy))
        require_table("FreeTable", heads or 1, min(exact, max_distance) + 1)
        knots = torch.tensor(table_knots(exact, per_octave, max_distance))
        # a buffer, because a transfer to the device in each call would synchronize
        self.register_buffer("knots", knots, persistent=False)
        shape = require_table("FreeTable", heads or 1, len(knots))
        self.bias_table = nn.Parameter(torch.zeros(shape)) if "bias" in acts_on else None
        self.scale_table = nn.Parameter(torch.ones(shape)) if "scale" in acts_on else None

    @property
    def effects(self) -> frozenset[str]:
        hooks = {"bias": self.bias_table, "score_scale": self.scale_table}
        return frozenset(hook for hook, table in hooks.items() if table is not None)

    def bias(self, distance: Tensor, length: object) -> Tensor | None:
        return self._interpolate(self.bias_table, distance)

    def score_scale(self, distance: Tensor, length: object) -> Tensor | None:
        return self._interpolate(self.scale_table, distance)

    def penalty(self) -> Tensor | None:
        """``smoothness`` times the mean squared second difference of neighbouring knots; None without smoothness."""
        if self.smoothness == 0:
            return None
        tables = [table for table in (self.bias_table, self.scale_table) if table is not None]
        return self.smoothness * torch.stack([table.diff(n=2).square().mean() for table in tables]).sum()

    def _interpolate(self, table: Tensor | None, distance: Tensor) -> Tensor | None:
        if table is None:
            return None
        far = distance.abs()
        knots = self.knots.to(far.dtype)
        right = torch.bucketize(far, knots, right=True).clamp(1, len(knots) - 1)
        left = right - 1
        low, high = torch.log1p(knots[left]), torch.log1p(knots[right])
        share = ((torch.log1p(far) - low) / (high - low)).clamp(0, 1).to(table.dtype)
        # the backward pass of index_select adds once per distance
        values = torch.lerp(table.index_select(1, left), table.index_select(1, right), share)
        return values if self.heads is not None else values[0]

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "acts_on", self.acts_on
        yield "exact", self.exact
        yield "per_octave", self.per_octave
        yield "max_distance", self.max_distance
        yield "smoothness", self.smoothness
