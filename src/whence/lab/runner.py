"""Run a study: every arm with every seed. Each record is written once; an interrupted study resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import require_package, usage_error
from whence.lab import checkpoints, checks, decisions, tasks
from whence.lab.claims import RunInProgress, claim_study, wait_for_run
from whence.lab.executors import Executor, OnProgress, broadcast, open_executor, process_rank, world_size
from whence.lab.failures import RunFailed, find_recent_failure, remove_failure
from whence.lab.reevaluation import find_trained_runs
from whence.lab.run_execution import DeadlineReached, lacks_weights, store_failure, try_run
from whence.lab.run_keys import reuse_records, run_key
from whence.lab.sources import describe_origin, pin_sources
from whence.lab.study import Run, Study, share_family
from whence.lab.study_folder import (
    STUDY_FILES,
    checkpoint_path,
    find_record_problem,
    study_folder,
    task_facts,
    write_baselines,
    write_data_facts,
    write_spec,
)
from whence.lab.study_labels import label_task
from whence.lab.study_task import load_task

OnStart = Callable[[Sequence[Run], Path], None]
OnFailure = Callable[[Run, str], None]


@dataclass
class StudyOutcome:
    """What ``run_study`` did and what it met."""

    folder: Path
    completed: list[Run] = field(default_factory=list)  # during this call, also by another process
    existing: list[Run] = field(default_factory=list)  # before this call, in this study or another one of the folder
    diverged: list[Run] = field(default_factory=list)  # in this call or before
    unfinished: list[Run] = field(default_factory=list)  # at the deadline; a rerun resumes them
    failed: list[RunFailed] = field(default_factory=list)  # in this call; a rerun tries them again
    problems: list[str] = field(default_factory=list)  # corrupt or foreign records
    notes: list[str] = field(default_factory=list)  # about weights of other studies

    def merge(self, later: StudyOutcome) -> StudyOutcome:
        """The outcome of two calls for the same study."""
        completed = self.completed + [run for run in later.completed if run not in self.completed]
        existing = self.existing + [run for run in later.existing if run not in self.existing + completed]
        diverged = self.diverged + [run for run in later.diverged if run not in self.diverged]
        failed = self.failed + [error for error in later.failed if str(error) not in map(str, self.failed)]
        problems = self.problems + [line for line in later.problems if line not in self.problems]
        notes = self.notes + [line for line in later.notes if line not in self.notes]
        return StudyOutcome(later.folder, completed, existing, diverged, later.unfinished, failed, problems, notes)


def run_study(
    study: Study,
    base: Path | str,
    *,
    jobs: int | None = 1,
    executor: str = "local",
    select: Callable[[list[Run]], list[Run]] = lambda runs: runs,
    deadline: float | None = None,
    on_progress: OnProgress = lambda run, progress: None,
    on_start: OnStart = lambda runs, folder: None,
    on_failure: OnFailure = lambda run, state: None,
) -> StudyOutcome:
    """Run every arm and seed that has no record yet. All usage errors are raised before training starts.

    The sources of the user's code are pinned first: after an edit the study gets a new folder and trains anew. Records of
    other studies in ``base`` are reused if they compute the same. Several processes and machines may run the same study
    in the same folder at once: each run is trained by one of them.

    Args:
        study: what to run.
        base: the study gets a folder of its own in this one.
        jobs: number of runs at a time; None for the default of the executor.
        executor: ``local``, ``ray``, ``slurm``, the name of an entry point in ``whence.executors``, or ``module:Class``.
        select: returns the runs to do now, out of all runs of the study.
        deadline: a ``time.time()`` at which training stops. Runs that it interrupts leave a checkpoint.
        on_progress: called with a run and its progress.
        on_start: called with the selected runs and the folder, after records of other studies were reused.
        on_failure: called with a run that ended without a value, and ``failed`` or ``diverged``.
    """
    base = Path(base)
    records.require_output_folder("--out", base)
    with open_executor(executor, jobs) as chosen:
        return run_round(prepare_study(study), base, chosen, select, deadline, on_progress, on_start, on_failure)


@dataclass(frozen=True)
class PreparedStudy:
    """A study that can run, and what all its rounds share."""

    study: Study  # with pinned sources
    task: tasks.Task
    origin: dict[str, Any]  # from the start: the sources may be edited before the last run ends
    began: float  # time.time(); a run that failed later, in any process, is not tried again


def prepare_study(study: Study) -> PreparedStudy:
    """Pin the sources of a study and validate it. Nothing is written."""
    began, pinned = time.time(), pin_sources(study)
    return PreparedStudy(pinned, validate_study(pinned), describe_origin(pinned), began)


def run_round(
    prepared: PreparedStudy,
    base: Path,
    executor: Executor,
    select: Callable[[list[Run]], list[Run]],
    deadline: float | None,
    on_progress: OnProgress,
    on_start: OnStart,
    on_failure: OnFailure,
) -> StudyOutcome:
    """Run the selected runs of a prepared study. The arguments are those of ``run_study``."""
    study, task = prepared.study, prepared.task
    folder = study_folder(study, base)
    if process_rank() == 0:
        records.make_folder(folder)
        with claim_study(folder):
            for name in STUDY_FILES:
                records.remove_partial_files(folder / name)
            write_spec(study, folder)
            task_facts(study, folder, task)
            write_data_facts(study, folder, task)
            write_baselines(study, folder, task, prepared.origin)
            reuse_records(study, folder, base)
    selected = select(study.runs())
    on_start(selected, folder)
    outcome, missing = broadcast(sort_runs(selected, folder) if process_rank() == 0 else None)
    new = [run for run in missing if not records.exists(folder / run.file_name)]
    trained, outcome.notes = find_trained_runs(new if world_size() == 1 else [], folder, base, task)
    for run in missing:
        if run not in new:
            outcome.notes.append(f"{run.file_name} has no weights, so the run is trained again; the record stays")
    execute = partial(try_run, origin=prepared.origin, deadline=deadline, trained=trained, began=prepared.began)
    while missing:
        busy: list[Run] = []  # in other processes
        for run, record in executor.run(execute, missing, folder, on_progress):
            if isinstance(record, RunInProgress):
                busy.append(run)
            elif isinstance(record, DeadlineReached):
                outcome.unfinished.append(run)
            elif isinstance(record, Exception):
                outcome.failed.append(store_failure(run, folder, record))
                on_failure(run, "failed")
            elif record["result"]["status"] == "done":
                outcome.completed.append(run)
                outcome.notes += describe_retrained(run, folder, record) if process_rank() == 0 else []
            else:
                outcome.diverged.append(run)
                on_failure(run, "diverged")
        missing = []
        for run in busy:
            finished = wait_for_run(run, folder, deadline)
            failure = find_recent_failure(run, folder, prepared.began)
            if failure is not None:  # in the other process
                outcome.failed.append(RunFailed(failure))
                on_failure(run, "failed")
            elif finished or deadline is None or time.time() < deadline:
                missing.append(run)  # read if there is a record by now; otherwise its process was killed
            else:
                outcome.unfinished.append(run)
    return outcome


def sort_runs(runs: Sequence[Run], folder: Path) -> tuple[StudyOutcome, list[Run]]:
    """The outcome of the runs that have a record, and the runs to train: those without one, or without needed weights."""
    outcome, missing = StudyOutcome(folder), []
    for run in runs:
        path = folder / run.file_name
        if not records.exists(path):
            missing.append(run)
            continue
        remove_failure(run, folder)  # of an earlier try
        problem = find_record_problem(path, run)
        if problem is not None:
            outcome.problems.append(problem)
        elif records.read(path)["result"]["status"] == "done":
            if lacks_weights(run, folder):
                missing.append(run)
                continue
            outcome.existing.append(run)
            checkpoints.remove(checkpoint_path(run, folder))  # of a process that was killed after it wrote the record
        else:
            outcome.diverged.append(run)
    return outcome, missing


def describe_retrained(run: Run, folder: Path, record: Mapping[str, Any]) -> list[str]:
    """A note if a run that was trained again for its weights scores differently from its record; otherwise none."""
    stored = records.read(folder / run.file_name)
    new, old = (one["result"]["evaluations"][-1]["splits"] for one in (record, stored))
    differing = [split for split in new if split in old and new[split]["value"] != old[split]["value"]]
    if not differing:
        return []
    split = run.study.decision.split if run.study.decision.split in differing else differing[0]
    return [
        f"the new weights of {run.file_name} score {new[split]['value']:.4f} on {split} and the record has "
        f"{old[split]['value']:.4f}: other versions or another machine"
    ]


def validate_study(study: Study) -> tasks.Task:
    """Build the task and every arm's model once, so that a bad spec fails before hours of training; return the task."""
    require_package("accelerate", "training", "lab")
    task = load_task(study)
    if study.decision.split not in task.splits():
        raise usage_error(
            "Study(decision=...)",
            f"split {study.decision.split!r}",
            f"{label_task(study.task, study.task_settings)} has {', '.join(task.splits())}",
            "choose one of them",
        )
    patience = [run.budget.patience for run in study.runs() if run.budget.patience is not None]
    if patience and task.validation is None:
        got = f"patience={patience[0]} on {label_task(study.task, study.task_settings)}"
        raise usage_error(
            "Study(budget=...)", got, "early stopping needs a task with a validation split", "leave out patience"
        )
    seen: dict[str, str] = {}
    for arm in study.arms:
        key = run_key(Run(study, arm, study.seeds[0]))
        if key in seen:
            got = f"{seen[key]!r} and {arm.name!r}, which are the same"
            raise usage_error(
                "Study(arms=...)", got, "arms must differ in position, model or budget", "remove one of them"
            )
        seen[key] = arm.name
    checks.require_usable_arms(study, task)
    return task


def check_studies(studies: Sequence[Study], baseline: str | None = None) -> tuple[list[Study], list[str]]:
    """The studies without the arms that cannot run on their task, and notes on these and on seeds that cannot decide.

    Each study gets its own notes as a part of ``about``. ``baseline`` is the baseline that the user named, if any.
    """
    require_package("accelerate", "training", "lab")
    checked, notes = [], []
    for study in studies:
        smaller, own = checks.leave_out_arms(study, checks.find_unusable_arms(study, load_task(study)), baseline)
        checked.append(smaller)
        notes.append(own)
    if any(notes):
        checked = share_family(checked)
    plans = [decisions.analysis_plan(study, study.decision.metric, True) for study in checked]
    seeds = checks.describe_seeds(checked, plans)
    for own in notes if seeds else ():
        own.append(str(seeds))
    checked = [
        replace(study, about=" ".join([study.about, *own]).strip()) for study, own in zip(checked, notes, strict=True)
    ]
    return checked, list(dict.fromkeys(note for own in notes for note in own))
