"""What the numbers of a study are in: accuracy is shown in percent, perplexity as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whence.report.comparison.numbers import decimals, is_number, mean
from whence.report.comparison.style import baseline_of


@dataclass(frozen=True)
class Units:
    """How to show one study: factors to the shown unit, the label of an axis, and decimals for its table."""

    label: str
    logarithmic: bool
    value_factor: float
    comparison_factor: float
    places: int


def units(study: dict[str, Any]) -> Units:
    """Values may be shares and the comparison in points, or both the same: the baseline's mean tells."""
    percent = study["metric"] == "accuracy"
    raw = [value for arm in study["arms"] for row in arm["values"].values() for value in row.values()]
    known = [value for value in raw if is_number(value)]
    factor = 100.0 if percent and all(abs(value) <= 1 for value in known) else 1.0
    comparison, second = study.get("comparison"), 1.0
    if comparison:
        shown = values_of(study, baseline_of(study), study["split"], factor)
        said = comparison["baseline_summary"]["mean"]
        if percent and shown and not math.isclose(mean(shown.values()), said, rel_tol=1e-6, abs_tol=1e-9):
            second = 100.0 if math.isclose(mean(shown.values()), 100 * said, rel_tol=1e-6, abs_tol=1e-9) else 1.0
    sides = (
        [comparison["baseline_summary"], *(arm["summary"] for arm in comparison["arms"].values())] if comparison else []
    )
    spreads = [side["deviation"] * second for side in sides if is_number(side["deviation"])]
    places = decimals(spreads, [value * factor for value in known])
    label = "accuracy (%)" if percent else study["metric"]
    return Units(label, study["metric"] == "perplexity", factor, second, min(places, 2) if percent else places)


def values_of(study: dict[str, Any], name: str | None, split: str, factor: float) -> dict[str, float]:
    """The finite values of an arm by seed, in the shown unit."""
    for arm in study["arms"]:
        if arm["name"] == name:
            row = arm["values"].get(split, {})
            return {str(seed): value * factor for seed, value in row.items() if is_number(value)}
    return {}


def best_first(study: dict[str, Any]) -> list[dict[str, Any]]:
    """The arms by their mean on the deciding split; those without a value come last."""

    def rank(arm: dict[str, Any]) -> tuple[bool, float]:
        values = values_of(study, arm["name"], study["split"], 1.0).values()
        return (not values, (-1 if study["higher_is_better"] else 1) * mean(values) if values else 0.0)

    return sorted(study["arms"], key=rank)


def diverged_words(arm: dict[str, Any]) -> str:
    """Which seeds were lost, where and why; empty when none were.

    >>> diverged_words({"diverged": [{"seed": 3, "step": 120, "reason": "loss is nan"}]})
    'seed 3 diverged at step 120 (loss is not a number)'
    """
    told = []
    for lost in arm["diverged"]:
        words = [{"nan": "not a number", "inf": "infinite"}.get(word.lower(), word) for word in lost["reason"].split()]
        told.append(
            f"seed {lost['seed']} diverged at step {lost['step']:,}" + (f" ({' '.join(words)})" if words else "")
        )
    return "; ".join(told)
