"""Verdicts over items: what a few items without a difference can and cannot show."""

from math import comb

import pytest

from whence.bench.item_comparison import compare_items, unseen_share
from whence.statistics import AnalysisPlan

PLAN = AnalysisPlan(baseline="before", margin=2.0, unit="points")
TWO_TASKS = AnalysisPlan(baseline="before", margin=2.0, unit="points", share=0.5)


def compare(before, after, plan=PLAN, largest=100.0):
    return compare_items(before, after, "after", plan, largest)


def test_eight_items_without_a_difference_are_undecided():
    found = compare([25.0] * 8, [25.0] * 8, TWO_TASKS)
    assert found.verdict == "undecided" and found.p == 1 and found.seeds_needed == 217 - 8
    assert found.interval.high == pytest.approx(100 * (1 - 0.0125 ** (1 / 8))) and -found.interval.low > 42
    assert 0.95**8 > 0.66  # 5 % of all items may differ, and 8 items show none of them


@pytest.mark.parametrize(("plan", "items"), [(PLAN, 183), (TWO_TASKS, 217)])
def test_the_bound_decides_from_which_number_of_items_on_equal_models_are_equivalent(plan, items):
    fewer, enough = (compare([0.0] * n, [0.0] * n, plan) for n in (items - 1, items))
    assert fewer.verdict == "undecided" and fewer.seeds_needed == 1
    assert enough.verdict == "equivalent" and enough.interval.high < 2 and enough.seeds_needed is None
    level = plan.look_levels()[0] / 2
    assert 0.98**items < level < 0.98 ** (items - 1)  # the probability of no difference if 2 % of all items differ


def test_a_change_that_breaks_the_margin_of_all_items_is_rarely_equivalent():
    """Exact: k of n items break with binomial probability, and the error is that of the k that are called equivalent."""
    for items in (150, 183, 200, 240, 330, 400):
        error = 0.0
        for broken in range(items):
            if compare([100.0] * items, [0.0] * broken + [100.0] * (items - broken)).verdict != "equivalent":
                break
            error += comb(items, broken) * 0.02**broken * 0.98 ** (items - broken)
        assert error <= 0.05, items


def test_one_difference_among_the_items_never_makes_equivalence_easier():
    found = compare([0.0] * 183, [100.0] + [0.0] * 182)
    assert found.verdict == "undecided" and found.interval.high > 2 and found.seeds_needed > 1


def test_items_that_all_change_are_judged_as_by_the_sign_test():
    for items, verdict in ((5, "undecided"), (6, "better")):
        found = compare([0.0] * items, [100.0] * items)
        assert found.verdict == verdict and found.p == pytest.approx(2.0 ** (1 - items)) and found.interval.high == 100
    worse = compare([100.0] * 6, [0.0] * 6)
    assert worse.verdict == "worse" and worse.interval.low == -100 and worse.interval.high < 0
    assert compare([50.0] * 6, [50.1] * 6).verdict == "undecided"  # small, and other items may differ


def test_the_interval_ends_at_zero_where_p_is_alpha():
    items = 40
    difference = 100 * unseen_share(items, 0.05) / (1 - unseen_share(items, 0.05))
    for factor, verdict in ((0.999, "undecided"), (1.001, "better")):
        found = compare([0.0] * items, [difference * factor] * items)
        assert found.verdict == verdict and (found.p < 0.05) == (found.interval.low > 0) == (verdict == "better")


def test_a_metric_without_a_largest_difference_is_never_equivalent():
    values = [1.0, 2.0, 3.0] * 200
    assert compare(values, values, largest=None).verdict == "undecided"
    noisy = [value + 0.01 * (-1) ** place for place, value in enumerate(values)]
    found = compare(values, noisy, largest=None)
    assert found.verdict == "undecided" and "no largest difference" in found.note
    assert compare(values, noisy).verdict == "equivalent"


def test_a_difference_that_varies_keeps_its_t_interval():
    before, after = [0.0] * 60, [100.0] * 50 + [0.0] * 10
    found = compare(before, after)
    assert found.verdict == "better" and found.note is None and 73 < found.interval.low < 74


def test_an_interval_within_the_margin_of_an_undecided_verdict_is_the_wider_one():
    for items in (2, 40):
        found = compare([0.0] * items, [0.04 * (n % 2) - 0.02 for n in range(items)])
        assert found.verdict == "undecided" and found.interval.high > 2 and found.interval.low < -2, items
        assert found.seeds_needed > 100 and "one further item" in found.note
