"""The verdicts of a study: its records compared as its spec fixed before the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whence.lab.study import Study
from whence.statistics.paired_comparison import AnalysisPlan, PairedComparison, compare_paired

#: value of each arm by seed; None for a run that diverged
Values = Mapping[str, Mapping[int, float | None]]


@dataclass(frozen=True)
class Judgement:
    """The comparison of the last complete look, or the reason why there is none yet."""

    comparison: PairedComparison | None
    reason: str | None = None


def analysis_plan(study: Study, metric: str, higher_is_better: bool) -> AnalysisPlan:
    """The plan of a study. If its family reaches beyond the study, its share of the error rate is in proportion."""
    decision = study.decision
    return AnalysisPlan(
        family=decision.family,
        baseline=decision.baseline if decision.family == "baseline" else None,
        alpha=decision.alpha * study.contrasts / study.comparisons,
        margin=decision.margin,
        higher_is_better=higher_is_better,
        looks=study.looks,
        unit="points" if metric == "accuracy" else "",
    )


def judge_study(study: Study, values: Values, metric: str, higher_is_better: bool) -> Judgement:
    """Compare the arms at every look whose runs are complete. Accuracies count in percentage points.

    An arm that an earlier look decided needs no further seeds; a diverged run counts as a run without a value.
    """
    if len(study.arms) < 2:
        return Judgement(None, "there is only one arm")
    plan = analysis_plan(study, metric, higher_is_better)
    factor = 100.0 if metric == "accuracy" else 1.0
    comparison: PairedComparison | None = None
    needed = [arm.name for arm in study.arms]
    for look in study.looks:
        seeds = study.seeds[:look]
        unfinished = [name for name in needed if any(seed not in values.get(name, {}) for seed in seeds)]
        if unfinished:
            reason = f"not every seed of {', '.join(unfinished)} has a record"
            return Judgement(comparison, None if comparison else reason)
        table = {
            arm.name: {
                seed: None if value is None else factor * value
                for seed, value in values.get(arm.name, {}).items()
                if seed in seeds
            }
            for arm in study.arms
        }
        comparison = compare_paired(table, plan)
        needed = list(comparison.undecided_arms())
        if not needed:
            break
    return Judgement(comparison)
