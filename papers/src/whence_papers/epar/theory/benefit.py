"""The position of maximum benefit: importance, position value, the source's prediction of it, and their agreement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.position_effect import StatementCheck


def importance(x: Tensor) -> Tensor:
    """The importance ``[..., L]`` of vectors ``[..., L, D]``: their Euclidean norms."""
    return torch.linalg.vector_norm(x.to(torch.float64), dim=-1)


def position_value(weights: Tensor, importance: Tensor) -> Tensor:
    """V(i) = sum_j A_ij I_j: weights ``[..., L, S]`` and importance ``[..., S]`` give ``[..., L]``.

    >>> position_value(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([2.0, 4.0]))
    tensor([2., 3.], dtype=torch.float64)
    """
    if weights.ndim < 2 or importance.ndim < 1 or weights.shape[-1] != importance.shape[-1]:
        raise usage_error(
            "position_value(weights, importance)",
            f"shapes {tuple(weights.shape)} and {tuple(importance.shape)}",
            "each key needs one importance",
            "pass weights [..., L, S] and importance [..., S]",
        )
    return (weights.to(torch.float64) @ importance.to(torch.float64)[..., None])[..., 0]


@dataclass(frozen=True)
class Benefit:
    """All positions of maximum benefit, and the margin to the best other position."""

    positions: tuple[int, ...]
    value: float
    margin: float  # to the best other position; infinite if there is none

    @property
    def tied(self) -> bool:
        return len(self.positions) > 1


def maximum_benefit(value: Tensor, tolerance: float = 1e-12) -> Benefit:
    """All positions with the largest value ``[L]``. Values within the relative ``tolerance`` of it count as ties.

    >>> maximum_benefit(torch.tensor([1.0, 3.0, 2.0, 3.0]))
    Benefit(positions=(1, 3), value=3.0, margin=1.0)
    """
    if value.ndim != 1 or value.numel() == 0 or not bool(torch.isfinite(value).all()):
        raise usage_error(
            "maximum_benefit(value)",
            f"shape {tuple(value.shape)}" + (" with numbers that are not finite" if value.ndim == 1 else ""),
            "value holds one finite number per position of one sequence",
            "pass the values of one sequence, [L] with L >= 1",
        )
    value = value.to(torch.float64)
    best = float(value.max())
    near = value >= best - tolerance * abs(best)
    others = value[~near]
    margin = float("inf") if others.numel() == 0 else best - float(others.max())
    return Benefit(tuple(near.nonzero()[:, 0].tolist()), best, margin)


def value_is_convex_combination(weights: Tensor, importance: Tensor) -> StatementCheck:
    """Proposition 1: V(i) lies between the smallest and the largest importance, and some position attains the maximum.

    weights ``[..., L, S]`` with rows that sum to 1, importance ``[..., S]`` of at least 0.
    """
    rounding = torch.finfo(weights.dtype).eps  # rows computed in single precision sum to 1 only up to its rounding
    weights, importance = weights.to(torch.float64), importance.to(torch.float64)
    value = position_value(weights, importance)
    low, high = importance.min(-1, keepdim=True).values, importance.max(-1, keepdim=True).values
    outside = torch.maximum(value - high, low - value).clamp(min=0)
    unlike_one = float((weights.sum(-1) - 1).abs().max())
    worst = int(outside.argmax())
    scale = float(importance.abs().max())
    allowed = 4 * rounding * weights.shape[-1] * max(scale, 1e-300)
    violation = float(outside.max())
    return StatementCheck(
        "V(i) is a convex combination of the importances",
        f"{value.numel()} rows of {weights.shape[-1]} keys",
        value.numel(),
        violation,
        allowed,
        None if violation <= allowed else {"row": worst, "V": float(value.reshape(-1)[worst])},
        {
            "rows differ from sum 1 by": unlike_one,
            "largest V over largest importance": float((value.amax(-1) / high[..., 0]).max()),
            "spread of V over spread of importance": float(
                ((value.amax(-1) - value.amin(-1)) / (high - low)[..., 0].clamp(min=1e-300)).mean()
            ),
        },
    )


def source_prediction(weights: Tensor, importance: Tensor) -> Tensor:
    """The position that the source's code predicts: argmax_i of (mean of row i) * I_i, for weights ``[..., L, L]``."""
    return (weights.to(torch.float64).mean(-1) * importance.to(torch.float64)).argmax(-1)


def prediction_ignores_attention(weights: Tensor, importance: Tensor) -> StatementCheck:
    """The source's prediction is argmax I for every attention matrix, because a row that sums to 1 has the mean 1 / L.

    The violation is the difference between the largest importance and that of the predicted position.
    """
    rounding = torch.finfo(weights.dtype).eps  # the rounding error of row sums
    weights, importance = weights.to(torch.float64), importance.to(torch.float64)
    predicted = source_prediction(weights, importance)
    reached = importance.gather(-1, predicted[..., None])[..., 0]
    short = importance.max(-1).values - reached
    means = weights.mean(-1) * weights.shape[-1]
    allowed = 8 * rounding * float(importance.max()) * weights.shape[-1]
    violation = float(short.max())
    worst = int(short.argmax())
    return StatementCheck(
        "argmax of row mean times importance is argmax of importance",
        f"{predicted.numel()} sequences of {weights.shape[-1]} positions",
        predicted.numel(),
        violation,
        allowed,
        None if violation <= allowed else {"sequence": worst, "predicted": float(predicted.reshape(-1)[worst])},
        {"row mean times L, lowest": float(means.min()), "row mean times L, highest": float(means.max())},
    )


@dataclass(frozen=True)
class Consistency:
    """The source's measure in its two parts. If several positions are best, the nearest one counts."""

    value_part: float  # 1 - |V(p*) - V(p)| / V(p*)
    position_part: float  # 1 - |p* - p| / L

    @property
    def both(self) -> float:
        return (self.value_part + self.position_part) / 2


def consistency(value: Tensor, predicted: int) -> Consistency:
    """The source's two-part consistency of a predicted position with the values ``[L]``.

    >>> consistency(torch.tensor([1.0, 4.0, 3.0, 2.0]), 3)
    Consistency(value_part=0.5, position_part=0.5)
    """
    _require_positive(best := maximum_benefit(value))
    difference = abs(best.value - float(value[_checked_position(predicted, value)]))
    return Consistency(1 - difference / best.value, distance_consistency(value, predicted))


def distance_consistency(value: Tensor, predicted: int) -> float:
    """The distance part alone: 1 - |p* - p| / L, where p* is the nearest of the best positions.

    >>> distance_consistency(torch.tensor([5.0, 4.0, 5.0, 2.0]), 3)
    0.75
    """
    position, length = _checked_position(predicted, value), value.shape[0]
    return 1 - min(abs(best - position) for best in maximum_benefit(value).positions) / length


def chance_consistency(value: Tensor) -> Consistency:
    """The expected consistency of a position drawn uniformly at random: the chance level."""
    _require_positive(best := maximum_benefit(value))
    positions = torch.arange(value.shape[0])
    difference = (positions[:, None] - torch.tensor(best.positions)).abs().amin(-1)
    mean_value, mean_difference = float(value.double().mean()), float(difference.double().mean())
    return Consistency(mean_value / best.value, 1 - mean_difference / value.shape[0])


def ranks(x: Tensor) -> Tensor:
    """Ranks from 1 along the last axis, in double precision. Ties get the mean of their ranks.

    >>> ranks(torch.tensor([10.0, 30.0, 20.0, 20.0]))
    tensor([1.0000, 4.0000, 2.5000, 2.5000], dtype=torch.float64)
    """
    ordered = x.sort(-1).values.contiguous()
    queries = x.contiguous()
    below = torch.searchsorted(ordered, queries, right=False)
    up_to = torch.searchsorted(ordered, queries, right=True)
    return (below + up_to + 1).to(torch.float64) / 2


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of ``[..., n]`` and ``[..., n]`` with ties. NaN where one side is constant.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0]))
    tensor(1., dtype=torch.float64)
    """
    if a.shape != b.shape or a.ndim < 1 or a.shape[-1] < 2:
        raise usage_error(
            "spearman(a, b)",
            f"shapes {tuple(a.shape)} and {tuple(b.shape)}",
            "both must have the same shape [..., n] with n >= 2",
            "rank the same positions in both",
        )
    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def _require_positive(best: Benefit) -> None:
    if best.value <= 0:
        raise usage_error(
            "consistency(value, ...)",
            f"a largest value of {best.value}",
            "the value part divides by the largest value",
            "pass values above 0",
        )


def _checked_position(predicted: int, value: Tensor) -> int:
    if not 0 <= int(predicted) < value.shape[0]:
        raise usage_error(
            "consistency(value, predicted)",
            f"{predicted} for {value.shape[0]} positions",
            "positions count from 0",
            f"pass 0 to {value.shape[0] - 1}",
        )
    return int(predicted)
