"""One sample: against scipy, by simulation where a level is promised, and what is refused."""

import json
import sys
from fractions import Fraction

import numpy as np
import pytest
from error_messages import check_error
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from whence import MissingExtra
from whence.statistics import AnalysisPlan, cohen_d, compare_paired, paired_t, proportion, summary, welch

numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


@settings(deadline=None, derandomize=True)
@given(st.lists(numbers, min_size=2, max_size=12), st.floats(0.5, 0.999))
def test_summary_is_scipys(values, level):
    short = summary(values, level)
    assert short.n == len(values) and short.mean == pytest.approx(np.mean(values), abs=1e-9)
    if len(set(values)) == 1:
        assert short.deviation == 0 and short.interval is None
        assert short.note == f"all {len(values)} values are equal, and an interval needs a spread"
        return
    assert short.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-9)
    low, high = stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))
    width = high - low
    assert short.interval.low == pytest.approx(low, abs=1e-9 * width + 1e-9)
    assert short.interval.high == pytest.approx(high, abs=1e-9 * width + 1e-9)


def test_one_value_has_no_interval_and_says_so():
    short = summary([0.7])
    assert (short.n, short.mean, short.deviation, short.interval) == (1, 0.7, None, None)
    assert short.note == "one value has no deviation and no interval"


def test_rounding_is_no_spread():
    assert summary([0.1 + 0.2, 0.3, 0.3]).interval is None
    assert summary([0.1] * 3).deviation == 0
    assert summary([1.0, 1.0 + 1e-12]).interval is not None


def test_any_scale_and_any_kind_of_number():
    assert summary([-1e300, 1e300]).deviation == pytest.approx(2**0.5 * 1e300)
    assert summary([0.0, 1e-200]).deviation == pytest.approx(1e-200 / 2**0.5)
    assert summary(np.array([1, 2, 3], dtype=np.float32)).mean == summary([1, Fraction(2), True + 2]).mean == 2.0


def test_the_interval_holds_the_mean_as_often_as_it_says():
    draws = np.random.default_rng(1).normal(3.0, 2.0, (4000, 5)).tolist()
    for level in (0.8, 0.95):
        held = np.mean([3.0 in summary(values, level).interval for values in draws])
        assert abs(held - level) < 3 * (level * (1 - level) / 4000) ** 0.5


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_proportion_is_scipys_wilson(counts, level):
    ours, theirs = proportion(*counts, level), stats.binomtest(*counts).proportion_ci(level, "wilson")
    assert ours.interval.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.interval.high == pytest.approx(theirs.high, abs=1e-12)
    assert 0 <= ours.interval.low <= ours.share <= ours.interval.high <= 1


def test_proportion_at_the_ends_and_its_coverage():
    assert proportion(0, 20).interval.low == 0.0 and proportion(20, 20).interval.high == 1.0
    n, true = 100, 0.9
    chances = stats.binom.pmf(np.arange(n + 1), n, true)
    held = sum(chance for k, chance in enumerate(chances) if true in proportion(k, n).interval)
    assert 0.93 < held < 0.97  # exactly computed; Wilson's own is not exactly the level


def test_json():
    for result in (summary([1.0, 2.0]), summary([1.0]), proportion(np.int64(3), np.int64(4))):
        plain = result.to_json()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert proportion(3, 4, 0.5).to_json()["interval"]["level"] == 0.5


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: summary([]),
            "summary(values) got no values, but at least one value is needed; add the results of more seeds.",
        ),
        (
            lambda: summary([1.0, np.float64("nan")]),
            "summary(values) got nan at place 1, but every value is a finite number; "
            "run that seed again, or report its failure separately.",
        ),
        (
            lambda: summary("ab"),
            "summary(values) got 'a' at place 0, but every value is a finite number; "
            "run that seed again, or report its failure separately.",
        ),
        (
            lambda: summary([10**310]),
            f"summary(values) got 1{'0' * 310} at place 0, but every value is a finite number; "
            "run that seed again, or report its failure separately.",
        ),
        (
            lambda: summary(0.5),
            "summary(values) got 0.5, a float, but it is a sequence of numbers, one for each seed; pass a list.",
        ),
        (
            lambda: summary([1.0], level=95),
            "summary(level=...) got 95, but a confidence level lies between 0 and 1; try 0.95.",
        ),
        (
            lambda: proportion(0.9, 10),
            "proportion(successes) got 0.9, but it is a whole number from 0 to n = 10; pass counts, not shares.",
        ),
        (
            lambda: proportion(0, 0),
            "proportion(n) got 0, but n is a whole number of at least 1; count the examples of the run.",
        ),
    ],
)
def test_errors(call, text):
    check_error(call, text)


@pytest.mark.parametrize(
    "absent, name, call",
    [
        ("scipy", "summary", lambda: summary([1.0, 2.0])),
        ("scipy", "welch", lambda: welch([1.0, 2.0], [3.0, 5.0])),
        ("scipy", "paired_t", lambda: paired_t([1.0, 2.0], [3.0, 5.0])),
        ("scipy", "cohen_d", lambda: cohen_d([1.0, 2.0], [3.0, 5.0])),
        ("numpy", "compare_paired", lambda: compare_paired({"a": {0: 1.0}, "b": {0: 2.0}}, AnalysisPlan("pairs"))),
    ],
)
def test_what_is_not_installed_is_named_when_it_is_needed(monkeypatch, absent, name, call):
    for module in [absent, *(name for name in sys.modules if name.startswith(f"{absent}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    assert proportion(3, 4).share == 0.75  # this needs neither
    with pytest.raises(MissingExtra) as caught:
        call()
    text = f'whence.statistics.{name} needs {absent}, which is not installed; run: pip install "whence[lab]".'
    assert str(caught.value) == text
