"""The tests that were considered, measured on the same data. Simple versions without failed runs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from scipy import special, stats

from comparison_data import ALPHA, FAMILIES, Row, blocks, draw, find_claims, list_pairs
from whence.statistics.moderated_t import Layout, Reference, reference_scenarios


def score_candidates(values: Any, family: str, generator: Any, layout: Layout, reference: Reference) -> dict[str, Any]:
    """For each candidate, which contrasts it claims."""
    many, seeds, arms = values.shape
    first, second = layout.first, layout.second
    m = len(first)
    differences = values[:, :, first] - values[:, :, second]
    estimates, own = differences.mean(axis=1), differences.var(axis=1, ddof=1)
    residuals = values - values.mean(axis=1, keepdims=True) - values.mean(axis=2, keepdims=True)
    residuals += values.mean(axis=(1, 2), keepdims=True)
    freedom = (seeds - 1) * (arms - 1)
    pooled = 2 * (residuals**2).sum(axis=(1, 2)) / freedom
    t_pooled = abs(estimates) / np.sqrt(pooled / seeds)[:, None]
    claims: dict[str, Any] = {"moderated, least favorable reference": find_claims(layout, reference, values)}
    claims["pooled residual, Dunnett or Tukey"] = t_pooled > pooled_critical_t(family, arms, freedom)
    p = np.sort(2 * special.stdtr(seeds - 1, -abs(estimates) / np.sqrt(own / seeds)), axis=1)
    ranks = (2 * special.stdtr(seeds - 1, -abs(estimates) / np.sqrt(own / seeds))).argsort(axis=1).argsort(axis=1)
    steps = (p <= ALPHA / (m - np.arange(m))).cumprod(axis=1).astype(bool)
    claims["paired t, Holm"] = np.take_along_axis(steps, ranks, axis=1)
    variances = values.var(axis=1, ddof=1)
    total = variances[:, first] + variances[:, second]
    welch = total**2 / ((variances[:, first] ** 2 + variances[:, second] ** 2) / (seeds - 1))
    p = 2 * special.stdtr(welch, -abs(estimates) / np.sqrt(total / seeds))
    claims["Welch, Bonferroni (unpaired)"] = p <= ALPHA / m
    floor = 2 / special.comb(2 * seeds, seeds)
    claims["Welch with permutation veto (before)"] = (p <= ALPHA / m) & (floor * m <= ALPHA)
    prior = 2 * layout.prior_freedom(residuals.reshape(many, -1))[:, None]  # about Smyth's estimate
    t = abs(estimates) / np.sqrt((prior * pooled[:, None] + (seeds - 1) * own) / (prior + seeds - 1) / seeds)
    claims["moderated, Bonferroni"] = 2 * special.stdtr(prior + seeds - 1, -t) <= ALPHA / m
    # arms are exchangeable with a normal prior, whose variance is estimated: contrasts shrink, and no correction follows
    between = values.mean(axis=1).var(axis=1, ddof=1)
    kept = np.maximum(0.0, 1 - pooled / 2 / seeds / between)[:, None]
    claims["hierarchical model, 95 % intervals"] = np.sqrt(kept) * t_pooled > special.stdtrit(freedom, 1 - ALPHA / 2)
    largest, permutations = np.zeros((many, 199)), 199
    for number in range(permutations):
        order = generator.random(values.shape).argsort(axis=2)
        means = np.take_along_axis(values, order, axis=2).mean(axis=1)
        # a permutation within seeds keeps the sum of squares, so the largest difference orders as the largest t does
        spread = abs(means[:, first] - means[:, second]).max(axis=1)
        total_squares = ((values - values.mean(axis=2, keepdims=True)) ** 2).sum(axis=(1, 2))
        between = seeds * ((means - means.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        largest[:, number] = spread / np.sqrt(2 * (total_squares - between) / freedom / seeds)
    beaten = (largest[:, :, None] >= t_pooled[:, None, :]).sum(axis=1)
    claims["max-T permutation within seeds"] = (1 + beaten) / (1 + permutations) <= ALPHA
    return claims


def pooled_critical_t(family: str, arms: int, freedom: int) -> float:
    """Tukey's critical value, or Dunnett's for equal numbers, by integration over the shared terms."""
    if family == "pairs":
        return float(stats.studentized_range.ppf(1 - ALPHA, arms, freedom) / 2**0.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    quantiles = (np.arange(400) + 0.5) / 400
    scales = np.sqrt(special.chdtri(freedom, 1 - quantiles) / freedom)

    def coverage(t: float) -> float:
        bound = 2**0.5 * t * scales[:, None]
        inside = special.ndtr(nodes + bound) - special.ndtr(nodes - bound)
        return float(((inside ** (arms - 1)) @ weights).mean())

    low, high = 0.5, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if coverage(middle) < 1 - ALPHA else (low, middle)
    return high


def measure_candidates(family: str, arms: int, seeds: int, repetitions: int, draws: int, scenario: Row) -> list[Row]:
    layout = Layout(np.ones((seeds, arms), bool), list_pairs(family, arms))
    reference = Reference(layout, reference_scenarios(family), draws=draws)
    generator = np.random.default_rng([4, arms, seeds, FAMILIES.index(family), *map(ord, str(scenario))])
    d = scenario.get("d", 0.0)
    terms = {name: value for name, value in scenario.items() if name != "d"}
    events: dict[str, int] = defaultdict(int)
    for many in blocks(repetitions):
        values = draw(generator, many, seeds, arms, **terms)
        values[:, :, 1] += d
        for name, claims in score_candidates(values, family, generator, layout, reference).items():
            events[name] += int((claims[:, 0] if d else claims.any(axis=1)).sum())
    return [
        {"kind": "candidate", "candidate": name, "family": family, "arms": arms, "seeds": seeds, **scenario}
        | {"events": count, "repetitions": repetitions}
        for name, count in events.items()
    ]


SCENARIOS: tuple[Row, ...] = (
    {"shared": 0.5}, {"tails": "t3", "shared": 0.5}, {"spread": "one"}, {"spread": "half"},
    {"spread": "baseline"}, {"spread": "half", "proportional": True, "shared": 0.9},
    {"d": 2.0, "shared": 0.5}, {"d": 2.0, "shared": 0.9}, {"d": 10.0, "shared": 0.5},
)  # fmt: skip
