"""Rounds of seeds: arms that are decided get no further seeds, and a time limit leaves what a rerun resumes."""

import dataclasses
import random
import time

import pytest

from whence import WhenceError
from whence.errors import Terminated
from whence.lab import decisions, results, runner, sequential, training
from whence.lab.arms import parse_arm
from whence.lab.sources import pin_sources
from whence.lab.study import Budget, Decision, Study

STUDY = Study(
    name="rounds", question="", task="copy", task_settings={"string": 3, "symbols": 4, "items": 8},
    model={"embed_dim": 8, "heads": 1, "layers": 1, "ffn_dim": 8},
    arms=(parse_arm("none"), parse_arm("rotary"), parse_arm("alibi")), seeds=tuple(range(8)),
    budget=Budget(steps=1, batch_size=4), decision=Decision(baseline="none", looks=(3, 5, 8)),
)  # fmt: skip
GAIN = {"Rotary": 0.4, "NoPosition": 0.0, "Alibi": 0.001}


@pytest.fixture
def trained(monkeypatch):
    """Runs that train nothing: an accuracy by mechanism, with noise that arms of a seed share, and noise of their own."""
    done = []

    def train(model, task, budget, seed, state, on_progress=None, **others):
        name = type(model.body.layers[0].attention.position).__name__
        if others["should_stop"]():
            raise Terminated("stopped")
        done.append((name, seed))
        value = (
            0.4 + GAIN[name] + random.Random(f"{seed}").gauss(0, 0.05) + random.Random(f"{name}{seed}").gauss(0, 0.01)
        )
        splits = {split: {"value": value} for split in task.splits()}
        return {"steps": 1, "losses": [], "evaluations": [{"step": 1, "splits": splits}]}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr("whence.lab.checkpoints.save_weights", lambda *arguments: None)
    return done


def test_a_decided_arm_gets_no_further_seeds(tmp_path, trained, monkeypatch):
    looks, validated, validate = [], [], runner.validate_study
    monkeypatch.setattr(runner, "validate_study", lambda study: (validated.append(study), validate(study))[1])
    (state,) = sequential.run_until_decided(
        [STUDY], tmp_path, on_look=lambda study, comparison: looks.append(len(comparison.seeds))
    )
    counts = {name: sum(own == name for own, _ in trained) for name in GAIN}
    assert counts == {"NoPosition": 8, "Rotary": 3, "Alibi": 8} and looks == [3, 5, 8]
    assert len(validated) == 1  # once for all rounds
    verdicts = {contrast.first: contrast.verdict for contrast in state.comparison.contrasts}
    assert verdicts == {"rotary": "better", "alibi": "undecided"}
    before = len(trained)
    sequential.run_until_decided([STUDY], tmp_path)
    assert len(trained) == before  # every record is there


def test_it_ends_when_all_is_decided(tmp_path, trained):
    study = dataclasses.replace(STUDY, arms=STUDY.arms[:2])
    (state,) = sequential.run_until_decided([study], tmp_path)
    assert len(trained) == 6 and state.active == () and state.comparison.look == 1
    findings = results.collect_study(pin_sources(study), state.outcome.folder)
    assert findings["comparison"]["arms"]["rotary"]["kind"] == "better"


def test_studies_take_turns(tmp_path, trained):
    other = dataclasses.replace(STUDY, name="other", task_settings={"string": 2, "symbols": 4, "items": 8})
    order = []
    sequential.run_until_decided(
        [STUDY, other], tmp_path, on_look=lambda study, comparison: order.append((study.name, len(comparison.seeds)))
    )
    assert order == [(name, seeds) for seeds in (3, 5, 8) for name in ("rounds", "other")]


def test_the_time_limit_leaves_unfinished_runs(tmp_path, trained):
    (state,) = sequential.run_until_decided([STUDY], tmp_path, seconds=1e-9)
    assert not trained and len(state.outcome.unfinished) == 9 and state.comparison is None
    (state,) = sequential.run_until_decided([STUDY], tmp_path, seconds=600)
    assert not state.outcome.unfinished and state.comparison.look == 3


def test_an_interrupted_run_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    study = dataclasses.replace(
        STUDY,
        arms=STUDY.arms[:2],
        seeds=(0,),
        budget=Budget(steps=12, batch_size=4),
        decision=Decision(baseline="none"),
    )
    clock, steps = time.time, []

    def pass_the_deadline(run, progress):
        steps.append(progress.step)
        patch.setattr(time, "time", lambda: clock() + 7200 * (progress.step > 4))

    with monkeypatch.context() as patch:
        outcome = runner.run_study(study, tmp_path, deadline=clock() + 3600, on_progress=pass_the_deadline)
    assert len(outcome.unfinished) == 2 and max(steps) == 5
    assert len(list((outcome.folder / "checkpoints").glob("*.safetensors"))) == 1
    whole = runner.run_study(study, tmp_path / "other")
    resumed = runner.run_study(study, tmp_path)
    assert not resumed.unfinished
    first = [results.judge_folder(study, one.folder).reason for one in (whole, resumed)]
    assert first[0] == first[1]


def test_a_diverged_seed_removes_itself_alone():
    values = {
        "none": {seed: 0.4 + 0.01 * seed for seed in range(5)},
        "rotary": {seed: 0.8 + 0.011 * seed if seed != 2 else None for seed in range(5)},
        "alibi": {seed: 0.7 + 0.012 * seed for seed in range(5)},
    }
    study = dataclasses.replace(STUDY, seeds=tuple(range(5)), decision=Decision(baseline="none"))
    comparison = decisions.judge_study(study, values, "accuracy", True).comparison
    by_name = {contrast.first: contrast for contrast in comparison.contrasts}
    assert by_name["rotary"].verdict == by_name["alibi"].verdict == "better"
    assert by_name["rotary"].missing == (2,) and by_name["rotary"].seeds == 4 and by_name["alibi"].seeds == 5


def test_the_family_of_several_studies_shares_alpha():
    decision = Decision(baseline="none", comparisons=8)
    study = dataclasses.replace(STUDY, decision=decision)
    assert sum(decisions.analysis_plan(study, "accuracy", True).look_levels()) == pytest.approx(0.05 * 2 / 8)


def test_the_last_look_comes_after_all_seeds():
    with pytest.raises(WhenceError, match=r"looks=\(3, 5\).*8 seeds"):
        dataclasses.replace(STUDY, decision=Decision(baseline="none", looks=(3, 5)))
