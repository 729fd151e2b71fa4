"""Verdicts in words, for terminals, reports and ledgers."""

from __future__ import annotations

from collections.abc import Sequence

from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.contrasts import Contrast
from whence.statistics.further_seeds import MOST_SEEDS
from whence.statistics.number_texts import format_size

#: a smaller difference, in points or units of a metric, is the rounding error of equal means
NO_DIFFERENCE = 1e-9


def format_p(p: float | None) -> str:
    """
    >>> format_p(0.0312), format_p(0.00002), format_p(None)
    ('p = 0.031', 'p < 0.0001', 'no p value')
    """
    if p is None:
        return "no p value"
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def describe_contrast(contrast: Contrast, plan: AnalysisPlan) -> str:
    """The verdict as a sentence about the first arm, with interval, p value and seeds."""
    facts = [
        _describe_interval(contrast, plan),
        _describe_test(contrast),
        "1 seed" if contrast.seeds == 1 else f"{contrast.seeds} seeds",
    ]
    if contrast.missing:
        facts.append(describe_left_out(contrast.missing))
    return f"{contrast.first} is {_compose(contrast, plan, facts)}"


def describe_left_out(seeds: Sequence[int]) -> str:
    """The seeds that a comparison is without.

    >>> describe_left_out([2]), describe_left_out([0, 2]), describe_left_out([])
    ('without seed 2', 'without seeds 0 and 2', '')
    """
    if not seeds:
        return ""
    *first, last = map(str, seeds)
    return f"without seeds {', '.join(first)} and {last}" if first else f"without seed {last}"


def describe_look(contrast: Contrast, plan: AnalysisPlan) -> str:
    """The look that made a claim, if the contrast has later seeds too."""
    if contrast.look is None or not plan.looks or plan.looks[contrast.look - 1] == contrast.seeds:
        return ""
    return f"claimed at the look after {plan.looks[contrast.look - 1]} seeds"


def describe_verdict(contrast: Contrast, plan: AnalysisPlan, left_out: Sequence[int] = ()) -> str:
    """The verdict without the name of the first arm, for tables that show the interval and the seeds beside it.

    ``left_out`` are the seeds to name: those that failed or diverged in one of the two arms.

    >>> plan = AnalysisPlan(baseline="none", unit="points")
    >>> contrast = Contrast("rotary", "none", 5.0, None, 0.00013, "better", 3, (), None)
    >>> describe_verdict(contrast, plan)
    'better than none by 5 points (p = 0.00013)'
    >>> describe_verdict(contrast, plan, [1])
    'better than none by 5 points (p = 0.00013, without seed 1)'
    >>> describe_verdict(Contrast("rotary", "none", -1e-14, None, 1.0, "undecided", 3, (), None), plan)
    'undecided: equal to none so far (p = 1)'
    """
    test = "" if contrast.verdict == "equivalent" else _describe_test(contrast)
    return _compose(contrast, plan, [test, describe_left_out(left_out)])


def _compose(contrast: Contrast, plan: AnalysisPlan, facts: list[str]) -> str:
    unit, second = f" {plan.unit}" if plan.unit else "", contrast.second
    difference = plan.to_shown(contrast.estimate or 0.0)
    known = [fact for fact in [*facts, describe_look(contrast, plan), contrast.note or ""] if fact]
    inside = f" ({', '.join(known)})" if known else ""
    if contrast.verdict in ("better", "worse"):
        return f"{contrast.verdict} than {second} by {format_size(abs(difference))}{unit}{inside}"
    if contrast.verdict == "equivalent":
        return f"equivalent to {second} within {plan.margin:g}{unit}{inside}"
    if contrast.estimate is None or contrast.p is None:
        return f"undecided: not compared with {second}{inside}"
    size = f"{format_size(abs(difference))}{unit} {'above' if difference > 0 else 'below'}"
    if abs(difference) < NO_DIFFERENCE:
        size = "equal to"
    return f"undecided: {size} {second} so far{inside}{_describe_needed(contrast)}"


def _describe_interval(contrast: Contrast, plan: AnalysisPlan) -> str:
    if contrast.interval is None:
        return ""
    low, high = (plan.to_shown(end) for end in (contrast.interval.low, contrast.interval.high))
    return f"{format_size(low)} to {format_size(high)}"


def _describe_test(contrast: Contrast) -> str:
    return "" if contrast.p is None else format_p(contrast.p)


def _describe_needed(contrast: Contrast) -> str:
    if contrast.seeds_needed is not None:
        more = f"{contrast.seeds_needed} more seed{'' if contrast.seeds_needed == 1 else 's'}"
        return f"; about {more} would probably decide at this difference"
    if contrast.interval is not None:
        return f"; more than {MOST_SEEDS} seeds would be needed at this difference"
    return ""
