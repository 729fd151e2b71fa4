"""Two samples: Welch, paired t and the effect size against scipy, their intervals by simulation, values that never vary."""

import json
import math

import numpy as np
import pytest
from error_messages import check_error
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from whence.statistics import cohen_d, paired_t, welch

numbers = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
samples = st.lists(numbers, min_size=2, max_size=10)


@settings(deadline=None, derandomize=True)
@given(samples, samples, st.floats(0.5, 0.999))
def test_welch_is_scipys(a, b, level):
    assume(len(set(a)) > 1 or len(set(b)) > 1)
    ours, theirs = welch(a, b, level), stats.ttest_ind(a, b, equal_var=False)
    assert ours.test == "Welch" and ours.note is None
    assert ours.difference == pytest.approx(np.mean(a) - np.mean(b), abs=1e-9)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-6, abs=1e-6)
    assert ours.freedom == pytest.approx(theirs.df, rel=1e-6)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-5, abs=1e-12)
    interval = theirs.confidence_interval(level)
    assert ours.interval.low == pytest.approx(interval.low, rel=1e-6, abs=1e-6)
    assert ours.interval.high == pytest.approx(interval.high, rel=1e-6, abs=1e-6)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=10), st.floats(0.5, 0.999))
def test_paired_t_is_scipys(pairs, level):
    a, b = zip(*pairs, strict=True)
    assume(np.std(np.subtract(a, b)) > 1e-6)
    ours, theirs = paired_t(a, b, level), stats.ttest_rel(a, b)
    assert ours.test == "paired t" and ours.freedom == len(pairs) - 1
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-6, abs=1e-6)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-5, abs=1e-12)
    interval = theirs.confidence_interval(level)
    assert ours.interval.low == pytest.approx(interval.low, rel=1e-6, abs=1e-6)
    assert ours.interval.high == pytest.approx(interval.high, rel=1e-6, abs=1e-6)


def test_welch_of_sides_that_never_vary():
    same = welch([0.3] * 3, [0.1 + 0.2] * 4)
    assert same.p == 1.0 and same.t is None and same.interval is None
    assert same.note == "each side is constant and there is no difference"
    apart = welch([1.0] * 3, [0.0] * 3)
    assert apart.difference == 1.0 and apart.p is None and apart.interval is None
    assert apart.note == "each side is constant, for which the Welch test is not defined"
    one_side = welch([1.0] * 3, [0.0, 0.1, 0.2])
    assert one_side.freedom == pytest.approx(2) and one_side.p < 0.01


def test_paired_t_of_pairs_that_differ_alike():
    apart = paired_t([0.3, 0.4, 0.5], [0.2, 0.3, 0.4])  # each difference is 0.1, and no two are the same float
    assert apart.p is None and apart.note == "all pairs differ alike, for which the paired t test is not defined"
    assert paired_t([1.0, 2.0], [1.0, 2.0]).p == 1.0


def test_welch_at_any_scale():
    a, b = [1.0, 2.0, 4.0], [3.0, 5.0, 9.0, 9.5]
    for factor in (1e-250, 1e250):
        scaled = welch([factor * x for x in a], [factor * x for x in b])
        assert scaled.p == pytest.approx(welch(a, b).p) and scaled.freedom == pytest.approx(welch(a, b).freedom)


def test_welchs_interval_holds_the_difference_as_often_as_it_says():
    """With unequal sizes and spreads, where the test of a pooled spread holds it in about four of five."""
    random = np.random.default_rng(2)
    a, b = random.normal(1.0, 4.0, (4000, 5)).tolist(), random.normal(0.0, 1.0, (4000, 9)).tolist()
    held = np.mean([1.0 in welch(x, y).interval for x, y in zip(a, b, strict=True)])
    assert abs(held - 0.95) < 3 * (0.95 * 0.05 / 4000) ** 0.5 + 0.003  # Satterthwaite's is an approximation


@settings(max_examples=40, deadline=None, derandomize=True)
@given(samples, samples)
def test_effect_is_the_difference_in_pooled_deviations(a, b):
    assume(len(set(a)) > 1 or len(set(b)) > 1)
    effect, freedom = cohen_d(a, b), len(a) + len(b) - 2
    scale = (1 / len(a) + 1 / len(b)) ** 0.5
    assert effect.d == pytest.approx(stats.ttest_ind(a, b).statistic * scale, rel=1e-6, abs=1e-9)
    exact = math.gamma(freedom / 2) / (math.sqrt(freedom / 2) * math.gamma((freedom - 1) / 2))
    assert effect.g == pytest.approx(effect.d * exact, rel=1e-9)
    other = cohen_d(b, a)
    assert (other.d, other.g) == (-effect.d, -effect.g)
    ends = (-effect.interval.high, -effect.interval.low)
    assert (other.interval.low, other.interval.high) == pytest.approx(ends, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("shift", [0.0, 1.0, -2.0, 8.0])
def test_effects_interval_ends_where_the_observed_t_is_extreme(shift):
    """The chance of a smaller t, integrated from its definition: a normal over the root of a chi-square."""
    a = np.array([-1.5, -1.0, -0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.5])
    a = a / a.std(ddof=1)
    effect, freedom, root = cohen_d(a + shift, a), 18, 5**0.5  # t = d * root
    assert effect.d == pytest.approx(shift) and effect.g == pytest.approx(0.9576 * shift, abs=1e-4 * abs(shift))
    for end, chance in ((effect.interval.low, 0.975), (effect.interval.high, 0.025)):
        smaller = stats.chi2(freedom).expect(
            lambda v, end=end: stats.norm.cdf(shift * root * np.sqrt(v / freedom) - end * root)
        )
        assert smaller == pytest.approx(chance, abs=1e-6)


def test_effects_interval_goes_on_where_the_limit_takes_over():
    shape = np.array([-1.0, -0.2, 0.0, 0.3, 0.9])
    near, far = (cohen_d(shape + shift, shape).interval for shift in (430.0, 470.0))  # t is about 950 and 1040
    assert far.low / near.low == pytest.approx(47 / 43, rel=1e-3)
    assert far.high / near.high == pytest.approx(47 / 43, rel=1e-3)


def test_effects_interval_and_correction_by_simulation():
    random = np.random.default_rng(3)
    a, b = random.normal(1.5, 1.0, (4000, 5)).tolist(), random.normal(0.0, 1.0, (4000, 5)).tolist()
    effects = [cohen_d(x, y) for x, y in zip(a, b, strict=True)]
    held = np.mean([1.5 in effect.interval for effect in effects])
    assert abs(held - 0.95) < 3 * (0.95 * 0.05 / 4000) ** 0.5
    for kind, true in (("g", 1.5), ("d", 1.5 / 0.9027)):  # d is too large by Hedges' factor for 8 degrees of freedom
        values = [getattr(effect, kind) for effect in effects]
        assert abs(np.mean(values) - true) < 3 * stats.sem(values)


def test_effect_of_constants_and_json():
    nothing = cohen_d([1.0, 1.0], [2.0, 2.0])
    assert (nothing.d, nothing.g, nothing.interval) == (None, None, None)
    assert nothing.note == "each side is constant, so there is no spread to measure a difference in"
    for result in (nothing, cohen_d([1.0, 2.0], [4.0, 3.5]), welch([1.0, 2.0], [4.0, 3.5])):
        assert json.loads(json.dumps(result.to_json(), allow_nan=False)) == result.to_json()


@pytest.mark.parametrize("test", [welch, paired_t, cohen_d])
def test_errors(test):
    text = f"{test.__name__}(a) got one value, but at least 2 values are needed; add the results of more seeds."
    check_error(lambda: test([1.0], [1.0, 2.0]), text)


def test_pairs_must_be_pairs():
    text = (
        "paired_t(a, b) got 3 and 2 values, but a pair is two results of one seed; "
        "keep the seeds both sides have, in one order."
    )
    check_error(lambda: paired_t([1.0, 2.0, 3.0], [1.0, 2.0]), text)
