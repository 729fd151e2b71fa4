"""One contrast of two arms: its estimate, interval and verdict, and the claim that stands over later looks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.number_texts import format_size
from whence.statistics.samples import Interval, PlainData

MIN_EQUIVALENCE_SEEDS = 3  # the error rate of equivalence is simulated from 3 seeds on


@dataclass(frozen=True)
class Contrast(PlainData):
    """``first`` compared with ``second``. A field is None if it is not defined; ``note`` says why."""

    first: str
    second: str
    estimate: float | None  # mean of first minus second over their common seeds, on the scale of the plan
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


def untested_contrast(
    first: str, second: str, estimate: float | None, missing: tuple[Any, ...], count: int, note: str
) -> Contrast:
    """A contrast without a test; ``note`` says why."""
    return Contrast(first, second, estimate, None, None, "undecided", count, missing, None, note)


def read_verdict(low: float, high: float, plan: AnalysisPlan, seeds: int) -> str:
    """Read off the interval. Inside the margin means equivalent, also where the difference is not zero.

    Fewer than ``MIN_EQUIVALENCE_SEEDS`` common seeds claim no equivalence.
    """
    margin = plan.limit if seeds >= MIN_EQUIVALENCE_SEEDS else None
    if margin is not None and -margin < low and high < margin:
        return "equivalent"
    if low <= 0 <= high:
        return "undecided"
    return "better" if (low > 0) == plan.higher_is_better else "worse"


def keep_claim(before: Contrast, now: Contrast, look: int, plan: AnalysisPlan) -> Contrast:
    """The contrast of a look, with the claim of an earlier look if there is one."""
    if before.look is None:
        return now if now.verdict == "undecided" else replace(now, look=look)
    earlier, estimate = before.interval, now.estimate
    if now.interval is not None and earlier is not None and estimate is not None and estimate in earlier:
        return replace(now, verdict=before.verdict, look=before.look, seeds_needed=None)
    if now.estimate is None or now.seeds == before.seeds:
        return before
    unit = f" {plan.unit}" if plan.unit else ""
    return replace(
        before, note=f"with {now.seeds} seeds the difference is {format_size(plan.to_shown(now.estimate))}{unit}"
    )
