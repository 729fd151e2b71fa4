"""Which position gathers most: information importance, position value and the position of maximum benefit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.evidence import Evidence


def importance(x: Tensor) -> Tensor:
    """Vectors ``[..., L, width]`` have the importance ``[..., L]``, the Euclidean norm of each."""
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
            "there is one importance a key",
            "give weights [..., L, S] and importance [..., S]",
        )
    return (weights.to(torch.float64) @ importance.to(torch.float64)[..., None])[..., 0]


@dataclass(frozen=True)
class Benefit:
    """The positions of maximum benefit: all of argmax, and by how much the best other position falls short."""

    positions: tuple[int, ...]
    value: float
    margin: float  # to the best position that is not among them; infinite where there is none

    @property
    def tied(self) -> bool:
        return len(self.positions) > 1


def maximum_benefit(value: Tensor, tolerance: float = 1e-12) -> Benefit:
    """All positions whose value ``[L]`` is the largest; values within ``tolerance`` of it, as a share, are ties.

    >>> maximum_benefit(torch.tensor([1.0, 3.0, 2.0, 3.0]))
    Benefit(positions=(1, 3), value=3.0, margin=1.0)
    """
    if value.ndim != 1 or value.numel() == 0 or not bool(torch.isfinite(value).all()):
        raise usage_error(
            "maximum_benefit(value)",
            f"shape {tuple(value.shape)}" + (" with numbers that are not finite" if value.ndim == 1 else ""),
            "value holds one finite number a position of one sequence",
            "give the values of one row, [L] with L of at least 1",
        )
    value = value.to(torch.float64)
    best = float(value.max())
    near = value >= best - tolerance * abs(best)
    others = value[~near]
    margin = float("inf") if others.numel() == 0 else best - float(others.max())
    return Benefit(tuple(near.nonzero()[:, 0].tolist()), best, margin)


def value_is_a_mean(weights: Tensor, importance: Tensor) -> Evidence:
    """Proposition 1: V(i) lies between the least and the largest importance, and some position attains the maximum.

    weights ``[..., L, S]`` with rows that sum to 1, importance ``[..., S]`` of at least 0.
    """
    given = torch.finfo(weights.dtype).eps  # rows that were computed in single precision sum to 1 in that only
    weights, importance = weights.to(torch.float64), importance.to(torch.float64)
    value = position_value(weights, importance)
    low, high = importance.min(-1, keepdim=True).values, importance.max(-1, keepdim=True).values
    outside = torch.maximum(value - high, low - value).clamp(min=0)
    unlike_one = float((weights.sum(-1) - 1).abs().max())
    worst = int(outside.argmax())
    scale = float(importance.abs().max())
    allowed = 4 * given * weights.shape[-1] * max(scale, 1e-300)
    found = float(outside.max())
    return Evidence(
        "V(i) is a convex combination of the importances",
        f"{value.numel()} rows of {weights.shape[-1]} keys",
        value.numel(),
        found,
        allowed,
        None if found <= allowed else {"row": worst, "V": float(value.reshape(-1)[worst])},
        {
            "rows differ from sum 1 by": unlike_one,
            "largest V over largest importance": float((value.amax(-1) / high[..., 0]).max()),
            "spread of V over spread of importance": float(
                ((value.amax(-1) - value.amin(-1)) / (high - low)[..., 0].clamp(min=1e-300)).mean()
            ),
        },
    )


def predicted_by_source(weights: Tensor, importance: Tensor) -> Tensor:
    """The position that the source's code predicts: argmax_i of (mean of row i) * I_i, of weights ``[..., L, L]``."""
    return (weights.to(torch.float64).mean(-1) * importance.to(torch.float64)).argmax(-1)


def prediction_reads_no_attention(weights: Tensor, importance: Tensor) -> Evidence:
    """The source's prediction is argmax I whatever the attention: a row that sums to 1 has the mean 1 / L.

    The violation is by how much the importance of a predicted position falls short of the largest.
    """
    given = torch.finfo(weights.dtype).eps  # of rows whose sum is 1
    weights, importance = weights.to(torch.float64), importance.to(torch.float64)
    predicted = predicted_by_source(weights, importance)
    reached = importance.gather(-1, predicted[..., None])[..., 0]
    short = importance.max(-1).values - reached
    means = weights.mean(-1) * weights.shape[-1]
    allowed = 8 * given * float(importance.max()) * weights.shape[-1]
    found = float(short.max())
    worst = int(short.argmax())
    return Evidence(
        "argmax of row mean times importance is argmax of importance",
        f"{predicted.numel()} sequences of {weights.shape[-1]} positions",
        predicted.numel(),
        found,
        allowed,
        None if found <= allowed else {"sequence": worst, "predicted": float(predicted.reshape(-1)[worst])},
        {"row mean times L, lowest": float(means.min()), "row mean times L, highest": float(means.max())},
    )
