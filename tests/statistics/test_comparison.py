"""Arms against a baseline: corrections, verdicts word by word, refusals, and how often null studies claim something."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from whence import WhenceError
from whence.statistics import (
    bonferroni,
    cohen_d,
    compare,
    holm,
    paired_t,
    permutation_test,
    sign_flip_test,
    summary,
    welch,
)

BASE = [70.1, 70.4, 69.8, 70.0, 70.2]
BETTER = [71.9, 72.6, 72.9, 71.4, 72.2]
SAME = [70.3, 69.7, 70.2, 70.5, 69.9]
WORSE = [67.9, 68.6, 68.1, 68.9, 68.5]


def verdict(arm, base=BASE, m=5, higher=True, **terms):
    return compare({"sinusoidal": base, "rotary": arm}, "sinusoidal", m, higher, **terms).arms["rotary"].verdict


def test_every_number_is_that_of_its_own_function():
    result = compare({"a": BETTER, "base": BASE, "b": SAME}, "base", 4, True, level=0.9)
    assert list(result.arms) == ["a", "b"] and result.baseline_summary == summary(BASE, 0.9)
    for name, own in (("a", BETTER), ("b", SAME)):
        arm = result.arms[name]
        assert arm.summary == summary(own, 0.9) and arm.test == welch(own, BASE, 0.9)
        assert arm.difference == arm.test.difference and arm.corrected_p == min(1, 4 * arm.test.p)
        assert arm.permutation == permutation_test(own, BASE) and arm.smallest_p == 2 / 252
        assert arm.corrected_permutation_p == min(1, 4 * arm.permutation.p)
        assert arm.effect == cohen_d(own, BASE, 0.9)
        assert arm.corrected_interval == welch(own, BASE, 0.975).interval
    assert result.decides == (
        "the Welch test after Bonferroni's correction for m = 4; "
        "nothing is claimed where the permutation test cannot reach 0.1 / 4"
    )


def test_paired_seeds():
    base = [float(x) for x in range(8)]
    arm = [x + 0.5 + 0.1 * (-1) ** i for i, x in enumerate(base)]
    result = compare({"base": base, "arm": arm}, "base", 1, True, paired=True).arms["arm"]
    assert result.test == paired_t(arm, base) and result.permutation == sign_flip_test(arm, base)
    assert result.smallest_p == 2 / 256 and result.effect.d == cohen_d(arm, base).d
    assert result.effect.interval is None and result.effect.note == "its interval is not known for paired seeds"
    assert result.verdict == "better than base by 0.5 (p < 0.0001 after correction for 1 comparison)"
    assert "no significant difference" in verdict(arm, base, m=1)  # unpaired, the seeds hide it


def test_verdicts():
    assert verdict(BETTER, unit="points") == (
        "better than sinusoidal by 2.1 points (p = 0.003 after correction for 5 comparisons)"
    )
    assert verdict(BETTER, higher=False) == (
        "worse than sinusoidal by 2.1 (p = 0.003 after correction for 5 comparisons)"
    )
    assert verdict(WORSE, higher=False, m=1) == (
        "better than sinusoidal by 1.7 (p = 0.00013 after correction for 1 comparison)"
    )
    assert verdict(SAME) == (
        "no significant difference from sinusoidal with 5 seeds (p = 1 after correction for 5 comparisons)"
    )
    assert verdict([*SAME, 70.0]) == (
        "no significant difference from sinusoidal with 6 and 5 seeds (p = 1 after correction for 5 comparisons)"
    )


def test_verdicts_where_the_seeds_are_too_few():
    few = verdict(BETTER[:3], BASE[:3])
    assert few.startswith(
        "with 3 and 3 seeds the permutation test cannot reach 0.05 / 5; more seeds are needed (at least 5 per arm)"
    )
    assert verdict(BETTER, m=7).startswith("with 5 and 5 seeds the permutation test cannot reach 0.05 / 7; ")
    assert "needed (at least 7 per arm)" in verdict(BETTER, m=1, level=0.999)
    assert "(at least 6 paired seeds)" in verdict(BETTER, m=1, paired=True)


def test_an_undecided_comparison_describes_the_data():
    assert verdict(BETTER, m=7).endswith(
        "(at least 6 per arm); so far every seed is better, by 2.1 on average (t-test alone: p = 0.0042 after correction)"
    )
    assert "so far every seed is worse" in compare({"a": BASE, "b": BETTER}, "b", 7, True).arms["a"].verdict
    assert "so far every seed is better" in compare({"a": BASE, "b": BETTER}, "b", 7, False).arms["a"].verdict
    assert verdict(SAME, m=7).endswith("(at least 6 per arm)")  # seeds overlap
    pairs = verdict(BETTER, m=1, paired=True)
    assert "so far every seed is better, by 2.1 on average" in pairs
    assert "so far" not in verdict([b + d for b, d in zip(BASE, (1, 1, 1, 1, 0), strict=True)], m=1, paired=True)


def test_one_seed_alone():
    alone = compare({"sinusoidal": BASE[:1], "rotary": BETTER[:1]}, "sinusoidal", 1, True).arms["rotary"]
    assert alone.verdict.startswith("with 1 and 1 seeds the permutation test cannot reach 0.05 / 1; ")
    assert alone.test is None and alone.effect is None and alone.corrected_p is None
    assert alone.difference == pytest.approx(1.8)


def test_verdicts_where_the_t_test_is_not_defined():
    assert verdict([1.0] * 5, [0.0] * 5) == (
        "better than sinusoidal by 1 (all seeds give the same value, so the t-test is not defined; "
        "permutation p = 0.04 after correction for 5 comparisons)"
    )
    assert verdict([1.0] * 5, [1.0] * 5) == (
        "no significant difference from sinusoidal with 5 seeds (p = 1 after correction for 5 comparisons)"
    )
    assert verdict([30.0], list(map(float, range(19))), m=1) == (
        "better than sinusoidal by 21 (one seed has no variance, so the t-test is not defined; "
        "permutation p = 0.05 after correction for 1 comparison)"
    )


def test_a_p_beside_alpha_is_written_so_that_its_side_is_seen():
    shift = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    for low, high in ((0.05, 0.0504), (0.0496, 0.05)):
        step = min(np.arange(0.8, 1.6, 0.0005), key=lambda s: abs(welch(shift + s, shift).p - (low + high) / 2))
        words, p = verdict(shift + step, shift, m=1), welch(shift + step, shift).p
        assert ("no significant difference" in words) == (p > 0.05)
        written = float(words.split("p = ")[1].split(" ")[0])
        assert (written <= 0.05) == (p <= 0.05)


def test_text_prints_the_floor_beside_the_verdict():
    result = compare({"none": BASE, "rotary": BETTER, "alibi": SAME}, "none", 5, True)
    assert result.text().splitlines() == [
        "rotary: better than none by 2.1 (p = 0.003 after correction for 5 comparisons) "
        "[uncorrected permutation p = 0.0079; these seeds cannot give less than 0.0079]",
        "alibi: no significant difference from none with 5 seeds (p = 1 after correction for 5 comparisons) "
        "[uncorrected permutation p = 1; these seeds cannot give less than 0.0079]",
    ]


samples = st.lists(st.floats(-10, 10).map(lambda x: round(x, 2)), min_size=5, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(samples, samples, st.floats(0, 20), st.booleans())
def test_verdict_interval_and_direction_agree(a, b, shift, higher):
    arm = compare({"a": [x + shift for x in a], "b": b}, "b", 3, higher).arms["a"]
    claimed = arm.verdict.startswith(("better", "worse"))
    if arm.corrected_interval is not None:
        assert claimed == (0 not in arm.corrected_interval) == (arm.corrected_p <= 0.05)
    if claimed:
        assert arm.verdict.startswith("better") == ((arm.difference > 0) == higher)
    turned = compare({"a": [-x - shift for x in a], "b": [-x for x in b]}, "b", 3, not higher).arms["a"]
    assert turned.verdict == arm.verdict


def test_json():
    result = compare({"none": BASE, "one": [1.0], "flat": [1.0] * 5, "rotary": BETTER}, "none", 3, True)
    plain = result.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["arms"]["rotary"]["test"]["p"] == result.arms["rotary"].test.p


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrections(ps):
    assert [bonferroni(p, 4) for p in ps] == [min(1, 4 * p) for p in ps]
    corrected = holm(ps)
    assert all(p <= c <= bonferroni(p, len(ps)) for p, c in zip(ps, corrected, strict=True))
    order = np.argsort(ps, kind="stable")
    steps = [min(1, ps[place] * (len(ps) - rank)) for rank, place in enumerate(order)]
    assert [corrected[place] for place in order] == list(np.maximum.accumulate(steps)) if ps else corrected == []


def test_holm_of_a_known_case():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: compare({"none": BASE, "rotary": [1.0, float("nan")]}, "none", 1, True),
            "compare(arms['rotary']) got nan at place 1, but every value is a finite number; "
            "run that seed again, or report its failure separately.",
        ),
        (
            lambda: compare({"none": BASE, "rotary": [1.0, float("-inf")]}, "none", 1, True),
            "compare(arms['rotary']) got -inf at place 1, but every value is a finite number; "
            "run that seed again, or report its failure separately.",
        ),
        (
            lambda: compare({"none": BASE, "rotary": []}, "none", 1, True),
            "compare(arms['rotary']) got no values, but at least one value is needed; add the results of more seeds.",
        ),
        (
            lambda: compare({"none": BASE, "rotary": BETTER}, "alibi", 1, True),
            "compare(baseline=...) got 'alibi', but the arms are none, rotary; name one of them.",
        ),
        (
            lambda: compare({}, "none", 1, True),
            "compare(arms) got 0 arms, but arms maps names to results; pass a dict with a list for each arm.",
        ),
        (
            lambda: compare({"none": BASE}, "none", 1, True),
            "compare(arms) got 'none' alone, but a baseline is compared to something; add another arm.",
        ),
        (
            lambda: compare({"none": BASE, "rotary": BETTER, "alibi": SAME}, "none", 1, True),
            "compare(m=...) got 1, but m counts all comparisons of the study, and 2 are made here; "
            "pass m=2 or the larger number of the study.",
        ),
        (
            lambda: compare({"none": BASE, "rotary": BETTER[:4]}, "none", 1, True, paired=True),
            "compare(arms['rotary'], paired=True) got 4 values against 5 of 'none', but a pair is two results of one "
            "seed; keep the seeds both arms have, in one order, or pass paired=False.",
        ),
        (
            lambda: compare({"none": BASE, "rotary": BETTER}, "none", 1, True, level=5),
            "compare(level=...) got 5, but a confidence level lies between 0 and 1; try 0.95.",
        ),
        (
            lambda: bonferroni(1.2, 3),
            "bonferroni(p) got 1.2, but a p-value lies between 0 and 1; pass the p of a test.",
        ),
        (
            lambda: bonferroni(0.2, 0),
            "bonferroni(m) got 0, but m is a whole number of at least 1; count the comparisons.",
        ),
        (
            lambda: holm([0.2, None]),
            "holm(ps[1]) got None, but a p-value lies between 0 and 1; pass the p of a test.",
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


def claims(studies, m, **terms):
    """For each study, of which the first arm is the baseline, whether each other arm was claimed to differ."""
    result = [compare(dict(enumerate(arms)), 0, m, True, **terms) for arms in studies.tolist()]
    return np.array([[a.verdict.startswith(("better", "worse")) for a in study.arms.values()] for study in result])


def test_studies_of_nothing_claim_something_no_more_often_than_alpha():
    """2000 studies of five arms which are all the baseline: any claim is false."""
    family = claims(np.random.default_rng(6).normal(size=(2000, 6, 5)), 5).any(axis=1).mean()
    assert family <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    assert family > 0.02  # Bonferroni gives some away, because the arms share a baseline, but not most


def test_one_comparison_of_nothing_is_claimed_as_often_as_alpha():
    single = claims(np.random.default_rng(7).normal(size=(2000, 2, 5)), 1).mean()
    assert abs(single - 0.05) < 3 * (0.05 * 0.95 / 2000) ** 0.5
    random = np.random.default_rng(8)
    seeds = random.normal(0, 5, (2000, 1, 7)) + random.normal(size=(2000, 2, 7))  # the seed matters more than the arm
    assert abs(claims(seeds, 1, paired=True).mean() - 0.05) < 3 * (0.05 * 0.95 / 2000) ** 0.5


def test_a_large_difference_is_detected():
    studies = np.random.default_rng(9).normal(size=(200, 2, 5))
    studies[:, 1] += 5.0
    assert claims(studies, 5).mean() > 0.95
    assert stats.ttest_ind(studies[0, 1], studies[0, 0]).pvalue < 0.01
