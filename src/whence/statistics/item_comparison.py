"""Compare models item by item, where items may agree and still say little.

Seeds are alike, and items are not: most of them may agree, and a few may differ by as much as the metric allows. Items without
a difference cannot show that the next ones have none. So a claim of equivalence also counts the items that were not seen.
``whence bench --compare`` and ``whence mend`` decide with this rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

from whence.errors import require_package, usage_error
from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.contrasts import Contrast, read_verdict
from whence.statistics.further_seeds import MOST_SEEDS
from whence.statistics.look import Look
from whence.statistics.moderated_t import Reference
from whence.statistics.paired_comparison import PairedComparison, Wording, judge_looks
from whence.statistics.samples import Interval, check_level

FEATURE = "whence.statistics.compare_items"
CONSTANT = (
    "no difference varies from item to item, so the interval is a bound on the share of items that differ otherwise"
)
NARROW = "within the margin, but items that were not seen may differ by more"
ITEMS = Wording("compare_items", "item", "score that item again, or leave it out", "add the results of items")
ROUNDING = 1e-9  # relative: a difference of 100 points that was computed from shares may be larger by rounding
POINTS = 240  # of the numerical integral
HALVINGS = 40  # of a bisection


def compare_items(
    values: Mapping[str, Mapping[Any, float | None]], plan: AnalysisPlan, largest: float | None, *,
    references: dict[Any, Reference] | None = None,
) -> PairedComparison:  # fmt: skip
    """Compare arms on common items, as ``compare_paired`` compares them on common seeds, with another rule of equivalence.

    Args:
        values: for each arm, its value by item.
        plan: family, alpha, margin and looks.
        largest: the largest difference that the metric allows; None if it has no bound, and then nothing is equivalent.
        references: as in ``compare_paired``.

    Better and worse are read off the intervals of ``compare_paired``. A contrast is equivalent only if ``bound_mean`` lies
    within the margin too, at the level of the look divided by the number of contrasts. If it does not, the contrast is
    undecided and shows the wider interval. If the differences of a contrast do not vary, the bound belongs to all of its
    claims.

    >>> plan = AnalysisPlan(baseline="before", margin=2.0, unit="points")
    >>> same = [dict.fromkeys(range(n), 0.0) for n in (8, 183)]
    >>> few, many = (compare_items({"before": one, "after": one}, plan, 100.0).contrasts[0] for one in same)
    >>> few.verdict, round(few.interval.high, 1), few.seeds_needed, many.verdict
    ('undecided', 36.9, 175, 'equivalent')
    """
    if plan.scale != "value":
        rule = "a bound on items that were not seen needs differences of values"
        raise usage_error("compare_items(plan)", f"scale={plan.scale!r}", rule, "use the scale 'value'")
    if largest is not None:
        _check_largest("compare_items(largest=...)", largest)
        return judge_looks(values, plan, partial(ItemLook, largest), references=references, wording=ITEMS)
    unbounded = replace(plan, margin=None)
    comparison = judge_looks(values, unbounded, UnboundedLook, references=references, wording=ITEMS)
    note = "the metric has no largest difference, so nothing is equivalent"
    contrasts = tuple(one if one.seeds < 2 else replace(one, note=note) for one in comparison.contrasts)
    return replace(comparison, plan=plan, contrasts=contrasts)


def unseen_share(items: int, level: float) -> float:
    """The largest share of all items that differ from those seen, if none of ``items`` does: Clopper and Pearson's bound.

    ``level`` is the error rate of an interval with two ends.

    >>> round(unseen_share(8, 0.05), 3), round(unseen_share(200, 0.05), 4)
    (0.369, 0.0183)
    """
    return 1 - (level / 2) ** (1 / items)


def bound_mean(differences: Mapping[float, float], largest: float, level: float) -> tuple[float, float]:
    """Both ends of an interval for the mean difference of all items, without any assumption but ``largest``.

    Its error rate is exact (Clopper and Pearson) if every item that differs does so by ``largest`` and in one direction. For other
    values no violation is known, but there is no proof.

    Gaffke's bound (2005, Mathematical Methods of Statistics 14; Learned-Miller and Thomas 2019, arXiv 1905.06208): the
    items seen and one further item, which differs by ``largest``, get random weights, uniform among those that sum to 1. The
    bound is a quantile of the weighted mean.

    Args:
        differences: how many items have each difference.
        largest: the largest difference that the metric allows, in either direction.
        level: error rate of both ends together.

    >>> low, high = bound_mean({0.0: 198, 100.0: 2}, 100.0, 0.05)
    >>> round(low, 2), round(high, 2)
    (-1.14, 3.57)
    """
    _check_largest("bound_mean(largest)", largest)
    check_level("bound_mean(level)", level)
    counts = list(differences.values())
    if not all(0 <= count < math.inf for count in counts) or sum(counts) <= 0:
        got = "no items" if not any(counts) else f"the numbers of items {counts}"
        rule = "it maps each difference to its number of items, of which there are some"
        raise usage_error("bound_mean(differences)", got, rule, "pass {0.0: 198, 100.0: 2}, for example")
    _check_differences("bound_mean(differences)", differences, largest)
    mirrored = {-value: count for value, count in differences.items()}
    return -_bound_above(mirrored, largest, level / 2), _bound_above(differences, largest, level / 2)


def _check_largest(subject: str, largest: float) -> None:
    if not (isinstance(largest, Real) and 0 < largest < math.inf):
        rule = "it is the largest difference that the metric allows, a finite number above 0"
        raise usage_error(subject, repr(largest), rule, "pass 100.0 for a metric in per cent")


def _check_differences(subject: str, differences: Iterable[float], largest: float) -> None:
    """No difference may be beyond the largest one; NaN is no difference."""
    for difference in differences:
        if not abs(difference) <= largest * (1 + ROUNDING):
            rule = f"no difference is beyond largest={largest:g}"
            raise usage_error(
                subject, f"a difference of {difference:g}", rule, "pass the largest that the metric allows"
            )


def _bound_above(differences: Mapping[float, float], largest: float, level: float) -> float:
    low, high = sum(value * count for value, count in differences.items()) / sum(differences.values()), largest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_above(differences, largest, middle) > level else (low, middle)
    return high


def _probability_above(differences: Mapping[float, float], largest: float, mean: float) -> float:
    """The probability that the randomly weighted mean of the items and of a further one at ``largest`` exceeds ``mean``.

    Such weights are exponential variables over their sum, so it is the probability that a weighted sum of exponential
    variables is above 0. The inversion integral runs through the saddle point, where nothing cancels (Helstrom 1983, IEEE
    Transactions on Aerospace and Electronic Systems 19).
    """
    numpy = require_package("numpy", FEATURE, "lab")
    counts = Counter(differences)
    counts[largest] += 1
    weights = numpy.array(list(counts)) - mean
    shapes = numpy.array([float(count) for count in counts.values()])
    if (weights <= 0).all() or (weights >= 0).all():
        return float((weights > 0).any())
    weights /= weights.max()
    low, high = 0.0, 1.0  # the saddle point is between 0 and the pole of the largest weight
    for _ in range(2 * HALVINGS):
        middle = (low + high) / 2
        falls = float((shapes * weights / (1 - middle * weights)).sum()) < 1 / middle
        low, high = (middle, high) if falls else (low, middle)
    curvature = float((shapes * (weights / (1 - low * weights)) ** 2).sum()) + 1 / low**2
    steps = numpy.linspace(0.0, 12.0, POINTS)
    points = low + 1j * numpy.sinh(steps) / math.sqrt(curvature)
    logs = -(shapes * numpy.log(1 - points[:, None] * weights)).sum(axis=1) - numpy.log(points)
    integrand = numpy.exp(logs).real * numpy.cosh(steps)
    total = (float(integrand.sum()) - float(integrand[0]) / 2) * float(steps[1])
    return min(1.0, max(0.0, total / math.sqrt(curvature) / math.pi))


class UnboundedLook(Look):
    """The contrasts at one look, where the seeds are items."""

    block = "item"


class ItemLook(Look):
    """The contrasts at one look, where the seeds are items whose differences are at most ``largest``."""

    block = "item"

    def __init__(self, largest: float, *layout: Any) -> None:
        super().__init__(*layout)
        self.largest = largest
        seen = self.differences[self.layout.common]
        _check_differences(
            "compare_items(values)", (float(end) for end in (seen.min(), seen.max())) if seen.size else (), largest
        )

    def judge(self, index: int, before: Contrast, *, needed: bool) -> Contrast:
        contrast = super().judge(index, before, needed=needed)
        interval, margin = contrast.interval, self.plan.margin
        if interval is None:
            return contrast
        if self._is_constant(index):
            return replace(contrast, note=CONSTANT)
        if contrast.verdict != "undecided" or margin is None or not -margin < interval.low <= interval.high < margin:
            return contrast
        low, high = bound_mean(self._counts(index), self.largest, self.level / self.family)
        wider = Interval(min(low, interval.low), max(high, interval.high), interval.level)
        return replace(contrast, interval=wider, note=NARROW)

    def estimate(self, index: int) -> float:
        return float(self._own(index).mean()) if self.constant else super().estimate(index)

    def _own(self, index: int) -> Any:
        """The differences of the items that both arms have."""
        return self.differences[self.layout.common[:, index], index]

    def _is_constant(self, index: int) -> bool:
        own = self._own(index)
        return bool(own.max() - own.min() <= self.noise)

    def _counts(self, index: int) -> Counter[float]:
        return Counter(self._own(index).tolist())

    def _interval(self, index: int, count: int) -> tuple[float, float, float] | None:
        """The interval of seeds. If the differences do not vary, it ends at the bound for items not seen, or beyond."""
        interval = super()._interval(index, count)
        if not self._is_constant(index):
            return interval
        difference, level = self.estimate(index), self.level / self.family
        share = unseen_share(count, level)
        low, high = difference - share * (self.largest + difference), difference + share * (self.largest - difference)
        # the error rate at which the interval would end at zero; for the largest difference it is that of the sign test
        tail = (self.largest / (self.largest + abs(difference))) ** count
        p = min(1.0, 2 * tail * self.plan.alpha / level)
        if interval is None:
            return low, high, p
        return min(low, interval[0]), max(high, interval[1]), max(p, interval[2])

    def _read_verdict(self, index: int, low: float, high: float, count: int) -> str:
        verdict = super()._read_verdict(index, low, high, count)
        if verdict != "equivalent" or self._is_constant(index) or self._bounded(self._counts(index), self.level):
            return verdict
        return read_verdict(low, high, replace(self.plan, margin=None), count)  # a small difference may be significant

    def _bounded(self, differences: Mapping[float, float], level: float) -> bool:
        """Whether ``bound_mean`` lies within the margin."""
        margin = self.plan.margin
        assert margin is not None
        mirrored = {-value: count for value, count in differences.items()}
        return all(
            _probability_above(own, self.largest, margin) <= level / self.family / 2 for own in (differences, mirrored)
        )

    def _seeds_needed(self, index: int, count: int) -> int | None:
        """Further items that would probably decide, if the differences stay as they are."""
        least = None if self.constant else super()._seeds_needed(index, count)
        if least is None and not self.constant:
            return None
        difference, margin = abs(self.estimate(index)), self.plan.margin
        level = self.plan.look_levels()[-1]
        if self._is_constant(index):
            rooms = [difference, 0.0 if margin is None else margin - difference]
            total = _count_unseen(max(rooms) / (self.largest + difference), level / self.family)
            return None if total is None or total > MOST_SEEDS else max(1, least or 0, total - count)
        if margin is None or margin - difference <= difference:  # a difference would be claimed before equivalence
            return least
        own = self._counts(index)

        def enough(items: int) -> bool:
            return self._bounded({value: many * items / count for value, many in own.items()}, level)

        low, high = count + (least or 1), MOST_SEEDS
        if low > high or not enough(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle + 1, high)
        return low - count


def _count_unseen(room: float, level: float) -> int | None:
    """The items after which ``unseen_share`` is below ``room``."""
    if not 0 < room < 1:
        return None if room <= 0 else 1
    return math.floor(math.log(level / 2) / math.log1p(-room)) + 1
