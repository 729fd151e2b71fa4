"""Verdicts of arms with common seeds: scipy's paired test, failed runs, margins, looks, needed seeds, bad input."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from whence import WhenceError
from whence.statistics import AnalysisPlan, Contrast, PairedComparison, compare_paired
from whence.statistics.further_seeds import count_further_seeds
from whence.statistics.moderated_t import Layout, Reference, reference_scenarios

SEED_EFFECTS = [0.0, 2.0, -1.0, 1.0, -2.0]
NOISE = [[0.1, -0.2, 0.1, 0.2, -0.2], [-0.1, 0.1, 0.2, -0.2, 0.0], [0.2, 0.0, -0.2, 0.1, -0.1], [0.0, 0.2, 0.1, -0.1, -0.2]]  # fmt: skip


def arms_at(*means, seeds=5):
    return {
        name: {seed: 70 + mean + SEED_EFFECTS[seed] + own[seed] for seed in range(seeds)}
        for name, mean, own in zip("abcd", means, NOISE, strict=False)
    }


def against(values, baseline="a", draws=1000, references=None, **terms):
    return compare_paired(values, AnalysisPlan(baseline=baseline, **terms), draws=draws, references=references)


def verdicts(comparison):
    return [contrast.verdict for contrast in comparison.contrasts]


@given(st.integers(2, 12), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_two_arms_are_the_paired_t_test(seeds, seed):
    a, b = np.random.default_rng(seed).normal(size=(2, seeds))
    (found,) = against({"a": dict(enumerate(a)), "b": dict(enumerate(b))}).contrasts
    expected = stats.ttest_rel(b, a)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert found.estimate == pytest.approx(b.mean() - a.mean()) and found.seeds == seeds


def test_verdicts_and_directions():
    values = arms_at(0, 3, -3, 0)
    assert verdicts(against(values)) == ["better", "worse", "undecided"]
    assert verdicts(against(values, higher_is_better=False)) == ["worse", "better", "undecided"]
    assert verdicts(against(values, margin=2.0)) == ["better", "worse", "equivalent"]
    assert verdicts(against(values, margin=20.0)) == ["equivalent"] * 3
    found = compare_paired(values, AnalysisPlan("pairs"), draws=1000)
    assert [(c.first, c.second) for c in found.contrasts] == [
        ("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]  # fmt: skip
    assert verdicts(found) == ["worse", "better", "undecided", "better", "better", "worse"]
    assert found.undecided_arms() == ()  # a and d are clearly worse than b
    assert against(values).undecided_arms() == ("d", "a")


def test_ten_spreads_are_claimed_with_three_seeds():
    values = {name: dict(enumerate(row)) for name, row in zip("abcdefgh", np.random.default_rng(1).normal(size=(8, 3)), strict=True)}  # fmt: skip
    values["c"] = {seed: value + 10 for seed, value in values["c"].items()}
    assert [c.first for c in against(values, draws=4000).contrasts if c.verdict == "better"] == ["c"]


@pytest.mark.parametrize("family", ["baseline", "pairs"])
def test_intervals_and_p_agree(family):
    generator = np.random.default_rng(3)
    for _ in range(12):
        rows = generator.normal([0, 0.5, 1.5, 3], size=(5, 4))
        values = {name: dict(enumerate(rows[:, arm])) for arm, name in enumerate("abcd")}
        plan = AnalysisPlan(family, "a" if family == "baseline" else None, looks=(3, 5))
        for contrast in compare_paired(values, plan, draws=500).contrasts:
            assert (contrast.p <= 0.05) == (0 not in contrast.interval) == (contrast.verdict != "undecided")
            assert contrast.interval.level == 0.95


def test_seed_effects_units_and_order_do_not_matter():
    values = arms_at(0, 0.4, -0.2, 0.1)
    plain = against(values)
    shifted = {arm: {s: v + 100 * s for s, v in own.items()} for arm, own in values.items()}
    larger = {arm: {s: 1000 * v for s, v in own.items()} for arm, own in values.items()}
    turned = {arm: dict(reversed(own.items())) for arm, own in values.items()}
    for other, scale in ((shifted, 1), (larger, 1000), (turned, 1)):
        for own, found in zip(plain.contrasts, against(other).contrasts, strict=True):
            assert found.estimate == pytest.approx(scale * own.estimate) and found.p == pytest.approx(own.p)
            assert found.interval.low == pytest.approx(scale * own.interval.low)


@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_any_scale(scale):
    values = arms_at(0, 0.4, -0.2, 0.1)
    scaled = {arm: {s: scale * v for s, v in own.items()} for arm, own in values.items()}
    for own, found in zip(against(values).contrasts, against(scaled).contrasts, strict=True):
        assert found.p == pytest.approx(own.p) and found.seeds_needed == own.seeds_needed
        assert found.interval.high == pytest.approx(scale * own.interval.high, rel=1e-6)


def test_a_failed_seed_removes_itself_from_the_contrasts_of_its_arm():
    values = arms_at(0, 3, -3, 0)
    values["b"][2] = None
    values["c"][1] = math.nan
    del values["d"][4]
    found = against(values)
    assert [c.missing for c in found.contrasts] == [(2,), (1,), (4,)]
    assert [c.seeds for c in found.contrasts] == [4] * 3 and verdicts(found) == ["better", "worse", "undecided"]
    common = [seed for seed in range(5) if seed != 2]
    assert found.contrasts[0].estimate == pytest.approx(np.mean([values["b"][s] - values["a"][s] for s in common]))
    assert "without seed 2" in found.text()


def test_an_arm_without_values_leaves_the_others_alone():
    values = arms_at(0, 3, -3, 0) | {"e": dict.fromkeys(range(5)), "f": {0: 70.0}}
    found = against(values)
    assert verdicts(found) == ["better", "worse", "undecided", "undecided", "undecided"]
    empty, single = found.contrasts[3:]
    assert empty.estimate is None and empty.p is None and "fewer than two common seeds" in empty.note
    assert single.seeds == 1 and single.estimate is not None and single.interval is None
    alone = against({"a": {0: 1.0}, "b": {0: 2.0}})
    assert verdicts(alone) == ["undecided"]


def test_without_variance_the_sign_flip_test_decides():
    values = {arm: dict.fromkeys(range(9), value) for arm, value in (("a", 1.0), ("b", 2.0), ("c", 1.0))}
    better, same = against(values).contrasts
    assert better.verdict == "better" and better.p == 2 * 2 / 2**9 and better.interval is None
    assert same.verdict == "undecided" and same.p == 1 and same.seeds_needed is None
    few, _ = against({arm: {s: own[s] for s in range(5)} for arm, own in values.items()}).contrasts
    assert few.verdict == "undecided" and few.seeds_needed == 2 and "sign-flip" in few.note
    enough, _ = against({arm: {s: own[s] for s in range(7)} for arm, own in values.items()}).contrasts
    assert enough.verdict == "better"


@pytest.mark.parametrize("difference", [0.0, 0.5])
def test_arms_without_variance_are_equivalent_within_the_margin_after_enough_seeds(difference):
    """The sign-flip test rejects both ends of the margin. Two contrasts at 0.05 need 2^(1 - n) <= 0.025: 7 seeds."""
    values = {arm: dict.fromkeys(range(7), 100 - own) for arm, own in (("a", 0.0), ("b", difference), ("c", 5.0))}
    assert verdicts(against(values, margin=1.0)) == ["equivalent", "worse"]
    assert verdicts(against(values)) == ["worse" if difference else "undecided", "worse"]
    assert verdicts(against(values, margin=1.0, looks=(7, 12))) == ["undecided"] * 2
    few = against({arm: {s: own[s] for s in range(5)} for arm, own in values.items()}, margin=1.0).contrasts[0]
    assert few.verdict == "undecided" and few.seeds_needed == 2 and "sign-flip" in few.note


@given(st.integers(2, 6), st.integers(2, 12), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rounding_is_not_a_variance(arms, seeds, seed):
    """Arms that differ by constants, with seed effects and a failed run: the residual of rounding decides nothing."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(70, 5, (seeds, 1)) + generator.normal(0, 3, (1, arms))
    values = {f"{arm}": dict(enumerate(rows[:, arm])) for arm in range(arms)}
    values["1"][0] = None
    assert all(c.interval is None for c in against(values, baseline="0", draws=100).contrasts)


def test_two_equal_arms_without_variance_are_judged_by_the_variance_of_the_others():
    values = arms_at(0, 0, 3, -3)
    values["a"] = values["b"] = dict.fromkeys(range(5), 100.0)
    assert against(values, margin=20.0).contrasts[0].verdict == "equivalent"
    narrow = against(values, margin=0.1).contrasts[0]
    assert narrow.verdict == "undecided" and narrow.estimate == 0 and narrow.interval.low < 0 < narrow.interval.high


def test_one_arm_without_variance_is_judged_by_the_others():
    values = arms_at(0, 3, -3, 0)
    values["b"] = {seed: value + 3 for seed, value in values["a"].items()}  # the same difference for all seeds
    found = against(values).contrasts[0]
    assert found.verdict == "better" and found.interval.low < 3 < found.interval.high


def test_needed_seeds():
    needed = [against(arms_at(0, mean, 0.1, -0.1)).contrasts[0].seeds_needed for mean in (0.25, 0.15, 0.1)]
    assert needed == sorted(needed) and needed[0] >= 1 and needed[-1] > 5
    decided = against(arms_at(0, 3, 0.1, -0.1)).contrasts[0]
    assert decided.verdict == "better" and decided.seeds_needed is None
    tiny = against(arms_at(0, 1e-4, 0.1, -0.1)).contrasts[0]
    with_margin = against(arms_at(0, 1e-4, 0.1, -0.1), margin=0.3).contrasts[0]
    assert tiny.seeds_needed is None or tiny.seeds_needed > 100
    assert with_margin.verdict == "equivalent" or with_margin.seeds_needed < 100


def test_needed_seeds_decide_with_the_power_stated():
    """Of studies as undecided as this one, with a true difference equal to the estimate, about 0.8 would be decided."""
    a, b = np.zeros(4), np.array([1.5, -0.5, 1.0, 0.5])
    (found,) = against({"a": dict(enumerate(a)), "b": dict(enumerate(b))}).contrasts
    assert found.verdict == "undecided"
    n = 4 + found.seeds_needed
    t = abs(found.estimate) / (b - a).std(ddof=1) * n**0.5
    power = stats.nct.sf(stats.t.isf(0.025, n - 1), n - 1, t)
    assert 0.75 < power < 0.9


def test_a_share_of_alpha_corrects_for_comparisons_made_elsewhere():
    """A quarter of alpha: the claims of a four times smaller level, with p beside the whole."""
    values = {"a": dict(enumerate([0.0, 0.1, -0.2, 0.1])), "b": dict(enumerate([1.0, 1.6, 0.3, 0.9]))}
    whole, part = (against(values, share=share).contrasts[0] for share in (1.0, 0.25))
    assert part.p == pytest.approx(4 * whole.p) and whole.verdict == "better" and part.verdict == "undecided"
    reference = against(values, alpha=0.0125).contrasts[0].interval
    assert (part.interval.low, part.interval.high) == pytest.approx((reference.low, reference.high))
    assert sum(AnalysisPlan(baseline="a", looks=(3, 5), share=0.25).look_levels()) == pytest.approx(0.0125)
    with pytest.raises(WhenceError, match=r"AnalysisPlan\(share=...\) got 0.*pass 1.0"):
        AnalysisPlan("pairs", share=0)


def test_looks_spend_alpha_and_keep_their_claims():
    plan = AnalysisPlan(baseline="a", looks=(3, 5))
    assert sum(plan.look_levels()) == pytest.approx(0.05)
    assert AnalysisPlan(baseline="a").look_levels() == (0.05,)
    values = arms_at(0, 30, -30, 0)
    early = against({arm: {s: own[s] for s in range(3)} for arm, own in values.items()}, looks=(3, 5))
    assert early.look == 1 and verdicts(early) == ["better", "worse", "undecided"]
    assert early.undecided_arms() == ("d", "a")
    # b and c are dropped: they get no further seeds, and their verdicts stand
    later = {"a": values["a"], "d": values["d"]} | {arm: {s: values[arm][s] for s in range(3)} for arm in "bc"}
    found = {c.first: c for c in against(later, looks=(3, 5)).contrasts}
    assert [found[arm].verdict for arm in "bcd"] == ["better", "worse", "undecided"]
    assert found["b"].missing == (3, 4) and found["d"].seeds == 5
    for contrast in early.contrasts:  # intervals of a later look lie inside the earlier ones
        assert contrast.interval.low <= found[contrast.first].interval.low
        assert contrast.interval.high >= found[contrast.first].interval.high
        assert found[contrast.first].p <= contrast.p


def two_arms(differences, **terms):
    """The contrast of two arms with these differences. Seed effects cancel."""
    a = {seed: 70.0 + seed for seed in range(len(differences))}
    return against({"a": a, "b": {seed: a[seed] + d for seed, d in enumerate(differences)}}, **terms).contrasts[0]


def test_a_better_arm_stays_better_when_later_seeds_put_the_difference_inside_the_margin():
    differences = [1.6, 1.8, 2.0, 1.0, 1.4, 1.2, 1.1, 1.3]
    early = two_arms(differences[:3], margin=2.0, looks=(3, 8))
    assert early.verdict == "better" and early.look == 1 and early.interval.high > 2
    later = two_arms(differences, margin=2.0, looks=(3, 8))
    assert later.interval.low > 0 and later.interval.high < 2  # all seeds at once: equivalent
    assert (later.verdict, later.look, later.seeds) == ("better", 1, 8)
    assert later.estimate == pytest.approx(np.mean(differences))
    assert two_arms(differences, margin=2.0).verdict == "equivalent"
    assert two_arms(differences, margin=2.0, looks=(2, 8)).look == 2


def test_every_look_has_the_level_of_its_own_share():
    """Looks after 2 and 5 seeds have 0.02 and 0.03. The first interval is so wide that the second alone is seen."""
    differences = [0.9, -0.8, 0.3, 0.1, 0.2]
    found = two_arms(differences, looks=(2, 5))
    expected = stats.ttest_1samp(differences, 0).confidence_interval(1 - 0.03)
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))
    assert found.p == pytest.approx(min(1.0, stats.ttest_1samp(differences, 0).pvalue / 0.6))


def test_an_equivalent_arm_stays_equivalent_and_keeps_its_numbers_if_later_seeds_disagree():
    differences = [0.1, -0.1, 0.0, *[9.0, 9.2, 8.9, 9.1, 9.0] * 4]
    early = two_arms(differences[:3], margin=2.0, looks=(3, 23))
    later = two_arms(differences, margin=2.0, looks=(3, 23))
    assert early.verdict == later.verdict == "equivalent" and later.look == 1
    assert (later.estimate, later.interval, later.seeds) == (early.estimate, early.interval, 3)
    assert "with 23 seeds the difference is 7.86" in later.note and early.note is None


@pytest.mark.parametrize("count", [5, 8, 12])
def test_a_difference_that_appears_after_the_first_look_is_claimed(count):
    """Three seeds put the difference near zero; the estimate of the later seeds lies far outside that interval."""
    rows = np.random.default_rng(0).normal(12.5, 0.3, (count, 4))
    rows[3:, 1] += 30
    values = {name: dict(enumerate(rows[:, arm])) for arm, name in enumerate("axyz")}
    found = against(values, looks=(3, 5, 8, 12)).contrasts[0]
    assert found.estimate in found.interval
    assert (found.p <= 0.05) == (0 not in found.interval) == (found.verdict == "better")
    assert count < 12 or found.verdict == "better"


def test_two_seeds_claim_no_equivalence():
    """The error rate of equivalence is simulated from 3 seeds on."""
    two, three = (two_arms([0.1, 0.12, 0.11][:count], margin=10.0) for count in (2, 3))
    assert two.interval.high < 10 and two.verdict != "equivalent" and three.verdict == "equivalent"


def test_no_equivalence_is_claimed_far_from_the_estimate():
    """The intersection of both looks lies inside the margin, and the estimate of all seeds lies outside it."""
    differences = [-0.9, -0.1, -0.5, 3.5, 3.4, 3.6]
    early, later = (two_arms(differences[:count], margin=1.5, looks=(3, 6)) for count in (3, 6))
    assert early.verdict == "undecided" and early.interval.low < -1.5 and early.interval.high < later.estimate
    assert later.verdict == "undecided" and later.estimate in later.interval and -1.5 < later.interval.low < 0


@pytest.mark.parametrize("later", [[0.9, 1.2, -3.0], [-9.0, 5.0, -9.0]])
def test_a_claim_without_variance_stands_when_the_differences_begin_to_vary(later):
    early = two_arms([1.0] * 9, looks=(9, 12))
    assert early.verdict == "better" and early.look == 1
    found = two_arms([1.0] * 9 + later, looks=(9, 12))
    assert (found.verdict, found.look, found.estimate, found.p) == ("better", 1, 1.0, early.p)
    assert "with 12 seeds the difference is" in found.note


def test_the_text_names_the_look_of_an_earlier_claim():
    values = arms_at(0, 30, -30, 0)
    lines = against(values, looks=(3, 5)).text().splitlines()
    assert "claimed at the look after 3 seeds" in lines[0] and "claimed" not in lines[2]
    assert "claimed" not in against(values).text()


def test_seeds_wait_for_the_next_look():
    values = arms_at(0, 3, -3, 0)
    four = {arm: {s: own[s] for s in range(4)} for arm, own in values.items()}
    three = {arm: {s: own[s] for s in range(3)} for arm, own in values.items()}
    assert against(four, looks=(3, 5)) == against(three, looks=(3, 5))
    before = against({arm: {s: own[s] for s in range(2)} for arm, own in values.items()}, looks=(3, 5))
    assert before.look == 0 and before.seeds == () and verdicts(before) == ["undecided"] * 3
    assert "first look" in before.contrasts[0].note


def test_one_look_is_stricter_per_look_than_none():
    values = arms_at(0, 0.4, -0.3, 0.1)
    for single, looked in zip(against(values).contrasts, against(values, looks=(5, 8)).contrasts, strict=True):
        assert looked.interval.high - looked.interval.low > single.interval.high - single.interval.low
        assert looked.p >= single.p


def test_the_result_is_json_and_repeats():
    values = arms_at(0, 3, -3, 0)
    first = against(values)
    assert first == against(values) and json.loads(json.dumps(first.to_json()))["look"] == 1
    assert first.text().splitlines()[0].startswith("b is better than a by ")
    references = {}  # of the layout: other values share it, other seeds do not
    missing = values | {"b": values["b"] | {0: None}}
    for own in (arms_at(5, 0, 0, 0), values, missing):
        assert against(own, references=references) == against(own)
    assert len(references) == 2


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"family": "triples"}, "family.*triples"),
        ({}, "baseline.*None"),
        ({"family": "pairs", "baseline": "a"}, "baseline.*'a'.*pairs"),
        ({"baseline": "a", "alpha": 5}, "alpha.*5"),
        ({"baseline": "a", "alpha": "x"}, "alpha.*'x'"),
        ({"baseline": "a", "margin": 0.0}, "margin.*0.0"),
        ({"baseline": "a", "margin": math.nan}, "margin.*nan"),
        ({"baseline": "a", "looks": (5, 3)}, r"looks.*\(5, 3\)"),
        ({"baseline": "a", "looks": (1, 3)}, r"looks.*\(1, 3\)"),
        ({"baseline": "a", "looks": 3}, "looks.*3"),
    ],
)
def test_bad_plans(terms, words):
    with pytest.raises(WhenceError, match=words):
        AnalysisPlan(**terms)


@pytest.mark.parametrize(
    ("values", "terms", "words"),
    [
        ([1.0], {}, "values.*list"),
        ({"a": {0: 1.0}}, {}, "values.*1 arms"),
        ({"a": {0: 1.0}, "b": [1.0]}, {}, r"values\['b'\].*list"),
        ({"b": {0: 1.0}, "c": {0: 1.0}}, {}, "baseline.*'a'.*b, c"),
        ({"a": {0: 1.0}, "b": {0: math.inf}}, {}, r"'b'\]\[0\].*inf"),
        ({"a": {0: 1.0}, "b": {0: "x"}}, {}, r"'b'\]\[0\].*'x'"),
        ({"a": {0: 1.0}, "b": {"x": 1.0}}, {}, "values.*int, str"),
        ({"a": {}, "b": {}}, {}, "values.*no seeds"),
        (arms_at(0, 1), {"looks": (2, 3)}, "5 seeds.*3"),
        (arms_at(0, 1), {"draws": 5}, "draws.*5"),
    ],
)
def test_bad_values(values, terms, words):
    with pytest.raises(WhenceError, match=words):
        against(values, **terms)


@pytest.mark.parametrize("verdict, active", [("worse", ("b", "c")), ("better", ("a", "c"))])
def test_the_worse_arm_of_a_decided_pair_is_dropped(verdict, active):
    pairs = [("a", "b", verdict), ("a", "c", "undecided"), ("b", "c", "undecided")]
    contrasts = tuple(Contrast(first, second, 0.0, None, None, own, 3, (), None) for first, second, own in pairs)
    assert PairedComparison(AnalysisPlan("pairs"), contrasts, (0, 1, 2), 1).undecided_arms() == active


def test_needed_seeds_decide_at_the_level_of_the_last_look():
    differences = [0.9, -0.8, 0.3, 0.1]
    later, whole = two_arms(differences, looks=(4, 12)), two_arms(differences)
    alone = two_arms(differences, alpha=0.05 * 8 / 12)
    assert later.seeds_needed == alone.seeds_needed > whole.seeds_needed
    # without variance: 2^(1 - n) <= 0.05 * 10 / 12 from 6 seeds on
    assert two_arms([1.0, 1.0], looks=(2, 12)).seeds_needed == 4


def test_a_larger_family_needs_more_seeds():
    layout = Layout(np.ones((5, 6), bool), [(arm, 0) for arm in range(1, 6)])
    reference = Reference(layout, reference_scenarios("baseline"), draws=500)
    few, many = (count_further_seeds(0.3, 5, 12.0, 0.05, family, reference) for family in (1, 5))
    assert few < many


def test_the_scale_of_logarithms_compares_logarithms():
    values = {
        name: {seed: math.exp(value / 20) for seed, value in own.items()} for name, own in arms_at(0, 3, -3, 0).items()
    }
    logs = {name: {seed: math.log(value) for seed, value in own.items()} for name, own in values.items()}
    margin = math.log(1.12)
    by_ratio, by_difference = against(values, scale="log", margin=12.0, unit="%"), against(logs, margin=margin)
    for one, other in zip(by_ratio.contrasts, by_difference.contrasts, strict=True):
        assert one.verdict == other.verdict and one.p == other.p and one.seeds_needed == other.seeds_needed
        assert one.estimate == pytest.approx(other.estimate) and one.interval.low == pytest.approx(other.interval.low)
    assert verdicts(by_ratio) == ["better", "worse", "equivalent"]
    line = by_ratio.text().splitlines()[1]
    assert line.startswith("c is worse than a by 13.9 % (-15.2 to") and "equivalent to a within 12 %" in by_ratio.text()


def test_a_later_look_states_a_ratio_in_per_cent():
    values = {
        "a": {s: 10.0 + 0.01 * s for s in range(6)},
        "b": {s: (8.0 if s < 3 else 12.0) + 0.01 * s * s for s in range(6)},
    }
    (found,) = against(values, looks=(3, 6), scale="log", unit="%").contrasts
    assert found.verdict == "worse" and "the difference is -1.49 %" in found.note


def test_only_positive_values_have_ratios():
    with pytest.raises(WhenceError, match=r"values\['b'\]\[1\].*got 0.0.*above 0.*scale 'value'"):
        against({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 0.0}}, scale="log")
    with pytest.raises(WhenceError, match=r"AnalysisPlan\(scale=...\) got 'ratio'"):
        AnalysisPlan("pairs", scale="ratio")


def test_rounding_of_values_near_one_is_no_spread():
    near = math.nextafter(1.0, 2.0)
    values = {"a": dict.fromkeys(range(4), 1.0), "b": {0: near, 1: near, 2: near, 3: math.nextafter(near, 2.0)}}
    (found,) = against(values, scale="log").contrasts
    assert found.verdict == "undecided" and found.interval is None


def test_a_ratio_beyond_the_range_of_a_float_is_infinite():
    plan = AnalysisPlan("pairs", scale="log")
    assert plan.to_shown(699.0) == pytest.approx(100 * math.exp(699.0)) and plan.to_shown(700.0) == math.inf
    assert plan.to_shown(-1e4) == -100
