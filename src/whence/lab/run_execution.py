"""Execute one run of a study: claim it, train it, write its weights and its record, and store why it failed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import Terminated, usage_error
from whence.lab import checkpoints, tasks, training
from whence.lab.claims import RunInProgress, claim_run
from whence.lab.executors import broadcast, process_rank, world_size
from whence.lab.failures import RunFailed, describe_error, find_recent_failure, remove_failure, write_failure
from whence.lab.reevaluation import TrainedRun, evaluate_trained_run
from whence.lab.sources import describe_origin, gpu_name, has_same_sources
from whence.lab.study import Run
from whence.lab.study_folder import checkpoint_path, find_record_problem, weights_path
from whence.lab.study_labels import label_study
from whence.lab.study_task import build_model, load_task
from whence.position.base import Position
from whence.position.parameter import format_setting
from whence.position.sum import Sum


class DeadlineReached(Exception):
    """The time limit was over before the run was done. Its checkpoint remains."""


def lacks_weights(run: Run, folder: Path) -> bool:
    """Whether a task needs the weights of its runs and those of this one are missing. Committed records have no weights."""
    return tasks.find_task_class(run.study.task).needs_weights and not weights_path(run, folder).exists()


def execute_run(
    run: Run,
    folder: Path,
    on_progress: Callable[[training.Progress], None] = lambda progress: None,
    origin: dict[str, Any] | None = None,
    deadline: float | None = None,
    trained: Mapping[str, TrainedRun] | None = None,
    within_claim: AbstractContextManager[None] | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """Train one arm with one seed, write its record and return it. Nothing is trained if its record exists by now.

    ``trained``: runs of other studies with the same weights, by file name; they are evaluated and not trained.
    ``within_claim`` is left before the claim on the run is released.
    ``began``: a run that failed in another process since this ``time.time()`` raises ``RunFailed`` and is not trained.

    Raises ``RunInProgress`` if another process trains it, and ``DeadlineReached`` if it is not done at the deadline.
    """
    if run.study.sources and not has_same_sources(run.study):
        raise usage_error(
            f"the study {label_study(run.study)}",
            f"changed code of {', '.join(run.study.sources)}",
            "all runs of a study use the same code",
            "run the command again: it starts a new study",
        )
    origin = origin or describe_origin(run.study)
    if (
        world_size() > 1
    ):  # distributed processes train a run together, and would not all see its record at the same time
        return train_run(run, folder, on_progress, origin, deadline)
    path = folder / run.file_name
    with claim_run(run, folder), within_claim or nullcontext():
        for written in (path, weights_path(run, folder), checkpoint_path(run, folder)):
            records.remove_partial_files(written)
        recorded = records.exists(path) and find_record_problem(path, run) is None
        if recorded:
            stored = records.read(path)
            if stored["result"]["status"] != "done" or not lacks_weights(run, folder):
                on_progress(training.Progress(step=1, steps=1, loss=float("nan")))
                return stored
        failure = None if began is None else find_recent_failure(run, folder, began)
        if failure is not None:
            raise RunFailed(failure)
        if trained and run.file_name in trained and not recorded:
            record = evaluate_again(run, folder, on_progress, origin, trained[run.file_name])
            if record is not None:
                return record
        return train_run(run, folder, on_progress, origin, deadline)


def try_run(
    run: Run,
    folder: Path,
    on_progress: Callable[[training.Progress], None] = lambda progress: None,
    origin: dict[str, Any] | None = None,
    deadline: float | None = None,
    trained: Mapping[str, TrainedRun] | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """``execute_run``, with every error as ``RunFailed``.

    The failure is stored while the claim is held: a process that claims the run next finds it and does not train the run again.
    """
    with store_errors(run, folder):  # also those that occur before the claim
        record = execute_run(run, folder, on_progress, origin, deadline, trained, store_errors(run, folder), began)
    if process_rank() == 0:
        remove_failure(run, folder)
    return record


@contextmanager
def store_errors(run: Run, folder: Path) -> Iterator[None]:
    """Store an error of the body as the failure of a run, where its traceback is known, and raise it as ``RunFailed``."""
    try:
        yield
    except (Terminated, RunInProgress, DeadlineReached):
        raise
    except Exception as error:
        raise store_failure(run, folder, error) from None


def store_failure(run: Run, folder: Path, error: Exception) -> RunFailed:
    """Store why a run failed, unless the process that ran it has done so."""
    if isinstance(error, RunFailed):
        return error
    failed = describe_error(run, error)
    if process_rank() == 0:
        write_failure(run, folder, failed.failure)
    return failed


def evaluate_again(
    run: Run,
    folder: Path,
    on_progress: Callable[[training.Progress], None],
    origin: dict[str, Any],
    trained: TrainedRun,
) -> dict[str, Any] | None:
    """Write the record of a run from the weights of another one; None if it must be trained."""
    torch.set_num_threads(1)  # as in training
    task = load_task(run.study)
    record = evaluate_trained_run(run, trained, task, build_model(run, task), folder, origin)
    if record is not None:
        records.write(folder / run.file_name, json.loads(json.dumps(record)))
        last = record["result"]["evaluations"][-1]["splits"]
        values = {split: row["value"] for split, row in last.items()}
        on_progress(training.Progress(step=1, steps=1, loss=float("nan"), values=values))
    return record


def train_run(
    run: Run,
    folder: Path,
    on_progress: Callable[[training.Progress], None],
    origin: dict[str, Any],
    deadline: float | None,
) -> dict[str, Any]:
    """Train a run and write its weights and its record."""
    path = folder / run.file_name
    if deadline is not None and broadcast(time.time() >= deadline):
        raise DeadlineReached(f"{run.file_name} was not started")
    torch.set_num_threads(1)  # the number of threads changes the order of sums; use jobs for parallel runs
    task = load_task(run.study)
    model = build_model(run, task)
    started, began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    before = describe_positions(model)
    state = checkpoint_path(run, folder)
    main_process = process_rank() == 0
    report = on_progress if main_process else lambda progress: None
    result: dict[str, Any]
    late_signal: int | None = None  # it came when the last step was done
    try:
        with training.catch_stop_signals() as stop_signal:

            def should_stop() -> bool:
                return stop_signal() is not None or (deadline is not None and time.time() >= deadline)

            try:
                curves = training.train(model, task, run.budget, run.seed, state, report, should_stop=should_stop)
                late_signal = stop_signal()
            except Terminated as error:
                if stop_signal() is None:
                    raise DeadlineReached(str(error)) from None
                raise Terminated(str(error), stop_signal()) from None
        result = {"status": "done"} | curves
    except training.DivergenceError as error:
        checkpoint = state.name if state.exists() else None
        result = {"status": "diverged", "step": error.step, "reason": str(error), "last_good_checkpoint": checkpoint}
        result |= error.curves
    record = {
        "hash": run.study.hash, "arm": run.arm.name, "position": run.arm.position, "seed": run.seed,
        "spec": run.study.spec(), "task": task.settings, "parameters": sum(p.numel() for p in model.parameters()),
        "result": result, "numbers": {"before": before, "after": describe_positions(model)}, "started": started,
        "notes": task.notes(model) if result["status"] == "done" else {},  # a diverged model contains NaN
        "wall_seconds": time.monotonic() - began, "processes": world_size(), **origin,
        "environment": origin["environment"] | {"machine": records.describe_machine(gpu_name())},
    }  # fmt: skip
    if not main_process:
        return record
    recorded = records.exists(path)
    if recorded and find_record_problem(path, run) is not None:
        raise usage_error(
            f"the study {label_study(run.study)}",
            f"{path.name}, which appeared during the run and is not a record of it",
            "a record is written once",
            "move that file and run again",
        )
    if recorded and not lacks_weights(run, folder):  # another process finished this run first
        return records.read(path)
    if result["status"] == "done":
        metadata = {
            "hash": run.study.hash,
            "spec": run.study.spec(),
            "arm": run.arm.name,
            "seed": run.seed,
            "task": task.weights_metadata(model),
        }
        checkpoints.save_weights(weights_path(run, folder), model, metadata)
    if not recorded:
        records.write(path, json.loads(json.dumps(record)))
    if result["status"] == "done":  # only now: a process that is killed before has something to resume from
        checkpoints.remove(state)
    if late_signal is not None and world_size() == 1:  # the run is complete, and no other begins
        raise Terminated(f"stopped after {run.file_name}; run the command again to resume", late_signal)
    return record


def describe_positions(model: torch.nn.Module) -> dict[str, str]:
    """The settings and parameters of each layer's position, for a table of learned values."""
    described = {}
    for name, module in model.named_modules():
        if isinstance(module, Position) and not isinstance(module, Sum):  # its members describe themselves
            described[name] = "; ".join(f"{key}={format_setting(value)}" for key, value in module.repr_items())
    return described
