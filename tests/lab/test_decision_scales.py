"""Perplexities are compared by ratios where the plan says so; plans without the setting keep differences of values."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from whence import WhenceError, records
from whence.lab import decisions
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study
from whence.statistics import AnalysisPlan, cohen_d, compare_paired

#: perplexities at many times the trained length; ``apart`` explodes, and ``low`` is lower than ``base`` by 13 or more in every seed
VALUES = {
    "base": {0: 19.2, 1: 21.4, 2: 18.4, 3: 20.3, 4: 22.0},
    "low": {0: 5.0, 1: 5.2, 2: 4.9, 3: 5.1, 4: 5.3},
    "same": {0: 19.0, 1: 21.6, 2: 18.5, 3: 20.2, 4: 22.1},
    "apart": {0: 180.0, 1: 340.0, 2: 205.0, 3: 310.0, 4: 240.0},
}


def build(**decision):
    return Study(
        name="s", question="", task="topics", arms=tuple(Arm(name, "none") for name in VALUES), seeds=(0, 1, 2, 3, 4),
        budget=Budget(steps=1), decision=Decision(baseline="base", **decision),
    )  # fmt: skip


def judge(metric="perplexity", family="baseline", values=VALUES, **decision):
    study = build(family=family, **decision)
    comparison = decisions.judge_study(study, values, metric, metric == "accuracy").comparison
    return decisions.comparison_findings(study, comparison, values, metric)


def test_an_arm_that_explodes_hides_no_difference_of_others_on_the_scale_of_ratios():
    kinds = {
        scale: {name: arm["kind"] for name, arm in judge(perplexity_scale=scale)["arms"].items()}
        for scale in ("value", "log")
    }
    assert kinds["value"]["low"] == "undecided" and kinds["log"] == {
        "low": "better",
        "same": "undecided",
        "apart": "worse",
    }


def test_findings_by_ratio_are_in_per_cent_and_their_means_have_that_ratio():
    found = judge(perplexity_scale="log", margin=20.0)
    low = found["arms"]["low"]
    logs = [math.log(VALUES["low"][seed] / VALUES["base"][seed]) for seed in range(5)]
    assert low["difference"] == pytest.approx(100 * (math.exp(sum(logs) / 5) - 1))
    assert low["difference"] == pytest.approx(100 * (low["means"][0] / low["means"][1] - 1))
    interval = low["corrected_interval"]
    assert -100 < interval["low"] < low["difference"] < interval["high"] < 0
    assert "better than base by 74.8 %" in low["verdict"] and found["scale"] == "log"
    same = found["arms"]["same"]
    assert same["kind"] == "equivalent" and same["verdict"].startswith("equivalent to base within 20 %")
    assert low["effect"]["g"] < -10
    pairs = judge(perplexity_scale="log", family="pairs")
    (other,) = (one for one in pairs["others"] if (one["first"], one["second"]) == ("low", "same"))
    assert -80 < other["estimate"] < -70 and other["interval"]["high"] < 0


def test_the_margin_is_a_ratio_in_both_directions():
    def verdict(margin, factor):
        values = {
            "base": VALUES["base"],
            "other": {seed: v * factor * (1 + 1e-6 * seed) for seed, v in VALUES["base"].items()},
        }
        study = dataclasses.replace(
            build(perplexity_scale="log", margin=margin), arms=(Arm("base", "none"), Arm("other", "none"))
        )
        (contrast,) = decisions.judge_study(study, values, "perplexity", False).comparison.contrasts
        return contrast.verdict

    assert verdict(5.0, 1.049) == verdict(5.0, 1 / 1.049) == "equivalent"
    assert verdict(5.0, 1.051) == "worse" and verdict(5.0, 1 / 1.051) == "better"


def test_effect_size_is_that_of_logarithms():
    effect = judge(perplexity_scale="log")["arms"]["apart"]["effect"]
    logs = [[math.log(value) for value in VALUES[name].values()] for name in ("apart", "base")]
    assert effect == cohen_d(*logs).to_json()
    assert (
        judge()["arms"]["apart"]["effect"]
        == cohen_d(*(list(VALUES[name].values()) for name in ("apart", "base"))).to_json()
    )


def test_ratios_are_judged_as_differences_of_logarithms():
    """Interval, p, verdict and further seeds; the margin of 20 % is the logarithm of 1.2."""
    values = {name: VALUES[name] for name in ("base", "same")} | {"near": {0: 20.0, 1: 17.0, 2: 19.8, 3: 17.1, 4: 27.9}}
    plan = AnalysisPlan(baseline="base", margin=20.0, scale="log", higher_is_better=False)
    logs = {name: {seed: math.log(value) for seed, value in own.items()} for name, own in values.items()}
    on_logs = dataclasses.replace(plan, margin=math.log(1.2), scale="value")
    found, expected = compare_paired(values, plan), compare_paired(logs, on_logs)
    for one, other in zip(found.contrasts, expected.contrasts, strict=True):
        assert (one.verdict, one.seeds_needed) == (other.verdict, other.seeds_needed)
        assert (one.estimate, one.p, one.interval.low) == pytest.approx((other.estimate, other.p, other.interval.low))
    assert found.contrasts[1].verdict == "undecided" and found.contrasts[1].seeds_needed is not None


def test_the_setting_is_about_perplexity_alone():
    accuracy = {name: {seed: value / 1000 for seed, value in own.items()} for name, own in VALUES.items()}
    found = judge("accuracy", values=accuracy, perplexity_scale="log")
    assert found["scale"] == "value" and found == judge("accuracy", values=accuracy)


def test_a_committed_plan_keeps_its_hash_and_its_rule():
    """The records of a discovery on a GPU were planned before the setting."""
    path = Path(__file__).parents[2] / "benchmarks" / "records" / "discover-gpu"
    folders = records.find_folders(path, "study.json")
    assert len(folders) == 6
    for folder in folders:
        content = records.read(folder / "study.json")
        assert "perplexity_scale" not in content["spec"]["decision"]
        study = Study.from_spec(content["spec"])
        assert study.hash == content["hash"] and study.decision.perplexity_scale == "value"
        assert decisions.analysis_plan(study, "perplexity", False).scale == "value"


def test_a_spec_states_the_scale_and_another_scale_is_another_plan():
    plain, ratio = build(), build(perplexity_scale="log")
    assert plain.hash != ratio.hash and Study.from_spec(json.loads(json.dumps(ratio.spec()))) == ratio
    with pytest.raises(WhenceError, match=r"Decision\(perplexity_scale=...\) got 'logs'.*value, log"):
        Decision(perplexity_scale="logs")
