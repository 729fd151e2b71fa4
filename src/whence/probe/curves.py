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

#: what a row of a record holds, by the score that made it: right or wrong, or a number
VALUES = {"likelihood": "correct", "generation": "generated_correct", "probability": "probability"}
DRAWS = 2000
LEVEL = 0.95


def curve(records: Iterable[Mapping[str, Any]], score: str, seed: int = 0) -> dict[str, Any]:
    """One task's curve by one score: a point for each slot, the mean, the gap, the best and the worst slot, and the two baselines.

    The average has no interval where all items gave the same: one of no width would claim a certainty they do not show.
    """
    if score not in VALUES:
        raise usage_error("curve", repr(score), f"the scores are {', '.join(VALUES)}", "take one of them")
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
    """The places of one task's records, and every item's value at each, ``[items, places]``."""
    values = _values_by_condition(records, VALUES[score])
    places = sorted(condition for condition in values if isinstance(condition, int))
    if len(places) < 2:
        raise usage_error("curve", f"records of {len(places)} places", "a curve has two or more", "measure more places")
    items = sorted(set.intersection(*(set(values[place]) for place in places)))
    rows = [[float(values[place][item]) for place in places] for item in items]
    return places, torch.tensor(rows, dtype=torch.float64)


def bootstrap_means(table: Tensor, seed: int, draws: int = DRAWS) -> Tensor:
    """Means at each place of items drawn with replacement, whole items at a time: ``[draws, places]``."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(table), (draws, len(table)), generator=generator)
    return table[drawn].mean(1)


def gap_by_chance(table: Tensor, seed: int, draws: int = DRAWS) -> dict[str, Any]:
    """The largest mean less the smallest is above zero by chance alone. How large is it if slots do not matter?

    If they do not, the values of an item could have come in any order: they are shuffled within each item, many times.
    ``gap_p`` is the share of shuffles with a gap at least as large, the true order counted with them. ``gap_interval`` is
    the gap plus and minus the largest gap that such shuffles make in 95 of 100 cases. It covers the difference between
    every pair of places at once, so it stays valid although the best and the worst place were chosen by looking, and it
    excludes zero exactly where ``gap_p`` is at most 0.05.
    """
    generator = torch.Generator().manual_seed(seed)
    means = table.mean(0)
    found = float(means.max() - means.min())
    orders = torch.rand((draws, *table.shape), generator=generator).argsort(-1)
    means = table.expand(draws, -1, -1).gather(2, orders).mean(1)
    gaps = (means.amax(1) - means.amin(1)).tolist()
    beyond = sum(gap >= found - 1e-12 for gap in gaps)
    return {
        "gap_by_chance": sum(gaps) / draws,
        "gap_p": (1 + beyond) / (1 + draws),
        "gap_interval": _gap_interval(found, gaps),
    }


def _gap_interval(found: float, gaps: list[float]) -> dict[str, float] | None:
    """None where so few shuffles were drawn, or all values are so alike, that no shuffle can set a bound."""
    rank = int((1 - LEVEL) * (1 + len(gaps)) + 1e-9)
    reach = sorted(gaps, reverse=True)[rank - 1] if rank >= 1 else 0.0
    return {"low": found - reach, "high": min(1.0, found + reach), "level": LEVEL} if reach > 0 else None


def count_wrong_choices(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Whose answer was taken where the gold's was not, over all records with the gold in some slot: counts by slot."""
    counts: dict[str, int] = {}
    for record in records:
        if isinstance(record["condition"], int):
            for row in record["rows"]:
                if "chosen_slot" in row and not row["correct"]:
                    key = "none" if row["chosen_slot"] is None else str(row["chosen_slot"])
                    counts[key] = counts.get(key, 0) + 1
    return counts


def _values_by_condition(records: Iterable[Mapping[str, Any]], name: str) -> dict[int | str, dict[int, float]]:
    found: dict[int | str, dict[int, float]] = {}
    for record in records:
        for row in record["rows"]:
            if name in row:
                found.setdefault(record["condition"], {})[row["item"]] = row[name]
    return found


def _point(values: list[float], score: str) -> dict[str, Any]:
    """A mean with its interval: Wilson's for right or wrong, the t-interval for anything else."""
    if score != "probability":
        found = proportion(round(sum(values)), len(values), LEVEL)
        return {"n": found.n, "mean": found.share, "interval": found.interval.to_json()}
    return {"n": len(values), "mean": sum(values) / len(values), "interval": _mean_interval(values)}


def _mean_interval(values: list[float]) -> dict[str, float] | None:
    """The t-interval of a mean of shares, which lie between 0 and 1; none where it has none."""
    ends = summary(values, LEVEL).interval
    return None if ends is None else {"low": max(0.0, ends.low), "high": min(1.0, ends.high), "level": LEVEL}


ALPHA = 0.05
FEW = 20  # items a slot below which a panel is marked: half of them right has a 95 % interval of 20 points to each side

#: what a score of a plan measures: the answer that is chosen, and the probability it is chosen with
MEASURES = {"likelihood": ("likelihood", "probability"), "generation": ("generation",)}


def measures(scores: Sequence[str]) -> list[str]:
    """The measures of a plan with these scores, in the order in which they were asked for.

    >>> measures(["likelihood", "generation"])
    ['likelihood', 'probability', 'generation']
    """
    return [measure for score in scores for measure in MEASURES[score]]


def decide(tasks: Sequence[dict[str, Any]], tests: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The tasks with a corrected p for each curve and the curve that leads, and the decision for all of them together.

    Args:
        tasks: findings of the tasks that were measured, each with its ``curves``.
        tests: the size of the family; what was not measured yet counts as a test that supports nothing.
    """
    ps = [curve["gap_p"] for task in tasks for curve in task["curves"]]
    corrected = iter(holm([*ps, *[1.0] * (tests - len(ps))]))
    decided = []
    for task in tasks:
        curves = [{**curve, "corrected_p": next(corrected)} for curve in task["curves"]]
        lead = min(curves, key=_strength)
        decided.append({**task, "curves": curves, "lead": lead["score"], "supported": supported(lead)})
    best = min(decided, key=lambda task: _strength(leading_curve(task)))
    return decided, {
        "alpha": ALPHA,
        "tests": tests,
        "few": FEW,
        "supported": sum(task["supported"] for task in decided),
        "lead": best["task"],
    }


def leading_curve(task: dict[str, Any]) -> dict[str, Any]:
    """The curve that a task's answer rests on."""
    return next(curve for curve in task["curves"] if curve["score"] == task["lead"])


def supported(curve: dict[str, Any]) -> bool:
    return bool(curve["gap"] > 0 and curve["corrected_p"] < ALPHA)


def _strength(curve: dict[str, Any]) -> tuple[float, bool, float]:
    """The smaller the stronger: the p first, then any gap before none, then the gap beyond what chance makes."""
    return curve["corrected_p"], curve["gap"] == 0, curve["gap_by_chance"] - curve["gap"]
