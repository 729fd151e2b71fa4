"""Runs on a real Ray cluster on this machine: the same records, and runs that survive the death of their worker."""

import os
import signal

import pytest
from small_study import ARMS, build_execute, build_study, load_results

from whence import WhenceError
from whence.errors import Terminated
from whence.lab import claims, run_execution, runner
from whence.lab.arms import Arm
from whence.lab.executors import load_executor
from whence.lab.study import Budget
from whence.lab.study_folder import checkpoint_path

ray = pytest.importorskip("ray")
BELL = "from whence import Alibi\nclass Bell(Alibi):\n    pass\n"


@pytest.fixture(scope="module")
def cluster():
    """One cluster with two cores for all tests of this file, started by the executor itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("WHENCE_MARK", "of the main process")
        load_executor("ray", 2)._connect()
        yield
        ray.shutdown()


def small_runs(**changes):
    return build_study(arms=ARMS[:1], budget=Budget(steps=6, batch_size=8, evaluate_every=6), **changes)


def test_records_are_those_of_local_runs(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bell.py").write_text(BELL)  # workers find it, and get the same hash of it
    study = build_study(arms=(ARMS[0], Arm("bell", "./bell.py:Bell")), seeds=(0,), budget=Budget(steps=3, batch_size=8))
    steps = []
    outcome = runner.run_study(
        study,
        tmp_path / "ray",
        jobs=2,
        executor="ray",
        on_progress=lambda run, at: steps.append((run.arm.name, at.step)),
    )
    assert len(outcome.completed) == 2 and not outcome.problems
    assert {("none", 3), ("bell", 3)} <= set(steps)
    local = runner.run_study(study, tmp_path / "local")
    assert load_results(outcome.folder) == load_results(local.folder)


@pytest.mark.parametrize("number, resumed_at", [(signal.SIGKILL, 3), (signal.SIGTERM, 4)])
def test_a_stopped_worker_costs_its_own_run_which_resumes(cluster, tmp_path, number, resumed_at):
    study = small_runs()
    outcomes = load_executor("ray", 2).run(
        build_execute(tmp_path, number), study.runs(), tmp_path / "ray", lambda *_: None
    )
    assert {run.seed: outcome["result"]["status"] for run, outcome in outcomes} == {0: "done", 1: "done"}
    stopped, other = ((tmp_path / run.file_name).read_text().split() for run in study.runs())
    assert stopped == [*"123", *map(str, range(resumed_at, 7))] and other == [*"123456"]
    for run in study.runs():
        run_execution.execute_run(run, tmp_path / "local")
    assert load_results(tmp_path / "ray") == load_results(tmp_path / "local")
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Terminated])
def test_a_stopped_main_process_cancels_its_runs_with_a_checkpoint(cluster, tmp_path, kind):
    endless = build_study(arms=ARMS[:1], seeds=(0,), budget=Budget(steps=10**6, batch_size=8))

    def stop(run, progress):
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(kind):
        list(load_executor("ray", 1).run(run_execution.execute_run, endless.runs(), tmp_path, stop))
    (run,) = endless.runs()
    assert checkpoint_path(run, tmp_path).exists()
    assert not claims.wait_for_run(run, tmp_path)  # nobody trains it: its worker has let it go


def test_workers_get_the_variables_and_the_working_directory(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def execute(run, folder, on_progress):
        if run.seed == 1:
            raise ValueError("its own error")
        return {"mark": os.environ["WHENCE_MARK"], "folder": os.getcwd()}

    outcomes = {run.seed: outcome for run, outcome in load_executor("ray").run(
        execute, small_runs().runs(), tmp_path, lambda *_: None
    )}  # fmt: skip
    assert outcomes[0] == {"mark": "of the main process", "folder": str(tmp_path)}
    assert type(outcomes[1]) is ValueError and str(outcomes[1]) == "its own error"


def test_other_code_on_a_worker_raises(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("whence.records.source_hash", lambda: "of the main process")
    from whence.lab import workers

    setup = workers.WorkerSetup(source_hash="of the main process")
    monkeypatch.setattr("whence.records.source_hash", lambda: "of another version")
    with pytest.raises(WhenceError, match=r"--executor ray got another version.*install the same version"):
        setup.apply("--executor ray")


def test_a_run_takes_one_gpu_where_there_are_some(tmp_path):
    executor, options = load_executor("ray"), []

    class Stopped(Exception):
        pass

    class FakeRay:
        def is_initialized(self):
            return True

        def cluster_resources(self):
            return {"CPU": 8.0, "GPU": 2.0}

        def remote(self, **settings):
            options.append(settings)
            raise Stopped

    executor.ray = FakeRay()
    with pytest.raises(Stopped):
        next(executor.run(run_execution.execute_run, small_runs().runs(), tmp_path, lambda *_: None))
    assert (options[0]["num_cpus"], options[0]["num_gpus"]) == (1, 1)


def test_an_address_without_a_cluster_raises(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:6379")
    executor = load_executor("ray")

    class FakeRay:
        def is_initialized(self):
            return False

        def init(self, **settings):
            raise ConnectionError(f"no cluster at {settings['address']}")

    executor.ray = FakeRay()
    with pytest.raises(WhenceError, match=r"RAY_ADDRESS=nowhere:6379.*unset it"):
        executor._connect()


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(WhenceError, match=r"whence\[ray\]"):
        load_executor("ray")
