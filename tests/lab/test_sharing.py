"""Several processes on one folder: each run is trained once, shards complete a round together, and signals leave checkpoints."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_study import ARMS, build_study

from whence.cli import run as run_command
from whence.errors import Terminated
from whence.lab import claims, run_execution, runner, training
from whence.lab.executors import load_executor
from whence.lab.sources import pin_sources
from whence.lab.study import Budget
from whence.lab.study_folder import checkpoint_path, study_folder

# One process loads everything once and forks: two processes on each folder, whose training is a line in a log and a value.
SCRIPT = """
import dataclasses, json, os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sequential import GAIN, STUDY
from whence.lab import checkpoints, runner, sequential, training
from whence.lab.study import Decision

base = Path(sys.argv[1])


def wait_for_lines(count):
    path = base / f"{{scenario}}.log"
    while not path.exists() or len(path.read_text().splitlines()) < count:
        time.sleep(0.01)


def train(model, task, budget, seed, state, on_progress=None, **others):
    name = type(model.body.layers[0].attention.position).__name__
    with (base / f"{{scenario}}.log").open("a") as file:
        file.write(json.dumps([name, seed, process]) + chr(10))
    if scenario == "pair":
        wait_for_lines(2)  # for the other process, which skips this run and trains the next
    if scenario == "killed" and process == 0:
        wait_for_lines(6)  # the other process has begun all other runs
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    own, shared = random.Random(f"{{name}}{{seed}}").gauss(0, 0.01), random.Random(f"{{seed}}").gauss(0, 0.05)
    splits = {{split: {{"value": 0.4 + GAIN[name] + own + shared}} for split in task.splits()}}
    return {{"steps": 1, "losses": [], "evaluations": [{{"step": 1, "splits": splits}}]}}


training.train, checkpoints.save_weights = train, lambda *arguments: None
sequential.runner.wait_for_run.__globals__["POLL_INTERVAL"] = 0.05
fixed = dataclasses.replace(STUDY, seeds=(0, 1), decision=Decision(baseline="none"))
for scenario, study, shards in (("pair", fixed, 1), ("looks", STUDY, 2), ("shards", fixed, 2), ("killed", fixed, 1)):
    children = []
    for process in range(2):
        child = os.fork()
        if child == 0:
            select = lambda runs: runs[process % shards :: shards]
            (state,) = sequential.run_until_decided([study], base / scenario, select=select)
            end = {{"problems": state.outcome.problems, "completed": len(state.outcome.completed),
                   "existing": len(state.outcome.existing),
                   "look": state.comparison and state.comparison.look}}
            (base / f"{{scenario}}{{process}}.json").write_text(json.dumps(end))
            os._exit(0)
        children.append(child)
        if scenario == "killed":
            wait_for_lines(1)
    for child in children:
        os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    base = tmp_path_factory.mktemp("shared")
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    subprocess.run([sys.executable, "-c", script, base], check=True, env=environment, timeout=300)
    return base


def read_log(base, scenario):
    return [json.loads(line) for line in (base / f"{scenario}.log").read_text().splitlines()]


def read_end(base, scenario, process):
    return json.loads((base / f"{scenario}{process}.json").read_text())


def test_two_processes_train_each_run_once(shared):
    log = read_log(shared, "pair")
    assert len(log) == len({(name, seed) for name, seed, _ in log}) == 6
    assert {process for *_, process in log} == {0, 1}
    for process in (0, 1):
        end = read_end(shared, "pair", process)
        assert end["completed"] + end["existing"] == 6 and not end["problems"]


def test_shards_complete_a_round_before_its_look(shared):
    """All records of a round are there when it is judged, so no shard goes on with an arm that is decided."""
    log = read_log(shared, "looks")
    assert len(log) == len({(name, seed) for name, seed, _ in log})
    counts = {name: sum(own == name for own, *_ in log) for name in ("NoPosition", "Rotary", "Alibi")}
    assert counts == {"NoPosition": 8, "Rotary": 3, "Alibi": 8}
    assert [read_end(shared, "looks", process)["look"] for process in (0, 1)] == [3, 3]


def test_shards_of_fixed_seeds_are_disjoint(shared):
    log = read_log(shared, "shards")
    runs = {process: {(name, seed) for name, seed, own in log if own == process} for process in (0, 1)}
    assert len(runs[0]) == len(runs[1]) == 3 and not runs[0] & runs[1]


def test_the_run_of_a_killed_process_is_trained_by_the_other(shared):
    log = read_log(shared, "killed")
    first = log[0][:2]
    assert [process for name, seed, process in log if [name, seed] == first] == [0, 1] and len(log) == 7
    end = read_end(shared, "killed", 1)
    assert end["completed"] + end["existing"] == 6 and not end["problems"]
    assert not (shared / "killed0.json").exists()


def test_waiting_ends_at_the_time_limit(tmp_path):
    study = pin_sources(build_study(arms=ARMS[:1], seeds=(0,), budget=Budget(steps=1)))
    (run,), folder = study.runs(), study_folder(study, tmp_path)
    with claims.claim_run(run, folder):
        outcome = runner.run_study(study, tmp_path, deadline=time.time() + 0.2)
    assert outcome.unfinished == [run] and not outcome.completed


def test_a_shard_reports_when_all_records_are_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("whence.cli.report.write_report", lambda folders, page, *others, **named: page)
    study = build_study(arms=ARMS[:2], seeds=(0,), budget=Budget(steps=1, batch_size=2))
    run_command.run_studies([study], tmp_path, 1, "title", shard="1/2")
    first = capsys.readouterr()
    assert "1 run of other shards has no record yet" in first.err and f"whence report {tmp_path}" in first.err
    assert "report:" not in first.out
    run_command.run_studies([study], tmp_path, 1, "title", shard="2/2")
    second = capsys.readouterr()
    assert "no record yet" not in second.err and "report:" in second.out


@pytest.fixture
def default_interrupts():
    """A background job may start with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint(tmp_path, number, default_interrupts):
    """For runs side by side: ``test_a_stopped_group_leaves_records_and_checkpoints``."""
    study = build_study(arms=ARMS[:1], seeds=(0,), budget=Budget(steps=10**6, batch_size=8))
    before, executor = signal.getsignal(number), load_executor("local", 1)
    with pytest.raises(Terminated, match="run the command again") as raised:
        list(executor.run(run_execution.execute_run, study.runs(), tmp_path, lambda *_: signal.raise_signal(number)))
    assert raised.value.signal_number == number
    assert checkpoint_path(study.runs()[0], tmp_path).exists()
    assert signal.getsignal(number) == before


def test_a_second_interrupt_stops_at_once_and_a_worker_ignores_all(default_interrupts, capfd):
    with training.catch_stop_signals() as stop_signal:
        signal.raise_signal(signal.SIGINT)
        assert stop_signal() == signal.SIGINT and "Ctrl-C again" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a worker, whose parent handles interrupts
    with training.catch_stop_signals() as stop_signal:
        signal.raise_signal(signal.SIGINT)
        assert stop_signal() is None


def test_a_signal_during_the_last_evaluation_stops_the_study_after_the_record(tmp_path):
    study = build_study(arms=ARMS[:2], seeds=(0,), budget=Budget(steps=1, batch_size=2))
    executor = load_executor("local", 1)
    with pytest.raises(Terminated, match="run the command again") as raised:
        list(
            executor.run(
                run_execution.execute_run, study.runs(), tmp_path, lambda *_: signal.raise_signal(signal.SIGTERM)
            )
        )
    assert raised.value.signal_number == signal.SIGTERM
    assert [(tmp_path / run.file_name).exists() for run in study.runs()] == [True, False]


def test_partial_files_of_killed_writers_are_removed(tmp_path):
    study = build_study(arms=ARMS[:1], seeds=(0,), budget=Budget(steps=1, batch_size=2))
    (run,), folder = study.runs(), study_folder(study, tmp_path)
    for path in (
        folder / "study.json", folder / run.file_name, folder / "weights" / run.weights_name,
        checkpoint_path(run, folder),
    ):  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.0123.part").write_text("half")
        path.with_name(f"{path.name}.4567.part").mkdir()
    outcome = runner.run_study(study, tmp_path)
    assert outcome.completed == [run] and not list(folder.rglob("*.part"))
    checkpoint_path(run, folder).write_text("of a process that was killed after it wrote the record")
    assert runner.run_study(study, tmp_path).existing and not checkpoint_path(run, folder).exists()


def test_an_unfinished_record_leaves_the_checkpoint(tmp_path, monkeypatch):
    """A process that is killed while it writes the record has something to resume from."""
    study = build_study(arms=ARMS[:1], seeds=(0,), budget=Budget(steps=2, batch_size=2))
    (run,) = study.runs()
    train = training.train
    monkeypatch.setattr(training, "train", lambda *given, **named: train(*given, **named, save_every=0.0))

    def fail(path, record):
        raise OSError("killed here")

    monkeypatch.setattr("whence.records.write", fail)
    with pytest.raises(OSError, match="killed here"):
        run_execution.execute_run(run, tmp_path)
    assert checkpoint_path(run, tmp_path).exists()


def test_a_folder_without_locks_raises(tmp_path, monkeypatch):
    def acquire(self, timeout):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(claims.FileLock, "acquire", acquire)
    with pytest.raises(ValueError, match=r"--out.*flock.*another folder"):
        runner.run_study(build_study(), tmp_path)
