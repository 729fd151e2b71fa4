"""Run studies in rounds of seeds until every comparison is decided or the time is spent.

The looks of a study (``Decision.looks``) are numbers of seeds. After each of them the records are judged, and arms whose
comparison is decided get no further seeds. The error rate is divided over the looks (``AnalysisPlan.look_levels``), so
stopping early does not raise it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whence.lab import decisions, runner
from whence.lab.executors import OnProgress
from whence.lab.study import Run, Study
from whence.statistics.paired_comparison import PairedComparison

OnLook = Callable[[Study, PairedComparison], None]


@dataclass
class SequentialOutcome:
    """What ``run_until_decided`` did with one study."""

    study: Study
    outcome: runner.StudyOutcome
    comparison: PairedComparison | None = None  # of the last complete look
    seconds: float = 0.0  # of training, over all rounds
    active: tuple[str, ...] = field(default_factory=tuple)  # arms without a decision


def run_until_decided(
    studies: Sequence[Study],
    base: Path,
    *,
    seconds: float | None = None,
    jobs: int = 1,
    executor: str = "local",
    on_progress: OnProgress = lambda run, progress: None,
    on_look: OnLook = lambda study, comparison: None,
) -> list[SequentialOutcome]:
    """Run the rounds of several studies in turn. Every usage error is raised before any training.

    Args:
        studies: each with ``decision.looks``.
        base: the folder of the studies' folders.
        seconds: time limit for all of them; None for none. A run that it interrupts leaves a checkpoint, and the same
            call resumes.
        jobs, executor, on_progress: as for ``run_study``.
        on_look: called with a study and its comparison after each look.
    """
    deadline = None if seconds is None else time.time() + seconds
    pinned = [runner.pin_sources(study) for study in studies]
    for study in pinned:
        runner.validate_study(study)
    states = [
        SequentialOutcome(study, runner.StudyOutcome(runner.study_folder(study, base)), active=arm_names(study))
        for study in pinned
    ]
    for number in range(max(len(study.looks) for study in pinned)):
        for state in states:
            if number >= len(state.study.looks) or not state.active:
                continue
            if deadline is not None and time.time() >= deadline:
                return states
            seeds = state.study.seeds[: state.study.looks[number]]

            def select(
                runs: list[Run], active: tuple[str, ...] = state.active, seeds: Sequence[int] = seeds
            ) -> list[Run]:
                return [run for run in runs if run.arm.name in active and run.seed in seeds]

            began = time.monotonic()
            outcome = runner.run_study(
                state.study,
                base,
                jobs=jobs,
                executor=executor,
                select=select,
                deadline=deadline,
                on_progress=on_progress,
            )
            state.seconds += time.monotonic() - began
            state.outcome = state.outcome.merge(outcome)
            if outcome.unfinished:
                return states
            state.comparison = decisions.judge_study(state.study, outcome.folder).comparison
            if state.comparison is not None:
                state.active = state.comparison.undecided_arms()
                on_look(state.study, state.comparison)
    return states


def arm_names(study: Study) -> tuple[str, ...]:
    return tuple(arm.name for arm in study.arms)
