"""Every metric of every arm beside the task's baselines, and whether any arm beats a constant answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from whence.lab.tasks.base import compute_metric
from whence.lab.tasks.baselines import CONSTANT, RULE
from whence.lab.tasks.metrics import BINARY_METRICS, CLASSIFICATION_METRICS, PREDICTION_METRICS
from whence.statistics import proportion, summary


def collect_baselines(stored: Mapping[str, Any], split: str) -> list[dict[str, Any]]:
    """The baselines of a study as a list, with name, kind, ``splits`` and ``about``.

    Older records have one value in the task's own metric for each rule; it belongs to the deciding split.
    """
    return [
        {
            "name": name,
            "kind": entry.get("kind", RULE),
            "about": entry.get("about", ""),
            "splits": entry.get("splits") or {split: {"accuracy": entry["value"]}},
        }
        for name, entry in stored.items()
        if "splits" in entry or "value" in entry
    ]


def collect_scores(runs: Mapping[str, Sequence[Mapping[str, Any]]], split: str) -> dict[str, dict[str, float]]:
    """The mean over seeds of every metric that the records of each arm allow, on the deciding split."""
    scores: dict[str, dict[str, float]] = {}
    for arm, own in runs.items():
        rows = [
            record["result"]["evaluations"][-1]["splits"][split]
            for record in own
            if record["result"]["status"] == "done" and split in record["result"]["evaluations"][-1]["splits"]
        ]
        if not rows or not all({"num_targets", "correct", "cross_entropy"} <= row.keys() for row in rows):
            continue
        metrics = list(CLASSIFICATION_METRICS) if all("confusion" in row for row in rows) else ["accuracy"]
        if all(len(row.get("confusion", ())) == 2 for row in rows):
            metrics += BINARY_METRICS
        metrics += [metric for metric in PREDICTION_METRICS if all(metric in row for row in rows)]
        scores[arm] = {
            metric: math.fsum(compute_metric(metric, row) for row in rows) / len(rows)
            for metric in (*metrics, "perplexity")
        }
    return scores


def judge_constant(
    arms: Sequence[Mapping[str, Any]],
    baselines: Sequence[Mapping[str, Any]],
    metric: str,
    higher_is_better: bool,
    split: str,
    items: int | None,
    alpha: float,
) -> dict[str, Any] | None:
    """The best constant answer on the deciding split, and which arms beat it; None without a constant or a value.

    An arm beats it if its mean is better by more than the noise: the one-sided t-bound over seeds, and for metrics of
    classification the sampling error of the test items, which all seeds share (at most 1 / (2 sqrt(items)) for a share,
    1 / sqrt(items) for MCC). An arm also beats it if each of its runs does, by Wilson's bound of its accuracy: runs that
    differ widely may all be better. The level is divided by the number of arms. ``inconclusive`` names the arms whose mean
    is better, but not by enough.
    """
    sign = 1 if higher_is_better else -1
    constants = {
        one["name"]: one["splits"][split][metric]
        for one in baselines
        if one["kind"] == CONSTANT and metric in one["splits"].get(split, {})
    }
    values = {arm["name"]: list(arm["values"].get(split, {}).values()) for arm in arms}
    values = {name: own for name, own in values.items() if own}
    if not constants or not values:
        return None
    best = max(constants, key=lambda name: sign * constants[name])
    level = alpha / len(values)
    sampling = 0.0
    if items and metric in (*CLASSIFICATION_METRICS, *BINARY_METRICS):
        share = constants[best] if metric == "accuracy" else 0.5
        deviation = 1.0 if metric == "mcc" else math.sqrt(share * (1 - share))
        sampling = NormalDist().inv_cdf(1 - level) * deviation / math.sqrt(items)
    beaten_by, inconclusive = [], []
    for name, own in values.items():
        described = summary(own, 1 - 2 * level)
        over_seeds = 0.0 if described.interval is None else described.mean - described.interval.low
        gap = sign * (described.mean - constants[best])
        in_each_run = bool(items and metric == "accuracy" and beats_in_each_run(own, constants[best], items, level))
        if gap > math.hypot(over_seeds, sampling) or in_each_run:
            beaten_by.append(name)
        elif gap > 1e-9:  # more than rounding
            inconclusive.append(name)
    return {
        "name": best,
        "value": constants[best],
        "beaten_by": beaten_by,
        "not_beaten_by": [name for name in values if name not in beaten_by],
        "inconclusive": inconclusive,
    }


def beats_in_each_run(accuracies: Sequence[float], constant: float, items: int, level: float) -> bool:
    """Whether the accuracy of every run is above the constant by Wilson's one-sided bound.

    All runs must pass, so the level needs no correction for their number.

    >>> beats_in_each_run([0.186, 0.322, 0.364], 0.125, 1567, 0.01), beats_in_each_run([0.13, 0.5], 0.125, 1567, 0.01)
    (True, False)
    """
    return all(proportion(round(one * items), items, 1 - 2 * level).interval.low > constant for one in accuracies)
