"""The sweep of ``whence compare``: choose settings of each arm on validation data, before the comparison."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whence.errors import usage_error

if TYPE_CHECKING:
    from whence.lab.study import Study


def run_sweeps(
    studies: list[Study],
    sweep: dict[str, tuple[Any, ...]],
    seeds: int,
    out: Path,
    jobs: int | None,
    executor: str,
    deadline: float,
    shard: str | None,
) -> list[Study] | None:
    """The studies with the best settings of each arm; None if the time limit was reached before all tries were done.

    A shard does its share of the tries first, then those that no other process has begun, and waits for the rest.
    """
    from whence.cli.live_table import show_arms
    from whence.cli.run import describe_divergence, parse_shard
    from whence.lab import sweeps
    from whence.lab.executors import default_jobs, world_size
    from whence.lab.sequential import run_until_decided
    from whence.lab.sources import pin_sources
    from whence.lab.study_labels import label_study

    if world_size() > 1:
        rule = "distributed processes train one run together and cannot choose settings"
        raise usage_error(
            "--sweep", f"{world_size()} distributed processes", rule, "run the sweep in one process first"
        )
    tuning = [pin_sources(sweeps.build_tuning_study(study, sweep, seeds)) for study in studies]
    tries = len(sweeps.list_combinations(sweep))
    print(f"sweep: {tries} tries of each arm on validation data", file=sys.stderr)
    index, count = parse_shard(shard)
    selections = [lambda runs: runs[index::count], lambda runs: runs] if count > 1 else [lambda runs: runs]
    with show_arms(tuning, deadline - time.monotonic()) as callbacks:
        for select in selections:
            states = run_until_decided(
                tuning, out / sweeps.FOLDER, seconds=max(1e-3, deadline - time.monotonic()), jobs=jobs or default_jobs(),
                executor=executor, select=select, **callbacks,
            )  # fmt: skip
    for state in states:
        for line in [
            *state.outcome.problems,
            *(error.describe() for error in state.outcome.failed),
            *(describe_divergence(run, state.outcome.folder) for run in state.outcome.diverged),
        ]:
            print(line, file=sys.stderr)
    unfinished = sum(len(state.outcome.unfinished) for state in states)
    if unfinished:
        print(
            f"the time limit was reached in the sweep; run the command again to resume {unfinished} runs",
            file=sys.stderr,
        )
        return None
    if any(state.outcome.problems for state in states):
        raise typer.Exit(1)
    tuned = []
    for study, own, state in zip(studies, tuning, states, strict=True):
        chosen, record = sweeps.choose_settings(study, own, state.outcome.folder, sweep)
        chosen = pin_sources(chosen)
        sweeps.write_sweep(chosen, out, record)
        print(f"{label_study(study)}: {sweeps.describe_choice(record)}")
        tuned.append(chosen)
    return tuned
