"""Values of a study in the units shown: shares such as accuracy in percent, other metrics as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from whence.lab.study import PERCENT_METRICS
from whence.report.comparison.arm_style import baseline_name
from whence.report.formatting import choose_decimals, is_finite_number, mean

__all__ = [
    "PERCENT_METRICS", "Units", "choose_units", "describe_failures", "difference_unit", "has_geometric_means", "is_ratio", "reverse_ratio", "list_failures", "name_metric", "sort_best_first",
    "values_of",
]  # fmt: skip

METRIC_NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "mcc": "MCC",
    "bleu": "BLEU",
    "chrf": "chrF",
    "binary_f1": "F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "exact_match": "exact match",
    "token_f1": "token F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}


def name_metric(metric: str) -> str:
    """A metric as it is written in a report.

    >>> name_metric("macro_f1"), name_metric("perplexity")
    ('macro F1', 'perplexity')
    """
    return METRIC_NAMES.get(metric, metric)


@dataclass(frozen=True)
class Units:
    """How one study is shown: factors to the shown unit, the label of an axis, decimals in its table, and the kind of its means."""

    label: str
    is_log: bool
    value_factor: float
    comparison_factor: float
    decimals: int
    by_ratio: bool = False
    ratio_decimals: int = 1

    def average(self, values: Iterable[float]) -> float:
        """The mean of seeds: geometric if arms are compared by ratios."""
        return geometric_mean(values) if self.by_ratio else mean(values)

    @property
    def difference_decimals(self) -> int:
        """Decimals of a difference, which is in per cent if arms are compared by ratios."""
        return self.ratio_decimals if self.by_ratio else self.decimals

    @property
    def is_percent(self) -> bool:
        return self.label.endswith("(%)")

    @property
    def axis_label(self) -> str:
        return f"{self.label}{', log scale' if self.is_log else ''}"


def choose_units(study: dict[str, Any]) -> Units:
    """Values may be fractions while the comparison is in percentage points; the baseline's mean tells which."""
    percent = study["metric"] in PERCENT_METRICS
    values = [value for arm in study["arms"] for row in arm["values"].values() for value in row.values()]
    finite = [value for value in values if is_finite_number(value)]
    value_factor = 100.0 if percent and all(abs(value) <= 1 for value in finite) else 1.0
    comparison, comparison_factor = study.get("comparison"), 1.0
    if comparison:
        baseline = values_of(study, baseline_name(study), study["split"], value_factor)
        stated = comparison["baseline_summary"]["mean"]
        if percent and baseline and not math.isclose(mean(baseline.values()), stated, rel_tol=1e-6, abs_tol=1e-9):
            is_fraction = math.isclose(mean(baseline.values()), 100 * stated, rel_tol=1e-6, abs_tol=1e-9)
            comparison_factor = 100.0 if is_fraction else 1.0
    summaries = (
        [comparison["baseline_summary"], *(arm["summary"] for arm in comparison["arms"].values())] if comparison else []
    )
    deviations = [side["deviation"] * comparison_factor for side in summaries if is_finite_number(side["deviation"])]
    decimals = choose_decimals(deviations, [value * value_factor for value in finite])
    label = f"{name_metric(study['metric'])} (%)" if percent else name_metric(study["metric"])
    is_log = study["metric"] == "perplexity"
    decimals = min(decimals, 2) if percent else decimals
    by_ratio = has_geometric_means(study)
    return Units(label, is_log, value_factor, comparison_factor, decimals, by_ratio, _choose_ratio_decimals(comparison))


def _choose_ratio_decimals(comparison: dict[str, Any] | None) -> int:
    """Decimals of differences in per cent: two digits of the margin and of half the narrowest interval, but at least one decimal."""
    if comparison is None:
        return 1
    intervals = [arm["corrected_interval"] for arm in comparison["arms"].values() if arm["corrected_interval"]]
    sizes = [comparison["margin"], *((one["high"] - one["low"]) / 2 for one in intervals)]
    return max(1, choose_decimals(sizes, [1000.0]))


def has_geometric_means(study: dict[str, Any]) -> bool:
    """Whether the plan of a study compares by ratios, so that its means are geometric, also where no comparison was made."""
    comparison = study.get("comparison")
    if comparison is not None:
        return is_ratio(comparison)
    return study["metric"] == "perplexity" and study["spec"]["decision"].get("perplexity_scale") == "log"


def is_ratio(comparison: dict[str, Any] | None) -> bool:
    """Whether arms are compared by ratios, whose differences are in per cent."""
    return comparison is not None and comparison.get("scale") == "log"


def reverse_ratio(percent: float) -> float:
    """The ratio of b to a in per cent more or less, from that of a to b.

    >>> reverse_ratio(25.0)
    -20.0
    """
    return -100 * percent / (100 + percent)


def difference_unit(study: dict[str, Any]) -> str:
    """The unit of a difference: points, per cent, or none.

    >>> difference_unit({"metric": "accuracy"}), difference_unit({"metric": "perplexity", "comparison": {"scale": "log"}})
    ('points', '%')
    """
    if study["metric"] in PERCENT_METRICS:
        return "points"
    return "%" if is_ratio(study.get("comparison")) else ""


def values_of(study: dict[str, Any], name: str | None, split: str, factor: float) -> dict[str, float]:
    """The finite values of an arm by seed, times ``factor``."""
    for arm in study["arms"]:
        if arm["name"] == name:
            row = arm["values"].get(split, {})
            return {str(seed): value * factor for seed, value in row.items() if is_finite_number(value)}
    return {}


def sort_best_first(study: dict[str, Any]) -> list[dict[str, Any]]:
    """The arms by their mean on the deciding split; arms without a value are last."""

    average = geometric_mean if has_geometric_means(study) else mean

    def rank(arm: dict[str, Any]) -> tuple[bool, float]:
        values = values_of(study, arm["name"], study["split"], 1.0).values()
        return (not values, (-1 if study["higher_is_better"] else 1) * average(values) if values else 0.0)

    return sorted(study["arms"], key=rank)


def describe_failures(arm: dict[str, Any]) -> str:
    """The seeds that diverged, with step and reason, and those that failed; empty if there are none.

    >>> describe_failures({"diverged": [{"seed": 3, "step": 120, "reason": "loss is nan"}], "failed": []})
    'seed 3 diverged at step 120 (loss is not a number)'
    >>> describe_failures({"diverged": [], "failed": [{"seed": 1, "reason": "bell.py, line 7, in bias: KeyError: 'a'"}]})
    "seed 1 failed (bell.py, line 7, in bias: KeyError: 'a')"
    >>> describe_failures({"diverged": [], "failed": [{"seed": seed, "reason": "out of memory"} for seed in (0, 2)]})
    'seeds 0, 2 failed (out of memory)'
    """
    texts = []
    for failure in arm["diverged"]:
        reason = [{"nan": "not a number", "inf": "infinite"}.get(w.lower(), w) for w in failure["reason"].split()]
        text = f"seed {failure['seed']} diverged at step {failure['step']:,}"
        texts.append(text + (f" ({' '.join(reason)})" if reason else ""))
    by_reason: dict[str, list[str]] = {}
    for failure in arm["failed"]:
        by_reason.setdefault(failure["reason"], []).append(str(failure["seed"]))
    for error, seeds in by_reason.items():
        texts.append(f"seed{'' if len(seeds) == 1 else 's'} {', '.join(seeds)} failed ({error})")
    return "; ".join(texts)


def list_failures(arm: dict[str, Any]) -> list[str]:
    """The seeds that diverged or failed, in a few words each.

    >>> list_failures({"diverged": [{"seed": 3, "step": 120, "reason": ""}], "failed": [{"seed": 1, "reason": ""}]})
    ['seed 3 diverged', 'seed 1 failed']
    """
    diverged = [f"seed {failure['seed']} diverged" for failure in arm["diverged"]]
    return diverged + [f"seed {failure['seed']} failed" for failure in arm["failed"]]
