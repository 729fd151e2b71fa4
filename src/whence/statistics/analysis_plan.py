"""What decides a comparison of arms, fixed before the runs: family, error rate, margin and looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real

from whence.errors import usage_error
from whence.statistics.samples import PlainData

FAMILIES = ("baseline", "pairs")
SCALES = ("value", "log")
LARGEST_LOG = 700.0  # of a ratio that a float can hold
MIN_ALPHA = 0.001  # smaller rates are beyond what the simulated reference distribution can tell


@dataclass(frozen=True)
class AnalysisPlan(PlainData):
    """What decides a comparison, fixed before the runs.

    Args:
        family: "baseline" compares every arm with the baseline, "pairs" every two arms.
        baseline: the arm that the others are compared with; only for the family "baseline".
        alpha: family-wise error rate of all claims at all looks together.
        margin: arms whose difference is certainly below it are equivalent; None claims no equivalence. On the scale "log" it
            is in per cent: 5 means a ratio between 1 / 1.05 and 1.05.
        higher_is_better: whether a larger value is better.
        looks: the numbers of seeds after which the data are judged, such as (3, 5, 8); empty: once, with all seeds.
        unit: unit of a difference in texts, such as "points".
        share: part of alpha that this comparison may spend, if the family includes other comparisons. Its p values and
            intervals are corrected for the whole family.
        scale: "value" compares values by their differences, "log" positive values by their ratios. Contrasts on the scale "log"
            hold logarithms of ratios, and texts show them in per cent.
    """

    family: str = "baseline"
    baseline: str | None = None
    alpha: float = 0.05
    margin: float | None = None
    higher_is_better: bool = True
    looks: tuple[int, ...] = ()
    unit: str = ""
    share: float = 1.0
    scale: str = "value"

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
        if self.scale not in SCALES:
            raise usage_error("AnalysisPlan(scale=...)", repr(self.scale), "it is value or log", "choose one")
        looks = self.looks
        whole = isinstance(looks, Sequence) and all(isinstance(n, Integral) and n >= 2 for n in looks)
        if not whole or any(a >= b for a, b in pairwise(looks)):
            rule = "looks are increasing numbers of seeds, at least 2"
            raise usage_error("AnalysisPlan(looks=...)", repr(looks), rule, "try looks=(3, 5, 8)")
        object.__setattr__(self, "looks", tuple(int(n) for n in looks))

    @property
    def limit(self) -> float | None:
        """The margin on the scale of the contrasts.

        >>> AnalysisPlan("pairs", margin=5.0).limit, round(AnalysisPlan("pairs", margin=5.0, scale="log").limit, 4)
        (5.0, 0.0488)
        """
        return math.log1p(self.margin / 100) if self.margin is not None and self.scale == "log" else self.margin

    def to_shown(self, difference: float) -> float:
        """A difference on the scale of the contrasts as texts show it: a ratio in per cent more or less.

        >>> round(AnalysisPlan("pairs", scale="log").to_shown(math.log(0.8)), 2), AnalysisPlan("pairs").to_shown(3.0)
        (-20.0, 3.0)
        """
        if self.scale != "log":
            return difference
        return 100 * math.expm1(difference) if difference < LARGEST_LOG else math.inf

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
