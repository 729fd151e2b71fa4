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
from pathlib import Path

from whence.lab import results, runner
from whence.lab.executors import OnProgress, process_rank
from whence.lab.sources import pin_sources
from whence.lab.study import Run, Study
from whence.lab.study_folder import study_folder
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
    deadline = None if seconds is None else time.time() + seconds
    pinned = [pin_sources(study) for study in studies]
    for study in pinned:
        runner.validate_study(study)
    states = [
        StudyProgress(study, runner.StudyOutcome(study_folder(study, base)), tuple(arm.name for arm in study.arms))
        for study in pinned
    ]
    for number in range(max(len(study.looks) for study in pinned)):
        for state in states:
            if number >= len(state.study.looks) or not state.active:
                continue
            seeds = state.study.seeds[: state.study.looks[number]]
            has_looks = len(state.study.looks) > 1

            def choose(
                runs: list[Run],
                active: tuple[str, ...] = state.active,
                seeds: Sequence[int] = seeds,
                has_looks: bool = has_looks,
                failed: Sequence[tuple[str, int]] = tuple(error.run_id for error in state.outcome.failed),
            ) -> list[Run]:
                own = select(runs)
                others = [run for run in runs if run not in own] if has_looks else []
                chosen = [run for run in own + others if run.arm.name in active and run.seed in seeds]
                return [run for run in chosen if (run.arm.name, run.seed) not in failed]

            outcome = runner.run_study(
                state.study,
                base,
                jobs=jobs,
                executor=executor,
                select=choose,
                deadline=deadline,
                on_progress=on_progress,
                on_start=on_round,
                on_failure=on_failure,
            )
            state.outcome = state.outcome.merge(outcome)
            if outcome.unfinished:
                return states
            if process_rank() == 0 and has_looks:
                judgement = results.judge_folder(state.study, outcome.folder)
                state.comparison = judgement.comparison
                state.outcome.notes += [
                    f"{state.study.name}: {name} gets no further seeds, since all its {len(seeds)} runs failed or diverged"
                    for name in judgement.dropped
                    if name in state.active
                ]
                state.active = judgement.needed
                on_look(state.study, state.comparison)
    return states
