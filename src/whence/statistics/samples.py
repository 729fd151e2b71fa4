"""One sample at a time: its mean with a t-interval, or the share of successes in one run with Wilson's."""

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
class Plain:
    """A frozen dataclass that becomes a plain dict of numbers, words and None: what ``json.dumps`` takes."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Interval(Plain):
    """Both ends of a confidence interval and its level."""

    low: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Summary(Plain):
    """A sample in short. What is None could not be computed, and ``note`` says why."""

    n: int
    mean: float
    deviation: float | None
    interval: Interval | None
    note: str | None = None


@dataclass(frozen=True)
class Proportion(Plain):
    """Successes among n independent trials."""

    successes: int
    n: int
    share: float
    interval: Interval


def summary(values: Sequence[float], level: float = 0.95) -> Summary:
    """The mean, the sample standard deviation (divisor n - 1) and the t-interval of the mean.

    Assumes independent values from one normal distribution. One value has no deviation and no interval; equal values
    have no interval, because one of no width would claim a certainty which they do not show.

    >>> short = summary([70.0, 71.0, 72.0])
    >>> short.mean, short.deviation, round(short.interval.low, 2), round(short.interval.high, 2)
    (71.0, 1.0, 68.52, 73.48)
    >>> summary([70.0]).note
    'one value has no deviation and no interval'
    """
    values = checked("summary(values)", values)
    checked_level("summary(level=...)", level)
    n, mean = len(values), mean_of(values)
    if n == 1:
        return Summary(n, mean, None, None, "one value has no deviation and no interval")
    deviation = deviation_of(values)
    if deviation <= rounding(values):
        return Summary(n, mean, 0.0, None, f"all {n} values are equal, and an interval needs a spread")
    return Summary(n, mean, deviation, t_interval("whence.statistics.summary", mean, deviation / n**0.5, n - 1, level))


def proportion(successes: int, n: int, level: float = 0.95) -> Proportion:
    """The share of successes with Wilson's score interval, for the accuracy of one run on n examples.

    Assumes independent examples. The interval speaks of other examples for the same trained model; what another seed
    would give it does not know. (Wilson 1927, Journal of the American Statistical Association 22.)

    >>> one_run = proportion(9, 10)
    >>> one_run.share, round(one_run.interval.low, 4), round(one_run.interval.high, 4)
    (0.9, 0.5958, 0.9821)
    """
    checked_level("proportion(level=...)", level)
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
    # with no successes or no failures one end is 0 or 1 in exact arithmetic, which rounding may miss
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Proportion(int(successes), int(n), share, Interval(low, high, level))


def mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation_of(values: Sequence[float]) -> float:
    """The sample standard deviation; ``hypot`` squares without overflow."""
    mean = mean_of(values)
    return math.hypot(*(value - mean for value in values)) / (len(values) - 1) ** 0.5


def t_interval(feature: str, centre: float, error: float, freedom: float, level: float) -> Interval:
    """The interval of an estimate from its standard error and the degrees of freedom of that error."""
    half = error * float(distributions(feature).stdtrit(freedom, (1 + level) / 2))
    return Interval(centre - half, centre + half, level)


def distributions(feature: str) -> Any:
    """scipy.special, which loads ten times faster than scipy.stats and has the same distribution functions."""
    return require_package("scipy.special", feature, "lab")


def rounding(values: Iterable[float]) -> float:
    """How far apart two of these values may be and still be the same number to a reader.

    0.1 + 0.2 and 0.3 differ by their rounding. Taken for a spread, that would make any difference significant.
    """
    return 4 * sys.float_info.epsilon * max(map(abs, values))


def checked(asked: str, values: Sequence[float], *, least: int = 1) -> list[float]:
    """The values as floats, or the one refusal for whatever is wrong with them."""
    try:
        found = list(values)
    except TypeError:
        got = f"{values!r}, a {type(values).__name__}"
        raise usage_error(asked, got, "it is a sequence of numbers, one for each seed", "put it in a list") from None
    for place, value in enumerate(found):
        if not _is_finite(value):
            raise usage_error(
                asked,
                f"{value if isinstance(value, Real) else repr(value)} at place {place}",
                "every value is a finite number",
                "run that seed again, or count its failure as a result and say so",
            )
    if len(found) < least:
        needed = "at least one value is needed" if least == 1 else f"at least {least} values are needed"
        raise usage_error(asked, "no values" if not found else "one value", needed, "add the results of more seeds")
    return [float(value) for value in found]


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and abs(float(value)) <= LARGEST  # NaN is not smaller than anything
    except OverflowError:  # a whole number of hundreds of digits
        return False


def checked_level(asked: str, level: float) -> None:
    if not isinstance(level, Real) or not 0 < level < 1:
        raise usage_error(asked, repr(level), "a confidence level lies between 0 and 1", "try 0.95")
