"""Executors run the runs of a study. The default one uses processes on this machine; others use Ray or Slurm.

An executor of your own is a class with the method of ``Executor``. Choose it with ``whence compare --executor
my_module:MyExecutor`` or register it in the entry point group ``whence.executors``.
"""

from __future__ import annotations

import inspect
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import active_children, connection, get_context
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from whence.errors import Terminated, WhenceError, usage_error
from whence.lab.study import Run
from whence.lab.training import Progress, catch_stop_signals
from whence.lab.workers import end_with_parent
from whence.plugins import (
    EXECUTORS,
    PluginReference,
    did_you_mean,
    entry_points,
    is_reference,
    load_reference,
    load_registered,
    parse_arguments,
    parse_reference,
)
from whence.validation import format_value, require_parameters

OnProgress = Callable[[Run, Progress], None]
Outcome = dict[str, Any] | Exception  # the record of a run, or why there is none
OnMessage = Callable[[Progress], None]
Execute = Callable[[Run, Path, Callable[[Progress], None]], dict[str, Any]]

#: seconds between two progress messages of a run
MESSAGE_INTERVAL = 0.5
#: how often a run is started if its worker process is killed
ATTEMPTS = 2
#: seconds in which runs may write their checkpoints after a signal
GRACE_PERIOD = 30.0
#: module and class of the built-in executors; the modules of clusters import packages that may be absent
BUILT_IN = {
    "local": ("whence.lab.executors", "LocalExecutor"),
    "ray": ("whence.lab.ray_executor", "RayExecutor"),
    "slurm": ("whence.lab.slurm_executor", "SlurmExecutor"),
}


class Executor(Protocol):
    """Run the runs of a study somewhere.

    ``run`` is called for each round of seeds. An executor that holds something between the rounds, such as processes, may
    have a method ``close()``, which is called at the end.
    """

    def run(
        self, execute: Execute, runs: Sequence[Run], folder: Path, on_progress: OnProgress
    ) -> Iterator[tuple[Run, Outcome]]:
        """Yield each run as it finishes, with its record, or with the exception that stopped it.

        ``execute(run, folder, callback)`` trains one run, writes its record into the folder and returns it. It can be
        pickled and called in another process, which needs the same folder. Progress is optional.
        """
        ...


class LocalExecutor:
    """Run in this process, or with ``jobs`` above 1 in that many processes on this machine.

    Without ``jobs``: one process for each GPU, or for each core. The processes are started when they are needed, and
    kept for further calls of ``run`` until ``close``.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or default_jobs()
        self._workers: list[LocalWorker] = []

    def run(
        self, execute: Execute, runs: Sequence[Run], folder: Path, on_progress: OnProgress
    ) -> Iterator[tuple[Run, Outcome]]:
        if self.jobs > 1:
            yield from self._run_in_processes(execute, runs, folder, on_progress)
            return
        for run in runs:
            outcome: Outcome
            try:
                outcome = execute(run, folder, lambda progress, run=run: on_progress(run, progress))  # type: ignore[misc]
            except Terminated:
                raise
            except Exception as error:  # the other runs go on
                outcome = error
            yield run, outcome

    def close(self) -> None:
        """End the processes. A run in training saves a checkpoint first."""
        for worker in self._workers:
            worker.terminate()
        while self._workers:
            self._workers.pop().join()

    def _run_in_processes(
        self, execute: Execute, runs: Sequence[Run], folder: Path, on_progress: OnProgress
    ) -> Iterator[tuple[Run, Outcome]]:
        gpus = list_gpus()
        for number in range(len(self._workers), min(self.jobs, len(runs))):
            self._workers.append(LocalWorker(gpus[number % len(gpus)] if gpus else None))
        waiting, attempts = list(range(len(runs))), [0] * len(runs)
        idle = sorted(self._workers, key=lambda worker: worker.process is None)  # those that have begun come first
        active: dict[Future[dict[str, Any]], tuple[int, LocalWorker]] = {}
        with catch_stop_signals() as stop_signal:
            try:
                while active or waiting:
                    while waiting and idle:
                        index, worker = waiting.pop(0), idle.pop(0)
                        attempts[index] += 1
                        active[worker.submit(execute, runs[index], folder, index)] = index, worker
                    done, _ = wait(active, timeout=MESSAGE_INTERVAL, return_when=FIRST_COMPLETED)
                    for worker in self._workers:
                        for index, progress in worker.read_messages():
                            on_progress(runs[index], progress)
                    if stop_signal() is not None:
                        raise Terminated("stopped by a signal; run the command again to resume", stop_signal())
                    for future in done:
                        index, worker = active.pop(future)
                        error = future.exception()
                        if isinstance(error, BrokenProcessPool):
                            worker.restart()
                        idle.append(worker)
                        if isinstance(error, BrokenProcessPool | Terminated) and attempts[index] < ATTEMPTS:
                            waiting.insert(0, index)
                        else:
                            yield runs[index], error if isinstance(error, Exception) else future.result()
            except BaseException:  # such as Ctrl-C or SIGTERM
                self.close()
                raise


class LocalWorker:
    """One process that trains one run at a time. If it is killed, this costs no other run."""

    def __init__(self, device: str | None) -> None:
        self.device = device  # the GPU of this worker, for CUDA_VISIBLE_DEVICES
        self.start()

    def start(self) -> None:
        """Prepare the process. It begins with the first run."""
        context = get_context("spawn")
        self.process: Any = None
        self.messages = context.SimpleQueue()
        self.pool = ProcessPoolExecutor(
            1, mp_context=context, initializer=_prepare_worker, initargs=(self.device, self.messages)
        )

    def submit(self, execute: Execute, run: Run, folder: Path, index: int) -> Future[dict[str, Any]]:
        """Train a run. Its messages carry the index."""
        before = active_children()
        try:
            future = self.pool.submit(_execute_one, execute, run, folder, index)
        except BrokenProcessPool:  # it was killed while it was idle
            self.restart()
            return self.submit(execute, run, folder, index)
        self.process = self.process or next((child for child in active_children() if child not in before), None)
        return future

    def read_messages(self) -> Iterator[tuple[int, Progress]]:
        """The messages that wait: the index of a run and its progress."""
        while not self.messages.empty():
            yield self.messages.get()

    def terminate(self) -> None:
        """Stop the process. A run in training saves a checkpoint first."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        if self.process is not None:
            self.process.terminate()

    def join(self) -> None:
        """Wait until the process has ended, and kill it after the grace period."""
        if self.process is not None and not connection.wait([self.process.sentinel], GRACE_PERIOD):
            self.process.kill()
        self.messages.close()

    def restart(self) -> None:
        """Replace a process that was killed."""
        self.terminate()
        self.join()
        self.start()


@contextmanager
def open_executor(name: str, jobs: int | None = None) -> Iterator[Executor]:
    """An executor by name, as of ``load_executor``. Its method ``close``, if it has one, is called at the end."""
    if jobs is not None and jobs > 1 and world_size() > 1:
        raise usage_error(
            "--jobs",
            f"jobs={jobs} in {world_size()} distributed processes",
            "distributed processes train one run at a time",
            "leave out --jobs",
        )
    executor = load_executor(name, jobs)
    try:
        yield executor
    finally:
        if callable(close := getattr(executor, "close", None)):
            close()


def load_executor(name: str, jobs: int | None = None) -> Executor:
    """An executor by name: ``local``, ``ray``, ``slurm``, an entry point, or ``module:Class``, each with arguments or without.

    ``jobs`` is passed if it is set and the class takes it.

    >>> load_executor("local", 2).jobs, load_executor("local(jobs=3)").jobs
    (2, 3)
    """
    subject = f"--executor {name}"
    executor_class: Any
    arguments: dict[str, Any] = {}
    if is_reference(name):
        reference = parse_reference(name, "--executor")
        executor_class, arguments = load_reference(reference, subject), reference.arguments
    else:
        short, bracket, rest = name.partition("(")
        executor_class, arguments = _load_by_name(short.strip(), subject), parse_arguments(bracket + rest, subject)
    if not inspect.isclass(executor_class):
        got = format_value(executor_class)
        raise usage_error(subject, got, "an executor is a class with a method run", "name such a class")
    run = getattr(executor_class, "run", None)
    if not callable(run):
        got = f"{executor_class.__name__} without run"
        remedy = f"write def run(self, execute, runs, folder, on_progress) in {executor_class.__name__}"
        raise usage_error(subject, got, "an executor is a class with a method run", remedy)
    remedy = "write def run(self, execute, runs, folder, on_progress)"
    names = ("self", "execute", "runs", "folder", "on_progress")
    require_parameters(f"{subject}: {executor_class.__name__}.run", run, names, remedy)
    if jobs is not None and "jobs" in inspect.signature(executor_class).parameters:
        arguments = {"jobs": jobs} | arguments
    try:
        return cast(Executor, executor_class(**arguments))
    except WhenceError:
        raise
    except TypeError as error:
        raise usage_error(subject, str(error), "its arguments must fit the class", "correct them") from error


def _load_by_name(name: str, subject: str) -> Any:
    if name in BUILT_IN:
        return load_reference(PluginReference(*BUILT_IN[name]), subject)
    found = load_registered(EXECUTORS, name, subject)
    if found is None:
        known = [*BUILT_IN, *entry_points(EXECUTORS)]
        remedy = did_you_mean(name, known, "name one, or module:Class")
        raise usage_error(subject, "an unknown executor", f"the executors are {', '.join(known)}", remedy)
    return found


def limit_rate(send: OnMessage) -> OnMessage:
    """A callback that forwards a message every ``MESSAGE_INTERVAL`` seconds, and the last one of a run."""
    last = -MESSAGE_INTERVAL

    def forward(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > MESSAGE_INTERVAL or progress.step == progress.steps:
            last = time.monotonic()
            send(progress)

    return forward


def forward_messages(messages: Any, runs: Sequence[Run], on_progress: OnProgress) -> None:
    """Report all messages that wait in a queue. Each is the index of a run and its progress."""
    while True:
        try:
            index, progress = messages.get_nowait()
        except queue.Empty:
            return
        on_progress(runs[index], progress)


def world_size() -> int:
    """The number of processes that train one model together, started by ``accelerate launch`` or ``torchrun``."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_rank() -> int:
    """The index of this process among them. Process 0 writes records and reports."""
    return int(os.environ.get("RANK", "0"))


def broadcast(value: Any) -> Any:
    """The value of process 0 in each of the processes that train together. Without such processes, the value itself."""
    if world_size() == 1:
        return value
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    PartialState(cpu=not torch.cuda.is_available())  # joins the processes, unless they are joined already
    values = [value]
    broadcast_object_list(values, from_process=0)
    return values[0]


def default_jobs() -> int:
    """The number of runs at a time: one for each GPU if there are several, otherwise one for each core of this process."""
    gpus = len(list_gpus())
    if world_size() > 1:
        return 1
    return gpus if gpus > 1 else len(os.sched_getaffinity(0))


def list_gpus() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return named.split(",")[:count] if named else [str(index) for index in range(count)]


#: in a worker process: the queue for its messages
_messages: Any = None


def _prepare_worker(device: str | None, messages: Any) -> None:
    """Give a worker its GPU, before it uses CUDA, and let it end with its parent."""
    global _messages
    _messages = messages
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    end_with_parent()


def _execute_one(execute: Execute, run: Run, folder: Path, index: int) -> dict[str, Any]:
    def send(progress: Progress) -> None:
        with suppress(OSError):  # the parent is ending; the run still saves its checkpoint
            _messages.put((index, progress))

    return execute(run, folder, limit_rate(send))
