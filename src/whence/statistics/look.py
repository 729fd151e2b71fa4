"""The contrasts of all arms after one look: simultaneous intervals, p values and verdicts."""

from __future__ import annotations

import math
from typing import Any

from whence.errors import require_package
from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.contrasts import Contrast, read_verdict, untested_contrast
from whence.statistics.further_seeds import count_further_seeds
from whence.statistics.moderated_t import FEATURE, Layout, Reference, reference_scenarios
from whence.statistics.samples import Interval, rounding_error


class Look:
    """The statistics of all contrasts at one look."""

    block = "seed"  # what values are paired by, in notes

    def __init__(
        self, arms: list[str], seeds: list[Any], table: Any, pairs: list[tuple[int, int]], plan: AnalysisPlan,
        level: float, draws: int, seed: int, references: dict[Any, Reference],
    ) -> None:  # fmt: skip
        numpy = require_package("numpy", FEATURE, "lab")
        self.arms, self.seeds, self.pairs, self.plan, self.level = arms, seeds, pairs, plan, level
        self.layout = Layout(~numpy.isnan(table), pairs)
        self.family = int(self.layout.testable.sum())
        self.differences = table[:, self.layout.first] - table[:, self.layout.second]
        filled = numpy.nan_to_num(table)[None]
        unit = float(abs(filled).max()) or 1.0  # squares of very large or small values would leave the range of a float
        filled /= unit
        # the error of a logarithm is at least the relative error of its value, also where the logarithm is near 0
        least = [1.0 / unit] if plan.scale == "log" else []
        self.noise = rounding_error(filled.ravel().tolist() + least)
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
            mask = self.layout.mask
            key = (mask.shape, mask.tobytes(), tuple(pairs), plan.family, draws, seed)
            if key not in references:
                references[key] = Reference(self.layout, reference_scenarios(plan.family), draws=draws, seed=seed)
            self.reference = references[key]

    def judge(self, index: int, before: Contrast, *, needed: bool) -> Contrast:
        """The contrast after this look. Intervals of several looks are intersected (Jennison and Turnbull 1989).

        If later seeds put the estimate outside the interval of the looks before, the interval and p are those of this look
        alone. The looks divide alpha, so each one is valid by itself, and a change in the data cannot hide a difference.
        """
        first, second = (self.arms[arm] for arm in self.pairs[index])
        common = self.layout.common[:, index]
        missing = tuple(seed for seed, there in zip(self.seeds, common, strict=True) if not there)
        count = int(common.sum())
        estimate = float(self.differences[common, index].mean()) if count else None
        if count < 2:
            note = f"fewer than two common {self.block}s have a value"
            return untested_contrast(first, second, estimate, missing, count, note)
        interval = self._interval(index, count)
        if interval is None:
            return self._judge_constant(first, second, float(estimate or 0.0), missing, count, needed=needed)
        low, high, p = interval
        estimate = self.estimate(index)
        if before.interval is not None and before.p is not None and estimate in before.interval:
            low, high, p = max(low, before.interval.low), min(high, before.interval.high), min(p, before.p)
        verdict = self._read_verdict(index, low, high, count)
        further = self._seeds_needed(index, count) if needed and verdict == "undecided" else None
        return Contrast(
            first, second, estimate, Interval(low, high, 1 - self.plan.alpha), p, verdict, count, missing, further
        )

    def estimate(self, index: int) -> float:
        """The mean difference of a contrast that is tested."""
        return self.tests[index][0]

    def _interval(self, index: int, count: int) -> tuple[float, float, float] | None:
        """Both ends of the interval of this look alone, and its p; None if no difference varies."""
        if self.constant:
            return None
        estimate, error, freedom = self.tests[index]
        reach = error * self.reference.critical_t(self.level, freedom)
        p = min(1.0, self.reference.p(estimate / error, freedom) * self.plan.alpha / self.level)
        return estimate - reach, estimate + reach, p

    def _read_verdict(self, index: int, low: float, high: float, count: int) -> str:
        return read_verdict(low, high, self.plan, count)

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
        p = min(1.0, 2.0 ** (1 - count) * self.family * self.plan.alpha / self.level) if differs else 1.0
        verdict = read_verdict(estimate, estimate, self.plan, count) if rejects_others else "undecided"
        further = None
        if needed and verdict == "undecided" and (differs or self.plan.margin is not None):
            enough = math.ceil(1 + math.log2(self.family / self.plan.look_levels()[-1]))
            further = max(1, enough - count)
        note = f"no difference varies from {self.block} to {self.block}, so there is no interval, and the sign-flip test decides"
        return Contrast(first, second, estimate, None, p, verdict, count, missing, further, note)

    def _seeds_needed(self, index: int, count: int) -> int | None:
        """Further seeds with which a true difference as large as the estimate would be decided with ``POWER``."""
        estimate, error, freedom = self.tests[index]
        room = [abs(estimate)] + ([self.plan.limit - abs(estimate)] if self.plan.limit is not None else [])
        size = max(room) / (error * count**0.5)
        return count_further_seeds(size, count, freedom, self.plan.look_levels()[-1], self.family, self.reference)
