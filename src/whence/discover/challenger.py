"""Symbolic regression with gplearn, as a challenger of the named formula.

gplearn evolves expressions of the distance x = 1 + d by genetic programming. Its fitness is the squared weighted correlation with
the curve, so offset and amplitude are free, as they are for the families. Expressions compete with the named formula on the
same head, on the same held-out distances of held-out seeds, and in description length: an expression of m nodes costs m
times log2 of the number of symbols, and log2 n bits for each of its constants.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.discover.curves import Curves
from whence.discover.fitting import Fit, Problem
from whence.discover.shapes import Array
from whence.errors import require_package

FUNCTIONS = ("add", "sub", "mul", "div", "sqrt", "log", "neg", "inv", "cos")
FOLDS = 2


@dataclass(frozen=True)
class Search:
    """The size of a search."""

    population: int = 300
    generations: int = 10
    parsimony: float = 0.0005
    seed: int = 0


QUICK = Search(population=120, generations=8)


def challenge(
    curves: Curves, head: int, fit: Fit, search: Search = Search()  # noqa: B008  frozen
) -> dict[str, Any]:  # fmt: skip
    """The best expression for a head, beside the named formula, as plain JSON.

    ``held_out`` is the mean squared error on held-out knots of a held-out seed, in variances of a seed; ``bits`` the description
    length without the bits that all formulas share.

    Args:
        curves: learned values over distance.
        head: number of the head.
        fit: the named formula, of this head or of several.
        search: size of the search.
    """
    problem = Problem(curves, [head])
    program = _evolve(curves.distances, curves.mean[head], 1 / curves.variance[head], search)
    held_out: dict[str, list[float]] = {"expression": [], "named": []}
    knots = np.arange(len(curves.distances))
    for fold in range(FOLDS):
        left_out = fold % curves.seeds
        others = [seed for seed in range(curves.seeds) if seed != left_out] or [0]
        mean = curves.values[others].mean(0)
        inside, outside = knots[knots % FOLDS != fold], knots[knots % FOLDS == fold]
        again = Problem(curves, [head], inside, mean)
        seen, error = curves.values[left_out, head], np.sqrt(curves.variance[head])
        own = _evolve(curves.distances[inside], mean[head, inside], 1 / curves.variance[head, inside], search)
        line, _ = _solve_line(again, own(curves.distances[inside]))
        candidates = {
            "expression": line[0] + line[1] * own(curves.distances[outside]),
            "named": again.refine(fit.candidate, np.array(fit.parameters)).evaluate(curves.distances[outside])[0],
        }
        for name, predicted in candidates.items():
            if curves.hook == "bias":  # the levels of both are invisible
                predicted = predicted + (seen[outside] - predicted).mean()
            held_out[name].append(float((((seen[outside] - predicted) / error[outside]) ** 2).mean()))
    line, chi = _solve_line(problem, program(curves.distances))
    own_fit = problem.refine(fit.candidate, np.array(fit.parameters))
    n = problem.target.size
    nodes, constants = program.nodes, program.constants
    scores = {
        "expression": {
            "text": program.text,
            "nodes": nodes,
            "constants": constants,
            "bits": _data_bits(chi, n, curves.seeds)
            + (nodes * math.log2(len(FUNCTIONS) + 2) + (constants + 1) * math.log2(n)),
            "held_out": float(np.mean(held_out["expression"])),
        },
        "named": {
            "text": own_fit.describe(),
            "bits": _data_bits(own_fit.chi_square, n, curves.seeds) + problem.count(fit.candidate) * math.log2(n),
            "held_out": float(np.mean(held_out["named"])),
        },
    }
    wins = all(scores["expression"][score] < scores["named"][score] for score in ("bits", "held_out"))  # type: ignore[operator]
    curve = line[0] + line[1] * program(curves.distances)
    return {"head": head, **scores, "wins": bool(wins), "curve": curve.tolist()}


@dataclass(frozen=True)
class _Program:
    """An expression of x = 1 + d."""

    text: str
    nodes: int
    constants: int
    evaluate: Callable[[Array], Array]

    def __call__(self, distances: Array) -> Array:
        values = np.asarray(self.evaluate(1 + np.asarray(distances, float)[:, None]), float)
        return np.nan_to_num(np.broadcast_to(values, len(distances)), posinf=1e6, neginf=-1e6)


def _evolve(distances: Array, values: Array, weights: Array, search: Search) -> _Program:
    require_package("gplearn", "the challenger of whence discover", "discover")
    from gplearn.fitness import make_fitness
    from gplearn.genetic import SymbolicRegressor

    regressor = SymbolicRegressor(
        population_size=search.population, generations=search.generations, function_set=FUNCTIONS,
        metric=make_fitness(function=_squared_correlation, greater_is_better=True, wrap=False),
        parsimony_coefficient=search.parsimony, const_range=(-3.0, 3.0), stopping_criteria=1.0,
        random_state=search.seed, n_jobs=1,
    )  # fmt: skip
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        regressor.fit(1 + np.asarray(distances, float)[:, None], values, sample_weight=weights)
    program = regressor._program
    constants = sum(isinstance(node, float) for node in program.program)
    text = str(program).replace("X0", "x")
    return _Program(text, len(program.program), constants, program.execute)


def _squared_correlation(y: Array, predicted: Array, weights: Array) -> float:
    """The squared weighted correlation: how much of the curve an offset and an amplitude leave to explain."""
    total = weights.sum()
    if total == 0 or not np.isfinite(predicted).all():
        return 0.0
    own, other = (values - (weights * values).sum() / total for values in (y, predicted))
    spread = (weights * own**2).sum() * (weights * other**2).sum()
    return float((weights * own * other).sum() ** 2 / spread) if spread > 1e-20 else 0.0


def _solve_line(problem: Problem, values: Array) -> tuple[tuple[float, float], float]:
    """Offset and amplitude of an expression by weighted least squares, and the residual sum of squares."""
    scale = float(np.abs(values).max()) or 1.0
    columns = np.stack([np.ones_like(values), values / scale])[None]
    design = np.moveaxis(problem.whiten(np.moveaxis(columns, -2, 0)), 0, -2)
    coefficients, chi = problem.solve(design)
    offset, amplitude = coefficients[0]
    return (float(offset), float(amplitude) / scale), float(chi.sum())


def _data_bits(chi: float, n: int, seeds: int) -> float:
    """The residuals in bits, as in ``whence.discover.naming``."""
    if seeds == 1:
        return 0.5 * n * math.log2(max(chi / n, 1e-12))
    return 0.5 * (n * (math.log(chi / n) + 1) if chi > n else chi) / math.log(2)
