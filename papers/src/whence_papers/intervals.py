"""What figures and tables say of several heads or models: their mean and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from whence.statistics import summary

Range = tuple[float, float]
ANYWHERE: Range = (-math.inf, math.inf)
SHARE: Range = (0.0, 1.0)
CORRELATION: Range = (-1.0, 1.0)


def mean_and_interval(values: Sequence[float], within: Range = ANYWHERE) -> tuple[float, float, float]:
    """The mean and the ends of its 95 % t-interval, inside a range; both ends are the mean where there is no spread."""
    found = summary([float(value) for value in values])
    if found.interval is None:
        return found.mean, found.mean, found.mean
    return found.mean, max(found.interval.low, within[0]), min(found.interval.high, within[1])
