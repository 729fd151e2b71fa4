"""Run on a Ray cluster: the one that RAY_ADDRESS names, or one on this machine.

Each run is a task of one core, and of one GPU if the cluster has some. All machines need the folder of the records, the
working directory and the same version of whence. A run whose worker dies is started again and resumes from its checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from whence.errors import Terminated, require_package, usage_error
from whence.lab.executors import Execute, OnProgress, Outcome, forward_messages, limit_rate
from whence.lab.study import Run
from whence.lab.training import Progress, catch_stop_signals
from whence.lab.workers import WorkerSetup, list_variables

#: environment variable with the address of a cluster
ADDRESS = "RAY_ADDRESS"
#: how often a run is started again after its worker died or got a stop signal
RETRIES = 3
#: seconds between two checks for messages and stop signals
POLL_INTERVAL = 0.25
#: seconds in which cancelled runs may write their checkpoints
GRACE_PERIOD = 30.0


class RayExecutor:
    """Run on a Ray cluster, at most ``jobs`` runs at a time. Without ``jobs`` the cluster's size is the limit."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs
        self.ray = require_package("ray", "--executor ray", "ray")
        require_package("ray.util.queue", "--executor ray", "ray")

    def run(
        self, execute: Execute, runs: Sequence[Run], folder: Path, on_progress: OnProgress
    ) -> Iterator[tuple[Run, Outcome]]:
        ray = self.ray
        self._connect()
        has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
        task = ray.remote(
            num_cpus=1,
            num_gpus=1 if has_gpus else 0,
            max_retries=RETRIES,
            retry_exceptions=[Terminated],
        )(execute_on_worker)
        messages = ray.util.queue.Queue(actor_options={"num_cpus": 0})
        setup, waiting = WorkerSetup(), list(range(len(runs)))
        active: dict[Any, int] = {}
        with catch_stop_signals() as stop_signal:
            try:
                while active or waiting:
                    while waiting and (self.jobs is None or len(active) < self.jobs):
                        index = waiting.pop(0)
                        future = task.remote(execute, runs[index], folder.resolve(), index, messages, setup)
                        active[future] = index
                    done, _ = ray.wait(list(active), num_returns=len(active), timeout=POLL_INTERVAL)
                    if stop_signal() is not None:
                        raise Terminated("stopped by a signal; run the command again to resume", stop_signal())
                    with suppress(ray.exceptions.RayError):  # without its queue a run goes on, and is not displayed
                        forward_messages(messages, runs, on_progress)
                    for future in done:
                        yield runs[active.pop(future)], self._outcome(future)
            except BaseException:  # such as Ctrl-C or SIGTERM: each worker saves a checkpoint
                for future in active:
                    ray.cancel(future)
                ray.wait(list(active), num_returns=len(active), timeout=GRACE_PERIOD) if active else None
                raise
            finally:
                messages.shutdown()

    def _connect(self) -> None:
        """Connect to a cluster, or start one on this machine, which ends with this process. Further calls use the same one."""
        ray = self.ray
        if ray.is_initialized():
            return
        address = os.environ.get(ADDRESS)
        settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
        settings["runtime_env"] = {"env_vars": list_variables()}
        if not address:
            cores = self.jobs or len(os.sched_getaffinity(0))
            settings |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
        try:
            ray.init(**settings)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            got = f"{ADDRESS}={address}: {error}" if address else str(error)
            remedy = f"correct {ADDRESS}, or unset it to start a cluster on this machine"
            raise usage_error("--executor ray", got, "it needs a Ray cluster", remedy) from error

    def _outcome(self, future: Any) -> Outcome:
        try:
            return self.ray.get(future)
        except self.ray.exceptions.RayTaskError as error:
            return error.cause if isinstance(error.cause, Exception) else error
        except self.ray.exceptions.RayError as error:
            return error


def execute_on_worker(
    execute: Execute, run: Run, folder: Path, index: int, messages: Any, setup: WorkerSetup
) -> dict[str, Any]:
    """Train one run in a worker process of Ray."""
    setup.apply("--executor ray")
    # a cancelled task gets SIGINT; as SIGTERM it leaves a checkpoint
    before = signal.signal(signal.SIGINT, lambda number, frame: signal.raise_signal(signal.SIGTERM))

    def send(progress: Progress) -> None:
        with suppress(Exception):  # the main process is ending; the run still saves its checkpoint
            messages.put_nowait((index, progress))

    try:
        return execute(run, folder, limit_rate(send))
    finally:
        signal.signal(signal.SIGINT, before)
