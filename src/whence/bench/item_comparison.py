"""Two models compared item by item, where items may agree and still say little.

The paired t-interval needs differences that vary. On benchmarks most items often do not differ at all, and a few items
without a difference cannot show that the next ones have none. So a claim of equivalence also counts the items that were not
seen: each of them may differ by as much as the metric can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from whence.statistics import AnalysisPlan, compare_paired
from whence.statistics.contrasts import Contrast, read_verdict
from whence.statistics.further_seeds import MOST_SEEDS
from whence.statistics.samples import Interval, load_distributions

FEATURE = "whence bench --compare"


def compare_items(
    baseline: Sequence[float], values: Sequence[float], name: str, plan: AnalysisPlan, largest: float | None
) -> Contrast:
    """The contrast of a model with the baseline over the same items.

    Args:
        baseline, values: one value for each item, in the same order.
        name: the model; ``plan.baseline`` is the name of the other.
        largest: the largest difference that the metric allows; None if it has no bound, and then nothing is equivalent.

    If no difference varies, the interval is exact: at most a share of ``unseen_share`` of all items differs in another way.
    Otherwise it is the t-interval. One that lies within the margin claims equivalence only if it still does with one further
    item that differs by ``largest`` in either direction. If not, the contrast is undecided, and that wider interval is its own.

    >>> plan = AnalysisPlan(baseline="before", margin=2.0, unit="points")
    >>> few, many = (compare_items([0.0] * n, [0.0] * n, "after", plan, 100.0) for n in (8, 183))
    >>> few.verdict, round(few.interval.high, 1), few.seeds_needed, many.verdict
    ('undecided', 36.9, 175, 'equivalent')
    """
    table = {str(plan.baseline): dict(enumerate(baseline)), name: dict(enumerate(values))}
    (contrast,) = compare_paired(table, plan).contrasts
    if contrast.seeds < 2 or contrast.estimate is None:
        return contrast
    if largest is None:
        (contrast,) = compare_paired(table, replace(plan, margin=None)).contrasts
        return replace(contrast, note="the metric has no largest difference, so nothing is equivalent")
    if contrast.interval is None:
        return _compare_constant(contrast, plan, largest)
    differences = [after - before for before, after in zip(baseline, values, strict=True)]
    return _guard_equivalence(contrast, differences, plan, largest)


def unseen_share(items: int, level: float) -> float:
    """The largest share of all items that differ from those seen, if none of ``items`` does: Clopper and Pearson's bound.

    ``level`` is the error rate of an interval with two ends.

    >>> round(unseen_share(8, 0.05), 3), round(unseen_share(200, 0.05), 4)
    (0.369, 0.0183)
    """
    return 1 - (level / 2) ** (1 / items)


def _compare_constant(contrast: Contrast, plan: AnalysisPlan, largest: float) -> Contrast:
    """All items differ by the same amount, often zero. Other items may differ by any amount that the metric allows."""
    items, (level,) = contrast.seeds, plan.look_levels()
    difference, share = contrast.estimate or 0.0, unseen_share(contrast.seeds, level)
    low, high = difference - share * (largest + difference), difference + share * (largest - difference)
    verdict = read_verdict(low, high, plan, items)
    # the error rate at which the interval would end at zero; for the largest difference it is that of the sign test
    tail = (largest / (largest + abs(difference))) ** items
    p = min(1.0, 2 * tail * plan.alpha / level)
    further = None
    if verdict == "undecided":
        rooms = [abs(difference) / (largest + abs(difference))]
        if plan.margin is not None and abs(difference) < plan.margin:
            rooms.append((plan.margin - abs(difference)) / (largest + abs(difference)))
        further = _within_limit(_count_unseen(max(rooms), level), items)
    return replace(
        contrast, interval=Interval(low, high, 1 - plan.alpha), p=p, verdict=verdict, seeds_needed=further,
        note="no difference varies from item to item, so the interval is a bound on the share of items that differ otherwise",
        look=None if verdict == "undecided" else 1,
    )  # fmt: skip


def _count_unseen(room: float, level: float) -> int | None:
    """The items after which ``unseen_share`` is below ``room``."""
    if not 0 < room < 1:
        return None if room <= 0 else 1
    return math.floor(math.log(level / 2) / math.log1p(-room)) + 1


def _guard_equivalence(
    contrast: Contrast, differences: Sequence[float], plan: AnalysisPlan, largest: float
) -> Contrast:
    """The contrast of a t-interval, of which equivalence holds up with one further item at either end of the metric."""
    margin, interval, estimate = plan.margin, contrast.interval, contrast.estimate
    if margin is None or interval is None or estimate is None:
        return contrast
    (level,), count = plan.look_levels(), len(differences)
    spread = math.fsum((one - estimate) ** 2 for one in differences) / count

    def within(items: int) -> bool:
        low, high = _widened(estimate, spread, items, largest, level)
        return -margin < low and high < margin

    def enough(further: int | None) -> int | None:
        """Further items that satisfy this rule too, if the differences stay as they are."""
        least = next((n for n in range(count + (further or 1), MOST_SEEDS + 1) if within(n)), None)
        return _within_limit(least, count)

    if -margin < interval.low and interval.high < margin and not within(count):
        verdict = read_verdict(interval.low, interval.high, replace(plan, margin=None), count)
        if verdict != "undecided":  # a small difference is significant
            return replace(contrast, verdict=verdict)
        wider = Interval(*_widened(estimate, spread, count, largest, level), interval.level)
        note = "within the margin, but not with one further item that differs as much as the metric allows"
        return replace(contrast, verdict=verdict, interval=wider, seeds_needed=enough(None), note=note, look=None)
    if contrast.seeds_needed is not None and margin - abs(estimate) > abs(estimate):  # equivalence would come first
        return replace(contrast, seeds_needed=enough(contrast.seeds_needed))
    return contrast


def _widened(mean: float, spread: float, items: int, largest: float, level: float) -> tuple[float, float]:
    """Both ends of the t-intervals with one further difference of ``largest``, and of ``-largest``.

    ``mean`` and ``spread`` are the mean and the variance (divisor n) of the differences of ``items`` items.
    """
    total = items + 1
    critical = float(load_distributions(FEATURE).stdtrit(items, 1 - level / 2))
    ends = []
    for sign in (-1, 1):
        gap = sign * largest - mean
        variance = (items * spread + gap**2 * items / total) / items  # of the differences and the further one
        ends.append(mean + gap / total + sign * critical * math.sqrt(variance / total))
    return ends[0], ends[1]


def _within_limit(total: int | None, items: int) -> int | None:
    return None if total is None or total > MOST_SEEDS else max(1, total - items)
