"""``compare``: the command ``whence compare`` as a function. The command itself parses its options and calls the same parts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import require_package, usage_error
from whence.position.base import Position
from whence.validation import format_value

if TYPE_CHECKING:
    from whence.lab.arms import Arm
    from whence.lab.study import Study


@dataclass(frozen=True, repr=False)
class Comparison:
    """What ``compare`` found. ``print`` shows the verdicts.

    Attributes:
        folder: the folder of the records.
        report: the HTML report of all tasks; None if runs are missing.
        study_reports: the report of each task.
        studies: for each task its ``verdict``, its ``arms`` with their values by seed, and the ``comparison`` with corrected
            intervals, as ``whence compare --json`` prints them.
        unfinished_runs: runs that the time limit interrupted. The same call resumes them.
        problems: runs that failed or diverged, and records that cannot be read, in words.
    """

    folder: Path
    report: Path | None
    study_reports: Sequence[Path]
    studies: Sequence[Mapping[str, Any]]
    unfinished_runs: int
    problems: Sequence[str]

    def __str__(self) -> str:
        lines = [f"{study['name']}: {study['verdict']}" for study in self.studies]
        if self.unfinished_runs:
            lines.append(f"unfinished runs: {self.unfinished_runs}; the same call resumes them")
        return "\n".join([*lines, *self.problems, f"report: {self.report}"])

    __repr__ = __str__


def compare(
    positions: Sequence[str | type[Position] | Arm] = (),
    tasks: Sequence[str] = (),
    *,
    data: str | Path | None = None,
    data_options: Mapping[str, Any] | None = None,
    context: int | None = None,
    lengths: Sequence[int] | None = None,
    metric: str = "",
    seeds: int | None = None,
    until: str | None = None,
    budget: str = "10m",
    margin: float | None = None,
    pairs: bool = False,
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    sweep: Sequence[str] = (),
    sweep_seeds: int = 1,
    jobs: int = 1,
    executor: str = "local",
    out: str | Path = "build/compare",
) -> Comparison:
    """Train one small model with several positions on the same tasks and seeds, as ``whence compare`` does.

    It shows progress, prints the verdicts and writes the report. Records are kept in ``out``: the same call resumes, and a larger
    one trains what is missing.

    Args:
        positions: texts as on the command line, such as ``"alibi"``, ``"Rotary() + Epar(learnable=True)"``,
            ``"./bell.py:Bell(width=3)"`` or ``"alibi; lr=1e-3"``; classes of an importable module; or ``whence.lab.arms.Arm``.
            By default six mechanisms.
        tasks: names of tasks, ``"module:Class"`` or ``"./file.py:Class"``. Two by default, without ``data``.
        data: a table, a text file, a folder or a Hugging Face dataset (``"hf:NAME"``).
        data_options: how to read the data, such as ``{"text_column": "body"}``.
        context: tokens of a training input.
        lengths: evaluation lengths as multiples of the trained length, such as ``[1, 2, 16]``.
        metric: the metric that decides; by default that of the task.
        seeds, until: the number of seeds of each arm. Without them seeds are added in rounds until the comparisons are decided;
            ``until="decided"`` does so with at most ``seeds``.
        budget: time limit, such as ``"20m"`` or ``"2h"``.
        margin: the difference below which arms are equivalent; 0 claims no equivalence.
        pairs: compare every two positions, not only each with the baseline.
        baseline: the position that the others are compared with; by default the first, or that of the task.
        settings: settings of the model and of training for all arms, such as ``{"layers": 4, "lr": 3e-4}``.
        sweep, sweep_seeds: values to try for each arm on validation data, such as ``["lr=1e-3,3e-3"]``, each with so many seeds.
        jobs: runs at a time. With more than one they are processes of their own, so a script needs
            ``if __name__ == "__main__":`` around the call.
        executor: where runs execute, see ``docs/comparing.md``.
        out: the folder of the records and the report.

    Example::

        found = whence.compare(["rotary", "alibi", "./bell.py:Bell"], ["retrieval"], seeds=5)
        found.studies[0]["verdict"]
    """
    import typer

    for package in ("typer", "rich", "accelerate"):
        require_package(package, "whence.compare", "lab")
    from whence.cli.compare_sweep import require_one_process
    from whence.cli.training_options import parse_duration
    from whence.lab.default_studies import choose_looks
    from whence.lab.sweeps import parse_sweeps
    from whence.records import require_output_folder

    sweeps, seconds, looks = parse_sweeps(sweep), parse_duration(budget), choose_looks(seeds, until)
    if sweeps:
        require_one_process()
    require_output_folder("whence.compare(out=...)", Path(out))
    studies, notes = plan_comparison(
        [_name_position(one) for one in positions], tasks, looks, None if data is None else str(data), data_options or {},
        context=context, lengths=lengths, metric=metric, margin=margin, pairs=pairs, baseline=baseline,
        settings=settings or {},
    )  # fmt: skip
    results: dict[str, Any] = {
        "report": None, "study_reports": (), "studies": (), "unfinished_runs": 0,
        "problems": ("the sweep has not ended; the same call goes on with it",),
    }  # fmt: skip
    with suppress(typer.Exit):  # the exit code of the command; the problems are in the results
        run_comparison(studies, notes, sweeps, sweep_seeds, Path(out), jobs, executor, seconds, None, results)
    return Comparison(**results | {"folder": Path(out)})


def _name_position(position: object) -> Any:
    """A class of an importable module as its text; a text or an arm as it is."""
    from whence.lab.arms import Arm

    if isinstance(position, str | Arm):
        return position
    got = format_value(position)
    if isinstance(position, type) and issubclass(position, Position):
        if position.__module__.startswith("whence.position."):
            return position.__name__
        if position.__module__ != "__main__" and "<" not in position.__qualname__:
            return f"{position.__module__}:{position.__qualname__}"
        got = f"the class {position.__name__}, which other processes cannot import"
    raise usage_error(
        "whence.compare(positions=...)",
        got,
        "a record names the code that made it, so positions are texts, arms, or classes of a module",
        "write the class into a file and pass its text, such as './bell.py:Bell(width=3)'",
    )


def plan_comparison(
    positions: Sequence[str | Arm],
    tasks: Sequence[str],
    looks: tuple[int, ...],
    data: str | None,
    data_options: Mapping[str, Any],
    *,
    baseline: str | None,
    settings: Mapping[str, Any],
    context: int | None,
    lengths: Sequence[int] | None,
    metric: str,
    margin: float | None,
    pairs: bool,
) -> tuple[list[Study], list[str]]:
    """The studies of a comparison, checked, and notes on what the checks left out."""
    from whence.lab import data_options as readers
    from whence.lab import default_studies, runner

    chosen = {name: value for name, value in data_options.items() if value is not None}
    names, task_settings = list(tasks), dict[str, dict[str, Any]]()
    if data is not None:
        name, task_settings[name] = readers.file_task(data, names, **chosen)
        names += [name] if name not in names else []
    else:
        task_settings = readers.assign_options(names, chosen)
    studies = default_studies.build_studies(
        tuple(names or default_studies.DEFAULT_TASKS),
        tuple(positions) or default_studies.DEFAULT_POSITIONS,
        looks,
        baseline=baseline,
        settings=settings,
        task_settings=task_settings,
        context=context,
        lengths=lengths,
        metric=metric,
        margin=margin,
        family="pairs" if pairs else "baseline",
    )
    return runner.check_studies(studies, baseline and studies[0].decision.baseline)


def run_comparison(
    studies: list[Study],
    notes: Sequence[str],
    sweeps: dict[str, tuple[Any, ...]],
    sweep_seeds: int,
    out: Path,
    jobs: int | None,
    executor: str,
    seconds: float,
    shard: str | None,
    results: dict[str, Any],
) -> None:
    """Run the sweep, then the studies in what is left of the time, and write the report. ``results`` gets what ``--json`` prints."""
    from whence.cli.compare_sweep import run_sweeps
    from whence.cli.run import run_studies

    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    deadline = time.monotonic() + seconds
    if sweeps:
        tuned = run_sweeps(studies, sweeps, sweep_seeds, out, jobs, executor, deadline, shard)
        if tuned is None:
            return
        studies = tuned
    left = max(1e-3, deadline - time.monotonic())
    run_studies(studies, out, jobs, None, executor, left, shard, results)
