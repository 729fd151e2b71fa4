"""A run is identified by what it computes: a larger study reuses the records of a smaller one."""

import dataclasses
import os

import pytest

from whence import WhenceError, records
from whence.lab import claims, executors, run_execution, run_keys, runner
from whence.lab.arms import Arm, parse_arm
from whence.lab.sources import pin_sources
from whence.lab.study import Budget, Decision, Run, Study
from whence.lab.study_folder import study_folder

STUDY = Study(
    name="small", question="", task="copy", task_settings={"string": 3, "symbols": 4, "items": 8},
    model={"embed_dim": 8, "heads": 1, "layers": 1, "ffn_dim": 8}, arms=(parse_arm("none"), parse_arm("alibi")),
    seeds=(0,), budget=Budget(steps=3, batch_size=4), decision=Decision(baseline="none"),
)  # fmt: skip


def key(study, arm=0):
    return run_keys.run_key(Run(study, study.arms[arm], 0))


def test_the_key_depends_on_what_is_computed_alone():
    change = lambda **changes: dataclasses.replace(STUDY, **changes)  # noqa: E731
    same = [
        change(name="other", question="why?", about="notes", seeds=(0, 1, 2)),
        change(arms=(Arm("first", "NoPosition( )"), parse_arm("rotary")), decision=Decision(baseline="first")),
        change(decision=Decision(baseline="alibi", alpha=0.01)),
        change(arms=(Arm("none", "none", {"embed_dim": 8}, {"steps": 3}), STUDY.arms[1])),
    ]
    assert {key(study) for study in same} == {key(STUDY)}
    different = [
        change(task_settings={"string": 4, "symbols": 4, "items": 8}),
        change(model={"embed_dim": 16, "heads": 1, "layers": 1, "ffn_dim": 8}),
        change(budget=Budget(steps=4, batch_size=4)),
        change(arms=(Arm("none", "none", {}, {"lr": 0.1}), STUDY.arms[1])),
        change(sources={"copy": "0" * 64}),
    ]
    keys = [key(study) for study in different] + [key(STUDY), key(STUDY, arm=1)]
    assert len(set(keys)) == len(keys)


def test_more_seeds_and_arms_train_only_what_is_new(tmp_path):
    first = runner.run_study(STUDY, tmp_path)
    larger = dataclasses.replace(STUDY, seeds=(0, 1), arms=(*STUDY.arms, parse_arm("rotary")))
    second = runner.run_study(larger, tmp_path)
    trained = {(run.arm.name, run.seed) for run in second.completed}
    assert trained == {("none", 1), ("alibi", 1), ("rotary", 0), ("rotary", 1)}
    assert {(run.arm.name, run.seed) for run in second.existing} == {("none", 0), ("alibi", 0)}
    for run in first.completed:
        assert records.read(first.folder / run.file_name) == records.read(second.folder / run.file_name)
        weights = [outcome.folder / "weights" / run.weights_name for outcome in (first, second)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not second.problems


def test_a_reused_record_is_known_without_the_code_of_its_mechanism(tmp_path):
    path = tmp_path / "bell.py"
    path.write_text("import whence\n\nclass Bell(whence.Position):\n    pass\n")
    first = pin_sources(dataclasses.replace(STUDY, arms=(STUDY.arms[0], parse_arm(f"{path}:Bell"))))
    run = Run(dataclasses.replace(first, name="larger", seeds=(0, 1)), first.arms[1], 0)
    record = {"spec": first.spec(), "arm": run.arm.name, "seed": 0}
    others = [{**record, "seed": 1}, {**record, "arm": "none"}, {**record, "spec": {}}]
    for _ in range(2):  # with the file, and without it
        assert run_keys.is_record_of(record, run)
        assert not any(run_keys.is_record_of(other, run) for other in others)
        path.unlink(missing_ok=True)


def test_a_corrupt_record_of_another_study_is_not_reused(tmp_path):
    first = runner.run_study(STUDY, tmp_path)
    broken = first.folder / STUDY.runs()[0].file_name
    broken.write_text("{")
    second = runner.run_study(dataclasses.replace(STUDY, seeds=(0, 1)), tmp_path)
    assert {(run.arm.name, run.seed) for run in second.completed} == {("none", 0), ("none", 1), ("alibi", 1)}
    assert broken.read_text() == "{" and not second.problems


def test_an_arm_with_its_own_budget_is_trained_with_it(tmp_path):
    arms = (STUDY.arms[0], Arm("longer", "NoPosition()", {}, {"steps": 5}))
    outcome = runner.run_study(dataclasses.replace(STUDY, arms=arms), tmp_path)
    steps = {run.arm.name: records.read(outcome.folder / run.file_name)["result"]["steps"] for run in outcome.completed}
    assert steps == {"none": 3, "longer": 5}
    with pytest.raises(WhenceError, match=r"longer.*stepz"):
        dataclasses.replace(STUDY, arms=(STUDY.arms[0], Arm("longer", "alibi", {}, {"stepz": 5})))


def test_a_run_that_another_process_trains_is_awaited(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "POLL_INTERVAL", 0.05)
    folder = study_folder(STUDY, tmp_path)
    run = STUDY.runs()[0]
    with claims.claim_run(run, folder), pytest.raises(claims.RunInProgress):
        run_execution.execute_run(run, folder)
    outcome = runner.run_study(STUDY, tmp_path)
    assert len(outcome.completed) == 2 and claims.wait_for_run(run, folder)


def test_each_worker_gets_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(executors.torch.cuda, "device_count", lambda: 2)
    assert executors.list_gpus() == ["3", "5"] and executors.default_jobs() == 2
    monkeypatch.setattr(executors.torch.cuda, "device_count", lambda: 1)
    assert executors.default_jobs() == len(os.sched_getaffinity(0))
