"""Run on a Slurm cluster through submitit: an array of jobs that share the runs of a study.

Each job trains runs that no other job has claimed, one at a time, until none is left. The main process submits the array,
waits, and reads the records. A job that reaches its time limit leaves a checkpoint and is queued again.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import Terminated, require_package, usage_error
from whence.lab.claims import RunInProgress, is_claimed
from whence.lab.executors import Execute, OnProgress, Outcome
from whence.lab.study import Run
from whence.lab.training import Progress, catch_stop_signals
from whence.lab.workers import WorkerSetup

#: the largest array if --jobs is not set
ARRAY_SIZE = 64
#: how often jobs are submitted again for runs whose job ended without a record
RETRIES = 3
#: how often a job may reach its time limit: each time it resumes from a checkpoint
TIMEOUTS = 100
#: seconds between two checks for records
POLL_INTERVAL = 1.0


class SlurmExecutor:
    """Run in an array of Slurm jobs. Other settings, such as the account, come from the variables of sbatch (SBATCH_ACCOUNT).

    Args:
        jobs: number of jobs; default: one for each run, at most 64.
        partition: the partition; default: that of the cluster.
        minutes: time limit of each job.
        gpus: GPUs of each job.
        cpus: cores of each job.
        memory_gb: memory of each job; default: that of the cluster.
        cluster: ``slurm``, or ``local`` for processes on this machine, to try things out.
    """

    def __init__(
        self,
        jobs: int | None = None,
        partition: str | None = None,
        minutes: int = 60,
        gpus: int = 0,
        cpus: int = 1,
        memory_gb: float | None = None,
        cluster: str = "slurm",
    ) -> None:
        self.jobs, self.cluster = jobs, cluster
        self.submitit = require_package("submitit", "--executor slurm", "slurm")
        if cluster not in ("slurm", "local"):
            raise usage_error("--executor slurm", f"cluster={cluster!r}", "it is slurm or local", "leave it out")
        for command in ("sbatch", "srun") if cluster == "slurm" else ():
            if shutil.which(command) is None:
                raise usage_error(
                    "--executor slurm",
                    f"no command {command}",
                    "jobs are submitted with the commands of Slurm",
                    "run it on a login node of a Slurm cluster, or leave out --executor",
                )
        for name, value, smallest in (("minutes", minutes, 1), ("gpus", gpus, 0), ("cpus", cpus, 1)):
            if not isinstance(value, int) or value < smallest:
                rule = f"{name} is a whole number from {smallest} on"
                raise usage_error(
                    "--executor slurm", f"{name}={value!r}", rule, f"write {name}={smallest}, for example"
                )
        self.parameters: dict[str, Any] = {"name": "whence", "timeout_min": minutes, "cpus_per_task": cpus}
        if gpus:
            self.parameters["gpus_per_node"] = gpus
        if memory_gb is not None:
            self.parameters["mem_gb"] = memory_gb
        if partition is not None:
            self.parameters["slurm_partition"] = partition

    def run(
        self, execute: Execute, runs: Sequence[Run], folder: Path, on_progress: OnProgress
    ) -> Iterator[tuple[Run, Outcome]]:
        pending = list(range(len(runs)))
        reason = "no job has finished"
        jobs: list[Any] = []
        with catch_stop_signals() as stop_signal:
            try:
                for _ in range(1 + RETRIES):
                    yield from read_records(runs, pending, folder, on_progress)  # of other commands
                    if not pending:
                        return
                    jobs = self._submit(execute, [runs[index] for index in pending], folder.resolve())
                    submitted, waiting = list(pending), list(jobs)
                    while pending:
                        ended = [job for job in waiting if job.done()]  # before the records are read
                        waiting = [job for job in waiting if job not in ended]
                        yield from read_records(runs, pending, folder, on_progress)
                        for job in ended:
                            failures, reason = read_job(job, reason)
                            for number, error in failures:
                                if submitted[number] in pending:
                                    pending.remove(submitted[number])
                                    yield runs[submitted[number]], error
                        if not waiting:
                            break
                        if stop_signal() is not None:
                            raise Terminated("stopped by a signal; run the command again to resume", stop_signal())
                        time.sleep(POLL_INTERVAL)
                    for index in [index for index in pending if is_claimed(runs[index], folder)]:
                        pending.remove(index)  # none of the jobs is left, so another command trains it
                        yield runs[index], RunInProgress(f"{runs[index].file_name} is in progress in another process")
                    if not pending:
                        return
            except BaseException:  # such as Ctrl-C or SIGTERM: each job saves a checkpoint
                for job in jobs:
                    job.cancel(check=False)
                raise
        for index in pending:
            logs = folder / "slurm"
            yield (
                runs[index],
                RuntimeError(f"its job ended {1 + RETRIES} times without a record ({reason}); see {logs}"),
            )

    def _submit(self, execute: Execute, runs: list[Run], folder: Path) -> list[Any]:
        """Submit an array of jobs. Each begins with another run."""
        settings = {"slurm_max_num_timeout": TIMEOUTS} if self.cluster == "slurm" else {}
        executor = self.submitit.AutoExecutor(folder=folder / "slurm", cluster=self.cluster, **settings)
        executor.update_parameters(**self.parameters)
        count = min(self.jobs or ARRAY_SIZE, len(runs))
        setup = WorkerSetup()
        try:
            with executor.batch():
                return [
                    executor.submit(ArrayJob(), execute, runs, folder, number * len(runs) // count, setup)
                    for number in range(count)
                ]
        except (self.submitit.core.utils.FailedJobError, self.submitit.core.utils.FailedSubmissionError) as error:
            got = " ".join(str(error).split())
            raise usage_error(
                "--executor slurm", got, "sbatch must accept the jobs", "correct the settings of the executor"
            ) from error
        except subprocess.CalledProcessError as error:
            raise usage_error(
                "--executor slurm", str(error), "sbatch must accept the jobs", "correct the settings of the executor"
            ) from error


class ArrayJob:
    """One job: train runs that no other job trains, one at a time."""

    def __call__(
        self, execute: Execute, runs: list[Run], folder: Path, first: int, setup: WorkerSetup
    ) -> list[tuple[int, Exception]]:
        """Return the runs that failed, by index. The records of the others are in the folder, or in progress."""
        setup.apply("--executor slurm")
        failures: list[tuple[int, Exception]] = []
        for number in (*range(first, len(runs)), *range(first)):
            if records.exists(folder / runs[number].file_name):
                continue
            try:
                execute(runs[number], folder, lambda progress: None)
            except RunInProgress:
                continue
            except Terminated as error:
                if error.signal_number == signal.SIGUSR2:  # the time limit: submitit queues the job again and exits
                    signal.raise_signal(signal.SIGUSR2)
                break
            except Exception as error:  # the other runs go on
                failures.append((number, error))
        return failures

    def checkpoint(self, *arguments: Any) -> Any:
        """The submission that continues this one, for submitit. The checkpoint itself is written in the training loop."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def read_records(
    runs: Sequence[Run], pending: list[int], folder: Path, on_progress: OnProgress
) -> Iterator[tuple[Run, Outcome]]:
    """Yield the pending runs that have a record by now, and remove them from ``pending``."""
    for index in list(pending):
        if records.exists(folder / runs[index].file_name):
            pending.remove(index)
            record = records.read(folder / runs[index].file_name)
            on_progress(runs[index], read_progress(record))
            yield runs[index], record


def read_job(job: Any, reason: str) -> tuple[list[tuple[int, Exception]], str]:
    """The failures of a job that ended; for one that ended without a result, none, and the reason in one line."""
    error = job.exception()
    if error is None:
        return job.result(), reason
    lines = [line for line in str(error).splitlines() if line.strip()]
    return [], lines[-1].strip() if lines else type(error).__name__


def read_progress(record: dict[str, Any]) -> Progress:
    """The progress of a finished run, from its record."""
    result = record["result"]
    steps, evaluations = result.get("steps", 1), result.get("evaluations", [])
    values = {split: row["value"] for split, row in evaluations[-1]["splits"].items()} if evaluations else None
    return Progress(steps, steps, math.nan, values if result["status"] == "done" else None)
