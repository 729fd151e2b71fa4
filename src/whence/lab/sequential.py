"""Run studies in rounds of seeds until every comparison is decided or the time is spent.

The looks of a study (``Decision.looks``) are numbers of seeds. After each of them the records are judged, and arms whose
comparison is decided get no further seeds. The error rate is divided over the looks (``AnalysisPlan.look_levels``), so
stopping early does not raise it. A run that fails is left out by name and not tried again in the same call; an arm whose
runs all failed or diverged gets no further seeds. A study without looks has one round with all its seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from whence import records
from whence.lab import results, runner
from whence.lab.executors import OnProgress, broadcast, open_executor, process_rank
from whence.lab.study import Run, Study
from whence.lab.study_folder import study_folder
from whence.lab.study_labels import label_study
from whence.statistics import PairedComparison

OnLook = Callable[[Study, PairedComparison | None], None]


@dataclass
class StudyProgress:
    """How far one study has come."""

    study: Study
    outcome: runner.StudyOutcome
    active: tuple[str, ...]  # arms that get further seeds
    comparison: PairedComparison | None = None  # of the last complete look


def run_until_decided(
    studies: Sequence[Study],
    base: Path,
    *,
    seconds: float | None = None,
    jobs: int | None = 1,
    executor: str = "local",
    select: Callable[[list[Run]], list[Run]] = lambda runs: runs,
    on_progress: OnProgress = lambda run, progress: None,
    on_round: runner.OnStart = lambda runs, folder: None,
    on_look: OnLook = lambda study, comparison: None,
    on_failure: runner.OnFailure = lambda run, state: None,
) -> list[StudyProgress]:
    """Run the rounds of several studies in turn. Every usage error is raised before any training.

    Args:
        studies: what to run.
        base: the folder of the studies' folders.
        seconds: time limit for all of them; None for none. A run that it interrupts leaves a checkpoint, and the same
            call resumes.
        jobs, executor, on_progress, on_failure: as for ``run_study``.
        select: the share of this process in the runs, for array jobs. Before a look it also trains runs of the others that
            nobody has begun, and waits for those in progress, because a look needs all records of its round.
        on_round: called with the runs of a round and the study's folder before they start.
        on_look: called with a study and its comparison after each look.
    """
    started = time.time()
    records.require_output_folder("--out", base)
    with open_executor(executor, jobs) as chosen:
        prepared = [runner.prepare_study(study) for study in studies]
        deadline = broadcast(None if seconds is None else started + seconds)  # one for all distributed processes
        states = [
            StudyProgress(one.study, runner.StudyOutcome(study_folder(one.study, base)), _list_arms(one.study))
            for one in prepared
        ]
        for number in range(max(len(state.study.looks) for state in states)):
            for one, state in zip(prepared, states, strict=True):
                if number >= len(state.study.looks) or not state.active:
                    continue
                selected = partial(_select_round, select, state, number)
                outcome = runner.run_round(one, base, chosen, selected, deadline, on_progress, on_round, on_failure)
                state.outcome = state.outcome.merge(outcome)
                if outcome.unfinished:
                    return states
                if process_rank() == 0 and len(state.study.looks) > 1:
                    _judge_round(state, number)
                    on_look(state.study, state.comparison)
                state.active = broadcast(state.active)  # the decision of process 0
    return states


def _list_arms(study: Study) -> tuple[str, ...]:
    return tuple(arm.name for arm in study.arms)


def _select_round(
    select: Callable[[list[Run]], list[Run]], state: StudyProgress, number: int, runs: list[Run]
) -> list[Run]:
    """The runs of a round: seeds up to its look of the arms that need them, without those that failed before."""
    seeds, failed = state.study.seeds[: state.study.looks[number]], [error.run_id for error in state.outcome.failed]
    own = select(runs)
    others = [run for run in runs if run not in own] if len(state.study.looks) > 1 else []
    chosen = [run for run in own + others if run.arm.name in state.active and run.seed in seeds]
    return [run for run in chosen if (run.arm.name, run.seed) not in failed]


def _judge_round(state: StudyProgress, number: int) -> None:
    """Judge the records of a round. The arms that are undecided get further seeds."""
    judgement = results.judge_folder(state.study, state.outcome.folder)
    state.comparison = judgement.comparison
    state.outcome.notes += [
        f"{label_study(state.study)}: {name} gets no further seeds, "
        f"since all its {state.study.looks[number]} runs failed or diverged"
        for name in judgement.dropped
        if name in state.active
    ]
    state.active = judgement.needed
