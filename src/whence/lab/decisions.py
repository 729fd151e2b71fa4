"""The verdicts of a study: its records compared as its spec fixed before the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean
from typing import Any

from whence.lab.study import PERCENT_METRICS, Study
from whence.statistics import (
    AnalysisPlan,
    Contrast,
    Interval,
    PairedComparison,
    Summary,
    cohen_d,
    compare_paired,
    summary,
)
from whence.statistics.analysis_plan import LARGEST_LOG
from whence.statistics.verdict_texts import describe_look, describe_verdict

#: value of each arm by seed; None for a run that failed or diverged
Values = Mapping[str, Mapping[int, float | None]]
#: an undecided difference with a corrected p value up to this multiple of alpha is called suggestive
SUGGESTIVE = 4


@dataclass(frozen=True)
class Judgement:
    """The comparison of the last complete look, or the reason why there is none yet."""

    comparison: PairedComparison | None
    reason: str | None = None
    needed: tuple[str, ...] = ()  # arms that get further seeds
    dropped: tuple[str, ...] = ()  # arms whose runs all failed or diverged


def analysis_plan(study: Study, metric: str, higher_is_better: bool) -> AnalysisPlan:
    """The plan of a study. If its family includes other studies, the study has its share of the error rate."""
    decision, scale = study.decision, choose_scale(study, metric)
    return AnalysisPlan(
        family=decision.family,
        baseline=decision.baseline if decision.family == "baseline" else None,
        alpha=decision.alpha,
        margin=decision.margin,
        higher_is_better=higher_is_better,
        looks=decision.looks,
        unit="points" if metric in PERCENT_METRICS else "%" if scale == "log" else "",
        share=study.contrasts / study.comparisons,
        scale=scale,
    )


def choose_scale(study: Study, metric: str) -> str:
    """The scale on which values of the metric are compared and averaged."""
    return study.decision.perplexity_scale if metric == "perplexity" else "value"


def summarize_values(values: Sequence[float], level: float, scale: str) -> Summary:
    """Mean and interval of one arm; on the scale "log" the geometric mean and the interval of the mean logarithm.

    >>> found = summarize_values([10.0, 1000.0], 0.95, "log")
    >>> round(found.mean, 6), found.interval.low > 0
    (100.0, True)
    """
    found = summary(values, level)
    if scale != "log":
        return found
    if found.interval is None:
        return replace(found, mean=geometric_mean(values))
    logs = summary([math.log(value) for value in values], level)
    if logs.interval is None:
        return replace(found, mean=geometric_mean(values), interval=None, note=logs.note)
    low, high = (math.exp(end) if end < LARGEST_LOG else math.inf for end in (logs.interval.low, logs.interval.high))
    return replace(found, mean=math.exp(logs.mean), interval=Interval(low, high, level))


def scale_values(values: Values, metric: str) -> dict[str, dict[int, float | None]]:
    """Fractions as percent; other metrics as they are."""
    factor = 100.0 if metric in PERCENT_METRICS else 1.0
    return {
        name: {seed: None if value is None else factor * value for seed, value in own.items()}
        for name, own in values.items()
    }


def judge_study(study: Study, values: Values, metric: str, higher_is_better: bool) -> Judgement:
    """Compare the arms at every look whose runs are complete. Accuracies count in percentage points.

    An arm that an earlier look decided needs no further seeds; a run that failed or diverged counts as a run without a
    value.
    """
    if len(study.arms) < 2:
        return Judgement(None, "there is only one arm")
    if len(study.seeds) < 2:
        return Judgement(None, "one seed has no variance; a comparison needs at least two seeds")
    plan, scaled = analysis_plan(study, metric, higher_is_better), scale_values(values, metric)
    comparison: PairedComparison | None = None
    failed: tuple[str, ...] = ()
    needed = tuple(arm.name for arm in study.arms)
    for look in study.looks:
        seeds = study.seeds[:look]
        unfinished = [name for name in needed if any(seed not in scaled.get(name, {}) for seed in seeds)]
        if unfinished:
            reason = f"not every seed of {', '.join(unfinished)} has a record"
            return Judgement(comparison, None if comparison else reason, needed, failed)
        table = {
            arm.name: {seed: value for seed, value in scaled.get(arm.name, {}).items() if seed in seeds}
            for arm in study.arms
        }
        failed = arms_without_value(table)
        if plan.baseline in failed:
            return Judgement(None, f"every seed of the baseline {plan.baseline} failed or diverged", (), failed)
        if len(table) - len(failed) < 2:
            return Judgement(None, f"every seed of {', '.join(failed)} failed or diverged", (), failed)
        comparison = compare_paired(table, plan)
        needed = arms_to_train(comparison, table)
        if not needed:
            break
    return Judgement(comparison, None, needed, failed)


def arms_without_value(values: Values) -> tuple[str, ...]:
    """The arms whose runs all failed or diverged."""
    return tuple(name for name, own in values.items() if all(value is None for value in own.values()))


def arms_to_train(comparison: PairedComparison, values: Values) -> tuple[str, ...]:
    """The arms that get further seeds: those with an undecided comparison, without arms whose runs all failed or diverged."""
    failed = arms_without_value(values)
    contrasts = [one for one in comparison.contrasts if one.first not in failed and one.second not in failed]
    return replace(comparison, contrasts=tuple(contrasts)).undecided_arms()


def comparison_findings(study: Study, comparison: PairedComparison, values: Values, metric: str) -> dict[str, Any]:
    """The comparison for a report, as plain JSON: every arm against the baseline, and the other contrasts, if any.

    On the scale "log" differences and their intervals are in per cent, and means are geometric.
    """
    plan = comparison.plan
    scaled, level = scale_values(values, metric), 1 - study.decision.alpha
    own = {name: [v for v in by_seed.values() if v is not None] for name, by_seed in scaled.items()}
    baseline = study.decision.baseline if own[study.decision.baseline] else next(name for name in own if own[name])
    arms, others = {}, []
    for contrast in comparison.contrasts:
        pair = {contrast.first, contrast.second}
        without = [seed for seed in comparison.seeds if None in (scaled[name].get(seed, 0.0) for name in pair)]
        if baseline not in pair:
            sentence = describe_verdict(contrast, comparison.plan, without)
            others.append(_show(contrast, plan).to_json() | {"left_out": without, "sentence": sentence})
            continue
        if contrast.estimate is None:  # the arms have no common seed: not compared
            continue
        against = contrast if contrast.second == baseline else contrast.reversed()
        shown = _show(against, plan)
        arms[against.first] = {
            "summary": summarize_values(own[against.first], level, plan.scale).to_json(),
            "means": _common_means(study, scaled[against.first], scaled[baseline], against.seeds, plan),
            "difference": shown.estimate,
            "corrected_interval": None if shown.interval is None else shown.interval.to_json(),
            "corrected_p": against.p,
            "effect": _effect_size(own[against.first], own[baseline], plan),
            "kind": against.verdict,
            "suggestive": against.verdict == "undecided" and (against.p or 1.0) <= SUGGESTIVE * comparison.plan.alpha,
            "verdict": describe_verdict(against, comparison.plan, without),
            "look": describe_look(against, comparison.plan),
            "seeds": against.seeds,
            "missing": list(against.missing),
            "left_out": without,
            "seeds_needed": against.seeds_needed,
        }
    return {
        "baseline": baseline, "baseline_summary": summarize_values(own[baseline], level, plan.scale).to_json(),
        "arms": arms, "others": others, "m": study.comparisons, "level": level, "alpha": comparison.plan.alpha,
        "margin": comparison.plan.margin, "family": comparison.plan.family, "looks": list(study.looks),
        "look": comparison.look, "seeds": len(comparison.seeds), "scale": plan.scale,
    }  # fmt: skip


def _show(contrast: Contrast, plan: AnalysisPlan) -> Contrast:
    """The contrast with its estimate and interval as they are shown."""
    interval = contrast.interval
    return replace(
        contrast,
        estimate=None if contrast.estimate is None else plan.to_shown(contrast.estimate),
        interval=None
        if interval is None
        else replace(interval, low=plan.to_shown(interval.low), high=plan.to_shown(interval.high)),
    )


def _common_means(
    study: Study, first: Mapping[int, float | None], second: Mapping[int, float | None], count: int, plan: AnalysisPlan
) -> list[float]:
    """The means of two arms over the ``count`` seeds that were compared: their difference, or ratio, is the estimate."""
    pairs = [
        (one, other)
        for seed in study.seeds
        if (one := first.get(seed)) is not None and (other := second.get(seed)) is not None
    ][:count]
    average = geometric_mean if plan.scale == "log" else fmean
    return [average(values) for values in zip(*pairs, strict=True)]


def _effect_size(first: list[float], second: list[float], plan: AnalysisPlan) -> dict[str, Any] | None:
    """Hedges' g, of logarithms on the scale "log"; None with one value."""
    if min(len(first), len(second)) < 2:
        return None
    if plan.scale == "log":
        first, second = ([math.log(value) for value in own] for own in (first, second))
    return cohen_d(first, second).to_json()
