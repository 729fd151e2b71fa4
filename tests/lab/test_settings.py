"""Settings of model and budget by name, for all arms and for one."""

from pathlib import Path

import pytest

from whence import WhenceError
from whence.lab.arms import Arm
from whence.lab.default_studies import build_studies
from whence.lab.settings import parse_arm_table, parse_arm_text, parse_setting, rebase_arm, split_settings
from whence.lab.study import Run
from whence.lab.sweeps import parse_sweeps
from whence.models import PRESETS


def test_settings_for_all_arms_and_for_one():
    settings = {"layers": 3, "embed_dim": 16, "lr": 5e-4, "steps": 40, "schedule": "cosine", "warmup_steps": 4}
    arms = ("none", "rotary; lr=1e-4; layers=1", "alibi; epochs=8")
    (study,) = build_studies(("topics",), arms, (3,), settings=settings, context=16)
    runs = [Run(study, arm, 0) for arm in study.arms]
    assert [run.model["layers"] for run in runs] == [3, 1, 3] and runs[1].model["embed_dim"] == 16
    assert [run.budget.lr for run in runs] == [5e-4, 1e-4, 5e-4]
    assert {run.budget.schedule for run in runs} == {"cosine"} and {run.budget.warmup_steps for run in runs} == {4}
    assert [(run.budget.steps, run.budget.epochs) for run in runs] == [(40, None), (40, None), (None, 8)]
    assert [run.budget.evaluate_every for run in runs] == [10, 10, 2]  # four points of a curve, in steps or epochs
    assert study.task_settings["context"] == 16 and study.task_settings["blocks"] > 0  # the other defaults stay
    assert [arm.name for arm in study.arms] == list(arms) and study.arms[1].position == "Rotary()"


def test_a_preset_stands_for_its_settings():
    arms = ("none", "rotary; preset=qwen3-134m; layers=1")
    (study,) = build_studies(("topics",), arms, (3,), settings={"layers": 3, "preset": "qwen3-20m", "lr": 5e-4})
    first, second = (Run(study, arm, 0) for arm in study.arms)
    assert first.model == {**PRESETS["qwen3-20m"], "layers": 3} and first.budget.lr == 5e-4
    assert second.model == {**PRESETS["qwen3-134m"], "layers": 1}
    assert "preset" not in str(study.spec()["model"]) + str([arm["model"] for arm in study.spec()["arms"]])
    assert parse_arm_table({"position": "none", "preset": "qwen3-20m"}, "").model == PRESETS["qwen3-20m"]
    assert parse_sweeps(["preset=qwen3-20m,qwen3-134m"]) == {"preset": ("qwen3-20m", "qwen3-134m")}


def test_a_context_where_the_task_has_one():
    copy, topics = build_studies(("copy", "topics"), ("none",), (3,), context=24)
    assert topics.task_settings["context"] == 24 and "context" not in copy.task_settings
    with pytest.raises(WhenceError, match=r"--context got 24.*copy.*leave it out"):
        build_studies(("copy",), ("none",), (3,), context=24)


def test_arms_of_a_toml_file():
    own = {"name": "slow", "position": "rotary", "budget": {"lr": 1e-4}, "model": {"layers": 4, "own_setting": 3}}
    assert parse_arm_table(own, "") == Arm("slow", "Rotary()", {"layers": 4, "own_setting": 3}, {"lr": 1e-4})
    assert parse_arm_table({"position": "rotary", "lr": 1e-4}, "") == Arm("rotary", "Rotary()", {}, {"lr": 1e-4})
    assert rebase_arm("./a.py:Bell + rotary; lr=1e-4", Path("/b")) == "/b/a.py:Bell + rotary; lr=1e-4"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_settings({"layer": 3}, "--config"), r"--config got .*layer\b.*did you mean layers\?"),
        (lambda: split_settings({"vocab_size": 3}, "--config"), r"vocab_size.*leave it out"),
        (lambda: parse_setting("learning_rate=1", "--set"), r"--set got .*learning_rate.*lr"),
        (lambda: parse_setting("preset=qwen3-20", "--set"), r"--set got preset='qwen3-20'.*did you mean qwen3-20m\?"),
        (lambda: split_settings({"preset": 3}, "--config"), r"--config got preset=3.*the presets are qwen3-134m"),
        (lambda: parse_sweeps(["preset=qwen3-20m,nano"]), r"preset='nano'.*the presets are qwen3-134m"),
        (lambda: parse_setting("lr", "--set"), r"--set got 'lr'.*write lr=3e-4"),
        (lambda: parse_arm_text("rotary; lr=1; lr=2"), r"lr twice.*keep one lr="),
        (lambda: parse_arm_text("rotary; warmup=3"), r"unknown setting warmup.*did you mean warmup_steps\?"),
        (lambda: parse_arm_text("rotery; lr=1"), r"rotery.*did you mean rotary\?"),
        (lambda: parse_arm_table({"name": "a"}, "arms"), r"arms got .*'a'.*without a position.*write position"),
        (lambda: parse_arm_table({"position": "none", "lrr": 1}, "arms"), r"'none'.*lrr.*did you mean lr\?"),
        (lambda: parse_arm_table({"position": "none", "budget": {"layers": 1}}, "arms"), r"budget.layers.*to model"),
        (lambda: parse_arm_table({"position": "none", "budget": 3}, "arms"), r"budget=3.*write budget"),
        (lambda: build_studies(("copy",), ("none", "none; lr=1e-3", "none; lr=0.001")), r"lr=0\.001.*the same.*remove"),
        (lambda: build_studies(("copy",), ("none",), settings={"lr": -1.0}), r"Budget\(lr=.*got -1\.0.*above 0"),
        (lambda: build_studies(("copy",), ("none; embed_dim=9; lr=0",)), r"^lr of the arm .none; embed_dim=9; lr=0. got 0"),
        (lambda: build_studies(("copy",), ("none",), settings={"schedule": "cosin"}), r"'cosin'.*did you mean cosine\?"),
        (lambda: build_studies(("copy",), ("none",), metric="acuracy"), r"--metric got 'acuracy'.*did you mean accuracy\?"),
        (lambda: build_studies(("coppy",), ("none",)), r"coppy.*did you mean copy\?"),
        (lambda: build_studies(("copy",), ("none",), baseline="nonee"), r"--baseline got 'nonee'.*did you mean none\?"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(call, message):
    with pytest.raises(WhenceError, match=message):
        call()
