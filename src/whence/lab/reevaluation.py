"""Evaluate the stored weights of a run again, for a study with other evaluation lengths or another metric.

A run of another study in the same folder may have trained the same model (``training_key``). Its values are reused, the
splits that it lacks are evaluated from its weights, and the record is the one that a full run would have given.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from whence import records
from whence.errors import NonFiniteHook, WhenceError
from whence.lab import checkpoints, training
from whence.lab.run_keys import record_key, run_key, training_key
from whence.lab.study import Run, Study
from whence.lab.tasks import Task
from whence.lab.tasks.base import compute_metric


@dataclass(frozen=True)
class TrainedRun:
    """A finished run of another study that trained the same model."""

    folder: Path
    file_name: str
    weights: Path

    def record(self) -> dict[str, Any]:
        return records.RecordFolder(self.folder).read(self.file_name)


def find_trained_runs(
    runs: Sequence[Run], folder: Path, base: Path, task: Task
) -> tuple[dict[str, TrainedRun], list[str]]:
    """For runs of a study without a record, by file name, runs in ``base`` whose weights they share; and notes for the user."""
    missing = {training_key(run): run for run in runs}
    trained: dict[str, TrainedRun] = {}
    without_weights: dict[str, str] = {}
    for other in records.find_folders(base, "study.json") if missing else []:
        if other.resolve() == folder.resolve():
            continue
        store = records.RecordFolder(other)
        try:
            others = Study.from_spec(store.read("study.json")["spec"]).runs()
            matching = [(run, missing.get(training_key(run))) for run in others]
        except (WhenceError, KeyError, TypeError, ValueError):  # a study of a package that is gone
            continue
        for run, own in matching:
            if own is None or own.file_name in trained or not store.exists(run.file_name):
                continue
            found = TrainedRun(other, run.file_name, other / "weights" / run.weights_name)
            try:
                record = store.read(run.file_name)
            except WhenceError:  # a corrupt record; the report of its own study names it
                continue
            if record_key(record) != run_key(run) or (chosen := select_values(record, own, task)) is None:
                continue
            if chosen[1] and not found.weights.exists():
                without_weights[own.file_name] = other.name
            else:
                trained[own.file_name] = found
    counts = Counter(name for file, name in without_weights.items() if file not in trained)
    notes = [f"{name} has no weights of {count} runs, so they are trained again" for name, count in counts.items()]
    used = Counter(one.folder.name for one in trained.values())
    notes += [f"{count} runs of {name} are evaluated again, not trained again" for name, count in used.items()]
    return trained, notes


def select_values(record: Mapping[str, Any], run: Run, task: Task) -> tuple[list[dict[str, Any]], list[str]] | None:
    """The evaluations of a record with the splits and the metric of a run, and the splits that the last one lacks.

    None if the record cannot be completed: the data differ, the run diverged, or a value is missing that needs training.
    """
    result = record.get("result", {})
    if result.get("status") != "done" or record.get("task") != json.loads(json.dumps(task.settings)):
        return None
    *earlier, last = result["evaluations"]
    during = task.training_splits() if run.budget.patience is None else [str(task.validation)]
    try:
        selected = [
            {**row, "splits": {split: _score(row["splits"][split], task) for split in during}} for row in earlier
        ]
        splits = {split: _score(last["splits"][split], task) for split in task.splits() if split in last["splits"]}
    except KeyError:
        return None
    return [*selected, {**last, "splits": splits}], [split for split in task.splits() if split not in splits]


def _score(row: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """The counts of an evaluation with the value of the task's metric. KeyError if they do not determine it."""
    if type(task).metric_accumulator is not Task.metric_accumulator:  # such a task has no other metric
        return dict(row)
    return {**row, "value": compute_metric(task.metric, row)}


def evaluate_trained_run(
    run: Run, trained: TrainedRun, task: Task, model: nn.Module, folder: Path, origin: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The record of a run from the weights of another one; None if an evaluation is not finite and the run must be trained.

    The weights are copied. ``evaluation`` in the record names the splits that were evaluated, from which record, by what.
    """
    record, began = trained.record(), time.monotonic()
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    chosen = select_values(record, run, task)
    if chosen is None:
        return None
    evaluations, lacking = chosen
    if lacking:
        checkpoints.load_weights(trained.weights, model)
        try:
            found = training.evaluate_weights(model, task, run.budget, lacking)
        except NonFiniteHook:
            return None
        if not all(math.isfinite(row["value"]) for row in found.values()):
            return None
        last = evaluations[-1]
        last["splits"] = {split: (last["splits"] | found)[split] for split in task.splits()}
    if trained.weights.exists():
        checkpoints.copy_weights(trained.weights, folder / "weights" / run.weights_name)
    own = {"hash": run.study.hash, "arm": run.arm.name, "position": run.arm.position, "spec": run.study.spec()}
    evaluation = {
        "splits": lacking, "record": f"{trained.folder.name}/{trained.file_name}", "started": started,
        "wall_seconds": time.monotonic() - began, **origin,
    }  # fmt: skip
    return {**record, **own, "result": {**record["result"], "evaluations": evaluations}, "evaluation": evaluation}
