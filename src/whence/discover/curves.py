"""Curves over distance by seed and head, their mean and their uncertainty.

Softmax cannot see a constant that is added to a bias, and the weights of queries and keys absorb a constant factor of a
scale. So every seed's bias is shifted to the mean 0, and every seed's scale is divided by its mean, before seeds are
compared.

The variance at a distance comes from few seeds. It is averaged with the variances of the neighbouring knots, which
count as ``PRIOR`` further degrees of freedom. Neighbouring knots of a seed deviate together: ``correlation`` is that of
two neighbours, and the fits assume that it falls geometrically with the number of knots between them.

Seeds also err together: training leaves a little of every curve unlearned, and a table is linear between its knots. The
standard error of the mean contains ``SHARED``, a share of the curve's range, for it. Without it, a formula with a further term
would be named for a thousandth of the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment
from torch import nn

from whence.discover.shapes import Array
from whence.errors import usage_error
from whence.position.free_table import FreeTable

HOOKS = ("bias", "scale")
PRIOR = 4.0
NEIGHBOURS = 3  # on each side
LARGEST_CORRELATION = 0.95
LEAST_KNOTS = 8
SHARED = 0.003  # of the range of a curve: as measured in students of teachers, benchmarks/discovery_teachers.py


@dataclass(frozen=True)
class Curves:
    """Learned values over distance.

    Args:
        distances: increasing, from 0 on.
        values: ``[seeds, heads, distances]``; ``[seeds, distances]`` for one head.
        hook: ``"bias"`` or ``"scale"``.

    >>> curves = Curves([0, 1, 2, 3, 4, 6, 8, 11], np.ones((3, 2, 8)) * np.arange(8))
    >>> curves.heads, curves.mean[0].round(1).tolist()
    (2, [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    """

    distances: Array
    values: Array
    hook: str = "bias"
    mean: Array = field(init=False, repr=False)  # [heads, distances]
    variance: Array = field(init=False, repr=False)  # of one seed, [heads, distances]
    correlation: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        distances, values = np.asarray(self.distances, float), np.asarray(self.values, float)
        values = values[:, None] if values.ndim == 2 else values
        if self.hook not in HOOKS:
            raise usage_error("Curves(hook=...)", repr(self.hook), "hook must be 'bias' or 'scale'", "pass one of them")
        if (
            distances.ndim != 1
            or len(distances) < LEAST_KNOTS
            or distances[0] < 0
            or not (np.diff(distances) > 0).all()
        ):
            raise usage_error(
                "Curves(distances=...)",
                f"shape {list(distances.shape)}",
                f"distances are at least {LEAST_KNOTS} increasing numbers from 0 on",
                "pass the knots of a FreeTable",
            )
        if values.ndim != 3 or values.shape[2] != len(distances) or 0 in values.shape:
            raise usage_error(
                "Curves(values=...)",
                f"shape {list(values.shape)}",
                f"values must be [seeds, heads, {len(distances)}]",
                "pass one row for each seed and head",
            )
        if not np.isfinite(values).all():
            raise usage_error(
                "Curves(values=...)", "NaN or infinity", "values must be finite", "leave out diverged seeds"
            )
        values = _remove_invisible(values, self.hook)
        set_field = object.__setattr__  # the class is frozen
        set_field(self, "distances", distances)
        set_field(self, "values", values)
        set_field(self, "mean", values.mean(0))
        variance = _moderated_variance(values)
        set_field(self, "correlation", _neighbour_correlation(values, variance))
        # what the removal of the mean took away belongs to the noise as well
        set_field(self, "variance", variance / _centred_moments(self.correlation, len(distances))[0])

    @property
    def seeds(self) -> int:
        return len(self.values)

    @property
    def heads(self) -> int:
        return self.values.shape[1]

    @property
    def standard_error(self) -> Array:
        """Of the mean over seeds."""
        shared = SHARED * np.ptp(self.mean, axis=1, keepdims=True) if self.seeds > 1 else 0.0
        return np.sqrt(self.variance / self.seeds + shared**2)


def _remove_invisible(values: Array, hook: str) -> Array:
    level = values.mean(2, keepdims=True)
    if hook == "bias":
        return values - level
    if (np.abs(level) <= 1e-3 * np.abs(values).max(2, keepdims=True)).any():
        raise usage_error("Curves(values=...)", "scales with the mean 0", "a scale is a factor", "pass hook='bias'")
    return values / level


def _moderated_variance(values: Array) -> Array:
    """The variance over seeds, moderated by that of neighbouring distances; 1 everywhere for a single seed."""
    seeds, _, knots = values.shape
    smallest = max(1e-12, 1e-8 * float(np.ptp(values)) ** 2)  # values without any spread still have a weight
    if seeds == 1:
        return np.ones(values.shape[1:])
    own = values.var(0, ddof=1)
    local = np.empty_like(own)
    for knot in range(knots):
        local[:, knot] = own[:, max(0, knot - NEIGHBOURS) : knot + NEIGHBOURS + 1].mean(1)
    freedom = seeds - 1
    return np.maximum((freedom * own + PRIOR * local) / (freedom + PRIOR), smallest)


def _neighbour_correlation(values: Array, variance: Array) -> float:
    """The correlation of neighbouring knots that deviations with the mean 0 over the knots come from."""
    if len(values) == 1:
        return 0.0
    deviations = (values - values.mean(0)) / np.sqrt(variance)
    square = float((deviations**2).mean())
    if square == 0:
        return 0.0
    seen = float((deviations[..., 1:] * deviations[..., :-1]).mean()) / square
    trials = np.linspace(0, LARGEST_CORRELATION, 39)
    expected = [_centred_moments(trial, values.shape[2]) for trial in trials]
    return float(np.interp(seen, [product / own for own, product in expected], trials))


def _centred_moments(correlation: float, knots: int) -> tuple[float, float]:
    """The mean square and the mean product of neighbours that remain when each seed's mean over its knots is removed."""
    steps = np.abs(np.subtract.outer(np.arange(knots), np.arange(knots)))
    centre = np.eye(knots) - 1 / knots
    left = centre @ correlation**steps @ centre
    return float(np.diag(left).mean()), float(np.diag(left, 1).mean())


def read_tables(models: Sequence[nn.Module], hook: str = "bias", layer: int = 0, longest: int | None = None) -> Curves:
    """The free tables of a layer of models that were trained with different seeds.

    Heads have no order that all seeds share. Those of each seed are assigned to the heads of the first seed so that the
    squared differences are smallest. This makes seeds look more alike than they are where heads differ by chance alone;
    a table shared by all heads (``FreeTable(heads=None)``) has no such choice.

    Args:
        models: one model for each seed.
        hook: ``"bias"`` or ``"scale"``.
        layer: which of a model's tables, in the order of its modules.
        longest: leave out knots beyond this distance, which training never reached.
    """
    rows, knots = [], None
    for model in models:
        found = [part for part in model.modules() if isinstance(part, FreeTable)]
        if layer >= len(found):
            raise usage_error(
                "read_tables(models)",
                f"a model with {len(found)} FreeTables and layer={layer}",
                "layer counts the FreeTables of a model from 0",
                "train with position FreeTable(), or name another layer",
            )
        table = found[layer].bias_table if hook == "bias" else found[layer].scale_table
        if table is None:
            raise usage_error(
                "read_tables(hook=...)", repr(hook), f"the table acts on {found[layer].acts_on}", "name that hook"
            )
        rows.append(table.detach().double().cpu().numpy())
        knots = found[layer].knots.cpu().numpy()
    if knots is None:
        raise usage_error("read_tables(models)", "no model", "it reads at least one", "pass the trained models")
    seen = knots <= (knots[-1] if longest is None else longest)
    return Curves(knots[seen], align_heads(np.stack(rows)[..., seen], hook), hook)


def align_heads(values: Array, hook: str = "bias") -> Array:
    """Values ``[seeds, heads, distances]`` with the heads of each seed in the order of the first seed's.

    >>> align_heads(np.array([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 2.0]]]))[1].tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    visible = _remove_invisible(values, hook)
    ordered = [values[0]]
    for own, shown in zip(values[1:], visible[1:], strict=True):
        costs = ((visible[0][:, None] - shown[None]) ** 2).sum(2)
        ordered.append(own[linear_sum_assignment(costs)[1]])
    return np.stack(ordered)
