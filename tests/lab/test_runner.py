"""The runner: a record for every run, written once, by one process or several."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_study import ARMS, almost_equal, build_study, load_results

from whence import WhenceError, records
from whence.lab import results, run_execution, runner, tasks, training
from whence.lab.arms import Arm, parse_arm
from whence.lab.sources import describe_origin, pin_sources
from whence.lab.study import Budget, Decision
from whence.lab.study_folder import study_folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    base = tmp_path_factory.mktemp("results")
    return base, runner.run_study(build_study(), base)


def test_every_arm_and_seed_has_a_record(finished):
    _, outcome = finished
    assert (len(outcome.completed), outcome.existing, outcome.problems) == (6, [], [])
    for run in build_study().runs():
        record = records.read(outcome.folder / run.file_name)
        assert record["spec"] == build_study().spec() and record["hash"] == build_study().hash
        assert [row["step"] for row in record["result"]["evaluations"]] == [2, 4, 6]
        assert set(record["result"]["evaluations"][0]["splits"]) == {"test", "2x", "4x", "8x"}
        assert record["environment"]["source_hash"] and record["wall_seconds"] > 0
        weights = outcome.folder / "weights" / (run.file_name.removesuffix(".json") + ".safetensors")
        assert weights.stat().st_size > 0


def test_a_record_names_the_gpu_it_was_trained_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "accelerator" not in describe_origin(build_study())["environment"]["machine"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert describe_origin(build_study())["environment"]["machine"]["accelerator"] == "Some GPU"


def sources_of(outcome):
    return {records.read(outcome.folder / run.file_name)["environment"]["source_hash"] for run in outcome.completed}


def test_a_record_names_the_sources_that_were_loaded(tmp_path, monkeypatch):
    """Whoever edits them while a study runs changes nothing of what runs."""
    sources = iter(["those that run", "others"])
    monkeypatch.setattr(records.environment, "source_hash", lambda: next(sources))
    outcome = runner.run_study(build_study(arms=ARMS[:1], budget=Budget(steps=1)), tmp_path)
    assert len(outcome.completed) == 2 and sources_of(outcome) == {"those that run"}


def test_records_hold_learned_parameters_before_and_after(finished):
    _, outcome = finished
    run = next(r for r in build_study().runs() if r.arm.name == "EPAR")
    numbers = records.read(outcome.folder / run.file_name)["numbers"]
    assert numbers["before"] != numbers["after"] and "alpha=" in next(iter(numbers["after"].values()))


def test_each_part_of_a_sum_reports_its_parameters():
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
    model = task.build_model(
        {"embed_dim": 16, "heads": 2, "layers": 1}, parse_arm("Rotary() + Epar(learnable=True)"), 0
    )
    actual = run_execution.describe_positions(model)
    assert [name.split("position.")[1] for name in actual] == ["members.0", "members.1"]
    assert "base=" in actual["body.layers.0.attention.position.members.0"] and "alpha=" in str(actual)


def test_a_second_call_changes_no_file(finished):
    base, outcome = finished
    before = {p: p.read_bytes() for p in outcome.folder.rglob("*") if p.is_file()}
    again = runner.run_study(build_study(), base)
    assert len(again.existing) == 6 and not again.completed
    assert before == {p: p.read_bytes() for p in outcome.folder.rglob("*") if p.is_file()}


# One process loads everything once. It runs the study in two forked children, then with two workers, which another process
# that has loaded everything forks.
SCRIPT = """
import multiprocessing, os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import accelerate, torch._dynamo  # as training does
from small_study import build_study
from whence import records
from whence.lab import executors, runner

for name in ("first", "second"):
    child = os.fork()
    if child == 0:
        runner.run_study(build_study(), Path(sys.argv[1]) / name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["whence.lab.runner", "accelerate", "torch._dynamo"])
executors.get_context = lambda method: context
records.environment.source_hash = lambda: "the sources of the parent"
runner.run_study(build_study(), Path(sys.argv[1]) / "workers", jobs=2)
"""


def test_fresh_processes_and_workers_write_the_same_bits(finished, tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, env=environment, timeout=300)
    folders = [study_folder(build_study(), tmp_path / name) for name in ("first", "second", "workers")]
    first, second, workers = map(load_results, folders)
    assert first == second == workers and len(first) == 6
    assert almost_equal(first, load_results(finished[1].folder))  # in this process, which has run other tests before
    for path in folders[-1].glob("*seed*.json"):
        assert records.read(path)["environment"]["source_hash"] == "the sources of the parent"


def test_foreign_random_draws_change_nothing(finished, tmp_path, monkeypatch):
    # a library that is imported for the first time may draw from torch's randomness
    original = training.build_accelerator
    monkeypatch.setattr(training, "build_accelerator", lambda budget: (torch.rand(7), original(budget))[1])
    _, outcome = finished
    again = runner.run_study(build_study(), tmp_path)
    assert almost_equal(load_results(again.folder), load_results(outcome.folder))


def test_records_that_are_corrupt_or_foreign_are_named_and_left_alone(finished, tmp_path):
    _, outcome = finished
    folder = study_folder(build_study(), tmp_path)
    folder.mkdir()
    first, second, third, *rest = build_study().runs()
    (folder / first.file_name).write_text("{broken")
    (folder / second.file_name).write_text(json.dumps({"hash": "of something else"}))
    record = records.read(outcome.folder / third.file_name)
    record["spec"]["budget"]["lr"] = 0.5
    (folder / third.file_name).write_text(
        json.dumps(record | {"hash": "0" * 12})
    )  # the same arm and seed, another spec
    empty, copied, *rest = rest
    other = next(run for run in build_study().runs() if run.arm == copied.arm and run.seed != copied.seed)
    (folder / copied.file_name).write_bytes((outcome.folder / other.file_name).read_bytes())  # of another seed
    (folder / empty.file_name).write_text(
        json.dumps(records.read(outcome.folder / empty.file_name) | {"result": None})
    )  # edited by hand
    for run in rest:
        (folder / run.file_name).write_bytes((outcome.folder / run.file_name).read_bytes())
    again = runner.run_study(build_study(), tmp_path)
    assert len(again.problems) == 5 and len(again.existing) == 1 and not again.completed
    assert first.file_name in again.problems[0] and "corrupt" in again.problems[0]
    assert all("belongs to another" in problem for problem in again.problems[1:3])
    assert "no result" in again.problems[3] and "belongs to another" in again.problems[4]
    assert (folder / first.file_name).read_text() == "{broken"


def test_a_record_is_never_overwritten(finished, tmp_path):
    """Not even where another process was faster with the same run; its weights stay with it."""
    run = build_study().runs()[0]
    (tmp_path / run.file_name).write_text("{}")
    with pytest.raises(WhenceError, match="a record is written once"):
        run_execution.execute_run(run, tmp_path)
    assert (tmp_path / run.file_name).read_text() == "{}" and not (tmp_path / "weights").exists()


def test_a_run_that_another_process_finished_is_skipped(finished, tmp_path, monkeypatch):
    """Whether its record appears before the run starts or while it trains."""
    _, outcome = finished
    first, second = build_study().runs()[:2]
    content = {run.file_name: (outcome.folder / run.file_name).read_bytes() for run in (first, second)}
    (tmp_path / first.file_name).write_bytes(content[first.file_name])
    train, trained = training.train, []

    def train_while_another_finishes(*arguments, **named):
        trained.append(arguments)
        (tmp_path / second.file_name).write_bytes(content[second.file_name])
        return train(*arguments, **named)

    monkeypatch.setattr(training, "train", train_while_another_finishes)
    for run, count in ((first, 0), (second, 1)):
        assert run_execution.execute_run(run, tmp_path) == json.loads(content[run.file_name]) and len(trained) == count
        assert (tmp_path / run.file_name).read_bytes() == content[run.file_name] and not (tmp_path / "weights").exists()


def test_changed_code_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "from whence import Alibi\nclass Bell(Alibi):\n    pass\n"
    (tmp_path / "bell.py").write_text(source)
    study = build_study(arms=(ARMS[0], Arm("bell", "./bell.py:Bell")))
    pinned = pin_sources(study)
    assert pinned.hash != study.hash and pin_sources(build_study()).hash == build_study().hash
    (tmp_path / "bell.py").write_text(source + "# edited\n")
    with pytest.raises(WhenceError, match=r"\./bell\.py:Bell.*run the command again"):
        run_execution.execute_run(pinned.runs()[1], tmp_path)
    assert runner.run_study(study, tmp_path / "out").folder != study_folder(pinned, tmp_path / "out")


def test_a_study_decides_by_the_metric_it_names(finished, tmp_path):
    _, usual = finished
    outcome = runner.run_study(build_study(decision=Decision(baseline="none", metric="perplexity")), tmp_path)
    assert records.read(outcome.folder / "task.json")["metric"] == "perplexity"
    for name, result in load_results(outcome.folder).items():
        for row in result["evaluations"][-1]["splits"].values():
            assert (
                row["value"] == pytest.approx(math.exp(row["cross_entropy"])) and row["correct"] <= row["num_targets"]
            )
        assert almost_equal(result["losses"], load_results(usual.folder)[name]["losses"])  # it trains as ever
    actual = results.collect_study(outcome.completed[0].study, outcome.folder)
    assert actual["metric"] == "perplexity" and not actual["higher_is_better"]
