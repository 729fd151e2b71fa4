"""``whence report``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.errors import MissingExtra, refusal

HELP = "Write the report of the studies in a folder again, from their records, and the figure of their conditions."
EXAMPLES = """Example:

whence report build/compare"""


def report(
    folder: Annotated[Path, typer.Argument(help="a folder of studies, or of one")],
    out: Annotated[Path | None, typer.Option(help="the page; report.html in the folder by default")] = None,
) -> None:
    folders = [folder] if (folder / "study.json").exists() else sorted(p.parent for p in folder.glob("*/study.json"))
    if not folders:
        raise refusal("whence report", f"no study.json in {folder}", "a study's folder holds one", "run a study first")
    print(f"report: {write_report(folders, out or folder / 'report.html', None, f'whence report {folder}')}")


def write_report(folders: list[Path], out: Path, title: str | None, command: str) -> Path:
    """One page for several studies, written whole; of one question under several conditions also a figure of them.

    The command is what the page shows where none can be found for the studies.
    """
    from whence import records
    from whence.cli.again import commands
    from whence.lab.results import findings, study_in
    from whence.report.comparison import page

    made = [study_in(folder) for folder in folders]
    title = title or (made[0].question if len(made) == 1 else f"{len(made)} studies of position")
    found = findings(folders, title, "\n".join(commands(made)) or command)
    records.write_text(out, page(found))
    write_conditions(found["studies"], out.parent)
    return out


def write_conditions(studies: list[dict[str, Any]], folder: Path) -> None:
    """conditions.csv and conditions.png, where the studies have the same arms, baseline and metric; else nothing."""
    from whence import records
    from whence.report import conditions

    if not conditions.comparable(studies):
        return
    rows = conditions.rows(studies)
    records.write_text(folder / "conditions.csv", conditions.cells_as_csv(rows))
    unit = "points" if studies[0]["metric"] == "accuracy" else studies[0]["metric"]
    try:
        conditions.write_figure(rows, studies[0]["spec"]["decision"]["baseline"], unit, folder / "conditions.png")
    except MissingExtra as missing:  # the page and the numbers are there all the same
        print(f"no figure of the conditions: {missing}", file=sys.stderr)
    else:
        print(f"conditions: {folder / 'conditions.png'}")
