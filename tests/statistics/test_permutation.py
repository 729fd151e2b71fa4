"""Permutation and sign-flip tests: against scipy's, at their floors, where values tie, and by simulation."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from whence import WhenceError
from whence.statistics import permutation_test, sign_flip_test, smallest_p, smallest_paired_p

numbers = st.floats(-100, 100).map(lambda x: round(x, 1))  # one digit, so that sums tie


def difference(a, b, axis):
    # rounded: scipy's own tolerance does not reach ties that only rounding parts
    return np.round(np.mean(a, axis=axis) - np.mean(b, axis=axis), 9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(numbers, min_size=2, max_size=6), st.lists(numbers, min_size=2, max_size=6))
def test_permutation_is_scipys(a, b):
    theirs = stats.permutation_test(
        (a, b), lambda x, y, axis: abs(difference(x, y, axis)), vectorized=True, n_resamples=1e6, alternative="greater"
    )
    ours = permutation_test(a, b)
    assert ours.exact and ours.arrangements == math.comb(len(a) + len(b), len(a))
    assert ours.p == pytest.approx(theirs.pvalue)
    assert ours.difference == pytest.approx(np.mean(a) - np.mean(b), abs=1e-9)
    assert ours.p >= smallest_p(len(a), len(b)) * (1 - 1e-12)
    if len(a) == len(b):  # there scipy's two-sided p, twice the smaller tail, is the same
        two_sided = stats.permutation_test((a, b), difference, vectorized=True, n_resamples=1e6)
        assert ours.p == pytest.approx(two_sided.pvalue)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=9))
def test_paired_is_scipys(pairs):
    a, b = zip(*pairs, strict=True)
    theirs = stats.permutation_test((a, b), difference, vectorized=True, permutation_type="samples", n_resamples=1e6)
    ours = sign_flip_test(a, b)
    assert ours.exact and ours.arrangements == 2 ** len(pairs)
    assert ours.p == pytest.approx(theirs.pvalue)
    assert ours.difference == pytest.approx(np.mean(np.subtract(a, b)), abs=1e-9)
    assert ours.p >= smallest_paired_p(len(pairs))


@pytest.mark.parametrize("n_a, n_b", [(1, 1), (1, 4), (2, 3), (3, 3), (4, 4), (5, 5), (6, 3)])
def test_the_floor_is_reached(n_a, n_b):
    far = permutation_test([100.0 + 1.7**i for i in range(n_a)], [-(1.3**i) for i in range(n_b)])
    assert far.p == pytest.approx(smallest_p(n_a, n_b))


def test_floors_by_number():
    assert smallest_p(5, 5) == 2 / 252 == pytest.approx(0.0079, abs=5e-5)
    assert (smallest_p(3, 3), smallest_p(1, 1), smallest_p(3, 5)) == (0.1, 1.0, 1 / 56)
    assert [smallest_paired_p(n) for n in (1, 5, 6)] == [1.0, 0.0625, 0.03125]
    assert sign_flip_test([2.0, 3.0, 5.0, 9.0, 17.0], [1.0] * 5).p == 0.0625
    assert smallest_p(2000, 2000) == smallest_paired_p(5000) == 0.0  # below the smallest float


def test_sums_that_only_rounding_parts_are_ties():
    assert permutation_test([0.1, 0.2, 0.3], [0.3, 0.3, 0.0]).p == 1.0  # both sides sum to 0.6
    assert sign_flip_test([0.3, 0.1], [0.0, 0.4]).p == 1.0  # 0.3 and -0.3
    big = [1e9 + x for x in (0.1, 0.2, 0.3, 5.0, 6.0, 7.0)]
    assert permutation_test(big[:3], big[3:]).p == 0.1  # and a large offset does not make everything one
    assert permutation_test([5.0] * 4, [5.0] * 4).p == sign_flip_test([5.0] * 4, [5.0] * 4).p == 1.0


def test_drawn_arrangements_come_near_the_exact_ones_and_again():
    random = np.random.default_rng(4)
    a, b = random.normal(0.8, 1.0, 8).tolist(), random.normal(0.0, 1.0, 8).tolist()
    for test in (permutation_test, sign_flip_test):
        exact, drawn = test(a, b), test(a, b, most=10, seed=7, draws=20_000)
        assert exact.exact and not drawn.exact and drawn.arrangements == 20_000
        assert abs(drawn.p - exact.p) < 4 * (exact.p / 20_000) ** 0.5
        assert drawn == test(a, b, most=10, seed=7, draws=20_000) != test(a, b, most=10, seed=8, draws=20_000)


def test_drawn_p_is_never_zero():
    a, b = [float(i) for i in range(100, 120)], [float(i) for i in range(20)]
    assert permutation_test(a, b, draws=999).p == sign_flip_test(a, b, draws=999).p == 1 / 1000
    assert permutation_test(a, b, draws=999).exact is False


def test_many_values_are_drawn_in_parts():
    a, b = np.linspace(0, 1, 700).tolist(), np.linspace(0, 1, 800).tolist()
    assert permutation_test(a, b, draws=1500).p == 1.0  # 1500 draws of 1500 values are more than are held at once


def test_valid_for_skewed_values():
    """Exact tests keep their level where the t-test's assumption fails."""
    random = np.random.default_rng(5)
    a, b = random.lognormal(0, 2, (1500, 5)).tolist(), random.lognormal(0, 2, (1500, 5)).tolist()
    ps = np.array([permutation_test(x, y).p for x, y in zip(a, b, strict=True)])
    for alpha in (0.05, 0.2):
        reachable = math.floor(alpha * 252 / 2) * 2 / 252
        assert abs(np.mean(ps <= alpha) - reachable) < 3 * (reachable * (1 - reachable) / 1500) ** 0.5


def test_json():
    assert permutation_test([2.0, 3.0], [1.0, 0.0]).to_json() == {
        "difference": 2.0,
        "p": 1 / 3,
        "exact": True,
        "arrangements": 6,
    }
    json.dumps(sign_flip_test([1.0] * 30, [2.0] * 30, draws=10).to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: permutation_test([], [1.0]),
            "permutation_test(a) got no values, but at least one value is needed; add the results of more seeds.",
        ),
        (
            lambda: permutation_test([1.0], [1.0], draws=0),
            "permutation_test(draws=...) got 0, but it is a whole number of at least 1; try 100000.",
        ),
        (
            lambda: sign_flip_test([1.0], [1.0, 2.0]),
            "sign_flip_test(a, b) got 1 and 2 values, but a pair is two results of one seed; "
            "keep the seeds both sides have, in one order.",
        ),
        (lambda: smallest_p(0, 5), "smallest_p(n_a) got 0, but it is a whole number of at least 1; count the seeds."),
        (
            lambda: smallest_paired_p(2.5),
            "smallest_paired_p(n) got 2.5, but it is a whole number of at least 1; count the seeds.",
        ),
    ],
)
def test_errors(call, text):
    with pytest.raises(WhenceError) as caught:
        call()
    # the argument, the value and the remedy; the rule between them may be worded otherwise
    output = str(caught.value)
    assert output.partition(", but ")[0] == text.partition(", but ")[0]
    assert output.rpartition("; ")[2] == text.rpartition("; ")[2]
