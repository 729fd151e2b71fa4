"""Comparisons of arms as figures of a claim: direction, difference, interval and a sentence.

Values of the same seed are paired, and the contrasts of a study are one family. Values that do not share seeds and data are
compared with Welch's test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whence.statistics import AnalysisPlan, Interval, PairedComparison, compare_paired, welch
from whence.statistics.verdict_texts import describe_contrast, format_p

#: factor to the unit of the source, whether higher is better, unit of a difference
METRICS = {
    "accuracy": (100.0, True, "points"),
    "perplexity": (1.0, False, ""),
    "bleu": (1.0, True, "BLEU"),
    "token_f1": (100.0, True, "points"),
    "rougeL": (100.0, True, "points"),
    "repetition": (100.0, False, "points"),
    "nearness": (1.0, False, "tokens"),
    "distance": (1.0, True, "tokens"),
}
#: differences that are certainly smaller are equivalent to none, in the unit of the metric; other metrics claim no equivalence
MARGINS = {"accuracy": 1.0}
ALPHA = 0.05
DIRECTIONS = {"better": 1, "worse": -1, "equivalent": 0, "undecided": 0}

#: value of each arm by seed; None for a run that diverged
Values = Mapping[str, Mapping[int, float | None]]


def compare_seeds(
    values: Values, metric: str, baseline: str | None = None, *, alpha: float = ALPHA, share: float = 1.0,
    references: dict[Any, Any] | None = None,
) -> PairedComparison:  # fmt: skip
    """Compare arms on common seeds: every arm with the baseline, or every two arms if there is none.

    Comparisons with the same ``references`` simulate a reference distribution once (``compare_paired``).
    """
    _, higher, unit = METRICS[metric]
    family = "pairs" if baseline is None else "baseline"
    plan = AnalysisPlan(family, baseline, alpha=alpha, higher_is_better=higher, unit=unit, share=share)
    return compare_paired(values, plan, references=references)


def compare_lists(sides: Mapping[str, Sequence[float]], metric: str, baseline: str) -> PairedComparison:
    """Compare arms whose n-th values share a seed."""
    return compare_seeds({name: dict(enumerate(own)) for name, own in sides.items()}, metric, baseline)


def contrast_figures(comparison: PairedComparison, arm: str, other: str, metric: str = "") -> dict[str, Any]:
    """``arm`` compared with ``other``: direction is 1 for better, -1 for worse, 0 for undecided or equivalent.

    ``direction_verdict`` tells the last two apart, by the margin of the metric.
    """
    (found,) = (one for one in comparison.contrasts if {one.first, one.second} == {arm, other})
    contrast = found if found.first == arm else found.reversed()
    difference = contrast.estimate or 0.0
    undecided = contrast.verdict == "undecided"
    verdict = judge_interval(contrast.interval, metric) if undecided else contrast.verdict
    plan = comparison.plan
    if verdict == "equivalent" and undecided:
        plan, contrast = replace(plan, margin=MARGINS[metric]), replace(contrast, verdict=verdict)
    return {
        "direction": DIRECTIONS[contrast.verdict],
        "difference": difference,
        "gain": difference if comparison.plan.higher_is_better else -difference,
        **_ends(difference, contrast.interval, comparison.plan.higher_is_better),
        "direction_verdict": verdict,
        "words": f"{describe_contrast(contrast, plan)}.",
    }


def _ends(difference: float, interval: Interval | None, higher_is_better: bool) -> dict[str, float]:
    """The ends of the interval of a difference, and of the gain, which is positive for the better arm."""
    low, high = (interval.low, interval.high) if interval else (difference, difference)
    gains = (low, high) if higher_is_better else (-high, -low)
    return {"low": low, "high": high, "gain_low": gains[0], "gain_high": gains[1]}


def judge_interval(interval: Interval | None, metric: str) -> str:
    """Undecided, or equivalent if the whole interval of a difference lies within the margin of the metric.

    >>> judge_interval(Interval(-0.4, 0.6, 0.95), "accuracy"), judge_interval(Interval(-0.4, 1.6, 0.95), "accuracy")
    ('equivalent', 'undecided')
    """
    margin = MARGINS.get(metric)
    inside = margin is not None and interval is not None and -margin < interval.low and interval.high < margin
    return "equivalent" if inside else "undecided"


def compare_unpaired(
    sides: Mapping[str, Sequence[float]], metric: str, arm: str, other: str, why: str
) -> dict[str, Any]:
    """As ``contrast_figures``, for values that cannot be paired: Welch's test of one contrast. ``why`` states the reason."""
    _, higher, unit = METRICS[metric]
    test = welch(sides[arm], sides[other], 1 - ALPHA)
    gain = test.difference if higher else -test.difference
    direction = 0 if test.p is None or test.p > ALPHA else 1 if gain > 0 else -1
    verdict = {1: "better", -1: "worse", 0: judge_interval(test.interval, metric)}[direction]
    relation = {
        "better": "better than",
        "worse": "worse than",
        "equivalent": "equivalent to",
        "undecided": "undecided against",
    }
    size = f" by {abs(test.difference):.3g} {unit}".rstrip() if direction else ""
    return {
        "direction": direction,
        "difference": test.difference,
        "gain": gain,
        **_ends(test.difference, test.interval, higher),
        "direction_verdict": verdict,
        "words": f"{arm} is {relation[verdict]} {other}{size} ({format_p(test.p)}, Welch's test, not paired: {why}).",
    }
