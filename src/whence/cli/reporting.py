"""``whence report``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whence.errors import refusal

HELP = "Write the report of the studies in a folder again, from their records."
EXAMPLES = """Example:

whence report build/compare"""


def report(
    folder: Annotated[Path, typer.Argument(help="a folder of studies, or of one")],
    out: Annotated[Path | None, typer.Option(help="the page; report.html in the folder by default")] = None,
) -> None:
    folders = [folder] if (folder / "study.json").exists() else sorted(p.parent for p in folder.glob("*/study.json"))
    if not folders:
        raise refusal("whence report", f"no study.json in {folder}", "a study's folder holds one", "run a study first")
    print(f"report: {write_report(folders, out or folder / 'report.html', folder.name, f'whence report {folder}')}")


def write_report(folders: list[Path], out: Path, title: str, command: str) -> Path:
    """One page for several studies, written whole."""
    from whence import records
    from whence.lab.results import findings
    from whence.report.comparison import page

    records.write_text(out, page(findings(folders, title, command)))
    return out
