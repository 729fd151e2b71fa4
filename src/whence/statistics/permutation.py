"""Permutation tests, which assume no distribution.

Under the null hypothesis every split of the seeds into two groups (or, for pairs, every swap of partners) is equally
likely. p is the share of permutations with a difference at least as large in absolute value. With few seeds there are few
permutations, and p cannot be smaller than the share of one of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from whence.errors import require_package, usage_error
from whence.statistics.samples import PlainData, check_values, mean, rounding_error
from whence.statistics.two_samples import paired_differences

MAX_EXACT = 200_000  # all are tried up to here, about a tenth of a second
DRAWS = 100_000
CELLS = 1_000_000  # numbers held at once while drawing: 8 MB


@dataclass(frozen=True)
class PermutationResult(PlainData):
    """The difference of means, its two-sided p, and whether p is exact or from random permutations."""

    difference: float
    p: float
    exact: bool
    arrangements: int


def permutation_test(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, draws: int = DRAWS, most: int = MAX_EXACT
) -> PermutationResult:
    """The permutation test of the difference of means, two-sided.

    p is the share of splits with an absolute difference at least as large as the observed one. The test assumes that under
    the null hypothesis the values can be exchanged between the sides: the distributions are the same, not only the means. Up
    to ``most`` splits all are tried. Beyond, ``draws`` random splits are tried, and the observed split counts as one more, so
    that p is never zero (Phipson and Smyth 2010).

    >>> permutation_test([6.0, 7.0, 8.0, 9.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    PermutationResult(difference=5.0, p=0.007936507936507936, exact=True, arrangements=252)
    """
    a, b = check_values("permutation_test(a)", a), check_values("permutation_test(b)", b)
    _check_draws("permutation_test", draws)
    pooled, n = a + b, len(a)
    centre = mean(pooled)
    # about the common mean, the difference of means is the sum of side a times a constant: sums are enough
    centred = [value - centre for value in pooled]
    observed = abs(math.fsum(centred[:n])) - _tie_tolerance(centred, pooled)
    difference = mean(a) - mean(b)
    splits = math.comb(len(pooled), n)
    if splits <= most:
        hits = sum(abs(sum(side)) >= observed for side in combinations(centred, n))
        return PermutationResult(difference, hits / splits, True, splits)

    def sums(numpy: Any, generator: Any, count: int) -> Any:
        return generator.permuted(numpy.tile(centred, (count, 1)), axis=1)[:, :n].sum(axis=1)

    return PermutationResult(
        difference, _monte_carlo_p("permutation_test", sums, observed, len(pooled), draws, seed), False, draws
    )


def sign_flip_test(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, draws: int = DRAWS, most: int = MAX_EXACT
) -> PermutationResult:
    """The sign-flip test for pairs, two-sided: a[i] and b[i] share a seed, and partners may be swapped.

    Assumes that under the null hypothesis each difference is as likely as its opposite. Up to ``most`` patterns of
    signs all are tried (17 pairs); beyond, ``draws`` random ones are, and the observed counts as one more.

    >>> sign_flip_test([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    PermutationResult(difference=3.0, p=0.0625, exact=True, arrangements=32)
    """
    a, b = check_values("sign_flip_test(a)", a), check_values("sign_flip_test(b)", b)
    _check_draws("sign_flip_test", draws)
    differences = paired_differences("sign_flip_test(a, b)", a, b)
    total = math.fsum(differences)
    observed = abs(total) - _tie_tolerance(differences, a + b)
    patterns = 2 ** len(differences)
    if patterns <= most:
        reached = [0.0]
        for step in differences:
            reached = [sum_ + step for sum_ in reached] + [sum_ - step for sum_ in reached]
        hits = sum(abs(sum_) >= observed for sum_ in reached)
        return PermutationResult(total / len(differences), hits / patterns, True, patterns)

    def sums(numpy: Any, generator: Any, count: int) -> Any:
        return (generator.integers(0, 2, (count, len(differences))) * 2 - 1) @ numpy.array(differences)

    return PermutationResult(
        total / len(differences),
        _monte_carlo_p("sign_flip_test", sums, observed, len(differences), draws, seed),
        False,
        draws,
    )


def smallest_p(n_a: int, n_b: int) -> float:
    """The smallest p that ``permutation_test`` can give for so many values on each side.

    Sides of equal size can be exchanged as a whole, which keeps the absolute difference: two splits are as large as
    the largest. Sides of different size have one.

    >>> smallest_p(5, 5) == 2 / 252, smallest_p(3, 5) == 1 / 56
    (True, True)
    """
    _check_count("smallest_p(n_a)", n_a)
    _check_count("smallest_p(n_b)", n_b)
    return (2 if n_a == n_b else 1) / math.comb(n_a + n_b, n_a)


def smallest_paired_p(n: int) -> float:
    """The smallest p that ``sign_flip_test`` can give for n pairs: two of 2 ** n patterns of signs.

    >>> smallest_paired_p(5)
    0.0625
    """
    _check_count("smallest_paired_p(n)", n)
    return 2.0 ** (1 - n)


def _monte_carlo_p(name: str, sums: Any, observed: float, width: int, draws: int, seed: int) -> float:
    """The share of random permutations, the observed one included, with a sum at least as large."""
    numpy = require_package("numpy", f"whence.statistics.{name}", "lab")
    generator, hits, left = numpy.random.default_rng(seed), 0, draws
    while left:
        count = min(left, max(1, CELLS // width))
        hits += int((abs(sums(numpy, generator, count)) >= observed).sum())
        left -= count
    return (hits + 1) / (draws + 1)


def _tie_tolerance(steps: list[float], values: list[float]) -> float:
    """The difference of two sums that rounding can explain. Ties must count, or p would be too small."""
    return len(steps) * (16 * sys.float_info.epsilon * max(map(abs, steps)) + rounding_error(values))


def _check_draws(name: str, draws: int) -> None:
    if not isinstance(draws, int) or draws < 1:
        raise usage_error(f"{name}(draws=...)", repr(draws), "it is a whole number of at least 1", "try 100000")


def _check_count(subject: str, n: int) -> None:
    if not isinstance(n, int) or n < 1:
        raise usage_error(subject, repr(n), "it is a whole number of at least 1", "count the seeds")
