"""``whence report``"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.cli import claiming, probing
from whence.errors import MissingExtra, refusal

HELP = (
    "Write the report of the studies or probes in a folder again, from their records alone, and the figure of conditions. "
    "For results/, also write claims.html. With two probes, compare them on one page."
)
EXAMPLES = """Examples:

whence report

whence report build/compare

whence report build/probe

whence report build/probe/FIRST build/probe/SECOND --out comparison.html

whence report build/mine --claims claims"""

RESULTS, LEDGER = Path("results"), Path("claims")  # what `whence claims` judges, and from where, unless told otherwise
LEDGER_PAGE = "claims.html"


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="a folder of studies or probes, results by default; two probes to compare"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the page; report.html in the folder by default")] = None,
    claims: Annotated[
        Path | None, typer.Option(help="a ledger to judge from this folder; of results it is claims, if that is there")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="name of a compared probe; once for each")] = None,
) -> None:
    if len(folders or ()) > 1 or label:
        if claims is not None:
            raise refusal("whence report --claims", "two probes", "a ledger is judged from one folder", "name one")
        from whence.cli.probe_comparison import write_comparison

        print(f"report: {write_comparison(folders or (), out, label or ())}")
        return
    report_folder(folders[0] if folders else RESULTS, out, claims)


def report_folder(folder: Path, out: Path | None, claims: Path | None) -> None:
    """The pages of one folder: of its studies, of each of its probes, and of the ledger that is judged from it."""
    folders, probes = kept_in(folder, "study.json"), kept_in(folder, "plan.json")
    ledger = claims or (LEDGER if folder.resolve() == RESULTS.resolve() and LEDGER.is_dir() else None)
    if not folders and not probes and ledger is None:
        raise refusal(
            "whence report",
            f"no study.json and no plan.json in {folder}",
            "a study's folder holds the one, a probe's the other",
            "run a study or a probe first",
        )
    if out is not None and len(probes) + bool(folders) > 1:
        raise refusal(
            "whence report --out", f"{len(probes)} probes in {folder}", "each has a page of its own", "name one folder"
        )
    for probe in probes:
        print(f"report: {probing.write_report(probe, out)}")
    page = out or folder / "report.html"
    judged = None if ledger is None else claiming.judged(ledger, folder)
    if folders:
        link = None if judged is None else {"page": LEDGER_PAGE, "counts": judged["counts"]}
        print(f"report: {write_report(folders, page, None, f'whence report {folder}', link, complain)}")
    if judged is not None:
        print(f"claims: {claiming.write_page(judged, page.parent / LEDGER_PAGE)}")


def kept_in(folder: Path, name: str) -> list[Path]:
    """The folder itself, if it holds such a file, or those of its folders that do."""
    return [folder] if (folder / name).exists() else sorted(path.parent for path in folder.glob(f"*/{name}"))


def complain(said: str) -> None:
    print(said, file=sys.stderr)


def write_report(
    folders: list[Path],
    out: Path,
    title: str | None,
    command: str,
    ledger: dict[str, Any] | None = None,
    tell: Callable[[str], None] = lambda said: None,
) -> Path:
    """One page for several studies, written whole; of one question under several conditions also a figure of them.

    The command is what the page shows where none can be found for the studies; ``ledger`` says where the page of the
    claims is and how they came out. ``tell`` hears of records that cannot be read; a run has said that already.
    """
    from whence import records
    from whence.cli.again import commands
    from whence.lab.results import findings, study_in
    from whence.report.comparison import page

    made = [study_in(folder) for folder in folders]
    title = title or (made[0].question if len(made) == 1 else f"{len(made)} studies of position")
    found = findings(folders, title, "\n".join(commands(made)) or command)
    for study in found["studies"]:
        for said in study["problems"]:
            tell(f"{study['name']}: {said}")
    records.write_text(out, page(found | {"ledger": ledger}))
    write_conditions(found["studies"], out.parent)
    return out


def write_conditions(studies: list[dict[str, Any]], folder: Path) -> None:
    """conditions.csv and conditions.png, where the studies have the same arms, baseline and metric; else nothing."""
    from whence import records
    from whence.report import conditions

    if not conditions.comparable(studies):
        return
    records.write_text(folder / "conditions.csv", conditions.cells_as_csv(conditions.rows(studies)))
    try:
        conditions.write_figure(studies, folder / "conditions.png")
    except MissingExtra as missing:  # the page and the numbers are there all the same
        print(f"no figure of the conditions: {missing}", file=sys.stderr)
    else:
        print(f"conditions: {folder / 'conditions.png'}")
