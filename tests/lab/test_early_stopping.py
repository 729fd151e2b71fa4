"""Budgets with patience: when a run stops, which weights it keeps, and that a stopped process changes neither."""

import dataclasses

import pytest
import torch

from whence import WhenceError
from whence.lab import runner, training
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.tasks import load
from whence.lab.tasks.generated import Retrieval

BUDGET = Budget(steps=40, batch_size=8, lr=3e-3, evaluate_every=2, patience=3)
MODEL = {"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16}


class Chosen(Retrieval):
    """Retrieval that has a split to choose by; a study names it as a task from elsewhere."""

    validation = "test"


def trained(path, notify=lambda progress: None, budget=BUDGET):
    task = Chosen(pairs=2, keys=16, values=4, items=16)
    model = task.build_model(MODEL, parse_arm("alibi"), 0)
    return model, training.train(model, task, budget, 0, path, notify, save_every=0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("whole") / "state.safetensors")


def test_it_stops_and_keeps_the_best(whole):
    _, result = whole
    *on_the_way, last = result["evaluations"]
    values = [row["splits"]["test"]["value"] for row in on_the_way]
    best = values.index(max(values))
    assert result["best_step"] == on_the_way[best]["step"] == last["step"]
    assert len(values) - 1 - best == 3 or result["last_step"] == 40
    assert result["last_step"] == on_the_way[-1]["step"] < 40  # else this test shows nothing
    assert last["splits"]["test"]["value"] == max(values) and set(last["splits"]) == {"test", "2x", "4x", "8x"}


def test_a_run_that_was_stopped_in_the_middle_keeps_the_same(whole, tmp_path):
    class Killed(Exception):
        pass

    def killing(step):
        def notify(progress):
            if progress.step == step:
                raise Killed

        return notify

    for step in (whole[1]["best_step"] + 1, whole[1]["last_step"]):
        with pytest.raises(Killed):
            trained(tmp_path / "state.safetensors", killing(step))
    model, result = trained(tmp_path / "state.safetensors")
    assert result["best_step"] == whole[1]["best_step"] and result["last_step"] == whole[1]["last_step"]
    for name, weight in model.state_dict().items():
        assert torch.allclose(weight, whole[0].state_dict()[name], atol=1e-5)


def test_the_end_is_reported_once(tmp_path):
    ends = []
    for name, budget in (("early", BUDGET), ("late", dataclasses.replace(BUDGET, steps=4, patience=2))):
        messages = []
        trained(tmp_path / name, messages.append, budget)
        ends.append([progress.step for progress in messages if progress.step == progress.steps])
    assert ends == [[40], [4]]


def test_what_cannot_be(tmp_path):
    with pytest.raises(WhenceError, match="set evaluate_every"):
        Budget(steps=4, patience=1)
    study = Study(
        "s", "q", "retrieval", (parse_arm("none"),), (0,), Budget(steps=4, evaluate_every=1, patience=1), Decision(baseline="none"),
    )  # fmt: skip
    with pytest.raises(WhenceError, match="validation split"):
        runner.run_study(study, tmp_path)


def test_tasks_from_elsewhere():
    assert load("whence.lab.tasks.generated:Copying", string=2).context == 4
    for name, message in (
        ("os:system", "subclass of whence.lab.tasks.Task"),
        ("whence.lab.tasks:Task", "without decode, evaluation, splits, train_batch"),
        ("no.such.module:Task", "no module no.such.module"),
        ("whence.lab.tasks.generated:Nothing", "no Nothing in whence.lab.tasks.generated"),
    ):
        with pytest.raises(WhenceError, match=message):
            load(name)
    with pytest.raises(WhenceError, match="the setting pairs"):
        load("whence.lab.tasks.generated:Copying", pairs=2)


def test_older_studies_keep_their_hash():
    plain = Study("s", "q", "copy", (parse_arm("none"),), (0,), Budget(steps=4), Decision(baseline="none"))
    assert plain.hash == "8fbfa8760a57"
