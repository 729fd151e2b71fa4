"""The mean of several heads or models with a confidence interval, for figures and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from whence.statistics import summary

Range = tuple[float, float]
ANYWHERE: Range = (-math.inf, math.inf)
SHARE: Range = (0.0, 1.0)
CORRELATION: Range = (-1.0, 1.0)


def mean_and_interval(values: Sequence[float], within: Range = ANYWHERE) -> tuple[float, float, float]:
    """The mean and the ends of its 95 % t-interval, clipped to a range. Both ends equal the mean if there is no variance."""
    summarized = summary([float(value) for value in values])
    if summarized.interval is None:
        return summarized.mean, summarized.mean, summarized.mean
    return summarized.mean, max(summarized.interval.low, within[0]), min(summarized.interval.high, within[1])
