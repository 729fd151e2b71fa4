"""Sweeps: equal tries for every arm on validation data, the best settings per arm, and no test value in any try."""

import dataclasses
import json
import time
from itertools import pairwise

import pytest
import torch
from small_study import build_study

from whence import WhenceError
from whence.cli.compare_sweep import run_sweeps
from whence.lab import runner, sweeps, tasks, training
from whence.lab.arms import parse_arm
from whence.lab.settings import parse_arm_text
from whence.lab.study import Run
from whence.lab.study_folder import study_folder
from whence.lab.study_task import load_task

SWEEP = {"lr": (1e-3, 1e-2, 1e-1), "layers": (1, 2)}
STUDY = build_study(arms=(parse_arm("none"), parse_arm("alibi")))
OWN_TASK = """
from whence.lab.tasks.generated import Copying

class Own(Copying):
    name = "own"

    def __init__(self):
        super().__init__(string=3, symbols=4, items=8)
"""


def test_a_tuning_study_has_equal_tries_and_other_seeds():
    tuning = sweeps.build_tuning_study(STUDY, SWEEP, seeds=2)
    assert len(tuning.arms) == 12 and len({arm.name for arm in tuning.arms}) == 12
    assert not set(tuning.seeds) & set(STUDY.seeds) and len(tuning.seeds) == 2
    for arm in STUDY.arms:
        own = [Run(tuning, one, 0) for one in tuning.arms if one.position == arm.position]
        assert [(run.budget.lr, run.model["layers"]) for run in own] == [(lr, n) for lr in SWEEP["lr"] for n in (1, 2)]
        assert {run.budget.steps for run in own} == {6} and own[0].model["embed_dim"] == 16
    task = load_task(tuning)
    assert list(task.splits()) == ["validation"] == [tuning.decision.split] and not task.baselines()
    with pytest.raises(WhenceError, match="'test'"):
        task.evaluation("test")


def test_the_best_try_of_each_arm_is_chosen_without_test_data(tmp_path, monkeypatch):
    """Each arm has another best learning rate; no record of the sweep has a value on another split."""
    best = {"NoPosition": 1e-2, "Alibi": 1e-1}

    def train(model, task, budget, seed, state, on_progress=None, **others):
        name = type(model.body.layers[0].attention.position).__name__
        if name == "Alibi" and budget.lr == 1e-3:
            raise training.DivergenceError(1, "the loss became nan")
        value = 0.5 - abs(budget.lr - best[name]) - 0.1 * (len(model.body.layers) - 1)
        rows = {split: {"value": value} for split in task.splits()}
        return {"steps": 1, "losses": [], "evaluations": [{"step": 1, "splits": rows}]}

    monkeypatch.setattr(training, "train", train)
    tuning = sweeps.build_tuning_study(STUDY, SWEEP)
    outcome = runner.run_study(tuning, tmp_path)
    assert len(outcome.completed) == 10 and len(outcome.diverged) == 2
    chosen, record = sweeps.choose_settings(STUDY, tuning, outcome.folder, SWEEP)
    runs = [Run(chosen, arm, 0) for arm in chosen.arms]
    assert [(run.budget.lr, run.model["layers"]) for run in runs] == [(1e-2, 1), (1e-1, 1)]
    assert [arm.name for arm in chosen.arms] == ["none", "alibi"] and chosen.seeds == STUDY.seeds
    assert len(record["tries"]) == 12 and sum(one["chosen"] for one in record["tries"]) == 2
    assert [one["mean"] for one in record["tries"][6:8]] == [None, None]
    assert "6 tries" in chosen.about and "alibi: lr=0.1, layers=1" in chosen.about and "validation" in chosen.about
    one = {"lr": (1e-3,)}
    again = sweeps.build_tuning_study(STUDY, one)
    folder = runner.run_study(again, tmp_path).folder
    with pytest.raises(WhenceError, match=r"--sweep got .*'alibi' that failed or diverged.*other values"):
        sweeps.choose_settings(STUDY, again, folder, one)


def test_a_shard_does_not_repeat_a_try_that_failed(tmp_path, monkeypatch, capsys):
    tried = []

    def train(model, task, budget, seed, state, on_progress=None, **others):
        tried.append((type(model.body.layers[0].attention.position).__name__, budget.lr))
        if tried[-1] == ("NoPosition", 1e-3):
            raise KeyError("there")
        rows = {split: {"value": 0.5} for split in task.splits()}
        return {"steps": 1, "losses": [], "evaluations": [{"step": 1, "splits": rows}]}

    monkeypatch.setattr(training, "train", train)
    sweep, deadline = {"lr": (1e-3, 1e-2)}, time.monotonic() + 600
    results = {}
    (chosen,) = run_sweeps([STUDY], sweep, 1, tmp_path, 1, "local", deadline, "1/2", results)
    assert len(tried) == len(set(tried)) == 4 and Run(chosen, chosen.arms[0], 0).budget.lr == 1e-2
    assert capsys.readouterr().err.count("KeyError: 'there'") == 1
    assert results["unfinished_runs"] == 0 and ["KeyError: 'there'" in line for line in results["problems"]] == [True]
    run_sweeps([STUDY], sweep, 1, tmp_path, 1, "local", deadline, "1/2", {})
    assert tried.count(("NoPosition", 1e-3)) == 2  # the same command tries it again


def test_no_try_evaluates_test_data(tmp_path):
    sweep = {"lr": (1e-3, 1e-2)}
    study = dataclasses.replace(STUDY, arms=STUDY.arms[:1], budget=dataclasses.replace(STUDY.budget, steps=2))
    tuning = sweeps.build_tuning_study(study, sweep)
    outcome = runner.run_study(tuning, tmp_path)
    found = [json.loads(path.read_text()) for path in outcome.folder.glob("*seed*.json")]
    assert len(found) == 2 and not (outcome.folder / "baselines.json").exists()
    for record in found:
        assert all(list(row["splits"]) == ["validation"] for row in record["result"]["evaluations"])
    chosen, record = sweeps.choose_settings(study, tuning, outcome.folder, sweep)
    assert runner.run_study(tuning, tmp_path).completed == []  # a rerun reads the records
    sweeps.write_sweep(chosen, tmp_path, record)
    stored = json.loads((study_folder(chosen, tmp_path) / "sweep.json").read_text())
    assert stored["hash"] == chosen.hash and len(stored["sweep"]["tries"]) == 2
    next(outcome.folder.glob("*seed*.json")).unlink()
    with pytest.raises(WhenceError, match=r"no record of 'none; lr=.*run the command again"):
        sweeps.choose_settings(study, tuning, outcome.folder, sweep)


def rows_of(batches):
    return {tuple(row) for batch in batches for row in batch.tokens.tolist()}


@pytest.mark.parametrize("kind", ["pairs_file", "labelled_file", "text_file"])
def test_validation_data_come_from_training_data(tmp_path, kind):
    path = tmp_path / {"pairs_file": "a.jsonl", "labelled_file": "a.jsonl", "text_file": "a.txt"}[kind]
    words = [f"w{number} x{number}" for number in range(60)]
    parts = ["train"] * 40 + ["test"] * 20
    if kind == "text_file":
        path.write_text(" ".join(str(number) for number in range(2000)))
        settings = {"tokens": "words", "context": 4}
    else:
        rows = zip(words, parts, strict=True)
        lines = [
            {"text": text, "target": text, "label": index % 2, "part": part} for index, (text, part) in enumerate(rows)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        settings = {"split_column": "part", "context": 8}
        settings |= {"source_column": "text", "target_column": "target"} if kind == "pairs_file" else {}
    before, task = (tasks.load(kind, path=str(path), **settings) for _ in range(2))
    if kind != "text_file":  # a text has a validation part of its own
        assert task.validation is None
    task.hold_out_validation()
    assert task.validation == "validation" and "validation" in task.splits()
    held_out = rows_of(task.evaluation("validation"))
    trained = rows_of(task.epoch(4, torch.Generator().manual_seed(0)))
    assert (
        held_out and not held_out & trained and rows_of(task.evaluation("test")) == rows_of(before.evaluation("test"))
    )
    if kind != "text_file":
        assert held_out | trained == rows_of(before.epoch(4, torch.Generator().manual_seed(0))) and len(held_out) == 4


def test_generated_tasks_draw_further_inputs():
    task = tasks.load("retrieval", pairs=4, keys=32, values=8, items=16)
    task.hold_out_validation()
    assert task.splits()["validation"] == task.splits()["test"]
    assert not rows_of(task.evaluation("validation")) & rows_of(task.evaluation("test"))


def test_changed_code_of_a_task_starts_another_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN_TASK)
    study = dataclasses.replace(STUDY, task="./own.py:Own", task_settings={})
    before = sweeps.build_tuning_study(study, SWEEP)
    (tmp_path / "own.py").write_text(OWN_TASK + "\n")
    after = sweeps.build_tuning_study(study, SWEEP)
    assert before.hash != after.hash
    with pytest.raises(WhenceError, match=r"own\.py:Own.*changed code.*run the command again"):
        load_task(before)


def test_a_task_that_cannot_hold_out_validation_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        OWN_TASK + "\n    hold_out_validation = __import__('whence').lab.tasks.Task.hold_out_validation\n"
    )
    with pytest.raises(WhenceError, match=r"'own'.*no validation split.*Own\.validation.*hold_out_validation"):
        sweeps.build_tuning_study(dataclasses.replace(STUDY, task="./own.py:Own", task_settings={}), SWEEP)


def test_combinations_are_in_the_order_of_the_values():
    tried = sweeps.list_combinations({"lr": (3, 1, 2), "layers": (1, 2)})
    assert [one["lr"] for one in tried] == [3, 3, 1, 1, 2, 2]
    assert all(first != second for first, second in pairwise(tried))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sweeps.parse_sweeps(["lr"]), r"--sweep got 'lr'.*write lr=1e-4,3e-4"),
        (lambda: sweeps.parse_sweeps(["lr="]), r"--sweep got 'lr='.*write lr="),
        (lambda: sweeps.parse_sweeps(["lrr=1,2"]), r"--sweep got .*lrr.*did you mean lr\?"),
        (lambda: sweeps.parse_sweeps(["lr=1", "lr=2"]), r"lr twice.*keep one lr="),
        (lambda: sweeps.parse_sweeps(["lr=1e-3,0.001"]), r"'lr=1e-3,0\.001'.*remove one"),
        (
            lambda: sweeps.build_tuning_study(dataclasses.replace(STUDY, arms=(parse_arm("none"), parse_arm_text("alibi; lr=1e-2"))), SWEEP),
            r"--sweep got lr.*'alibi; lr=1e-2'.*remove lr",
        ),
    ],
)  # fmt: skip
def test_wrong_sweeps_are_named(call, message):
    with pytest.raises(WhenceError, match=message):
        call()


def test_a_comparison_keeps_the_problems_and_notes_of_its_sweep(tmp_path):
    from whence.cli.run import run_studies

    results = {"problems": ["a try diverged"], "notes": ["an arm is left out"]}
    run_studies([build_study()], tmp_path, 1, None, results=results)
    assert results["problems"] == ["a try diverged"] and results["notes"] == ["an arm is left out"]
    assert results["studies"] and results["unfinished_runs"] == 0
