"""Arrays of Slurm jobs: run for real as submitit's local processes, and submitted to a stub of sbatch."""

import os
import signal
import stat
from types import SimpleNamespace

import pytest
from small_study import ARMS, build_execute, build_study, load_results

from whence import WhenceError
from whence.lab import claims, run_execution, runner, slurm_executor
from whence.lab.executors import load_executor
from whence.lab.study import Budget

pytest.importorskip("submitit")
STUB = """#!/bin/sh
echo "{name} $*" >> {log}
{body}
"""


def three_runs():
    return build_study(arms=ARMS[:1], seeds=(0, 1, 2), budget=Budget(steps=6, batch_size=8, evaluate_every=6))


def test_jobs_share_the_runs_and_resume_after_the_time_limit(tmp_path, monkeypatch):
    """Seed 0 gets the signal of the time limit; its job is queued again. Seed 2 fails."""
    monkeypatch.setattr(slurm_executor, "POLL_INTERVAL", 0.1)
    train = build_execute(tmp_path, signal.SIGUSR2)

    def execute(run, folder, on_progress):
        if run.seed == 2:
            raise ValueError("its own error")
        return train(run, folder, on_progress)

    study, seen = three_runs(), []
    executor = load_executor("slurm(cluster='local')", 2)
    outcomes = {run.seed: outcome for run, outcome in executor.run(
        execute, study.runs(), tmp_path / "slurm", lambda run, at: seen.append((run.seed, at.step, at.steps))
    )}  # fmt: skip
    assert outcomes[0]["result"]["status"] == outcomes[1]["result"]["status"] == "done"
    assert type(outcomes[2]) is ValueError and str(outcomes[2]) == "its own error"
    assert sorted(seen) == [(0, 6, 6), (1, 6, 6)]
    stopped, other = ((tmp_path / run.file_name).read_text().split() for run in study.runs()[:2])
    assert stopped == [*"123456"] and other == [*"123456"]  # nothing twice: it resumed from the checkpoint
    for run in study.runs()[:2]:
        run_execution.execute_run(run, tmp_path / "local")
    assert load_results(tmp_path / "slurm") == load_results(tmp_path / "local")


def test_a_run_of_another_command_is_in_progress(tmp_path, monkeypatch):
    executor, submissions = load_executor("slurm(cluster='local')", 1), []
    job = SimpleNamespace(done=lambda: True, exception=lambda: None, result=list)
    monkeypatch.setattr(executor, "_submit", lambda execute, runs, folder: submissions.append(len(runs)) or [job])
    first, second = three_runs().runs()[:2]
    with claims.claim_run(first, tmp_path):
        (one, busy), (two, failed) = executor.run(run_execution.execute_run, [first, second], tmp_path, lambda *_: None)
    assert (one, two) == (first, second) and submissions == [2, 1, 1, 1]
    assert isinstance(busy, claims.RunInProgress) and "ended 4 times" in str(failed)


@pytest.fixture
def slurm_commands(tmp_path, monkeypatch):
    """Stubs of Slurm's commands on PATH. Returns the file that lists the calls."""
    folder, log = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    bodies = {
        "sbatch": "echo Submitted batch job 17",
        "srun": "",
        "scancel": "",
        "sacct": "echo 'JobID|State|NodeList'",
    }
    for name, body in bodies.items():
        path = folder / name
        path.write_text(STUB.format(name=name, log=log, body=body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


def test_settings_reach_sbatch_and_an_interrupt_cancels_the_jobs(tmp_path, monkeypatch, slurm_commands):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm_executor, "time", SimpleNamespace(sleep=interrupt))
    executor = load_executor("slurm(partition='gpu', minutes=240, gpus=1, cpus=2, memory_gb=16)", 2)
    with pytest.raises(KeyboardInterrupt):
        list(executor.run(run_execution.execute_run, three_runs().runs(), tmp_path / "out", lambda *_: None))
    script = tmp_path / "out" / "slurm" / "17_submission.sh"
    text = script.read_text()
    for line in (
        "--array=0-1%2", "--partition=gpu", "--time=240", "--gpus-per-node=1", "--cpus-per-task=2", "--mem=16GB",
        "--signal=USR2@90", "--job-name=whence",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in text
    assert "submitit.core._submit" in text and str(tmp_path / "out" / "slurm") in text
    calls = slurm_commands.read_text().splitlines()
    assert calls[0].startswith("sbatch") and {"scancel 17_0", "scancel 17_1"} <= set(calls)


def test_a_rejected_submission_is_one_error(tmp_path, slurm_commands):
    stub = tmp_path / "bin" / "sbatch"
    stub.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    executor = load_executor("slurm(partition='none')")
    with pytest.raises(WhenceError, match=r"--executor slurm.*invalid partition.*correct the settings"):
        list(executor.run(run_execution.execute_run, three_runs().runs(), tmp_path / "out", lambda *_: None))


def test_without_slurm_nothing_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WhenceError, match=r"no command sbatch.*login node"):
        runner.run_study(three_runs(), tmp_path / "out", jobs=None, executor="slurm")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments, expected", [("minutes=0", "minutes=0.*minutes=1"), ("cpus='all'", "cpus='all'"), ("nodes=2", "nodes")]
)
def test_bad_settings_raise_before_any_work(slurm_commands, arguments, expected):
    with pytest.raises(WhenceError, match=expected):
        load_executor(f"slurm({arguments})")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    with pytest.raises(WhenceError, match=r"whence\[slurm\]"):
        load_executor("slurm")
