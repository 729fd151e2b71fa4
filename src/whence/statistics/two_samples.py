"""Two samples: the difference of their means with a t-test, and the effect size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whence.errors import usage_error
from whence.statistics.samples import (
    Interval,
    PlainData,
    check_level,
    check_values,
    load_distributions,
    mean,
    rounding_error,
    standard_deviation,
    t_interval,
)

LARGE_T = 1000.0  # above it scipy's noncentral t is slower and less accurate than its limit


@dataclass(frozen=True)
class Difference(PlainData):
    """Mean of a minus mean of b, with a t-test. A field is None if it is not defined; ``note`` says why."""

    test: str
    difference: float
    t: float | None
    freedom: float | None
    p: float | None
    interval: Interval | None
    note: str | None = None


@dataclass(frozen=True)
class EffectSize(PlainData):
    """A difference of means in units of the pooled standard deviation.

    ``d`` is Cohen's, ``g`` the same with Hedges' correction; ``interval`` is that of the true effect, for which both
    are estimates.
    """

    d: float | None
    g: float | None
    interval: Interval | None
    note: str | None = None


def welch(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """Welch's t-test of the difference of means, two-sided, with Satterthwaite's degrees of freedom.

    Assumes that the values are independent and that each side is normal; the two spreads may differ. Two sides without
    any spread have p = 1 if they are equal; if they differ, the test divides by zero and no p is given. (Welch 1947,
    Biometrika 34.)

    >>> result = welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    >>> result.difference, round(result.t, 3), round(result.freedom, 3), round(result.p, 4)
    (2.0, 2.449, 4.0, 0.0705)
    """
    a, b = check_values("welch(a)", a, least=2), check_values("welch(b)", b, least=2)
    check_level("welch(level=...)", level)
    error_a, error_b = standard_deviation(a) / len(a) ** 0.5, standard_deviation(b) / len(b) ** 0.5
    error = math.hypot(error_a, error_b)
    # Satterthwaite's formula in shares of the squared error, to avoid overflow
    share = (error_a / error) ** 2 if error else 0.5
    freedom = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
    difference = mean(a) - mean(b)
    return _t_test("Welch", difference, error, freedom, level, rounding_error(a + b), "each side is constant")


def paired_t(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Difference:
    """The paired t-test, two-sided: a[i] and b[i] share a seed.

    Assumes that the pairs are independent and their differences normal. Pairs that all differ by the same amount have
    p = 1 if it is zero; otherwise no p is defined.

    >>> result = paired_t([3.0, 5.0, 7.0], [1.0, 2.0, 3.0])
    >>> result.difference, result.freedom, round(result.p, 4)
    (3.0, 2.0, 0.0351)
    """
    a, b = check_values("paired_t(a)", a, least=2), check_values("paired_t(b)", b, least=2)
    check_level("paired_t(level=...)", level)
    differences = paired_differences("paired_t(a, b)", a, b)
    error = standard_deviation(differences) / len(differences) ** 0.5
    return _t_test(
        "paired t",
        mean(differences),
        error,
        len(differences) - 1.0,
        level,
        rounding_error(a + b),
        "all pairs differ alike",
    )


def cohen_d(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> EffectSize:
    """Cohen's d with the pooled standard deviation, and Hedges' g, which is d without its bias in small samples.

    The correction is the exact one, gamma(f/2) / (sqrt(f/2) gamma((f-1)/2)) for f = n_a + n_b - 2, and not its
    approximation 1 - 3/(4f - 1). The interval inverts the noncentral t distribution. Both assume independent normal
    values and one spread common to both sides, which Welch's test does not. (Hedges 1981, Journal of Educational
    Statistics 6.)

    >>> result = cohen_d([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    >>> result.d, round(result.g, 4), round(result.interval.low, 2), round(result.interval.high, 2)
    (2.0, 1.5958, -0.15, 4.02)
    """
    a, b = check_values("cohen_d(a)", a, least=2), check_values("cohen_d(b)", b, least=2)
    check_level("cohen_d(level=...)", level)
    freedom = len(a) + len(b) - 2
    parts = (standard_deviation(a) * (len(a) - 1) ** 0.5, standard_deviation(b) * (len(b) - 1) ** 0.5)
    pooled = math.hypot(*parts) / freedom**0.5
    if pooled <= rounding_error(a + b):
        return EffectSize(None, None, None, "each side is constant, so there is no spread to measure a difference in")
    d = (mean(a) - mean(b)) / pooled
    correction = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / (freedom / 2) ** 0.5
    scale = (1 / len(a) + 1 / len(b)) ** 0.5  # t = d / scale
    low, high = _noncentrality(abs(d) / scale, freedom, level)
    if d < 0:
        low, high = -high, -low
    return EffectSize(d, d * correction, Interval(low * scale, high * scale, level))


def paired_differences(subject: str, a: list[float], b: list[float]) -> list[float]:
    """a[i] - b[i]; both sides must have the same seeds."""
    if len(a) != len(b):
        raise usage_error(
            subject,
            f"{len(a)} and {len(b)} values",
            "a pair is two results of one seed",
            "keep the seeds both sides have, in one order",
        )
    return [x - y for x, y in zip(a, b, strict=True)]


def _t_test(
    test: str, difference: float, error: float, freedom: float, level: float, noise: float, constant: str
) -> Difference:
    if error > noise:
        feature = "whence.statistics." + ("welch" if test == "Welch" else "paired_t")
        t = difference / error
        p = 2 * float(load_distributions(feature).stdtr(freedom, -abs(t)))
        return Difference(test, difference, t, freedom, p, t_interval(feature, difference, error, freedom, level))
    if abs(difference) <= noise:
        return Difference(test, difference, None, None, 1.0, None, f"{constant} and there is no difference")
    return Difference(test, difference, None, None, None, None, f"{constant}, for which the {test} test is not defined")


def _noncentrality(t: float, freedom: int, level: float) -> tuple[float, float]:
    """The noncentralities for which t is the upper and the lower quantile."""
    special = load_distributions("whence.statistics.cohen_d")
    high_p, low_p = (1 + level) / 2, (1 - level) / 2
    if t <= LARGE_T:
        return float(special.nctdtrinc(freedom, high_p, t)), float(special.nctdtrinc(freedom, low_p, t))
    # for large t the error of the means is negligible beside that of the pooled deviation, which is chi-squared
    low, high = (t * float(special.chdtri(freedom, p) / freedom) ** 0.5 for p in (high_p, low_p))
    return low, high
