"""Compare arms that share seeds: simultaneous intervals, verdicts, looks after rounds of seeds, and the seeds still needed.

The analysis plan is fixed before the runs. One family-wise error rate covers every claim of a comparison: better, worse
and equivalent are all read off the same simultaneous intervals, and ``alpha`` is divided over the looks. See
``moderated_t`` for the test and ``benchmarks/paired_comparison.py`` for its measured error rate and power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from numbers import Integral, Real
from statistics import NormalDist
from typing import Any

from whence.errors import require_package, usage_error
from whence.statistics.moderated_t import DRAWS, FEATURE, Layout, Reference, from_normal, reference_scenarios
from whence.statistics.samples import Interval, PlainData, check_values, rounding_error

FAMILIES = ("baseline", "pairs")
VERDICTS = ("better", "worse", "equivalent", "undecided")
POWER = 0.8  # with which the seeds still needed would decide
MOST_SEEDS = 1000  # beyond it no number of further seeds is named
MIN_ALPHA = 0.001  # smaller rates are beyond what the simulated reference distribution can tell


@dataclass(frozen=True)
class AnalysisPlan(PlainData):
    """What decides a comparison, fixed before the runs.

    Args:
        family: "baseline" compares every arm with the baseline, "pairs" every two arms.
        baseline: the arm that the others are compared with; only for the family "baseline".
        alpha: family-wise error rate of all claims at all looks together.
        margin: arms whose difference is certainly below it are equivalent; None claims no equivalence.
        higher_is_better: whether a larger value is better.
        looks: the numbers of seeds after which the data are judged, such as (3, 5, 8); empty: once, with all seeds.
        unit: unit of a difference in texts, such as "points".
        share: part of alpha that this comparison may spend, if the family includes other comparisons. Its p values and
            intervals are corrected for the whole family.
    """

    family: str = "baseline"
    baseline: str | None = None
    alpha: float = 0.05
    margin: float | None = None
    higher_is_better: bool = True
    looks: tuple[int, ...] = ()
    unit: str = ""
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise usage_error("AnalysisPlan(family=...)", repr(self.family), "it is baseline or pairs", "choose one")
        if (self.family == "baseline") != (self.baseline is not None):
            got = f"{self.baseline!r} with family={self.family!r}"
            rule = "the family 'baseline' needs a baseline and the family 'pairs' has none"
            raise usage_error("AnalysisPlan(baseline=...)", got, rule, "name an arm, or pass family='pairs'")
        if not isinstance(self.alpha, Real) or not MIN_ALPHA <= self.alpha <= 0.5:
            rule = f"it lies from {MIN_ALPHA:g} to 0.5"
            raise usage_error("AnalysisPlan(alpha=...)", repr(self.alpha), rule, "try 0.05")
        if self.margin is not None and not (isinstance(self.margin, Real) and 0 < self.margin < math.inf):
            rule = "a margin is a difference above 0, in units of the metric"
            raise usage_error("AnalysisPlan(margin=...)", repr(self.margin), rule, "pass None to claim no equivalence")
        if not (isinstance(self.share, Real) and 0 < self.share <= 1):
            rule = "it is the part of alpha that this comparison may spend, above 0 and at most 1"
            raise usage_error("AnalysisPlan(share=...)", repr(self.share), rule, "pass 1.0 for the whole")
        looks = self.looks
        whole = isinstance(looks, Sequence) and all(isinstance(n, Integral) and n >= 2 for n in looks)
        if not whole or any(a >= b for a, b in pairwise(looks)):
            rule = "looks are increasing numbers of seeds, at least 2"
            raise usage_error("AnalysisPlan(looks=...)", repr(looks), rule, "try looks=(3, 5, 8)")
        object.__setattr__(self, "looks", tuple(int(n) for n in looks))

    def look_levels(self) -> tuple[float, ...]:
        """The error rate that each look may spend. They sum to the share of alpha, so the looks together keep it.

        The rate spent grows in proportion to the seeds (Kim and DeMets 1987, Biometrika 74), so that a large difference
        is claimed early. No look relies on how the looks are correlated, and arms may be dropped between them.

        >>> [round(level, 5) for level in AnalysisPlan("pairs", looks=(3, 5, 8)).look_levels()]
        [0.01875, 0.0125, 0.01875]
        """
        before = (0, *self.looks)
        spent = self.alpha * self.share
        return tuple(spent * (n - m) / self.looks[-1] for m, n in zip(before, self.looks, strict=False)) or (spent,)


@dataclass(frozen=True)
class Contrast(PlainData):
    """``first`` compared with ``second``. A field is None if it is not defined; ``note`` says why."""

    first: str
    second: str
    estimate: float | None  # mean of first minus second over their common seeds
    interval: Interval | None  # simultaneous over the family and the looks; without zero exactly if p <= alpha
    p: float | None  # corrected for the family and the looks
    verdict: str  # first is better or worse than second, equivalent to it, or the contrast is undecided
    seeds: int  # common seeds
    missing: tuple[Any, ...]  # seeds for which one of the two arms has no value
    seeds_needed: int | None  # further seeds that would decide with a probability of about 0.8
    note: str | None = None
    look: int | None = None  # the look that made the claim, counted from 1; None while undecided

    def reversed(self) -> Contrast:
        """The same contrast as ``second`` compared with ``first``."""
        opposite = {"better": "worse", "worse": "better"}
        interval = self.interval
        return replace(
            self, first=self.second, second=self.first, verdict=opposite.get(self.verdict, self.verdict),
            estimate=None if self.estimate is None else -self.estimate,
            interval=None if interval is None else Interval(-interval.high, -interval.low, interval.level),
        )  # fmt: skip


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
    values: Mapping[str, Mapping[Any, float | None]], plan: AnalysisPlan, *, draws: int = DRAWS, seed: int = 0
) -> PairedComparison:
    """Compare arms on common seeds as the plan says.

    Args:
        values: for each arm, its value by seed. None or NaN marks a failed run. A seed without a value counts for the
            contrasts of other arms.
        plan: family, alpha, margin and looks.
        draws: simulated data sets of each reference distribution.
        seed: seed of these simulations.

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
    """
    if not isinstance(draws, Integral) or draws < 100:
        raise usage_error("compare_paired(draws=...)", repr(draws), "at least 100 are needed", f"try {DRAWS}")
    arms, seeds, table = _tabulate(values, plan)
    pairs = [(arm, 0) for arm in range(1, len(arms))]
    if plan.family == "pairs":
        pairs = list(combinations(range(len(arms)), 2))
    looks = [n for n in plan.looks if n <= len(seeds)] if plan.looks else [len(seeds)]
    levels = plan.look_levels()
    judged: list[Contrast] = [_untested(arms[a], arms[b], None, (), 0, "the first look comes later") for a, b in pairs]
    for number, count in enumerate(looks):
        level, last = levels[number], number + 1 == len(looks)
        enough = max(draws, math.ceil(20 / level))
        look = _Look(arms, seeds[:count], table[:count], pairs, plan, level, enough, seed)
        judged = [
            _keep_claim(before, look.judge(index, before, needed=last), number + 1, plan)
            for index, before in enumerate(judged)
        ]
    return PairedComparison(plan, tuple(judged), tuple(seeds[: looks[-1]] if looks else ()), len(looks))


def _tabulate(values: Mapping[str, Mapping[Any, float | None]], plan: AnalysisPlan) -> tuple[list[str], list[Any], Any]:
    """Arms with the baseline first, sorted seeds, and a table of seeds by arms with NaN where there is no value."""
    numpy = require_package("numpy", FEATURE, "lab")
    if not isinstance(values, Mapping) or len(values) < 2:
        got = f"{len(values)} arms" if isinstance(values, Mapping) else f"a {type(values).__name__}"
        rule = "values maps the names of at least two arms to values by seed"
        raise usage_error("compare_paired(values)", got, rule, "pass {'a': {0: 70.1}, 'b': {0: 71.2}}")
    arms = list(values)
    if plan.baseline is not None:
        if plan.baseline not in values:
            rule = f"the arms are {', '.join(map(str, arms))}"
            raise usage_error("AnalysisPlan(baseline=...)", repr(plan.baseline), rule, "name one of them")
        arms.sort(key=lambda arm: arm != plan.baseline)
    for arm in arms:
        if not isinstance(values[arm], Mapping):
            got, rule = f"a {type(values[arm]).__name__}", "pairing needs the seed of every value"
            raise usage_error(f"compare_paired(values[{arm!r}])", got, rule, "pass a dict such as {0: 70.1, 1: 71.2}")
    try:
        seeds = sorted({seed for own in values.values() for seed in own})
    except TypeError:
        kinds = sorted({type(seed).__name__ for own in values.values() for seed in own})
        rule = "seeds must have an order"
        raise usage_error("compare_paired(values)", f"seeds of type {', '.join(kinds)}", rule, "use numbers") from None
    if not seeds:
        raise usage_error("compare_paired(values)", "no seeds", "every arm needs values", "add the results of seeds")
    if plan.looks and len(seeds) > plan.looks[-1]:
        rule = f"the last look of the plan is after {plan.looks[-1]}"
        raise usage_error("compare_paired(values)", f"{len(seeds)} seeds", rule, "plan more looks before the runs")
    table = numpy.full((len(seeds), len(arms)), numpy.nan)
    for column, arm in enumerate(arms):
        for row, seed in enumerate(seeds):
            value = values[arm].get(seed)
            if value is not None and not (isinstance(value, Real) and math.isnan(value)):
                table[row, column] = check_values(f"compare_paired(values[{arm!r}][{seed!r}])", [value])[0]
    return arms, seeds, table


class _Look:
    """The statistics of all contrasts at one look."""

    def __init__(
        self, arms: list[str], seeds: list[Any], table: Any, pairs: list[tuple[int, int]], plan: AnalysisPlan,
        level: float, draws: int, seed: int,
    ) -> None:  # fmt: skip
        numpy = require_package("numpy", FEATURE, "lab")
        self.arms, self.seeds, self.pairs, self.plan, self.level = arms, seeds, pairs, plan, level
        self.layout = Layout(~numpy.isnan(table), pairs)
        self.family = int(self.layout.testable.sum())
        self.differences = table[:, self.layout.first] - table[:, self.layout.second]
        filled = numpy.nan_to_num(table)[None]
        unit = float(abs(filled).max()) or 1.0  # squares of very large or small values would leave the range of a float
        filled /= unit
        self.noise = rounding_error(filled.ravel().tolist())
        residuals = self.layout.residuals(self.layout.center(filled)[1])
        self.constant = math.sqrt(float(self.layout.pooled_variance(residuals)[0])) <= self.noise
        self.noise *= unit
        if self.family and not self.constant:
            estimates, errors, freedom = (part[0] for part in self.layout.statistics(filled))
            order = numpy.cumsum(self.layout.testable) - 1
            self.tests = {
                int(i): (unit * float(estimates[order[i]]), unit * float(errors[order[i]]), float(freedom[order[i]]))
                for i in numpy.nonzero(self.layout.testable)[0]
            }
            self.reference = Reference(self.layout, reference_scenarios(plan.family), draws=draws, seed=seed)

    def judge(self, index: int, before: Contrast, *, needed: bool) -> Contrast:
        """The contrast after this look. Intervals of several looks are intersected (Jennison and Turnbull 1989)."""
        first, second = (self.arms[arm] for arm in self.pairs[index])
        common = self.layout.common[:, index]
        missing = tuple(seed for seed, there in zip(self.seeds, common, strict=True) if not there)
        count = int(common.sum())
        estimate = float(self.differences[common, index].mean()) if count else None
        if count < 2:
            note = "fewer than two common seeds have a value"
            return _untested(first, second, estimate, missing, count, note)
        if self.constant:
            return self._judge_constant(first, second, float(estimate or 0.0), missing, count, needed=needed)
        estimate, error, freedom = self.tests[index]
        reach = error * self.reference.critical_t(self.level, freedom)
        low, high = estimate - reach, estimate + reach
        p = min(1.0, self.reference.p(estimate / error, freedom) * self.plan.alpha / self.level)
        if before.interval is not None:
            overlap = max(low, before.interval.low), min(high, before.interval.high)
            low, high = overlap if overlap[0] <= overlap[1] else (before.interval.low, before.interval.high)
            p = min(p, 1.0 if before.p is None else before.p)
        verdict = _verdict(low, high, self.plan)
        further = None
        if needed and verdict == "undecided":
            further = self._seeds_needed(estimate, error, freedom, count)
        interval = Interval(low, high, 1 - self.plan.alpha)
        return Contrast(first, second, estimate, interval, p, verdict, count, missing, further)

    def _judge_constant(
        self, first: str, second: str, estimate: float, missing: tuple[Any, ...], count: int, *, needed: bool
    ) -> Contrast:
        """Without any variance the sign-flip test decides, after Bonferroni's correction.

        Its p for any difference other than the one seen is 2^(1 - seeds). If that is small enough, all other differences
        are rejected: zero, unless it was seen, and both ends of the margin.
        """
        differs = abs(estimate) > self.noise
        if not differs:
            estimate = 0.0
        rejects_others = 2.0 ** (1 - count) * self.family <= self.level
        within = self.plan.margin is not None and abs(estimate) < self.plan.margin
        p = min(1.0, 2.0 ** (1 - count) * self.family * self.plan.alpha / self.level) if differs else 1.0
        verdict = _verdict(estimate, estimate, self.plan) if rejects_others else "undecided"
        further = None
        if needed and verdict == "undecided" and (differs or within):
            enough = math.ceil(1 + math.log2(self.family / self.plan.look_levels()[-1]))
            further = max(1, enough - count)
        note = "no difference varies from seed to seed, so there is no interval, and the sign-flip test decides"
        return Contrast(first, second, estimate, None, p, verdict, count, missing, further, note)

    def _seeds_needed(self, estimate: float, error: float, freedom: float, count: int) -> int | None:
        """Further seeds with which a true difference as large as the estimate would be decided with ``POWER``."""
        room = [abs(estimate)] + ([self.plan.margin - abs(estimate)] if self.plan.margin is not None else [])
        size = max(room) / (error * count**0.5)
        return count_further_seeds(size, count, freedom, self.plan.look_levels()[-1], self.family, self.reference)


def count_further_seeds(
    size: float, count: int, freedom: float, level: float, family: int, reference: Reference
) -> int | None:
    """Further seeds after which a contrast is decided with a probability of about ``POWER``; None: more than ``MOST_SEEDS``.

    Args:
        size: the true difference, or the room within the margin, in standard deviations of one paired difference.
        count: seeds there are.
        freedom: degrees of freedom of the contrast with these seeds.
        level: error rate of the look that decides.
        family: number of contrasts.
        reference: of the seeds there are. Its critical value is extrapolated: the excess over that of known variances
            falls with the degrees of freedom.
    """
    limit = NormalDist().inv_cdf(1 - (1 - (1 - level) ** (1 / family)) / 2)
    excess = 0.0 if reference.exact else max(0.0, reference.critical_z(level) - limit)
    surplus = NormalDist().inv_cdf(POWER)
    for total in range(count + 1, MOST_SEEDS + 1):
        freedom_then = freedom + total - count
        if reference.exact:
            critical = reference.critical_t(level, freedom_then)
        else:
            critical = from_normal(limit + excess * (count - 1) / (total - 1), freedom_then)
        if size * total**0.5 >= critical + surplus:
            return total - count
    return None


def _untested(
    first: str, second: str, estimate: float | None, missing: tuple[Any, ...], count: int, note: str
) -> Contrast:
    return Contrast(first, second, estimate, None, None, "undecided", count, missing, None, note)


def _keep_claim(before: Contrast, now: Contrast, look: int, plan: AnalysisPlan) -> Contrast:
    """The contrast of a look, with the claim of an earlier look if there is one."""
    if before.look is None:
        return now if now.verdict == "undecided" else replace(now, look=look)
    agrees = now.interval is not None and now.estimate is not None and now.estimate in now.interval
    if before.interval is not None and agrees:
        return replace(now, verdict=before.verdict, look=before.look, seeds_needed=None)
    if now.estimate is None or now.seeds == before.seeds:
        return before
    unit = f" {plan.unit}" if plan.unit else ""
    return replace(before, note=f"with {now.seeds} seeds the difference is {now.estimate:.3g}{unit}")


def _verdict(low: float, high: float, plan: AnalysisPlan) -> str:
    """Read off the interval. Inside the margin means equivalent, also where the difference is not zero."""
    if plan.margin is not None and -plan.margin < low and high < plan.margin:
        return "equivalent"
    if low <= 0 <= high:
        return "undecided"
    return "better" if (low > 0) == plan.higher_is_better else "worse"


def format_p(p: float | None) -> str:
    """
    >>> format_p(0.0312), format_p(0.00002), format_p(None)
    ('p = 0.031', 'p < 0.0001', 'no p value')
    """
    if p is None:
        return "no p value"
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def describe_contrast(contrast: Contrast, plan: AnalysisPlan) -> str:
    """One sentence."""
    unit = f" {plan.unit}" if plan.unit else ""
    pair = f"{contrast.first} is {contrast.verdict}"
    facts = []
    if contrast.interval is not None:
        facts.append(f"{contrast.interval.low:.3g} to {contrast.interval.high:.3g}")
    if contrast.p is not None:
        facts.append(format_p(contrast.p))
    facts.append("1 seed" if contrast.seeds == 1 else f"{contrast.seeds} seeds")
    if contrast.missing:
        facts.append(f"without seed {', '.join(map(str, contrast.missing))}")
    if contrast.look is not None and plan.looks and plan.looks[contrast.look - 1] != contrast.seeds:
        facts.append(f"claimed at the look after {plan.looks[contrast.look - 1]} seeds")
    if contrast.note:
        facts.append(contrast.note)
    inside = f" ({', '.join(facts)})"
    if contrast.verdict in ("better", "worse"):
        return f"{pair} than {contrast.second} by {abs(contrast.estimate or 0.0):.3g}{unit}{inside}"
    if contrast.verdict == "equivalent":
        return f"{pair} to {contrast.second} within {plan.margin:g}{unit}{inside}"
    needed = ""
    if contrast.seeds_needed is not None:
        needed = f"; about {contrast.seeds_needed} more seeds would probably decide at this difference"
    elif contrast.interval is not None:
        needed = f"; more than {MOST_SEEDS} seeds would be needed at this difference"
    return f"{contrast.first} and {contrast.second}: undecided{inside}{needed}"
