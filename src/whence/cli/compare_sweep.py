"""The sweep of ``whence compare``: choose settings of each arm on validation data, before the comparison."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whence.cli.fitted_table import fit_table
from whence.cli.live_table import ArmTable, describe_values, show_arms
from whence.errors import usage_error
from whence.lab.study_labels import label_study

if TYPE_CHECKING:
    from whence.lab.study import Run, Study


class SweepTable(ArmTable):
    """The state of the tries: one row for each arm of the comparison."""

    def render(self, width: int) -> Any:
        """A rich table for a terminal: tries that ended, the lowest and the highest value, and the try in progress."""
        groups = []
        for study in self.studies:
            tries: dict[str, list[str]] = {}
            for arm in study.arms:
                tries.setdefault(split_try(arm.name)[0], []).append(arm.name)
            labels = [label_study(study), f"on {study.decision.split}"]
            rows = []
            for index, (arm_name, names) in enumerate(tries.items()):
                values = [self.values[study.name, name] for name in names if self.values.get((study.name, name))]
                means = sorted(sum(own.values()) / len(own) for own in values)
                ends = [describe_values([mean], study.decision.metric)[0] for mean in (means[:1] + means[-1:])]
                running = [key for key in self.fractions if key[0] == study.name and key[1] in names]
                ended = sum(all((study.name, name, seed) in self.ended for seed in study.seeds) for name in names)
                state = [f"{split_try(key[1])[1]}: {100 * self.fractions[key]:.0f} %" for key in running]
                label = labels[index] if index < len(labels) else ""
                rows.append((label, arm_name, f"{ended} of {len(names)}", *(ends or ("", "")), "; ".join(state)))
            groups.append(rows)
        columns = ("task", "arm", "tries", "lowest", "highest", "in progress")
        return fit_table(self._title(), columns, groups, width, ("task", "lowest", "tries"))


def split_try(name: str) -> tuple[str, str]:
    """The arm and the settings of a try.

    >>> split_try("rotary; heads=2; lr=0.001, layers=2")
    ('rotary; heads=2', 'lr=0.001, layers=2')
    """
    arm, _, settings = name.rpartition("; ")
    return arm, settings


def choice_lines(label: str, record: Mapping[str, Any]) -> list[str]:
    """What a sweep chose, for a terminal: a line about the tries, then one for each arm."""
    from whence.lab.sweeps import describe_settings

    chosen = [one for one in record["tries"] if one["chosen"]]
    rows = [
        (one["arm"], describe_values([one["mean"]], record["metric"])[0], describe_settings(one["settings"]))
        for one in chosen
    ]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    title = f"{label}: chosen by {record['metric'].replace('_', ' ')} on {record['split']} data, from {record['tries_per_arm']} tries of each arm:"
    return [title, *(f"  {name:{names}}  {value:>{values}}  {settings}" for name, value, settings in rows)]


def require_one_process() -> None:
    """Raise if several distributed processes train one run together."""
    from whence.lab.executors import world_size

    if world_size() > 1:
        rule = "distributed processes train one run together and cannot choose settings"
        raise usage_error(
            "--sweep", f"{world_size()} distributed processes", rule, "run the sweep in one process first"
        )


def run_sweeps(
    studies: list[Study],
    sweep: dict[str, tuple[Any, ...]],
    seeds: int,
    out: Path,
    jobs: int | None,
    executor: str,
    deadline: float,
    shard: str | None,
    results: dict[str, Any],
) -> list[Study] | None:
    """The studies with the best settings of each arm; None if the time limit was reached before all tries were done.

    A shard does its share of the tries first, then those that no other process has begun, and waits for the rest. ``results``
    gets what ``--json`` prints of a sweep that has not ended.
    """
    from whence.cli.run import count_runs, describe_divergence, parse_shard
    from whence.lab import sweeps
    from whence.lab.executors import default_jobs
    from whence.lab.failures import find_recent_failure
    from whence.lab.runner import StudyOutcome
    from whence.lab.sequential import run_until_decided
    from whence.lab.sources import pin_sources
    from whence.lab.study_folder import study_folder

    began = time.time()

    def select_untried(runs: list[Run]) -> list[Run]:
        """The runs without those that failed in this sweep, here or in another process."""
        folders = [study_folder(run.study, out / sweeps.FOLDER) for run in runs]
        return [run for run, own in zip(runs, folders, strict=True) if find_recent_failure(run, own, began) is None]

    tuning = [pin_sources(sweeps.build_tuning_study(study, sweep, seeds)) for study in studies]
    tries, runs = len(sweeps.list_combinations(sweep)), sum(len(study.runs()) for study in tuning)
    print(
        f"sweep: {tries} tries of each arm on validation data, {count_runs(runs)}; the comparison then evaluates test data, "
        "with the chosen settings alone",
        file=sys.stderr,
    )
    index, count = parse_shard(shard)
    selections = [lambda runs: runs[index::count], select_untried] if count > 1 else [lambda runs: runs]
    outcomes = [StudyOutcome(out)] * len(tuning)
    with show_arms(tuning, deadline - time.monotonic(), SweepTable) as callbacks:
        for select in selections:
            states = run_until_decided(
                tuning, out / sweeps.FOLDER, seconds=max(1e-3, deadline - time.monotonic()), jobs=jobs or default_jobs(),
                executor=executor, select=select, **callbacks,
            )  # fmt: skip
            outcomes = [before.merge(state.outcome) for before, state in zip(outcomes, states, strict=True)]
    problems = [
        line
        for outcome in outcomes
        for line in [
            *outcome.problems,
            *(error.describe() for error in outcome.failed),
            *(describe_divergence(run, outcome.folder) for run in outcome.diverged),
        ]
    ]
    for line in problems:
        print(line, file=sys.stderr)
    unfinished = sum(len(outcome.unfinished) for outcome in outcomes)
    results.update(problems=problems, unfinished_runs=unfinished)
    if unfinished:
        print(
            f"the time limit was reached in the sweep; run the command again to resume {count_runs(unfinished)}",
            file=sys.stderr,
        )
        return None
    if any(outcome.problems for outcome in outcomes):
        raise typer.Exit(1)
    tuned = []
    for study, own, outcome in zip(studies, tuning, outcomes, strict=True):
        chosen, record = sweeps.choose_settings(study, own, outcome.folder, sweep)
        chosen = pin_sources(chosen)
        sweeps.write_sweep(chosen, out, record)
        print("\n".join(choice_lines(label_study(study), record)))
        tuned.append(chosen)
    return tuned
