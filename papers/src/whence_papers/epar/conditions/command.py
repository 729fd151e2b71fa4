"""``whence conditions``: one figure and one table of studies under several conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whence.errors import usage_error


def conditions(
    folder: Annotated[Path, typer.Argument(help="Folder with the studies of one question under several conditions.")],
    out: Annotated[Path | None, typer.Option(help="Folder for conditions.png and conditions.csv.")] = None,
) -> None:
    """Draw studies with the same arms under several conditions as one figure and one table.

    Examples:

    whence run epar/when_it_helps

    whence conditions results/epar_when
    """
    from whence.lab.results import collect_findings
    from whence.records import find_folders, require_folder

    require_folder("whence conditions", folder, "studies")
    write_conditions(collect_findings(find_folders(folder, "study.json"), "", "")["studies"], out or folder)


def write_conditions(studies: list[dict[str, Any]], folder: Path) -> None:
    """Write conditions.csv and conditions.png."""
    from whence import records
    from whence_papers.epar import conditions as drawing
    from whence_papers.epar.conditions.figure import MIN_STUDIES

    if not drawing.are_comparable(studies):
        raise usage_error(
            "whence conditions",
            f"{len(studies)} comparable studies"
            if len(studies) < MIN_STUDIES
            else f"{len(studies)} studies with different arms, baselines or metrics",
            "a figure needs three or more studies that have the same arms, baseline and metric",
            "name a folder of comparable studies",
        )
    records.write_text(folder / "conditions.csv", drawing.format_csv(drawing.build_rows(studies)))
    drawing.write_figure(studies, folder / "conditions.png")
    print(f"conditions: {folder / 'conditions.png'}")
