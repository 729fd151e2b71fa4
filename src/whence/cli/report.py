"""``whence report``"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from whence.cli import probe as probing
from whence.errors import usage_error
from whence.records import find_folders

HELP = (
    "Write the report of the studies or probes in a folder again, from their records alone. "
    "With two probes, compare them on one page."
)
EXAMPLES = """Examples:

whence report

whence report build/compare

whence report build/probe

whence report build/probe/FIRST build/probe/SECOND --out comparison.html"""

RESULTS = Path("results")


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="a folder of studies or probes, results by default; two probes to compare"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the page; report.html in the folder by default")] = None,
    label: Annotated[list[str] | None, typer.Option(help="name of a compared probe; once for each")] = None,
) -> None:
    if len(folders or ()) > 1 or label:
        from whence.cli.probe_comparison import write_comparison

        print(f"report: {write_comparison(folders or (), out, label or ())}")
        return
    report_folder(folders[0] if folders else RESULTS, out)


def report_folder(folder: Path, out: Path | None) -> None:
    """The pages of one folder: of its studies and of each of its probes."""
    folders, probes = find_folders(folder, "study.json"), find_folders(folder, "plan.json")
    if not folders and not probes:
        raise usage_error(
            "whence report",
            f"no study.json and no plan.json in {folder}",
            "a study's folder holds the one, a probe's the other",
            "run a study or a probe first",
        )
    if out is not None and len(probes) + bool(folders) > 1:
        raise usage_error(
            "whence report --out", f"{len(probes)} probes in {folder}", "each has a page of its own", "name one folder"
        )
    for probe in probes:
        print(f"report: {probing.write_report(probe, out)}")
    page = out or folder / "report.html"
    if folders:
        print(f"report: {write_report(folders, page, None, f'whence report {folder}', complain)}")


def complain(said: str) -> None:
    print(said, file=sys.stderr)


def write_report(
    folders: list[Path],
    out: Path,
    title: str | None,
    command: str,
    tell: Callable[[str], None] = lambda said: None,
) -> Path:
    """Write one page for several studies.

    The page shows ``command`` where none can be found for the studies. ``tell`` hears of records that cannot be read.
    """
    from whence import records
    from whence.cli.rerun import commands
    from whence.lab.results import findings, study_in
    from whence.report.comparison import page

    made = [study_in(folder) for folder in folders]
    title = title or (made[0].question if len(made) == 1 else f"{len(made)} studies of position")
    found = findings(folders, title, "\n".join(commands(made)) or command)
    for study in found["studies"]:
        for said in study["problems"]:
            tell(f"{study['name']}: {said}")
    records.write_text(out, page(found))
    return out
