"""Compare arms that share seeds: simultaneous intervals, verdicts, looks after rounds of seeds, and the seeds still needed.

The analysis plan is fixed before the runs. One family-wise error rate covers every claim of a comparison: better, worse
and equivalent are all read off the same simultaneous intervals, and ``alpha`` is divided over the looks. See
``moderated_t`` for the test and ``benchmarks/paired_comparison.py`` for its measured error rate and power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from numbers import Integral, Real
from typing import Any

from whence.errors import require_package, usage_error
from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.contrasts import Contrast, keep_claim, untested_contrast
from whence.statistics.look import Look
from whence.statistics.moderated_t import DRAWS, FEATURE, Reference
from whence.statistics.samples import PlainData, check_values
from whence.statistics.verdict_texts import describe_contrast


@dataclass(frozen=True)
class Wording:
    """What the errors of a comparison name: the function and what its values are paired by."""

    caller: str = "compare_paired"
    block: str = "seed"
    remedy: str = "run that seed again, or report its failure separately"  # for a value that is no number in range
    add: str = "add the results of seeds"


SEEDS = Wording()


@dataclass(frozen=True)
class PairedComparison(PlainData):
    """All contrasts of a family and the state of the looks."""

    plan: AnalysisPlan
    contrasts: tuple[Contrast, ...]
    seeds: tuple[Any, ...]  # the seeds that were judged
    look: int  # looks done; 0 before the first

    def undecided_arms(self) -> tuple[str, ...]:
        """The arms to train further: those with an undecided contrast that are not clearly worse than another arm.

        In the family "baseline" the baseline is among them while any contrast is undecided.
        """
        worse = set()
        if self.plan.family == "pairs":
            worse = {c.first for c in self.contrasts if c.verdict == "worse"}
            worse |= {c.second for c in self.contrasts if c.verdict == "better"}
        names: dict[str, None] = {}
        for contrast in self.contrasts:
            if contrast.verdict == "undecided" and not worse & {contrast.first, contrast.second}:
                names |= {contrast.first: None, contrast.second: None}
        return tuple(names)

    def text(self) -> str:
        """One line per contrast."""
        return "\n".join(describe_contrast(contrast, self.plan) for contrast in self.contrasts)


def compare_paired(
    values: Mapping[str, Mapping[Any, float | None]], plan: AnalysisPlan, *, draws: int = DRAWS, seed: int = 0,
    references: dict[Any, Reference] | None = None,
) -> PairedComparison:  # fmt: skip
    """Compare arms on common seeds as the plan says.

    Args:
        values: for each arm, its value by seed. None or NaN marks a failed run. A seed without a value counts for the
            contrasts of other arms.
        plan: family, alpha, margin and looks.
        draws: simulated data sets of each reference distribution.
        seed: seed of these simulations.
        references: a dictionary for the reference distributions, which depend on arms and seeds and not on values. Many
            comparisons that share one simulate each of them once; the results are the same.

    With looks, seeds join in ascending order, and seeds beyond the last look reached wait for the next one. A claim of an
    earlier look stands: an arm that was better stays better, also if later seeds put the difference inside the margin.
    ``Contrast.look`` says which look made the claim. Estimate and interval include later seeds. If a later estimate lies
    outside the interval of the claim, the contrast keeps the numbers of its claim, and its note says the later estimate.

    If no difference varies from seed to seed, as between arms that always reach 100 %, there is no variance to build an
    interval from. The sign-flip test then decides: with n seeds, it rejects every difference but the one seen with
    p = 2^(1 - n), before the correction for the family and the looks. Enough seeds make such arms better, worse or, within
    the margin, equivalent.

    >>> accuracy = {"none": {0: 70.1, 1: 71.4, 2: 69.2}, "rotary": {0: 75.0, 1: 76.5, 2: 74.2}}
    >>> print(compare_paired(accuracy, AnalysisPlan(baseline="none", unit="points")).text())
    rotary is better than none by 5 points (4.75 to 5.25, p = 0.00013, 3 seeds)

    On the scale "log", arms are compared by ratios:

    >>> perplexity = {"none": {0: 8.1, 1: 8.3, 2: 8.2}, "rotary": {0: 7.3, 1: 7.5, 2: 7.4}}
    >>> plan = AnalysisPlan(baseline="none", unit="%", scale="log", higher_is_better=False)
    >>> print(compare_paired(perplexity, plan).text())
    rotary is better than none by 9.76 % (-10.1 to -9.46, p < 0.0001, 3 seeds)
    """
    if not isinstance(draws, Integral) or draws < 100:
        raise usage_error("compare_paired(draws=...)", repr(draws), "at least 100 are needed", f"try {DRAWS}")
    return judge_looks(values, plan, Look, draws=draws, seed=seed, references=references)


def judge_looks(
    values: Mapping[str, Mapping[Any, float | None]], plan: AnalysisPlan, make_look: Callable[..., Look], *,
    draws: int = DRAWS, seed: int = 0, references: dict[Any, Reference] | None = None, wording: Wording = SEEDS,
) -> PairedComparison:  # fmt: skip
    """The contrasts after every look of the plan that the values reach. ``make_look`` has the arguments of ``Look``."""
    arms, seeds, table = _tabulate(values, plan, wording)
    pairs = [(arm, 0) for arm in range(1, len(arms))]
    if plan.family == "pairs":
        pairs = list(combinations(range(len(arms)), 2))
    looks = [n for n in plan.looks if n <= len(seeds)] if plan.looks else [len(seeds)]
    levels = plan.look_levels()
    references = {} if references is None else references
    judged: list[Contrast] = [
        untested_contrast(arms[a], arms[b], None, (), 0, "the first look comes later") for a, b in pairs
    ]
    for number, count in enumerate(looks):
        level, last = levels[number], number + 1 == len(looks)
        enough = max(draws, math.ceil(20 / level))
        look = make_look(arms, seeds[:count], table[:count], pairs, plan, level, enough, seed, references)
        judged = [
            keep_claim(before, look.judge(index, before, needed=last), number + 1, plan)
            for index, before in enumerate(judged)
        ]
    return PairedComparison(plan, tuple(judged), tuple(seeds[: looks[-1]] if looks else ()), len(looks))


def _to_scale(subject: str, value: float, plan: AnalysisPlan, remedy: str) -> float:
    """A value on the scale of the comparison."""
    (checked,) = check_values(subject, [value], remedy=remedy)
    if plan.scale != "log":
        return checked
    if checked <= 0:
        raise usage_error(subject, repr(value), "only values above 0 have a ratio", "compare on the scale 'value'")
    return math.log(checked)


def _tabulate(
    values: Mapping[str, Mapping[Any, float | None]], plan: AnalysisPlan, wording: Wording
) -> tuple[list[str], list[Any], Any]:
    """Arms with the baseline first, sorted seeds, and a table of seeds by arms with NaN where there is no value."""
    numpy = require_package("numpy", FEATURE, "lab")
    caller, block = wording.caller, wording.block
    if not isinstance(values, Mapping) or len(values) < 2:
        got = f"{len(values)} arms" if isinstance(values, Mapping) else f"a {type(values).__name__}"
        rule = f"values maps the names of at least two arms to values by {block}"
        raise usage_error(f"{caller}(values)", got, rule, "pass {'a': {0: 70.1}, 'b': {0: 71.2}}")
    arms = list(values)
    if plan.baseline is not None:
        if plan.baseline not in values:
            rule = f"the arms are {', '.join(map(str, arms))}"
            raise usage_error("AnalysisPlan(baseline=...)", repr(plan.baseline), rule, "name one of them")
        arms.sort(key=lambda arm: arm != plan.baseline)
    for arm in arms:
        if not isinstance(values[arm], Mapping):
            got, rule = f"a {type(values[arm]).__name__}", f"pairing needs the {block} of every value"
            raise usage_error(f"{caller}(values[{arm!r}])", got, rule, "pass a dict such as {0: 70.1, 1: 71.2}")
    try:
        seeds = sorted({seed for own in values.values() for seed in own})
    except TypeError:
        kinds = sorted({type(seed).__name__ for own in values.values() for seed in own})
        rule = f"{block}s must have an order"
        raise usage_error(f"{caller}(values)", f"{block}s of type {', '.join(kinds)}", rule, "use numbers") from None
    if not seeds:
        raise usage_error(f"{caller}(values)", f"no {block}s", "every arm needs values", wording.add)
    if plan.looks and len(seeds) > plan.looks[-1]:
        rule = f"the last look of the plan is after {plan.looks[-1]}"
        raise usage_error(f"{caller}(values)", f"{len(seeds)} {block}s", rule, "plan more looks before the runs")
    table = numpy.full((len(seeds), len(arms)), numpy.nan)
    for column, arm in enumerate(arms):
        for row, seed in enumerate(seeds):
            value = values[arm].get(seed)
            if value is not None and not (isinstance(value, Real) and math.isnan(value)):
                table[row, column] = _to_scale(f"{caller}(values[{arm!r}][{seed!r}])", value, plan, wording.remedy)
    return arms, seeds, table
