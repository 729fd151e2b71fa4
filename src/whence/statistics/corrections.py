"""Corrections of p-values for several tests."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

from whence.errors import usage_error


def bonferroni(p: float, m: int) -> float:
    """p times the number m of comparisons of the whole study, at most 1.

    >>> bonferroni(0.01, 5), bonferroni(0.4, 5)
    (0.05, 1.0)
    """
    _check_p("bonferroni(p)", p)
    if not isinstance(m, int) or m < 1:
        raise usage_error("bonferroni(m)", repr(m), "m is a whole number of at least 1", "count the comparisons")
    return float(min(1.0, p * m))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction of all p-values of a family, in their order: never larger than Bonferroni's.

    The smallest is multiplied by the number of tests, the next by one less and so on, and none may fall below the one
    before it. The family must be complete. (Holm 1979, Scandinavian Journal of Statistics 6.)

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    for place, p in enumerate(ps):
        _check_p(f"holm(ps[{place}])", p)
    corrected, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        least = max(least, min(1.0, float(ps[place]) * (len(ps) - rank)))
        corrected[place] = least
    return corrected


def _check_p(subject: str, p: float) -> None:
    if not isinstance(p, Real) or not 0 <= p <= 1:
        raise usage_error(subject, repr(p), "a p-value lies between 0 and 1", "pass the p of a test")
