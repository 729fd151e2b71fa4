"""Curves from records: accuracy or probability by the slot of the gold, with intervals and tests.

The decision rule of a probe: which effects of position its records support.

The family of tests is fixed by the plan: every task by every measure, whether it was measured already or not. Each is
tested by the permutation test of the gap between its best and its worst slot (``curves.gap_by_chance``). Holm's
correction over the family keeps the probability of any false claim at or below ``ALPHA``. The answer for a task is its
strongest supported measure; the answer for the probe is the strongest of all tasks. Without a supported measure the
answer is "undecided".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe.tasks import CLOSED_BOOK, ORACLE
from whence.statistics import holm, proportion, summary

#: the field of a record's row for each score
VALUES = {"likelihood": "correct", "generation": "generated_correct", "probability": "probability"}
DRAWS = 2000
LEVEL = 0.95


def curve(records: Iterable[Mapping[str, Any]], score: str, seed: int = 0) -> dict[str, Any]:
    """One task's curve by one score: a point for each slot, the mean, the gap, the best and the worst slot, and the two baselines.

    The average has no interval if all items have the same value, because an interval of length 0 would claim certainty.
    """
    if score not in VALUES:
        raise usage_error("curve", repr(score), f"the scores are {', '.join(VALUES)}", "choose one of them")
    records = list(records)
    values = _values_by_condition(records, VALUES[score])
    places, table = by_item(records, score)
    means = table.mean(0)
    lines = {name: _point(list(values[name].values()), score) for name in (CLOSED_BOOK, ORACLE) if name in values}
    worst, best = int(means.argmin()), int(means.argmax())
    return {
        "score": score,
        "items": len(table),
        "points": [{"slot": slot, **_point(table[:, i].tolist(), score)} for i, slot in enumerate(places)],
        "average": float(means.mean()),
        "average_interval": _mean_interval(table.mean(1).tolist()),
        "gap": float(means[best] - means[worst]),
        **gap_by_chance(table, seed),
        "worst": places[worst],
        "best": places[best],
        "baselines": lines,
    }


def by_item(records: Iterable[Mapping[str, Any]], score: str) -> tuple[list[int], Tensor]:
    """The gold slots of one task's records, and the value of every item at each slot, ``[items, slots]``."""
    values = _values_by_condition(records, VALUES[score])
    places = sorted(condition for condition in values if isinstance(condition, int))
    if len(places) < 2:
        raise usage_error("curve", f"records of {len(places)} slots", "a curve needs two or more", "measure more slots")
    items = sorted(set.intersection(*(set(values[place]) for place in places)))
    rows = [[float(values[place][item]) for place in places] for item in items]
    return places, torch.tensor(rows, dtype=torch.float64)


def bootstrap_means(table: Tensor, seed: int, draws: int = DRAWS) -> Tensor:
    """Bootstrap means at each slot, with whole items drawn with replacement: ``[draws, slots]``."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(table), (draws, len(table)), generator=generator)
    return table[drawn].mean(1)


def gap_by_chance(table: Tensor, seed: int, draws: int = DRAWS) -> dict[str, Any]:
    """Permutation test of the gap, the largest mean minus the smallest, which is above zero by chance alone.

    If slots do not matter, the values of an item are exchangeable, so they are permuted within each item. ``gap_p`` is the
    share of permutations with a gap at least as large, the observed order included. ``gap_interval`` is the gap plus and
    minus the 95% quantile of the permuted gaps. It covers the differences between all pairs of slots at once, so it is
    valid although the best and the worst slot are chosen from the data. It excludes zero exactly where ``gap_p`` is at
    most 0.05.
    """
    generator = torch.Generator().manual_seed(seed)
    means = table.mean(0)
    gap = float(means.max() - means.min())
    orders = torch.rand((draws, *table.shape), generator=generator).argsort(-1)
    means = table.expand(draws, -1, -1).gather(2, orders).mean(1)
    permuted_gaps = (means.amax(1) - means.amin(1)).tolist()
    num_larger = sum(permuted >= gap - 1e-12 for permuted in permuted_gaps)
    return {
        "gap_by_chance": sum(permuted_gaps) / draws,
        "gap_p": (1 + num_larger) / (1 + draws),
        "gap_interval": _gap_interval(gap, permuted_gaps),
    }


def _gap_interval(gap: float, gaps: list[float]) -> dict[str, float] | None:
    """None with too few permutations, or without any variance."""
    rank = int((1 - LEVEL) * (1 + len(gaps)) + 1e-9)
    reach = sorted(gaps, reverse=True)[rank - 1] if rank >= 1 else 0.0
    return {"low": gap - reach, "high": min(1.0, gap + reach), "level": LEVEL} if reach > 0 else None


def count_wrong_choices(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of wrong choices by the slot whose answer was chosen, over all records with the gold in a slot."""
    counts: dict[str, int] = {}
    for record in records:
        if isinstance(record["condition"], int):
            for row in record["rows"]:
                if "chosen_slot" in row and not row["correct"]:
                    key = "none" if row["chosen_slot"] is None else str(row["chosen_slot"])
                    counts[key] = counts.get(key, 0) + 1
    return counts


def _values_by_condition(records: Iterable[Mapping[str, Any]], name: str) -> dict[int | str, dict[int, float]]:
    values: dict[int | str, dict[int, float]] = {}
    for record in records:
        for row in record["rows"]:
            if name in row:
                values.setdefault(record["condition"], {})[row["item"]] = row[name]
    return values


def _point(values: list[float], score: str) -> dict[str, Any]:
    """A mean with its interval: Wilson's interval for shares of correct answers, the t-interval for probabilities."""
    if score != "probability":
        estimate = proportion(round(sum(values)), len(values), LEVEL)
        return {"n": estimate.n, "mean": estimate.share, "interval": estimate.interval.to_json()}
    return {"n": len(values), "mean": sum(values) / len(values), "interval": _mean_interval(values)}


def _mean_interval(values: list[float]) -> dict[str, float] | None:
    """The t-interval of a mean of shares, cut to 0..1; None if it is undefined."""
    ends = summary(values, LEVEL).interval
    return None if ends is None else {"low": max(0.0, ends.low), "high": min(1.0, ends.high), "level": LEVEL}


ALPHA = 0.05
FEW = 20  # items per slot; a panel with fewer is marked. With half of 20 correct, the 95% interval is 20 points to each side

#: the measures that each score of a plan gives: accuracy, and the probability of the answer
MEASURES = {"likelihood": ("likelihood", "probability"), "generation": ("generation",)}


def measures(scores: Sequence[str]) -> list[str]:
    """The measures of a plan with these scores, in the order of the scores.

    >>> measures(["likelihood", "generation"])
    ['likelihood', 'probability', 'generation']
    """
    return [measure for score in scores for measure in MEASURES[score]]


def decide(tasks: Sequence[dict[str, Any]], tests: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Add a corrected p to each curve and the leading measure to each task, and decide for all tasks together.

    Args:
        tasks: findings of the tasks that were measured, each with its ``curves``.
        tests: the size of the family; a measurement that is missing counts as a test with p = 1.
    """
    ps = [curve["gap_p"] for task in tasks for curve in task["curves"]]
    corrected = iter(holm([*ps, *[1.0] * (tests - len(ps))]))
    decided = []
    for task in tasks:
        curves = [{**curve, "corrected_p": next(corrected)} for curve in task["curves"]]
        lead = min(curves, key=_strength)
        decided.append({**task, "curves": curves, "lead": lead["score"], "supported": is_supported(lead)})
    best = min(decided, key=lambda task: _strength(leading_curve(task)))
    return decided, {
        "alpha": ALPHA,
        "tests": tests,
        "few": FEW,
        "supported": sum(task["supported"] for task in decided),
        "lead": best["task"],
    }


def leading_curve(task: dict[str, Any]) -> dict[str, Any]:
    """The curve of the leading measure of a task."""
    return next(curve for curve in task["curves"] if curve["score"] == task["lead"])


def is_supported(curve: dict[str, Any]) -> bool:
    return bool(curve["gap"] > 0 and curve["corrected_p"] < ALPHA)


def _strength(curve: dict[str, Any]) -> tuple[float, bool, float]:
    """Sort key, smallest first: p, then curves with a gap, then the gap beyond chance."""
    return curve["corrected_p"], curve["gap"] == 0, curve["gap_by_chance"] - curve["gap"]
