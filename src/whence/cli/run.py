"""``whence run``"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence import records
from whence.cli.json_output import JsonOption, json_document, select
from whence.errors import usage_error

if TYPE_CHECKING:
    from whence.lab.experiment import Experiment
    from whence.lab.sequential import StudyProgress
    from whence.lab.study import Run, Study

HELP = "Run or resume a study or an experiment, and write its report or its figures."
EXAMPLES = """Examples:

whence run my_study.py --jobs 2 --out results

whence studies translation    (what a study is, how long it takes, its scales and its own options)

whence run translation --scale small

accelerate launch --num_processes 4 -m whence run my_study.py

A study file defines a function studies() that returns whence.lab.study.Study objects, or a function experiments() that
returns whence.lab.experiment.Experiment objects. Arguments of this function are further options: --name value."""
#: the options of a study file are unknown until the file is loaded
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def run(
    context: typer.Context,
    study: Annotated[
        str,
        typer.Argument(
            help="Name from `whence studies`, or a file. `whence studies NAME` lists its scales and options."
        ),
    ],
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Number of runs or experiments at a time. Default: all cores or GPUs, or the whole cluster; 1 with --quick.",
            min=1,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("results"),
    folder: Annotated[Path | None, typer.Option(help="Folder with study files. Default: studies.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test of an experiment, in seconds.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Name of one study or experiment of the file. Repeatable; default: all.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="Size of a study that has several, such as small or cpu; see `whence studies NAME`."),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="Where runs execute: local, ray, slurm, a plug-in, module:Class or ./file.py:Class.")
    ] = "local",
    shard: Annotated[str | None, typer.Option(help="i/n: every n-th run from the i-th on, for array jobs.")] = None,
    as_json: JsonOption = False,
) -> None:
    from whence.lab.executors import default_jobs
    from whence.lab.experiment import Experiment
    from whence.lab.experiment_runs import compute_experiments
    from whence.lab.study import Study
    from whence.lab.study_files import STUDIES_FOLDER, find_study_file, load_study_file, parse_options

    results = context.with_resource(json_document("run", as_json))
    parse_shard(shard)  # before any file is read
    options = parse_options(context.args)
    if folder is not None:
        records.require_folder("whence run --folder", folder, "study files")
    records.require_output_folder("whence run --out", out)
    path = find_study_file(study, folder or STUDIES_FOLDER)
    loaded = select_by_name(load_study_file(path, scale, options), only or [], path)
    experiments = [one for one in loaded if isinstance(one, Experiment)]
    if experiments:
        refuse_for_experiments(path, shard, executor)
        jobs = jobs or (1 if quick else default_jobs())
        compute_experiments(experiments, path, scale, options, out, quick=quick, jobs=jobs)
        run_experiments(experiments, out, quick, results)
        return
    if quick:
        raise usage_error("whence run --quick", path.name, "only experiments have a quick form", "leave out --quick")
    studies = [one for one in loaded if isinstance(one, Study)]
    title = studies[0].question if len(studies) == 1 else f"{study}: {len(studies)} studies"
    run_studies(studies, out, jobs, title, executor, shard=shard, results=results)


def refuse_for_experiments(path: Path, shard: str | None, executor: str) -> None:
    """Raise for options of studies. Every task of an array job would compute all experiments."""
    for option, value in (("--shard", shard), ("--executor", None if executor == "local" else executor)):
        if value is not None:
            rule = f"{path.name} has experiments, which one command computes on one machine"
            raise usage_error(
                f"whence run {option}", value, rule, f"leave out {option}; --jobs sets how many run at a time"
            )


def select_by_name(loaded: list[Study | Experiment], names: list[str], path: Path) -> list[Study | Experiment]:
    """The studies or experiments with these names; all of them without a name."""
    from whence.plugins import did_you_mean

    known = [one.name for one in loaded]
    unknown = [name for name in names if name not in known]
    if unknown:
        rule = f"{path.name} has {', '.join(known)}"
        raise usage_error("whence run --only", unknown[0], rule, did_you_mean(unknown[0], known, "name one of them"))
    return [one for one in loaded if not names or one.name in names]


def run_experiments(experiments: list[Experiment], out: Path, quick: bool, results: dict[str, Any]) -> None:
    from whence.lab.experiment import run_experiment

    for experiment in experiments:
        folder = run_experiment(
            experiment, out, quick=quick, progress=lambda line: print(line, file=sys.stderr, flush=True)
        )
        print(f"{experiment.name}: {experiment.record_path(out, quick)}, figures in {folder}")
        made = {"name": experiment.name, "record": experiment.record_path(out, quick), "figures": folder}
        results.setdefault("experiments", []).append(made)


def print_summary(studies: list[dict[str, Any]]) -> None:
    """Print what the findings of several studies claim, and what they leave undecided."""
    from whence.report.comparison.sentences import summary_lines

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(summary_lines(studies, width)))


def summarize_study(study: dict[str, Any]) -> dict[str, Any]:
    """The values, intervals and comparisons of a study's findings, for ``--json``."""
    from whence.report.comparison.verdicts import headline

    names = (
        "name",
        "question",
        "task",
        "hash",
        "metric",
        "higher_is_better",
        "split",
        "baselines",
        "why_no_comparison",
    )
    arms = [
        select(arm, "name", "position", "parameters", "summary", "values", "diverged", "failed")
        for arm in study["arms"]
    ]
    return select(study, *names) | {"verdict": headline(study), "arms": arms, "comparison": study["comparison"]}


def describe_divergence(run: Run, folder: Path) -> str:
    """One line: the arm with its position, the step, the reason and what to do."""
    from whence.lab.study_labels import label_study

    result = records.read(folder / run.file_name)["result"]
    name = run.arm.name if run.arm.name == run.arm.position else f"{run.arm.name} ({run.arm.position})"
    text = f"{name}, seed {run.seed} of {label_study(run.study)} diverged: {result['reason']}"
    if result["step"] == 0:
        text += "; nothing was trained yet, so run whence.check on the mechanism"
    return text


def parse_shard(text: str | None) -> tuple[int, int]:
    """
    >>> parse_shard("2/4"), parse_shard(None)
    ((1, 4), (0, 1))
    """
    if text is None:
        return 0, 1
    first, slash, second = text.partition("/")
    if not (slash and first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise usage_error("--shard", repr(text), "it has the form i/n with i from 1 to n", "pass 1/4, for example")
    return int(first) - 1, int(second)


def count_runs(number: int) -> str:
    """
    >>> count_runs(1), count_runs(3)
    ('1 run', '3 runs')
    """
    return f"{number} run{'' if number == 1 else 's'}"


def count_missing_runs(states: list[StudyProgress], index: int, count: int) -> int:
    """The number of runs that belong to other shards and have not ended. After several looks there are none."""
    from whence.lab.failures import load_failure

    return sum(
        not records.exists(state.outcome.folder / run.file_name) and load_failure(run, state.outcome.folder) is None
        for state in states
        if len(state.study.looks) == 1
        for number, run in enumerate(state.study.runs())
        if number % count != index
    )


def _describe_other_studies(out: Path, shown: list[str], others: list[Path]) -> str:
    """Where the reports of studies are that a report does not hold. Earlier versions wrote one for the whole folder alone."""
    from whence.cli.report import REPORT

    kept = [folder / REPORT for folder in others if (folder / REPORT).exists()]
    text = f"It holds {', '.join(shown)}; {out} has {len(others)} other {'study' if len(others) == 1 else 'studies'}. "
    if kept:
        count = (
            "It keeps"
            if len(others) == 1
            else "Each keeps"
            if len(kept) == len(others)
            else f"{len(kept)} of them keep"
        )
        text += (
            f"{count} a report in its own folder, such as {kept[0]}. "
            if len(others) > 1
            else f"Its report is {kept[0]}. "
        )
    missing = len(others) - len(kept)
    more = "" if not missing else f", and a report for {'the one' if missing == 1 else f'the {missing}'} without"
    return f"{text}One page of all{more}: whence report {out}"


def run_studies(
    studies: list[Study],
    out: Path,
    jobs: int | None,
    title: str | None,
    executor: str = "local",
    seconds: float | None = None,
    shard: str | None = None,
    results: dict[str, Any] | None = None,
) -> None:
    """Run several studies, and write one report of them and one of each in its own folder. The exit code is 1 if a run failed
    or a record cannot be read.

    Args:
        title: title of the report; None for one from the studies.
        seconds: time limit; a rerun resumes.
        shard: ``i/n`` for array jobs: every n-th run, from the i-th on (counted from 1).
        results: a dictionary to add what ``--json`` prints to. It may hold notes and problems of a sweep.
    """
    from whence.cli.live_table import show_arms
    from whence.cli.report import REPORT, write_report
    from whence.lab.executors import process_rank
    from whence.lab.sequential import run_until_decided
    from whence.lab.sources import pin_sources

    index, count = parse_shard(shard)
    pinned = [pin_sources(study) for study in studies]
    with show_arms(pinned, seconds) as callbacks:
        states = run_until_decided(
            pinned, out, seconds=seconds, jobs=jobs, executor=executor, select=lambda runs: runs[index::count],
            **callbacks,
        )  # fmt: skip
    if process_rank() != 0:
        return
    folders = [state.outcome.folder for state in states if records.exists(state.outcome.folder / "study.json")]
    problems = [line for state in states for line in state.outcome.problems]
    problems += [error.describe() for state in states for error in state.outcome.failed]
    problems += [describe_divergence(run, s.outcome.folder) for s in states for run in s.outcome.diverged]
    unfinished = sum(len(state.outcome.unfinished) for state in states)
    notes = [note for state in states for note in state.outcome.notes]
    results = {} if results is None else results
    results.update(
        folder=out, report=None, study_reports=[], unfinished_runs=unfinished, studies=[],
        notes=[*results.get("notes", ()), *notes], problems=[*results.get("problems", ()), *problems],
    )  # fmt: skip
    if unfinished:
        print(f"the time limit was reached; run the command again to resume {count_runs(unfinished)}", file=sys.stderr)
    for line in [*notes, *problems]:
        print(line, file=sys.stderr)
    if not unfinished and (missing := count_missing_runs(states, index, count)):
        print(
            f"shard {shard} is done; {count_runs(missing)} of other shards {'has' if missing == 1 else 'have'} no record yet. The shard that ends last writes "
            f"the report; whence report {out} writes it from the records there are.",
            file=sys.stderr,
        )
        if problems:
            raise typer.Exit(1)
        return
    findings: list[dict[str, Any]] = []
    page = write_report(
        folders, out / REPORT, title, records.rerun_command() or "whence", on_study=findings.append, own_reports=folders
    )
    own_pages = [folder / REPORT for folder in folders]
    print_summary(findings)
    print(f"report: {page}")
    others = [folder for folder in records.find_folders(out, "study.json") if folder not in folders]
    if others:
        print(_describe_other_studies(out, [study["name"] for study in findings], others), file=sys.stderr)
    results.update(report=page, study_reports=own_pages, studies=[summarize_study(study) for study in findings])
    if problems:
        raise typer.Exit(1)
