"""``whence studies`` and ``whence run``

A file in studies/ (or in a folder below it) defines one of two functions. ``studies()`` returns a list of
``whence.lab.study.Study``: arms that are trained and compared, with a report; it may take a ``scale``, one of ``SCALES``.
``experiments()`` returns a list of
``whence.lab.experiment.Experiment``: numbers that are computed into a record each, and drawn from it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from whence import records
from whence.errors import WhenceError, usage_error
from whence.lab.experiment import Experiment, run_experiment
from whence.lab.study import Study
from whence.plugins import STUDIES, entry_points

STUDIES_HELP = "List the studies and experiments in the folder studies/."
STUDIES_EXAMPLES = """Examples:

whence studies

whence studies --folder mine"""
HELP = "Run a study or an experiment, or go on with it; then write its report or its figures."
EXAMPLES = """Examples:

whence run speeches_encoder

whence run studies/mine.py --jobs 2 --out results

whence run epar/all --quick --out build/epar

whence run epar/protocol --scale gpu

accelerate launch --num_processes 4 -m whence run mine"""


def studies(folder: Annotated[Path, typer.Option(help="where studies are")] = Path("studies")) -> None:
    found = all_files(folder)
    if not found:
        raise usage_error(
            "whence studies", f"no Python file in {folder}", "studies are files in a folder", "name it with --folder"
        )
    for name, path in found.items():
        for one in made_in(path):
            if isinstance(one, Study):
                about = f"{len(one.arms)} arms, {len(one.seeds)} seeds"
            else:
                about = f"experiment, drawn in output/{one.folder}"
            print(f"{name:28} {one.name:28} {about}: {one.question}")


def run(
    study: Annotated[str, typer.Argument(help="a name from `whence studies`, or a file")],
    jobs: Annotated[int | None, typer.Option(help="runs of a study side by side; all cores by default", min=1)] = None,
    out: Annotated[Path, typer.Option(help="folder for the records")] = Path("results"),
    folder: Annotated[Path, typer.Option(help="where studies are")] = Path("studies"),
    quick: Annotated[bool, typer.Option("--quick", help="an experiment in seconds, to see that it works")] = False,
    scale: Annotated[str | None, typer.Option(help="the size of a study that has several, such as cpu or gpu")] = None,
) -> None:
    path = find_study(study, folder)
    made = made_in(path, scale)
    experiments = [one for one in made if isinstance(one, Experiment)]
    if experiments:
        if jobs is not None:
            raise usage_error(
                "whence run --jobs", str(jobs), f"{path.name} holds experiments, which run one by one", "leave it out"
            )
        run_experiments(experiments, out, quick)
        return
    if quick:
        raise usage_error("whence run --quick", path.name, "only experiments have a quick form", "leave it out")
    compared = [one for one in made if isinstance(one, Study)]
    title = compared[0].question if len(compared) == 1 else f"{study}: {len(compared)} studies"
    run_all(compared, out, jobs, title)


def all_files(folder: Path) -> dict[str, Path]:
    """Study files by name: those of installed packages, and those below a folder."""
    found: dict[str, Path] = {}
    for point in entry_points(STUDIES).values():
        spec = importlib.util.find_spec(point.value)
        for place in (spec.submodule_search_locations if spec else None) or ():
            found |= files_in(Path(place))
    return found | files_in(folder)


def find_study(name: str, folder: Path) -> Path:
    """The file of a study by its name or path."""
    known = all_files(folder)
    path = Path(name) if name.endswith(".py") else known.get(name)
    if path is None or not path.exists():
        names = ", ".join(known) or "none; whence-papers has some"
        raise usage_error(
            "whence run", f"no study {name}", f"the studies are: {names}", "name one of them, or a file.py"
        )
    return path


def files_in(folder: Path) -> dict[str, Path]:
    """The files below a folder by the names under which they are run."""
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.py"))}


def maker_in(path: Path) -> tuple[Callable[..., list[Study | Experiment]], tuple[str, ...]]:
    """A file's function ``studies()`` or ``experiments()``, and the sizes it can be asked for."""
    import inspect
    import runpy

    with telling_where(path):
        names = runpy.run_path(str(path))
    found = [names[name] for name in ("studies", "experiments") if callable(names.get(name))]
    if len(found) != 1:
        got = f"{path.name} with {len(found)} of studies() and experiments()"
        raise usage_error("whence run", got, "a study file defines one of them", "write it")
    return found[0], tuple(names["SCALES"]) if "scale" in inspect.signature(found[0]).parameters else ()


def made_in(path: Path, scale: str | None = None) -> list[Study | Experiment]:
    """What a file's function returns."""
    make, sizes = maker_in(path)
    if scale is None:
        with telling_where(path):
            return list(make())
    if scale not in sizes:
        got = f"{scale!r} for {path.name}"
        raise usage_error(
            "whence run --scale", got, f"its sizes are: {', '.join(sizes) or 'one only'}", "name one of them"
        )
    with telling_where(path):
        return list(make(scale))


@contextmanager
def telling_where(path: Path) -> Iterator[None]:
    """What is wrong in somebody's file is said in one sentence, with the line; what whence refuses says it already."""
    try:
        yield
    except WhenceError:
        raise
    except SyntaxError as error:
        got = f"{path.name}, line {error.lineno}: {error.msg}"
        raise usage_error("whence run", got, "a study file is Python", "correct it") from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        got = f"{path.name}{f', line {lines[-1]}' if lines else ''}: {type(error).__name__}: {error}"
        raise usage_error("whence run", got, "a study file makes its studies without an error", "correct it") from error


def run_experiments(made: list[Experiment], out: Path, quick: bool) -> None:
    for experiment in made:
        folder = run_experiment(
            experiment, out, quick=quick, progress=lambda line: print(line, file=sys.stderr, flush=True)
        )
        print(f"{experiment.name}: {experiment.record_path(out, quick)}, drawn in {folder}")


def run_all(made: list[Study], out: Path, jobs: int | None, title: str) -> None:
    """Run several studies and write one report; exit with 1 where something is missing."""
    from whence.cli.progress import study_progress
    from whence.cli.report import write_report
    from whence.lab import processes, runner

    together, first = processes.count() > 1, processes.rank() == 0
    jobs = jobs or (1 if together else os.cpu_count() or 1)
    folders, problems = [], []
    for study in made:
        folder = runner.folder_of(study, out)
        already = sum(records.exists(folder / run.file_name) for run in study.runs())
        with study_progress(study, already) as notify:
            outcome = runner.run_study(study, out, jobs=jobs, notify=notify)
        folders.append(outcome.folder)
        problems += outcome.problems
        problems += [f"{run.arm.name}, seed {run.seed} of {study.name} diverged" for run in outcome.diverged]
    if not first:
        return
    for problem in problems:
        print(problem, file=sys.stderr)
    page = write_report(folders, out / "report.html", title, records.rerun_command() or "whence")
    print(f"report: {page}")
    if problems:
        raise typer.Exit(1)
