"""The best numbers for a trained head and a stated objective, by gradient and by grid, and whether they lie on a bound.

Two objectives. The task's error has its optimum wherever it has it, on a bound of the search too. The other asks for
numbers that are known: with which of them does a head attend as it does with those of the source's signature? Theirs is
the only error of 0, and they are inside all bounds, so that both ways must find them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.experiment import Results
from whence_papers.epar import theory
from whence_papers.epar.experiments.heads import queries_and_keys
from whence_papers.epar.experiments.setup import Setup, rounded, sequences, wanted


@dataclass(frozen=True)
class Search(Setup):
    """How the best numbers are looked for."""

    grid_points: int = 5
    grid_rounds: int = 30
    grid_shrink: float = 0.6
    starts: int = 3


def one_of_each(setup: Setup, number: int) -> tuple[Tensor, Tensor]:
    """A head's first sequence of every pattern: importances and tokens."""
    firsts = [tuple(part[:1] for part in sequences(name, setup, number)) for name in theory.PATTERNS]
    return torch.cat([importance for importance, _ in firsts]), torch.cat([x for _, x in firsts])


def task_error(setup: Setup, heads: Mapping[str, Any], number: int) -> theory.Measure:
    """The task's error of a trained head as a function of EPAR's numbers ``[n, 3]``: ``[n]``, differentiable."""
    importance, x = one_of_each(setup, number)
    return _distance_from(wanted(importance, setup)[:, None], x, setup, heads, number)


def imitation_error(setup: Setup, heads: Mapping[str, Any], number: int) -> theory.Measure:
    """How far a trained head's attention is from the one that it has with the numbers of the source's signature."""
    _, x = one_of_each(setup, number)
    q, k = queries_and_keys(x, "trained", "enhanced", number, heads)
    want = theory.attention_weights(q, k, theory.CODE_DEFAULTS.position(setup.length))
    return _distance_from(want, x, setup, heads, number)


def _distance_from(want: Tensor, x: Tensor, setup: Setup, heads: Mapping[str, Any], number: int) -> theory.Measure:
    """The squared difference of the attention from a wanted one ``[B, 1, L, L]`` over the wanted one's square."""
    q, k = queries_and_keys(x, "trained", "enhanced", number, heads)

    def measure(numbers: Tensor) -> Tensor:
        a = theory.attention_weights(q, k, theory.epar(numbers, setup.length))
        return ((a - want).square().sum((2, 3)) / want.square().sum((2, 3))).mean(0)

    return measure


OBJECTIVES: dict[str, Callable[[Setup, Mapping[str, Any], int], theory.Measure]] = {
    "task": task_error,
    "imitation": imitation_error,
}


def best(setup: Search, heads: Mapping[str, Any]) -> Results:
    """``[objective][head]``: what each way found, whether the two agree, and what lies beyond the bounds."""
    return {
        name: [_two_ways(objective(setup, heads, number), setup) for number in range(len(setup.seeds))]
        for name, objective in OBJECTIVES.items()
    }


def _two_ways(measure: theory.Measure, setup: Search) -> dict[str, Any]:
    gradient = theory.best_by_gradient(measure, starts=setup.starts, steps=40)
    grid = theory.best_by_grid(
        measure, points=setup.grid_points, rounds=setup.grid_rounds, shrink=setup.grid_shrink
    )  # fmt: skip
    return {
        "by_gradient": _found(gradient),
        "by_grid": _found(grid),
        "two_ways_agree": theory.two_ways_agree(grid, gradient).record(),
        "inside": theory.optimum_is_inside(measure, gradient).record(),
    }


def _found(way: theory.Best) -> dict[str, Any]:
    numbers = {name: rounded(getattr(way.setting, name)) for name in ("alpha", "beta", "gamma")}
    return numbers | {"error": rounded(way.loss), "at_bounds": list(way.at_bounds), "evaluations": way.evaluations}
