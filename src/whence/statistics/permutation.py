"""Tests which assume no distribution: how often would a rearrangement of the same values give as large a difference?

If the arms do the same, every split of the seeds into two groups (or, for pairs, every swap of partners) was as likely
as the one that happened. The p is the share of arrangements with a difference at least as large in absolute value. With
few seeds there are few arrangements, and no result, however clear, can have a p below the share of one of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from whence.errors import require_package, usage_error
from whence.statistics.samples import Plain, checked, mean_of, rounding
from whence.statistics.two_samples import differences

MOST_ARRANGEMENTS = 200_000  # all are tried up to here, about a tenth of a second
DRAWS = 100_000
CELLS = 1_000_000  # numbers held at once while drawing: 8 MB


@dataclass(frozen=True)
class Rearrangement(Plain):
    """The difference of means, its two-sided p, and whether all arrangements were tried or some of them drawn."""

    difference: float
    p: float
    exact: bool
    arrangements: int


def permutation(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, draws: int = DRAWS, most: int = MOST_ARRANGEMENTS
) -> Rearrangement:
    """The permutation test of the difference of means, two-sided: \\|difference\\| at least as large as the observed.

    Assumes that under the null hypothesis the values could be exchanged between the sides: the same distribution, not
    only the same mean. Up to ``most`` splits all are tried. Beyond, ``draws`` random ones are, and the observed split
    counts as one more, so that p is never zero (Phipson and Smyth 2010).

    >>> permutation([6.0, 7.0, 8.0, 9.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    Rearrangement(difference=5.0, p=0.007936507936507936, exact=True, arrangements=252)
    """
    a, b = checked("permutation(a)", a), checked("permutation(b)", b)
    _checked_draws("permutation", draws)
    pooled, n = a + b, len(a)
    centre = mean_of(pooled)
    # about the common mean, the difference of means is the sum of side a times a constant: sums are enough
    centred = [value - centre for value in pooled]
    observed = abs(math.fsum(centred[:n])) - _tie(centred, pooled)
    difference = mean_of(a) - mean_of(b)
    splits = math.comb(len(pooled), n)
    if splits <= most:
        hits = sum(abs(sum(side)) >= observed for side in combinations(centred, n))
        return Rearrangement(difference, hits / splits, True, splits)

    def sums(numpy: Any, generator: Any, count: int) -> Any:
        return generator.permuted(numpy.tile(centred, (count, 1)), axis=1)[:, :n].sum(axis=1)

    return Rearrangement(difference, _drawn("permutation", sums, observed, len(pooled), draws, seed), False, draws)


def paired(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, draws: int = DRAWS, most: int = MOST_ARRANGEMENTS
) -> Rearrangement:
    """The sign-flip test for pairs, two-sided: a[i] and b[i] share a seed, and partners may be swapped.

    Assumes that under the null hypothesis each difference is as likely as its opposite. Up to ``most`` patterns of
    signs all are tried (17 pairs); beyond, ``draws`` random ones are, and the observed counts as one more.

    >>> paired([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    Rearrangement(difference=3.0, p=0.0625, exact=True, arrangements=32)
    """
    a, b = checked("paired(a)", a), checked("paired(b)", b)
    _checked_draws("paired", draws)
    apart = differences("paired(a, b)", a, b)
    total = math.fsum(apart)
    observed = abs(total) - _tie(apart, a + b)
    patterns = 2 ** len(apart)
    if patterns <= most:
        reached = [0.0]
        for step in apart:
            reached = [sum_ + step for sum_ in reached] + [sum_ - step for sum_ in reached]
        hits = sum(abs(sum_) >= observed for sum_ in reached)
        return Rearrangement(total / len(apart), hits / patterns, True, patterns)

    def sums(numpy: Any, generator: Any, count: int) -> Any:
        return (generator.integers(0, 2, (count, len(apart))) * 2 - 1) @ numpy.array(apart)

    return Rearrangement(total / len(apart), _drawn("paired", sums, observed, len(apart), draws, seed), False, draws)


def smallest_p(n_a: int, n_b: int) -> float:
    """The smallest p that ``permutation`` can give for so many values on each side.

    Sides of equal size can be exchanged as a whole, which keeps the absolute difference: two splits are as large as
    the largest. Sides of different size have one.

    >>> smallest_p(5, 5) == 2 / 252, smallest_p(3, 5) == 1 / 56
    (True, True)
    """
    _checked_count("smallest_p(n_a)", n_a)
    _checked_count("smallest_p(n_b)", n_b)
    return (2 if n_a == n_b else 1) / math.comb(n_a + n_b, n_a)


def smallest_paired_p(n: int) -> float:
    """The smallest p that ``paired`` can give for n pairs: two of 2 ** n patterns of signs.

    >>> smallest_paired_p(5)
    0.0625
    """
    _checked_count("smallest_paired_p(n)", n)
    return 2.0 ** (1 - n)


def _drawn(name: str, sums: Any, observed: float, width: int, draws: int, seed: int) -> float:
    """The share of drawn arrangements, and the observed one, whose sum is as large."""
    numpy = require_package("numpy", f"whence.statistics.{name}", "lab")
    generator, hits, left = numpy.random.default_rng(seed), 0, draws
    while left:
        count = min(left, max(1, CELLS // width))
        hits += int((abs(sums(numpy, generator, count)) >= observed).sum())
        left -= count
    return (hits + 1) / (draws + 1)


def _tie(steps: list[float], values: list[float]) -> float:
    """How far two sums may be apart and still be equal but for rounding; equal ones must count, or p is too small."""
    return len(steps) * (16 * sys.float_info.epsilon * max(map(abs, steps)) + rounding(values))


def _checked_draws(name: str, draws: int) -> None:
    if not isinstance(draws, int) or draws < 1:
        raise usage_error(f"{name}(draws=...)", repr(draws), "it is a whole number of at least 1", "try 100000")


def _checked_count(asked: str, n: int) -> None:
    if not isinstance(n, int) or n < 1:
        raise usage_error(asked, repr(n), "it is a whole number of at least 1", "count the seeds")
