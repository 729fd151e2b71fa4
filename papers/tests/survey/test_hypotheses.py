"""The three hypotheses about positional channels: their rules, their records and their sentences."""

import json
from pathlib import Path

import pytest
import torch

from whence import records
from whence.cli.app import app
from whence.errors import WhenceError
from whence.probe import analyses, measurement, run_folder
from whence.probe.arrays.channels import FITS
from whence.probe.identity import describe_identity
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import tiny_random_model
from whence.records import find_folders
from whence_papers.survey import hypotheses
from whence_papers.survey.hypotheses import (
    SIZES,
    choose_controls,
    decide_from_mask,
    decide_one_way,
    decide_scaling_helps,
    write_all,
)
from whence_papers.survey.record import describe_result

RESULTS = Path(hypotheses.__file__).resolve().parents[1] / "results" / "probe"


def interval(low, high):
    return {"low": low, "high": high}


@pytest.mark.parametrize(
    "gap, average, rise, controls, answer",
    [
        ((0.1, 0.3), (-0.1, 0.2), 0.05, [0.0], True),
        ((0.1, 0.3), (-0.1, 0.2), 0.05, [0.25], False),  # a control does more
        ((0.1, 0.3), (-0.1, 0.2), -0.01, [0.0], False),  # the average fell
        ((-0.1, 0.3), (-0.1, 0.2), 0.05, [0.0], None),
        ((-0.3, -0.1), (-0.1, 0.2), 0.05, [0.0], False),
        ((0.1, 0.3), (-0.3, -0.1), -0.2, [0.0], False),
    ],
)
def test_the_rule_about_scaling(gap, average, rise, controls, answer):
    own = {
        "gap_shrinks_by": 0.2, "gap_interval": interval(*gap), "average_rises_by": rise,
        "average_interval": interval(*average),
    }  # fmt: skip
    assert decide_scaling_helps(own, controls) is answer


def halves(share, change=0.0, runs=0.9):
    return [{"position_share": share, "change_in_span": change, "rank_correlation": runs}] * 2


@pytest.mark.parametrize(
    "mask, encoding, neither, cropped, shifted, runs, answer",
    [
        (0.05, 0.01, 0.0, 0.3, 0.1, -0.9, True),
        (0.01, 0.05, 0.0, 0.1, 0.3, 0.9, False),
        (0.05, 0.01, 0.06, 0.3, 0.1, 0.9, None),  # no more than is there without any order
        (0.05, 0.01, 0.0, 0.3, 0.1, 0.2, None),  # a channel that follows nothing
        (0.05, 0.01, 0.0, 0.1, 0.3, 0.9, None),  # one says so, the other not
    ],
)
def test_the_rule_about_the_mask(mask, encoding, neither, cropped, shifted, runs, answer):
    spans = {"cropped mask": halves(0, cropped), "shifted encoding": halves(0, shifted)}
    arms = {"untouched": halves(0.05, 0, runs), "mask alone": halves(mask), "encoding alone": halves(encoding),
            "neither": halves(neither), **spans}  # fmt: skip
    assert decide_from_mask(arms, spans) is answer


def test_the_rule_about_channels():
    fits = {fit: {"channels": 30, "by_chance": 10, "rank_correlation_in_other_texts": 0.95} for fit in FITS}
    assert decide_one_way(fits)
    assert not decide_one_way({**fits, "window": {**fits["window"], "channels": 0}})
    assert not decide_one_way({**fits, "cubic": {**fits["cubic"], "rank_correlation_in_other_texts": 0.5}})


def test_controls_are_of_like_size_and_follow_nothing():
    means = torch.randn(6, 100, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ramp = torch.linspace(0, 1, 100, dtype=torch.float64)
    means[..., 0] += 40 * ramp
    means[..., 1] += 20 + 3 * torch.sin(20 * ramp)  # as large, but turning
    assert choose_controls(means, 0, 1) == [1]


def test_the_hypotheses_become_records_once(tmp_path, monkeypatch, capsys):
    lm = tiny_random_model(layers=2)
    folder = tmp_path / lm.name.replace("/", "--")
    results = write_all(lm, folder, SIZES["quick"])
    assert [record["hypothesis"] for record in results] == ["one-way", "from-mask", "scaling-helps"]
    for record in results:
        assert record["answer"] is None and record["rule"] and record["source"] == "002"  # so few texts decide nothing
        assert (folder / f"hypothesis-{record['hypothesis']}.json").exists()
    neither = results[1]["numbers"]["arms"]["neither"]
    assert len(neither) == 2 and all("position_share" in half for half in neither)

    def never(done, total, words, read):
        assert total == 3 and read

    monkeypatch.setattr(
        hypotheses, "EXPERIMENTS", dict.fromkeys(hypotheses.EXPERIMENTS, lambda *arguments, **named: 1 / 0)
    )
    assert write_all(lm, folder, SIZES["quick"], never) == results
    with pytest.raises(WhenceError, match=r"hypothesis-one-way\.json of another model"):
        write_all(tiny_random_model(layers=1), folder, SIZES["quick"], never)
    monkeypatch.setattr("whence.probe.probed_model.tiny_random_model", lambda: lm)
    app(["hypotheses", "--quick", "--out", str(tmp_path), "--json"], standalone_mode=False)
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["complete"] and found["folder"] == str(folder) and "records:" in output.err
    assert [one["hypothesis"] for one in found["hypotheses"]] == ["one-way", "from-mask", "scaling-helps"]
    assert all(one["answer"] == "undecided" and one["rule"] and one["claim"] for one in found["hypotheses"])


PROBES = {path.name: run_folder.load_plan(path) for path in find_folders(RESULTS, "plan.json")}


@pytest.mark.parametrize("folder", [name for name, (plan, _) in PROBES.items() if plan.identity is not None])
def test_records_know_the_weights_that_made_them(folder):
    plan, about = PROBES[folder]
    assert plan.hash == about["hash"] and run_folder.plan_json(plan) == about["plan"]
    assert plan.identity["weights"]["sha256"] and "unknown" not in describe_identity(plan.identity)


@pytest.mark.parametrize("folder", [name for name, (plan, _) in PROBES.items() if plan.identity is None])
def test_records_from_before_identities_are_read_and_never_added_to(folder, tmp_path):
    plan, about = PROBES[folder]
    assert plan.hash == about["hash"] and describe_identity(plan.identity).startswith("identity unknown")
    assert run_folder.plan_json(plan) == about["plan"]
    copy = tmp_path / folder
    copy.mkdir()
    records.write(copy / "plan.json", records.read(RESULTS / folder / "plan.json"))
    lm = tiny_random_model(layers=1)
    for add in (
        lambda: analyses.explain(lm, plan, copy, lambda *about: None),
        lambda: hypotheses.write_all(lm, copy, hypotheses.SIZES["quick"]),
    ):
        with pytest.raises(WhenceError, match="identity is unknown"):
            add()


HYPOTHESIS = {"hypothesis": "one-way", "claim": "channels <b>run</b> one way", "rule": "a rule", "answer": None}


def test_what_a_hypothesis_found_is_told_in_its_own_numbers():
    runs = {"rank_correlation": 0.9}
    halves = [
        {"change_in_span": 6.0, "position_share": 0.2, **runs},
        {"change_in_span": 8.0, "position_share": 0.1, **runs},
    ]
    less = [{"change_in_span": 2.0, "position_share": 0.4, "rank_correlation": -0.7}] * 2
    spans = {"cropped mask": halves, "shifted encoding": less}
    arms = spans | {"mask alone": halves, "encoding alone": less}
    numbers = {"channel": 3, "arms": arms, "arms_in_the_second_span": spans}
    text = describe_result({"hypothesis": "from-mask", "numbers": numbers})
    assert "3.0 to 4.0 times as far" in text and "0.25 to 0.50 of that" in text
    assert "0.90 and 0.90 with the mask alone and -0.70 and -0.70 with the encoding alone" in text
    own = {
        "scale": 0.5,
        "gap_shrinks_by": 0.04,
        "gap_interval": {"low": -0.013, "high": 0.1},
        "average_rises_by": 0.015,
        "n": 150,
    }
    rows = {"7": {**own, "control": False}, "9": {**own, "control": True, "gap_shrinks_by": -0.027}}
    text = describe_result(
        {"hypothesis": "scaling-helps", "numbers": {"channel": 7, "before": {"gap": 0.687}, "channels": rows}}
    )
    assert "gap of 69 points shrinks by 4.0 (95% interval -1.3 to 10.0)" in text and "shrink it by -2.7." in text
    fit = {"channels": 5, "by_chance": 2, "rank_correlation_in_other_texts": 0.5}
    text = describe_result(
        {
            "hypothesis": "one-way",
            "numbers": {"hidden_size": 16, **dict.fromkeys(("cubic", "segmented", "window"), fit)},
        }
    )
    assert (
        "cubic 5 (2 with shuffled positions)" in text
        and "other texts: cubic 0.50, segmented 0.50, window 0.50." in text
    )
    assert (
        describe_result(HYPOTHESIS) == ""
        and describe_result({"hypothesis": "from-mask", "numbers": {"channel": None}}) == ""
    )


def test_the_hypotheses_refuse_a_probe_of_another_model(tmp_path):
    plan = Plan("quick", (TaskSpec("key-value", 2, 2, {"pairs": 2}),), items_per_record=2)
    folder, _ = measurement.measure(tiny_random_model(layers=1), plan, tmp_path)
    with pytest.raises(WhenceError, match="for a model with other weights"):
        write_all(tiny_random_model(seed=3, layers=1), folder, SIZES["quick"])
