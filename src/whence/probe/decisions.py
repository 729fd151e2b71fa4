"""The decision rule of a probe: which effects of position its records support.

The family of tests is fixed by the plan: every task by every measure, whether it was measured already or not. Each is
tested by the permutation test of the gap between its best and its worst slot (``curves.gap_by_chance``). Holm's
correction over the family keeps the probability of any false claim at or below ``ALPHA``. The answer for a task is its
strongest supported measure; the answer for the probe is the strongest of all tasks. Without a supported measure the
answer is "undecided".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.statistics import holm

ALPHA = 0.05
FEW = 20  # items a slot below which a panel is marked: half of them right has a 95 % interval of 20 points to each side

#: what a score of a plan measures: the answer that is chosen, and the probability it is chosen with
MEASURES = {"likelihood": ("likelihood", "share"), "generation": ("generation",)}


def measures(scores: Sequence[str]) -> list[str]:
    """The measures of a plan with these scores, in the order in which they were asked for.

    >>> measures(["likelihood", "generation"])
    ['likelihood', 'share', 'generation']
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
    best = min(decided, key=lambda task: _strength(leading(task)))
    return decided, {
        "alpha": ALPHA,
        "tests": tests,
        "few": FEW,
        "supported": sum(task["supported"] for task in decided),
        "lead": best["task"],
    }


def leading(task: dict[str, Any]) -> dict[str, Any]:
    """The curve that a task's answer rests on."""
    return next(curve for curve in task["curves"] if curve["score"] == task["lead"])


def supported(curve: dict[str, Any]) -> bool:
    return bool(curve["gap"] > 0 and curve["corrected_p"] < ALPHA)


def _strength(curve: dict[str, Any]) -> tuple[float, bool, float]:
    """The smaller the stronger: the p first, then any gap before none, then the gap beyond what chance makes."""
    return curve["corrected_p"], curve["gap"] == 0, curve["gap_by_chance"] - curve["gap"]
