"""Experiment 3: what alpha, beta and gamma change, how fast, and which are best for a task whose answer is known.

A sweep changes one number of a head and leaves its weights as they are, so that it shows the number's own doing. The
measures are those of experiment 2, the entropy, and the task's error: the squared difference of the attention from the
wanted one over the wanted one's square, which is what the error of the gathered payloads is on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from whence.lab.experiment import Results, Tell
from whence_papers.epar import theory
from whence_papers.epar.experiments.best_numbers import Search, best, one_of_each, task_error
from whence_papers.epar.experiments.heads import attention_of, queries_and_keys
from whence_papers.epar.experiments.maps import by_distance, entropy, row_correlation
from whence_papers.epar.experiments.scoring import judge
from whence_papers.epar.experiments.setup import FORMS, Setup, rounded, sequences, wanted

WEIGHTS = ("random", "trained")
MEASURES = ("consistency", "ranking", "true_ranking", "entropy", "error")


@dataclass(frozen=True)
class ParameterSensitivity(Search):
    runs: int = 20  # of each of five patterns: 100 sequences a point
    alphas: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
    gammas: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0)

    @property
    def swept(self) -> dict[str, tuple[float, ...]]:
        return {"alpha": self.alphas, "beta": self.betas, "gamma": self.gammas}


def compute(setup: ParameterSensitivity, given: Mapping[str, Results], tell: Tell) -> Results:
    heads = given["0_trained_heads"]["heads"]
    results: Results = {"sweeps": {}}
    for number in setup.swept:
        results["sweeps"][number] = sweep(setup, heads, number)
        tell(f"parameter sensitivity: {number}")
    results["combinations"] = combinations(setup, heads)
    tell("parameter sensitivity: combinations")
    results["elasticities"] = elasticities(setup, heads)
    results["best"] = best(setup, heads)
    tell("parameter sensitivity: the best numbers, two ways")
    results["correlation"] = correlation(setup, heads)
    kept = [{name: head[name] for name in ("alpha", "beta", "gamma", "errors")} for head in heads["learned"]]
    results["learned"] = kept
    results["trained_errors"] = {form: [head["errors"][-1] for head in heads[form]] for form in (*FORMS, "learned")}
    return results


def sweep(setup: ParameterSensitivity, heads: Mapping[str, Any], number: str) -> Results:
    """``[weights][form][measure][value][head]``, each the mean over the head's sequences of all patterns."""
    forms = ("enhanced",) if number == "gamma" else ("basic", "enhanced")
    found: Results = {"at": list(setup.swept[number])}
    for weights in WEIGHTS:
        found[weights] = {form: {measure: [] for measure in MEASURES} for form in forms}
        for form in forms:
            for value in setup.swept[number]:
                changed = setup.with_number(number, value)
                by_head = [_mean_measures(changed, heads, weights, form, n) for n in range(len(setup.seeds))]
                for measure in MEASURES:
                    found[weights][form][measure].append([one[measure] for one in by_head])
    return found


def _mean_measures(setup: Setup, heads: Mapping[str, Any], weights: str, form: str, number: int) -> dict[str, float]:
    total: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for name in theory.PATTERNS:
        importance, x = sequences(name, setup, number)
        a = attention_of(x, weights, form, number, heads, setup)
        judged = judge(a, importance, setup, seed=number)
        parts = zip(judged["value_part"], judged["place_part"], strict=True)
        total["consistency"] += [(value + place) / 2 for value, place in parts]
        total["ranking"] += judged["ranking"]
        total["true_ranking"] += judged["true_ranking"]
        total["entropy"] += entropy(a).mean(-1).tolist()
        want = wanted(importance, setup)
        total["error"] += ((a - want).square().sum((1, 2)) / want.square().sum((1, 2))).tolist()
    return {measure: rounded(sum(numbers) / len(numbers)) for measure, numbers in total.items()}


def combinations(setup: ParameterSensitivity, heads: Mapping[str, Any]) -> Results:
    """The task's error of each trained head over two numbers at a time: ``[first][second][head]``."""
    usual = {"alpha": setup.alpha, "beta": setup.beta, "gamma": setup.gamma}
    found: Results = {}
    for first, second in (("alpha", "beta"), ("gamma", "beta")):
        pairs = [(a, b) for a in setup.swept[first] for b in setup.swept[second]]
        numbers = torch.tensor(
            [list((usual | {first: a, second: b}).values()) for a, b in pairs], dtype=torch.float64
        )  # fmt: skip
        columns = []
        for number in range(len(setup.seeds)):
            measure = task_error(setup, heads, number)
            columns.append(torch.cat([measure(some) for some in numbers.split(27)]))
        table = torch.stack(columns, -1).unflatten(0, (len(setup.swept[first]), -1))
        found[f"{first}, {second}"] = rounded(table)
    return found


def elasticities(setup: ParameterSensitivity, heads: Mapping[str, Any]) -> Results:
    """By how many per cent a measure changes with one per cent of a number: ``[measure][number][head]``, by autograd."""
    setting = theory.Setting(setup.alpha, setup.beta, setup.gamma)
    found: dict[str, dict[str, list[float]]] = {}
    apart: list[float] = []
    for number in range(len(setup.seeds)):
        for measure, function in _measures(setup, heads, number):
            for name, value in theory.sensitivity(function, setting).elasticities.items():
                found.setdefault(measure, {}).setdefault(name, []).append(rounded(float(value)))
            if number == 0:
                apart.append(theory.agrees_with_differences(function, setting).violation)
    return {"by": found, "autograd_against_differences": max(apart)}


def _measures(setup: Setup, heads: Mapping[str, Any], number: int) -> Iterator[tuple[str, theory.Measure]]:
    importance, x = one_of_each(setup, number)
    q, k = queries_and_keys(x, "trained", "enhanced", number, heads)
    values = theory.position_values(q, k, importance)
    yield "error", task_error(setup, heads, number)
    yield "entropy", theory.entropy(q, k)
    yield "greatest V", lambda numbers: values(numbers).amax(-1).mean(-1)


def correlation(setup: ParameterSensitivity, heads: Mapping[str, Any]) -> Results:
    """Pearson's correlation of the attention rows of two positions over their distance: ``[weights][form][head]``."""
    found: Results = {}
    for weights in WEIGHTS:
        found[weights] = {}
        for form in FORMS:
            rows = []
            for number in range(len(setup.seeds)):
                x = sequences("random", setup, number)[1]
                a = attention_of(x, weights, form, number, heads, setup)
                rows.append(rounded(by_distance(row_correlation(a))))
            found[weights][form] = rows
    return found
