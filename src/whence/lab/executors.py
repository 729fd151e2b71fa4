"""Executors run the runs of a study. The default one uses processes on this machine; others use Ray or Slurm.

An executor of your own is a class with the method of ``Executor``. Choose it with ``whence compare --executor
my_module:MyExecutor`` or register it in the entry point group ``whence.executors``.
"""

from __future__ import annotations

import inspect
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from whence.errors import WhenceError, usage_error
from whence.lab.study import Run
from whence.lab.training import Progress, Terminated, catch_stop_signals
from whence.plugins import (
    EXECUTORS,
    PluginReference,
    did_you_mean,
    entry_points,
    is_reference,
    load_entry_point,
    load_reference,
    parse_arguments,
    parse_reference,
    require_unique,
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
#: module and class of the built-in executors; the modules of clusters import packages that may be absent
BUILT_IN = {
    "local": ("whence.lab.executors", "LocalExecutor"),
    "ray": ("whence.lab.ray_executor", "RayExecutor"),
    "slurm": ("whence.lab.slurm_executor", "SlurmExecutor"),
}


class Executor(Protocol):
    """Run the runs of a study somewhere."""

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

    Without ``jobs``: one process for each GPU, or for each core.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or default_jobs()

    def run(
        self, execute: Execute, runs: Sequence[Run], folder: Path, on_progress: OnProgress
    ) -> Iterator[tuple[Run, Outcome]]:
        if self.jobs > 1:
            yield from _run_in_processes(execute, runs, folder, self.jobs, on_progress)
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
    plugins = entry_points(EXECUTORS)
    if name not in plugins:
        known = [*BUILT_IN, *plugins]
        remedy = did_you_mean(name, known, "name one, or module:Class")
        raise usage_error(subject, "an unknown executor", f"the executors are {', '.join(known)}", remedy)
    require_unique(EXECUTORS, name, subject)
    return load_entry_point(plugins[name], subject)


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


def _run_in_processes(
    execute: Execute, runs: Sequence[Run], folder: Path, jobs: int, on_progress: OnProgress
) -> Iterator[tuple[Run, Outcome]]:
    """At most ``jobs`` runs are submitted at a time, so that only these are affected if a worker is killed."""
    context = get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_follow_parent)
    others = {child.pid for child in active_children()}  # the manager, which the workers need until they end
    messages = manager.Queue()
    waiting, attempts = list(range(len(runs))), [0] * len(runs)
    visible_gpus = list_gpus()
    with manager, catch_stop_signals() as stop_signal:
        while waiting:
            active: dict[Future[dict[str, Any]], int] = {}
            broken, retry = False, []
            devices = manager.Queue()
            for index in range(jobs):
                devices.put(visible_gpus[index % len(visible_gpus)] if visible_gpus else None)
            with ProcessPoolExecutor(
                jobs, mp_context=context, initializer=_prepare_worker, initargs=(devices,)
            ) as pool:
                try:
                    while active or (waiting and not broken):
                        while waiting and len(active) < jobs and not broken:
                            try:
                                future = pool.submit(
                                    _execute_one, execute, runs[waiting[0]], folder, waiting[0], messages
                                )
                            except BrokenProcessPool:
                                broken = True
                                break
                            active[future] = waiting.pop(0)
                            attempts[active[future]] += 1
                        done, _ = wait(active, timeout=MESSAGE_INTERVAL, return_when=FIRST_COMPLETED)
                        forward_messages(messages, runs, on_progress)
                        if stop_signal() is not None:
                            raise Terminated("stopped by a signal; run the command again to resume", stop_signal())
                        for future in done:
                            index, error = active.pop(future), future.exception()
                            broken = broken or isinstance(error, BrokenProcessPool)
                            killed = isinstance(error, BrokenProcessPool | Terminated)
                            if killed and attempts[index] < ATTEMPTS:
                                retry.append(index)
                            else:
                                yield runs[index], error if isinstance(error, Exception) else future.result()
                except BaseException:  # such as Ctrl-C or SIGTERM: each worker saves a checkpoint
                    for child in active_children():
                        if child.pid not in others:
                            child.terminate()
                    raise
            waiting = retry + waiting


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


def _prepare_worker(devices: Any) -> None:
    """Give a worker its GPU, before it uses CUDA, and let it end with its parent."""
    device = devices.get()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    _follow_parent()


def _follow_parent() -> None:
    """Ignore interrupts, which the parent handles, and exit with the parent.

    After kill -9 of the parent nothing else would stop a child, and a second command would meet it at the same run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(parent_process(),), daemon=True).start()


def _exit_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _execute_one(execute: Execute, run: Run, folder: Path, index: int, messages: Any) -> dict[str, Any]:
    def send(progress: Progress) -> None:
        with suppress(OSError, EOFError):  # the parent is ending; the run still saves its checkpoint
            messages.put((index, progress))

    return execute(run, folder, limit_rate(send))
