"""Running a study: every arm with every seed, each record written once, gone on from wherever it was stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import WhenceError, usage_error
from whence.lab import checkpoints, processes, tasks, training
from whence.lab.processes import Notify, side_by_side
from whence.lab.study import Run, Study
from whence.position.base import Position, Sum, format_setting


@dataclass
class Outcome:
    """What a call of ``run_study`` found and did."""

    folder: Path
    done: list[Run] = field(default_factory=list)  # now
    found: list[Run] = field(default_factory=list)  # before
    diverged: list[Run] = field(default_factory=list)  # now or before
    problems: list[str] = field(default_factory=list)  # records that are corrupt or foreign, and runs that failed


def folder_of(study: Study, base: Path) -> Path:
    return base / f"{study.name}-{study.hash}"


def run_study(study: Study, base: Path, *, jobs: int = 1, notify: Notify = lambda run, progress: None) -> Outcome:
    """Run what has no record yet. Everything that can be refused is refused before anything is trained."""
    if jobs > 1 and processes.count() > 1:
        raise usage_error(
            "run_study",
            f"jobs={jobs} in {processes.count()} processes that train together",
            "either runs go side by side, or processes share one run",
            "leave out jobs",
        )
    if base.exists() and not base.is_dir():
        raise usage_error("run_study", f"the file {base}", "records go into a folder", "name one, new or old")
    folder = folder_of(study, base)
    task = require_sound(study)
    if processes.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        keep_spec(study, folder)
        task_facts(study, folder, task)
        keep_baselines(study, folder, task)
    outcome = Outcome(folder)
    todo: list[Run] = []
    for run in study.runs():
        path = folder / run.file_name
        if not records.exists(path):
            todo.append(run)
            continue
        problem = problem_of(path, run)
        if problem is not None:
            outcome.problems.append(problem)
        elif records.read(path)["result"]["status"] == "done":
            outcome.found.append(run)
        else:
            outcome.diverged.append(run)
    if not todo:
        return outcome
    # of the sources that are loaded here and now: they may be edited before the last run ends
    work = partial(execute, origin=origin_of(study))
    if jobs == 1:
        for run in todo:
            _sort(outcome, run, work(run, folder, lambda progress, run=run: notify(run, progress)))  # type: ignore[misc]
    else:
        for run, record in side_by_side(work, todo, folder, jobs, notify):
            if isinstance(record, Exception):
                outcome.problems.append(f"{run.file_name} failed: {record}")
            else:
                _sort(outcome, run, record)
    return outcome


def require_sound(study: Study) -> tasks.Task:
    """Build the task and every arm's model once, so that a bad spec fails now and not after hours; the task."""
    task = task_for(study)
    if study.decision.split not in task.splits():
        raise usage_error(
            "study.decision",
            f"split {study.decision.split!r}",
            f"{study.task} has {', '.join(task.splits())}",
            "choose one of them",
        )
    if study.budget.patience is not None and task.validation is None:
        got = f"patience={study.budget.patience} on {study.task}"
        raise usage_error(
            "study.budget", got, "only a task with a validation split can stop by it", "leave patience out"
        )
    for run in study.runs()[: len(study.arms)]:
        model_for(run, task)
    return task


def task_facts(study: Study, folder: Path, task: tasks.Task | None = None) -> dict[str, Any]:
    """What a report must know of a study's task. Kept beside the records, which are worth more than the data they need."""
    path = folder / "task.json"
    if not records.exists(path):
        known = task or task_for(study)
        records.write(path, {"hash": study.hash, **known.facts()})
    return records.read(path)


def keep_spec(study: Study, folder: Path) -> None:
    path = folder / "study.json"
    if not records.exists(path):
        about = {"hash": study.hash, "spec": study.spec(), "about": study.about, "command": records.rerun_command()}
        records.write(path, about)
    elif records.read(path).get("hash") != study.hash:
        raise usage_error(
            "run", f"{path.parent.name}/study.json of another study", "a folder holds one study", "move it away"
        )


def keep_baselines(study: Study, folder: Path, task: tasks.Task) -> None:
    """What simple rules reach on the task, where it has some; found once."""
    path = folder / "baselines.json"
    if records.exists(path):
        return
    found = task.baselines()
    if found:
        records.write(path, {"hash": study.hash, "task": task.settings, "baselines": found, **origin_of(study)})


def problem_of(path: Path, run: Run) -> str | None:
    """What is wrong with an existing record, as a sentence; it is never touched."""
    try:
        record = records.read(path)
    except WhenceError as error:
        return f"{path.name} is left alone: {error}"
    if record.get("hash") != run.study.hash or record.get("seed") != run.seed or record.get("arm") != run.arm.name:
        return f"{path.name} is left alone: it belongs to another study, arm or seed"
    if not isinstance(record.get("result"), dict) or "status" not in record["result"]:
        return f"{path.name} is left alone: it says nothing of a result"
    return None


def task_for(study: Study) -> tasks.Task:
    """The task of a study, which counts by the metric that the study decides by."""
    task = tasks.load(study.task, **study.task_settings)
    metric = study.decision.metric or task.metric
    if metric != task.metric and type(task).tally is not tasks.Task.tally:
        raise usage_error(
            "study.decision",
            f"metric {metric!r}",
            f"{study.task} counts {task.metric} in a way of its own",
            "leave it out",
        )
    task.metric = metric
    return task


def model_for(run: Run, task: tasks.Task) -> torch.nn.Module:
    """The model of an arm, with weights that its seed decides."""
    return task.build_model(dict(run.study.model) | dict(run.arm.model), run.arm, run.seed)


def execute(
    run: Run,
    folder: Path,
    notify: Callable[[training.Progress], None] = lambda progress: None,
    origin: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train one arm with one seed and write its record; the record's content is the answer."""
    origin = origin or origin_of(run.study)
    torch.set_num_threads(1)  # sums are added in another order by more threads; runs go side by side instead
    task = task_for(run.study)
    model = model_for(run, task)
    started, began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    before = numbers_of(model)
    state = folder / "checkpoints" / f"{run.file_name.removesuffix('.json')}.safetensors"
    first = processes.rank() == 0
    tell = notify if first else lambda progress: None
    result: dict[str, Any]
    try:
        result = {"status": "done"} | training.train(model, task, run.study.budget, run.seed, state, tell)
    except training.Diverged as error:
        kept = state.name if state.exists() else None
        result = {"status": "diverged", "step": error.step, "reason": str(error), "last_good_checkpoint": kept}
        result |= error.curves
    record = {
        "hash": run.study.hash, "arm": run.arm.name, "position": run.arm.position, "seed": run.seed,
        "spec": run.study.spec(), "task": task.settings, "parameters": sum(p.numel() for p in model.parameters()),
        "result": result, "numbers": {"before": before, "after": numbers_of(model)}, "started": started,
        "notes": task.notes(model) if result["status"] == "done" else {},  # what diverged is full of NaN
        "wall_seconds": time.monotonic() - began, "processes": processes.count(), **origin,
    }  # fmt: skip
    if not first:
        return record
    path = folder / run.file_name
    if records.exists(path):
        raise usage_error("run", f"{path.name} appeared meanwhile", "a record is written once", "look at it")
    if result["status"] == "done":
        name = f"{run.file_name.removesuffix('.json')}.safetensors"
        about = {
            "hash": run.study.hash,
            "spec": run.study.spec(),
            "arm": run.arm.name,
            "seed": run.seed,
            "task": task.kept(model),
        }
        checkpoints.save_weights(folder / "weights" / name, model, about)
        checkpoints.remove(state)
    records.write(path, json.loads(json.dumps(record)))
    return record


def origin_of(study: Study) -> dict[str, Any]:
    """The command and the environment for the records of a study, with the GPU if there is one to train on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    sources = [tasks.kind_of(study.task).__module__]
    environment = records.describe_environment(("torch", "accelerate"), accelerator=gpu, sources=sources)
    return {"command": records.rerun_command(), "environment": environment}


def numbers_of(model: torch.nn.Module) -> dict[str, str]:
    """What each layer's position says about itself, for a table of what was learned."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, Position) and not isinstance(module, Sum):  # of which each part says its own
            found[name] = "; ".join(f"{key}={format_setting(value)}" for key, value in module.repr_items())
    return found


def _sort(outcome: Outcome, run: Run, record: dict[str, Any]) -> None:
    (outcome.done if record["result"]["status"] == "done" else outcome.diverged).append(run)
