"""A run is identified by what it computes, so that a study with more seeds, arms or evaluation lengths reuses its records.

The key of a run is a hash of everything that determines its result: task, data, model, position, budget, seed, and the
user's code. The name of the study, the names of its arms and what else stands in its lists are not part of it. Runs that
differ in evaluation lengths or in the metric have the same training key: they train the same weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import WhenceError
from whence.lab import checkpoints, tasks
from whence.lab.claims import RunInProgress, claim_run
from whence.lab.study import Budget, Run, Study
from whence.position.expression import parse_position

#: of a record whose spec is not that of a run, or whose code is gone
_UNREADABLE = (WhenceError, KeyError, TypeError, ValueError, StopIteration, AttributeError)


def run_spec(run: Run) -> dict[str, Any]:
    """Everything that determines the result of a run, as plain JSON. Defaults of the budget are left out."""
    expression = parse_position(run.arm.position)
    return _describe_run(run, expression.normal_form, [term.name for term in expression.terms])


def _describe_run(run: Run, position: str, terms: Iterable[str]) -> dict[str, Any]:
    study, defaults = run.study, {field.name: field.default for field in fields(Budget)}
    names = {study.task.partition("(")[0], *terms}
    spec = {
        "task": study.task,
        "task_settings": study.task_settings,
        "metric": study.decision.metric,
        "model": run.model,
        "position": position,
        "budget": {name: value for name, value in asdict(run.budget).items() if value != defaults[name]},
        "seed": run.seed,
        "sources": {name: digest for name, digest in study.sources.items() if name in names},
    }
    return json.loads(json.dumps(spec))


def run_key(run: Run) -> str:
    """A hash of ``run_spec``. Two runs with the same key compute the same."""
    return _hash(run_spec(run))


def training_key(run: Run) -> str:
    """A hash of what determines the weights of a run: ``run_spec`` without what concerns only their evaluation.

    The settings ``Task.evaluation_settings`` choose splits. The metric chooses no weights unless there is early stopping.
    """
    spec, evaluation = run_spec(run), tasks.find_task_class(run.study.task).evaluation_settings
    spec["task_settings"] = {name: value for name, value in spec["task_settings"].items() if name not in evaluation}
    if run.budget.patience is None:
        del spec["metric"]
    return _hash(spec)


def _hash(spec: dict[str, Any]) -> str:
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def record_key(record: dict[str, Any]) -> str | None:
    """The key of the run that a record belongs to, computed from the spec in it; None if the spec cannot be read."""
    try:
        return run_key(_recorded_run(record))
    except _UNREADABLE:
        return None


def is_record_of(record: dict[str, Any], run: Run) -> bool:
    """Whether a record, perhaps of another study, is that of a run. If the user's code is gone, positions are compared as text."""
    try:
        key = run_key(run)
    except WhenceError:
        try:
            return _written_spec(_recorded_run(record)) == _written_spec(run)
        except _UNREADABLE:
            return False
    return record_key(record) == key


def _written_spec(run: Run) -> dict[str, Any]:
    text = run.arm.position
    return _describe_run(run, text, [name for name in run.study.sources if name in text])


def _recorded_run(record: dict[str, Any]) -> Run:
    study = Study.from_spec(record["spec"])
    arm = next(arm for arm in study.arms if arm.name == record["arm"])
    return Run(study, arm, record["seed"])


def reuse_records(study: Study, folder: Path, base: Path) -> list[Run]:
    """Copy records and weights of runs with the same key from the other studies in ``base``; return these runs.

    Only finished and diverged runs are copied, each with its record as it was written. A record that is there already
    is left alone.
    """
    missing = {run_key(run): run for run in study.runs() if not records.exists(folder / run.file_name)}
    reused = []
    for other in records.find_folders(base, "study.json") if missing else []:
        if other.resolve() == folder.resolve():
            continue
        store = records.RecordFolder(other)
        try:
            runs = Study.from_spec(store.read("study.json")["spec"]).runs()
            matching = [run for run in runs if run.seed in study.seeds and run_key(run) in missing]
        except (WhenceError, KeyError, TypeError, ValueError):  # a study of a package that is gone
            continue
        for run in matching:
            own = missing.get(run_key(run))
            if own is None or not store.exists(run.file_name):
                continue
            try:
                record = store.read(run.file_name)
            except WhenceError:  # a corrupt record; the report of its own study names it
                continue
            if record_key(record) != run_key(own) or not isinstance(record.get("result"), dict):
                continue
            weights = other / "weights" / run.weights_name
            with suppress(RunInProgress), claim_run(own, folder):  # a run in progress needs no copy
                if weights.exists():
                    checkpoints.copy_weights(weights, folder / "weights" / own.weights_name)
                records.write(folder / own.file_name, record)
                reused.append(own)
            del missing[run_key(own)]
    return reused
