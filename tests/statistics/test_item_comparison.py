"""Verdicts over items: what a few items without a difference can and cannot show."""

import random
from dataclasses import replace
from math import comb, factorial

import pytest
import torch

from whence import WhenceError
from whence.statistics import AnalysisPlan, compare_items, item_comparison
from whence.statistics.item_comparison import bound_mean, unseen_share

PLAN = AnalysisPlan(baseline="before", margin=2.0, unit="points")
TWO_TASKS = AnalysisPlan(baseline="before", margin=2.0, unit="points", share=0.5)


def compare(before, after, plan=PLAN, largest=100.0):
    values = {"before": dict(enumerate(before)), "after": dict(enumerate(after))}
    (contrast,) = compare_items(values, plan, largest).contrasts
    return contrast


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


@pytest.mark.parametrize("share", [1.0, 0.5, 1 / 13])
def test_a_change_that_breaks_the_margin_of_all_items_is_rarely_equivalent(share):
    """Exact: k of n items break with binomial probability, and the error is that of the k that are called equivalent."""
    plan = replace(PLAN, share=share)
    for items in (150, 183, 200, 240, 259, 305, 359, 400, 926):
        error = 0.0
        for broken in range(items):
            if compare([100.0] * items, [0.0] * broken + [100.0] * (items - broken), plan).verdict != "equivalent":
                break
            error += comb(items, broken) * 0.02**broken * 0.98 ** (items - broken)
        assert error <= 0.05 * share / 2 + 1e-9, items


def test_items_that_break_and_items_that_mend_do_not_hide_each_other():
    """Exact: 5 % of all items break and 3 % are mended, so the mean difference is the margin."""
    items, error = 400, 0.0
    for broken in range(40):
        for mended in range(30):
            before = [100.0] * (items - mended) + [0.0] * mended
            after = [0.0] * broken + [100.0] * (items - broken)
            if abs(broken - mended) < 3 and compare(before, after).verdict == "equivalent":
                others = items - broken - mended
                ways = factorial(items) // (factorial(broken) * factorial(mended) * factorial(others))
                error += ways * 0.05**broken * 0.03**mended * 0.92**others
    assert error <= 0.025


def test_the_bound_of_a_mean_is_clopper_and_pearsons_for_right_and_wrong_items():
    for items, broken, level in ((8, 0, 0.05), (200, 2, 0.05), (359, 2, 0.05 / 13), (1000, 700, 0.05)):
        high = bound_mean({0.0: items - broken, 100.0: broken}, 100.0, level)[1] / 100
        tail = sum(comb(items, k) * high**k * (1 - high) ** (items - k) for k in range(broken + 1))
        assert tail == pytest.approx(level / 2, rel=1e-4)


def test_the_bound_of_a_mean_is_a_quantile_of_random_weights():
    """Drawn: uniform weights of the items and of one further item at the largest difference."""
    generator = random.Random(0)
    values = [10.0 * generator.randrange(-3, 4) for _ in range(30)]
    low, high = bound_mean({value: values.count(value) for value in set(values)}, 100.0, 0.05)
    weights = -torch.rand(200_000, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log()
    weights /= weights.sum(1, keepdim=True)
    for end, further, tail in ((low, -100.0, 0.025), (high, 100.0, 0.975)):
        means = weights @ torch.tensor([*values, further], dtype=torch.float64)
        assert float((means < end).double().mean()) == pytest.approx(tail, abs=0.002)


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
        assert found.seeds_needed > 100 and "not seen" in found.note


CURES = AnalysisPlan(baseline="none", margin=2.0, unit="points")


def several(items, arms=3, plan=CURES, changed=()):
    """Arms of which the last one varies; the others differ from the baseline in the items of ``changed``."""
    generator = random.Random(1)
    right = {item: 100.0 * generator.randrange(2) for item in range(items)}
    values = {"none": right} | {f"arm {n}": right | dict(changed) for n in range(1, arms)}
    values["varies"] = {item: 100.0 * generator.randrange(2) for item in range(items)}
    return {one.first: one for one in compare_items(values, plan, 100.0).contrasts}


@pytest.mark.parametrize(("arms", "items"), [(1, 183), (3, 237)])
def test_arms_without_a_difference_need_the_items_of_the_whole_family(arms, items):
    """Arms beside one that varies: the spread of that one makes an interval for all, which says nothing about unseen items."""
    assert 0.98**items < 0.025 / arms < 0.98 ** (items - 1)
    for count, verdict in ((8, "undecided"), (items - 1, "undecided"), (items, "equivalent")):
        if arms == 1:
            found = {"arm": compare([50.0] * count, [50.0] * count)}
        else:
            found = several(count, arms)
            assert len(found) == arms and found.pop("varies").interval is not None
        for one in found.values():
            assert one.verdict == verdict and one.p == 1 and one.estimate == 0
            assert one.interval.high == pytest.approx(100 * unseen_share(count, 0.05 / arms))
            assert verdict == "equivalent" or one.seeds_needed >= items - count


def test_one_item_of_many_that_differs_widens_the_interval_of_an_arm_beside_others():
    found = several(250, changed={0: 50.0})["arm 1"]
    assert found.verdict == "undecided" and found.interval.high > 2 and "not seen" in found.note
    assert (
        found.seeds_needed is not None
        and several(250 + found.seeds_needed, changed={0: 50.0})["arm 1"].verdict == "equivalent"
    )


def test_an_early_look_claims_equivalence_only_if_its_own_items_allow_it():
    plan = replace(CURES, looks=(200, 400))
    early = several(200, plan=plan)["arm 1"]
    assert early.verdict == "undecided" and early.interval.high == pytest.approx(100 * unseen_share(200, 0.025 / 3))
    late = several(400, plan=plan)["arm 1"]
    assert late.verdict == "equivalent" and late.look == 2
    assert late.interval.high == pytest.approx(100 * unseen_share(400, 0.025 / 3))


@pytest.mark.parametrize("largest", [float("nan"), float("inf"), 0.0, -1.0, "100"])
def test_the_largest_difference_is_a_finite_number_above_0(largest):
    with pytest.raises(WhenceError, match=r"compare_items\(largest=...\) got .*finite number above 0; pass 100"):
        compare([0.0, 1.0], [1.0, 1.0], largest=largest)
    with pytest.raises(WhenceError, match=r"bound_mean\(largest\) got "):
        bound_mean({0.0: 3}, largest, 0.05)


def test_no_difference_is_beyond_the_largest():
    message = r"got a difference of -?3, but no difference is beyond largest=1; pass the largest"
    for before, after in (([0.0, 0.0], [3.0, 0.0]), ([3.0, 0.0], [0.0, 0.0])):
        with pytest.raises(WhenceError, match=r"compare_items\(values\) " + message):
            compare(before, after, largest=1.0)
    with pytest.raises(WhenceError, match=r"bound_mean\(differences\) " + message):
        bound_mean({0.0: 3, -3.0: 1}, 1.0, 0.05)
    shares = [100 * (1 / 3 + 1 / 3 + 1 / 3) * (1 + 1e-15), 0.0]  # larger by rounding
    assert compare([0.0, 0.0], shares).verdict == "undecided"
    values = {"before": {0: 0.0, 1: 0.0}, "after": {0: 0.0, 1: 0.0, 2: 300.0}}  # of one arm alone: no difference
    assert compare_items(values, PLAN, 100.0).contrasts[0].seeds == 2


def test_the_bound_needs_items():
    for differences, got in (
        ({}, "no items"),
        ({0.0: 0}, "no items"),
        ({0.0: 3, 1.0: -1}, "the numbers"),
        ({float("nan"): 3}, "a difference of nan"),
    ):
        with pytest.raises(WhenceError, match=rf"bound_mean\(differences\) got {got}.*; pass "):
            bound_mean(differences, 100.0, 0.05)
    with pytest.raises(WhenceError, match=r"bound_mean\(level\) got 0"):
        bound_mean({0.0: 3}, 100.0, 0)


@pytest.mark.parametrize("largest", [None, 100.0])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"before": {}, "after": {}}, r"compare_items\(values\) got no items, .*; add the results of items"),
        ({"before": {0: 1.0}}, r"compare_items\(values\) got 1 arms, .*values by item;"),
        ({"before": {0: 1.0}, "after": [1.0]}, r"compare_items\(values\['after'\]\) got a list, .*the item of every"),
        (
            {"before": {0: 1.0}, "after": {0: 1.0, "a": 1.0}},
            r"compare_items\(values\) got items of type int, str, .*items",
        ),
        (
            {"before": {0: 1.0}, "after": {0: 1e301}},
            r"values\['after'\]\[0\]\) got 1e\+301 .*from -1e\+300 to .*that item",
        ),
    ],
)
def test_errors_speak_of_items(values, message, largest):
    with pytest.raises(WhenceError, match=message) as caught:
        compare_items(values, PLAN, largest)
    assert "seed" not in str(caught.value)


def test_notes_speak_of_items():
    assert compare([1.0], [1.0]).note == "fewer than two common items have a value"
    assert compare([1.0] * 3, [1.0] * 3, replace(PLAN, margin=None), None).note.endswith("so nothing is equivalent")


def beside_one_that_varies(size):
    """An arm without a difference in three items, beside one whose differences are ``size`` in either direction."""
    same = dict.fromkeys(range(3), 50.0)
    values = {"none": same, "same": same, "varies": {0: 50.0 + size, 1: 50.0 - size, 2: 50.0 + size}}
    return compare_items(values, CURES, 100.0).contrasts[0]


def test_an_arm_without_a_difference_has_the_wider_of_both_intervals():
    bound = 100 * unseen_share(3, 0.025)
    narrow, wide = beside_one_that_varies(20.0), beside_one_that_varies(50.0)
    assert narrow.interval.high == pytest.approx(bound) and -narrow.interval.low == pytest.approx(bound)
    assert wide.interval.high > 95 > bound and wide.interval.low < -95


def test_an_arm_without_a_difference_needs_the_items_of_both_intervals():
    assert beside_one_that_varies(20.0).seeds_needed > 500 > 214  # 214 items are enough for the bound


def test_the_wider_interval_holds_both_intervals(monkeypatch):
    noise = [0.04 * (n % 2) - 0.02 for n in range(10)]
    plain = compare([0.0] * 10, noise, replace(PLAN, margin=None)).interval
    for ends in ((-0.001, 5.0), (-5.0, 0.001)):
        monkeypatch.setattr(item_comparison, "bound_mean", lambda *_, ends=ends: ends)
        found = compare([0.0] * 10, noise)
        assert (
            found.verdict == "undecided"
            and -5 <= found.interval.low <= plain.low < plain.high <= found.interval.high <= 5
        )
        assert max(-found.interval.low, found.interval.high) == 5


def test_further_items_are_those_of_the_last_look():
    plan = replace(PLAN, looks=(10, 12))
    found = compare([0.0] * 10, [0.0] * 10, plan)
    level = plan.look_levels()[1] / 2
    assert found.seeds_needed == 272 - 10 and level < plan.look_levels()[0] / 4
    assert 0.98**272 < level < 0.98**271
