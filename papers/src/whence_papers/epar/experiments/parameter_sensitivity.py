"""Experiment 3: the effect of alpha, beta and gamma, the sensitivity to them, and their best values.

A sweep changes one parameter of a head and keeps its weights, so it shows the effect of the parameter alone. The measures
are those of experiment 2, the entropy, and the task's error: the squared difference of the attention from the target
attention, divided by the square of the target. On average that is the error of the gathered payloads.

The best values are searched for by gradient and by grid, for two objectives. The optimum of the task's error can lie
anywhere, also on a bound of the search. The imitation error has a known optimum: it asks with which parameters a head attends
as it does with those of the source's class signature. They are the only ones with an error of 0 and lie inside all bounds, so
both searches must find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.experiment import ProgressCallback, Results
from whence_papers.epar import theory
from whence_papers.epar.experiments.optimal_position import score_positions
from whence_papers.epar.experiments.setup import (
    FORMS,
    Setup,
    correlate_rows,
    entropy,
    make_sequences,
    mean_by_distance,
    round_values,
    target_attention,
)
from whence_papers.epar.experiments.trained_heads import compute_attention, project_head


@dataclass(frozen=True)
class Search(Setup):
    """The settings of the two searches."""

    grid_points: int = 5
    grid_rounds: int = 30
    grid_shrink: float = 0.6
    starts: int = 3


def first_sequences(setup: Setup, number: int) -> tuple[Tensor, Tensor]:
    """A head's first sequence of every pattern: importances and tokens."""
    firsts = [tuple(part[:1] for part in make_sequences(name, setup, number)) for name in theory.PATTERNS]
    return torch.cat([importance for importance, _ in firsts]), torch.cat([x for _, x in firsts])


def task_error(setup: Setup, heads: Mapping[str, Any], number: int) -> theory.Measure:
    """The task's error of a trained head as a differentiable function of EPAR's parameters ``[n, 3]``: ``[n]``."""
    importance, x = first_sequences(setup, number)
    return _distance_from(target_attention(importance, setup)[:, None], x, setup, heads, number)


def imitation_error(setup: Setup, heads: Mapping[str, Any], number: int) -> theory.Measure:
    """The distance of a trained head's attention from its attention with the parameters of the source's class signature."""
    _, x = first_sequences(setup, number)
    q, k = project_head(x, "trained", "enhanced", number, heads)
    target = theory.attention_weights(q, k, theory.CODE_DEFAULTS.position(setup.length))
    return _distance_from(target, x, setup, heads, number)


def _distance_from(target: Tensor, x: Tensor, setup: Setup, heads: Mapping[str, Any], number: int) -> theory.Measure:
    """The squared difference of the attention from a target ``[B, 1, L, L]``, divided by the square of the target."""
    q, k = project_head(x, "trained", "enhanced", number, heads)

    def measure(numbers: Tensor) -> Tensor:
        a = theory.attention_weights(q, k, theory.build_epar(numbers, setup.length))
        return ((a - target).square().sum((2, 3)) / target.square().sum((2, 3))).mean(0)

    return measure


OBJECTIVES: dict[str, Callable[[Setup, Mapping[str, Any], int], theory.Measure]] = {
    "task": task_error,
    "imitation": imitation_error,
}


def find_optima(setup: Search, heads: Mapping[str, Any]) -> Results:
    """``[objective][head]``: the result of each search, whether they agree, and whether the optimum is inside the bounds."""
    return {
        name: [_search_both_ways(objective(setup, heads, number), setup) for number in range(len(setup.seeds))]
        for name, objective in OBJECTIVES.items()
    }


def _search_both_ways(measure: theory.Measure, setup: Search) -> dict[str, Any]:
    gradient = theory.minimize_by_gradient(measure, starts=setup.starts, steps=40)
    grid = theory.minimize_by_grid(
        measure, points=setup.grid_points, rounds=setup.grid_rounds, shrink=setup.grid_shrink
    )  # fmt: skip
    return {
        "by_gradient": _optimum_record(gradient),
        "by_grid": _optimum_record(grid),
        "two_ways_agree": theory.grid_and_gradient_agree(grid, gradient).record(),
        "inside": theory.optimum_is_inside(measure, gradient).record(),
    }


def _optimum_record(way: theory.Optimum) -> dict[str, Any]:
    numbers = {name: round_values(getattr(way.setting, name)) for name in ("alpha", "beta", "gamma")}
    return numbers | {"error": round_values(way.loss), "at_bounds": list(way.at_bounds), "evaluations": way.evaluations}


WEIGHTS = ("random", "trained")
MEASURES = ("consistency", "ranking", "true_ranking", "entropy", "error")


@dataclass(frozen=True)
class ParameterSensitivitySpec(Search):
    runs: int = 20  # of each of five patterns: 100 sequences per point
    alphas: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
    gammas: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0)

    @property
    def swept(self) -> dict[str, tuple[float, ...]]:
        return {"alpha": self.alphas, "beta": self.betas, "gamma": self.gammas}


def compute(setup: ParameterSensitivitySpec, inputs: Mapping[str, Results], progress: ProgressCallback) -> Results:
    heads = inputs["trained_heads"]["heads"]
    results: Results = {"sweeps": {}}
    for number in setup.swept:
        results["sweeps"][number] = sweep(setup, heads, number)
        progress(f"parameter sensitivity: {number}")
    results["combinations"] = combinations(setup, heads)
    progress("parameter sensitivity: combinations")
    results["elasticities"] = elasticities(setup, heads)
    results["best"] = find_optima(setup, heads)
    progress("parameter sensitivity: best values")
    results["correlation"] = correlation(setup, heads)
    learned = [{name: head[name] for name in ("alpha", "beta", "gamma", "errors")} for head in heads["learned"]]
    results["learned"] = learned
    results["trained_errors"] = {form: [head["errors"][-1] for head in heads[form]] for form in (*FORMS, "learned")}
    return results


def sweep(setup: ParameterSensitivitySpec, heads: Mapping[str, Any], number: str) -> Results:
    """``[weights][form][measure][value][head]``: means over the head's sequences of all patterns."""
    forms = ("enhanced",) if number == "gamma" else ("basic", "enhanced")
    results: Results = {"at": list(setup.swept[number])}
    for weights in WEIGHTS:
        results[weights] = {form: {measure: [] for measure in MEASURES} for form in forms}
        for form in forms:
            for value in setup.swept[number]:
                changed = setup.with_number(number, value)
                head_means = [_mean_measures(changed, heads, weights, form, n) for n in range(len(setup.seeds))]
                for measure in MEASURES:
                    results[weights][form][measure].append([one[measure] for one in head_means])
    return results


def _mean_measures(setup: Setup, heads: Mapping[str, Any], weights: str, form: str, number: int) -> dict[str, float]:
    total: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for name in theory.PATTERNS:
        importance, x = make_sequences(name, setup, number)
        a = compute_attention(x, weights, form, number, heads, setup)
        judged = score_positions(a, importance, setup, seed=number)
        parts = zip(judged["value_part"], judged["position_part"], strict=True)
        total["consistency"] += [(value + place) / 2 for value, place in parts]
        total["ranking"] += judged["ranking"]
        total["true_ranking"] += judged["true_ranking"]
        total["entropy"] += entropy(a).mean(-1).tolist()
        target = target_attention(importance, setup)
        total["error"] += ((a - target).square().sum((1, 2)) / target.square().sum((1, 2))).tolist()
    return {measure: round_values(sum(numbers) / len(numbers)) for measure, numbers in total.items()}


def combinations(setup: ParameterSensitivitySpec, heads: Mapping[str, Any]) -> Results:
    """The task's error of each trained head over two parameters at a time: ``[first][second][head]``."""
    defaults = {"alpha": setup.alpha, "beta": setup.beta, "gamma": setup.gamma}
    tables: Results = {}
    for first, second in (("alpha", "beta"), ("gamma", "beta")):
        pairs = [(a, b) for a in setup.swept[first] for b in setup.swept[second]]
        numbers = torch.tensor(
            [list((defaults | {first: a, second: b}).values()) for a, b in pairs], dtype=torch.float64
        )  # fmt: skip
        columns = []
        for number in range(len(setup.seeds)):
            measure = task_error(setup, heads, number)
            columns.append(torch.cat([measure(some) for some in numbers.split(27)]))
        table = torch.stack(columns, -1).unflatten(0, (len(setup.swept[first]), -1))
        tables[f"{first}, {second}"] = round_values(table)
    return tables


def elasticities(setup: ParameterSensitivitySpec, heads: Mapping[str, Any]) -> Results:
    """The change of a measure in per cent for one per cent of a parameter, by autograd: ``[measure][parameter][head]``."""
    setting = theory.Setting(setup.alpha, setup.beta, setup.gamma)
    by_measure: dict[str, dict[str, list[float]]] = {}
    differences: list[float] = []
    for number in range(len(setup.seeds)):
        for measure, function in _measures(setup, heads, number):
            for name, value in theory.sensitivity(function, setting).elasticities.items():
                by_measure.setdefault(measure, {}).setdefault(name, []).append(round_values(float(value)))
            if number == 0:
                differences.append(theory.gradients_match_differences(function, setting).violation)
    return {"by": by_measure, "autograd_against_differences": max(differences)}


def _measures(setup: Setup, heads: Mapping[str, Any], number: int) -> Iterator[tuple[str, theory.Measure]]:
    importance, x = first_sequences(setup, number)
    q, k = project_head(x, "trained", "enhanced", number, heads)
    values = theory.position_values(q, k, importance)
    yield "error", task_error(setup, heads, number)
    yield "entropy", theory.entropy(q, k)
    yield "greatest V", lambda numbers: values(numbers).amax(-1).mean(-1)


def correlation(setup: ParameterSensitivitySpec, heads: Mapping[str, Any]) -> Results:
    """Pearson's correlation of the attention rows of two positions over their distance: ``[weights][form][head]``."""
    results: Results = {}
    for weights in WEIGHTS:
        results[weights] = {}
        for form in FORMS:
            rows = []
            for number in range(len(setup.seeds)):
                x = make_sequences("random", setup, number)[1]
                a = compute_attention(x, weights, form, number, heads, setup)
                rows.append(round_values(mean_by_distance(correlate_rows(a))))
            results[weights][form] = rows
    return results
