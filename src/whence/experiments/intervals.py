"""What figures and tables say of several heads or models: their mean and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

from whence.statistics import summary


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and the ends of its 95 % t-interval; both ends are the mean where there is no spread."""
    found = summary([float(value) for value in values])
    if found.interval is None:
        return found.mean, found.mean, found.mean
    return found.mean, found.interval.low, found.interval.high
