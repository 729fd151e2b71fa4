"""How well a predicted position agrees with the position of maximum benefit, and one ranking with another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.benefit import Benefit, maximum_benefit


@dataclass(frozen=True)
class Consistency:
    """The source's measure in its two parts; where several positions are best, the nearest of them counts."""

    value_part: float  # 1 - |V(p*) - V(p)| / V(p*)
    place_part: float  # 1 - |p* - p| / L

    @property
    def both(self) -> float:
        return (self.value_part + self.place_part) / 2


def consistency(value: Tensor, predicted: int) -> Consistency:
    """The source's two-part consistency of a predicted position with the values ``[L]``.

    >>> consistency(torch.tensor([1.0, 4.0, 3.0, 2.0]), 3)
    Consistency(value_part=0.5, place_part=0.5)
    """
    _require_above_zero(best := maximum_benefit(value))
    apart = abs(best.value - float(value[_inside(predicted, value)]))
    return Consistency(1 - apart / best.value, distance_consistency(value, predicted))


def distance_consistency(value: Tensor, predicted: int) -> float:
    """The plain form: 1 - |p* - p| / L and nothing else, p* the nearest of the best positions.

    >>> distance_consistency(torch.tensor([5.0, 4.0, 5.0, 2.0]), 3)
    0.75
    """
    place, length = _inside(predicted, value), value.shape[0]
    return 1 - min(abs(best - place) for best in maximum_benefit(value).positions) / length


def consistency_by_chance(value: Tensor) -> Consistency:
    """What a guess uniform over all positions gets on average: the level above which a consistency says something."""
    _require_above_zero(best := maximum_benefit(value))
    places = torch.arange(value.shape[0])
    apart = (places[:, None] - torch.tensor(best.positions)).abs().amin(-1)
    mean_value, mean_apart = float(value.double().mean()), float(apart.double().mean())
    return Consistency(mean_value / best.value, 1 - mean_apart / value.shape[0])


def ranks(x: Tensor) -> Tensor:
    """Ranks from 1 along the last axis, in double precision; equal numbers share the mean of their ranks.

    >>> ranks(torch.tensor([10.0, 30.0, 20.0, 20.0]))
    tensor([1.0000, 4.0000, 2.5000, 2.5000], dtype=torch.float64)
    """
    ordered = x.sort(-1).values.contiguous()
    asked = x.contiguous()
    below = torch.searchsorted(ordered, asked, right=False)
    up_to = torch.searchsorted(ordered, asked, right=True)
    return (below + up_to + 1).to(torch.float64) / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of ``[..., n]`` and ``[..., n]``, ties handled; NaN where one side is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0]))
    tensor(1., dtype=torch.float64)
    """
    if a.shape != b.shape or a.ndim < 1 or a.shape[-1] < 2:
        raise usage_error(
            "spearman(a, b)",
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}",
            "both rank the same positions, two at least",
            "give two tensors of one shape [..., n]",
        )
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def _require_above_zero(best: Benefit) -> None:
    if best.value <= 0:
        raise usage_error(
            "consistency(value, ...)",
            f"a largest value of {best.value}",
            "the value part divides by the largest value",
            "give values above 0",
        )


def _inside(predicted: int, value: Tensor) -> int:
    if not 0 <= int(predicted) < value.shape[0]:
        raise usage_error(
            "consistency(value, predicted)",
            f"{predicted} for {value.shape[0]} positions",
            "the predicted position is one of them",
            "count from 0",
        )
    return int(predicted)
