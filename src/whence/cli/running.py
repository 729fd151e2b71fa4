"""``whence studies`` and ``whence run``"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from whence.errors import refusal
from whence.lab.study import Study

STUDIES_HELP = "List the studies in the folder studies/."
HELP = "Run a study, or go on with it; then write its report."
EXAMPLES = """Examples:

whence run speeches_encoder

whence run studies/mine.py --jobs 2 --out results

accelerate launch --num_processes 4 -m whence run mine"""


def studies(folder: Annotated[Path, typer.Option(help="where studies are")] = Path("studies")) -> None:
    for path in sorted(folder.glob("*.py")):
        for study in studies_in(path):
            print(f"{path.stem:28} {study.name:28} {len(study.arms)} arms, {len(study.seeds)} seeds: {study.question}")


def run(
    study: Annotated[str, typer.Argument(help="a name from `whence studies`, or a file")],
    jobs: Annotated[int | None, typer.Option(help="runs side by side; all cores by default", min=1)] = None,
    out: Annotated[Path, typer.Option(help="folder for the records")] = Path("results"),
    folder: Annotated[Path, typer.Option(help="where studies are")] = Path("studies"),
) -> None:
    path = Path(study) if study.endswith(".py") else folder / f"{study}.py"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.py"))) or "none"
        raise refusal("whence run", f"no file {path}", f"the studies here are: {known}", "name one of them, or a file")
    made = studies_in(path)
    run_all(made, out, jobs, made[0].question, " ".join(["whence", *sys.argv[1:]]))


def studies_in(path: Path) -> list[Study]:
    """What a study file's function ``studies()`` returns."""
    import runpy

    names = runpy.run_path(str(path))
    if "studies" not in names:
        raise refusal("whence run", f"{path.name} without studies()", "a study file defines studies()", "write it")
    return list(names["studies"]())


def run_all(made: list[Study], out: Path, jobs: int | None, title: str, command: str) -> None:
    """Run several studies and write one report; exit with 1 where something is missing."""
    from whence.cli.progress import watching
    from whence.cli.reporting import write_report
    from whence.lab import processes, runner

    together, first = processes.count() > 1, processes.rank() == 0
    jobs = jobs or (1 if together else os.cpu_count() or 1)
    folders, problems = [], []
    for study in made:
        folder = runner.folder_of(study, out)
        already = sum((folder / run.file_name).exists() for run in study.runs())
        with watching(study, already) as notify:
            outcome = runner.run_study(study, out, jobs=jobs, notify=notify)
        folders.append(outcome.folder)
        problems += outcome.problems
        problems += [f"{run.arm.name}, seed {run.seed} of {study.name} diverged" for run in outcome.diverged]
    if not first:
        return
    for problem in problems:
        print(problem, file=sys.stderr)
    page = write_report(folders, out / "report.html", title, command)
    print(f"report: {page}")
    if problems:
        raise typer.Exit(1)
