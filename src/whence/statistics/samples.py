"""One sample: its mean with a t-interval, or a proportion with Wilson's or a clustered interval."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from statistics import NormalDist
from typing import Any

from whence.errors import require_package, usage_error

LARGEST = 1e300  # beyond it a difference or a spread may leave the range of a float


@dataclass(frozen=True)
class PlainData:
    """A frozen dataclass that converts to a plain dict, which ``json.dumps`` accepts."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Interval(PlainData):
    """Both ends of a confidence interval and its level."""

    low: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Summary(PlainData):
    """A summary of a sample. A field is None if it is not defined, and ``note`` says why."""

    n: int
    mean: float
    deviation: float | None
    interval: Interval | None
    note: str | None = None


@dataclass(frozen=True)
class Proportion(PlainData):
    """Successes among n independent trials."""

    successes: int
    n: int
    share: float
    interval: Interval


def summary(values: Sequence[float], level: float = 0.95) -> Summary:
    """The mean, the sample standard deviation (divisor n - 1) and the t-interval of the mean.

    Assumes independent values from one normal distribution. One value has no deviation and no interval; equal values
    have no interval, because one of zero width would claim certainty.

    >>> short = summary([70.0, 71.0, 72.0])
    >>> short.mean, short.deviation, round(short.interval.low, 2), round(short.interval.high, 2)
    (71.0, 1.0, 68.52, 73.48)
    >>> summary([70.0]).note
    'one value has no deviation and no interval'
    """
    values = check_values("summary(values)", values)
    check_level("summary(level=...)", level)
    n, average = len(values), mean(values)
    if n == 1:
        return Summary(n, average, None, None, "one value has no deviation and no interval")
    deviation = standard_deviation(values)
    if deviation <= rounding_error(values):
        return Summary(n, average, 0.0, None, f"all {n} values are equal, and an interval needs a spread")
    return Summary(
        n, average, deviation, t_interval("whence.statistics.summary", average, deviation / n**0.5, n - 1, level)
    )


def proportion(successes: int, n: int, level: float = 0.95) -> Proportion:
    """The share of successes with Wilson's score interval, for the accuracy of one run on n examples.

    Assumes independent examples. The interval is about new examples for the same trained model, not about other seeds.
    (Wilson 1927, Journal of the American Statistical Association 22.)

    >>> one_run = proportion(9, 10)
    >>> one_run.share, round(one_run.interval.low, 4), round(one_run.interval.high, 4)
    (0.9, 0.5958, 0.9821)
    """
    check_level("proportion(level=...)", level)
    if not isinstance(n, Integral) or n < 1:
        raise usage_error(
            "proportion(n)", repr(n), "n is a whole number of at least 1", "count the examples of the run"
        )
    if not isinstance(successes, Integral) or not 0 <= successes <= n:
        raise usage_error(
            "proportion(successes)",
            repr(successes),
            f"it is a whole number from 0 to n = {n}",
            "pass counts, not shares",
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, total = successes / n, n + z * z
    centre = (successes + z * z / 2) / total
    half = z / total * math.sqrt(successes * (1 - share) + z * z / 4)
    # without successes or failures one end is exactly 0 or 1; rounding may miss it
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Proportion(int(successes), int(n), share, Interval(low, high, level))


def cluster_proportion(successes: Sequence[float], trials: Sequence[float], level: float = 0.95) -> Summary:
    """The proportion of successes over groups, such as the questions of one person, with an interval for new groups.

    Trials of one group are correlated, so the groups are the sample. The proportion is a ratio of two sums over groups.
    Its standard error comes from the residuals ``successes - proportion * trials`` (the linearised variance of a ratio),
    with a t-interval of as many degrees of freedom as groups minus one.

    Args:
        successes: the successes of each group, counts or means over several runs.
        trials: the trials of each group, above 0.

    >>> short = cluster_proportion([9, 1, 5], [10, 10, 10])
    >>> short.mean, round(short.interval.low, 3), round(short.interval.high, 3)
    (0.5, -0.494, 1.494)
    >>> round(cluster_proportion([9, 1, 5] * 8, [10, 10, 10] * 8).interval.low, 3)
    0.359
    """
    successes = check_values("cluster_proportion(successes)", successes)
    trials = check_values("cluster_proportion(trials)", trials)
    check_level("cluster_proportion(level=...)", level)
    if len(successes) != len(trials) or min(trials) <= 0:
        got = f"{len(successes)} and {len(trials)} numbers, the smallest of trials {min(trials):g}"
        raise usage_error("cluster_proportion", got, "every group needs trials", "pass both counts of each group")
    n, total = len(trials), math.fsum(trials)
    share = math.fsum(successes) / total
    if n == 1:
        return Summary(n, share, None, None, "one group has no deviation and no interval")
    residuals = [own - share * many for own, many in zip(successes, trials, strict=True)]
    spread = math.hypot(*residuals) / (n - 1) ** 0.5
    if spread <= rounding_error(successes):
        return Summary(n, share, 0.0, None, f"all {n} groups have the same share, and an interval needs a spread")
    error = spread * n**0.5 / total
    return Summary(n, share, error * n**0.5, t_interval("whence.statistics", share, error, n - 1, level))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; ``hypot`` squares without overflow."""
    average = mean(values)
    return math.hypot(*(value - average for value in values)) / (len(values) - 1) ** 0.5


def t_interval(feature: str, centre: float, error: float, freedom: float, level: float) -> Interval:
    """The interval of an estimate from its standard error and the degrees of freedom of that error."""
    half = error * float(load_distributions(feature).stdtrit(freedom, (1 + level) / 2))
    return Interval(centre - half, centre + half, level)


def load_distributions(feature: str) -> Any:
    """scipy.special, which loads ten times faster than scipy.stats and has the same distribution functions."""
    return require_package("scipy.special", feature, "lab")


def rounding_error(values: Iterable[float]) -> float:
    """The largest difference between two of these values that floating-point rounding can explain.

    0.1 + 0.2 and 0.3 differ by rounding. Taken as a spread, that would make any difference significant.
    """
    return 4 * sys.float_info.epsilon * max(map(abs, values))


def check_values(
    subject: str, values: Sequence[float], *, least: int = 1,
    remedy: str = "run that seed again, or report its failure separately",
) -> list[float]:  # fmt: skip
    """The values as floats, or an error that names what is wrong with them. ``remedy`` is for a value that is no number in range."""
    try:
        listed = list(values)
    except TypeError:
        got = f"{values!r}, a {type(values).__name__}"
        raise usage_error(subject, got, "it must be a sequence of numbers, one for each seed", "pass a list") from None
    for index, value in enumerate(listed):
        if not _is_finite(value):
            raise usage_error(
                subject,
                f"{value if isinstance(value, Real) else repr(value)} at place {index}",
                f"every value must be a finite number from {-LARGEST:g} to {LARGEST:g}",
                remedy,
            )
    if len(listed) < least:
        needed = "at least one value is needed" if least == 1 else f"at least {least} values are needed"
        raise usage_error(subject, "no values" if not listed else "one value", needed, "add the results of more seeds")
    return [float(value) for value in listed]


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and abs(float(value)) <= LARGEST  # False for NaN
    except OverflowError:  # an integer beyond the range of a float
        return False


def check_level(subject: str, level: float) -> None:
    if not isinstance(level, Real) or not 0 < level < 1:
        raise usage_error(subject, repr(level), "a confidence level lies between 0 and 1", "try 0.95")
