"""``whence conditions``: one figure and one table of studies under several conditions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.errors import usage_error


def conditions(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder with the studies of one question under several conditions.")],
    out: Annotated[Path | None, typer.Option(help="Folder for conditions.png and conditions.csv.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw studies with the same arms under several conditions as one figure and one table.

    Examples:

    whence run epar/when_it_helps

    whence conditions results/epar_when
    """
    from whence.lab.results import collect_findings
    from whence.records import find_folders, require_folder

    results = ctx.with_resource(json_document("conditions", as_json))
    require_folder("whence conditions", folder, "studies")
    results.update(
        write_conditions(collect_findings(find_folders(folder, "study.json"), "", "")["studies"], out or folder)
    )


def write_conditions(studies: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Write conditions.csv and conditions.png, and return their paths and rows."""
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
    rows, table, figure = drawing.build_rows(studies), folder / "conditions.csv", folder / "conditions.png"
    records.write_text(table, drawing.format_csv(rows))
    drawing.write_figure(studies, figure)
    print(f"conditions: {figure}")
    return {"figure": figure, "table": table, "conditions": [asdict(row) for row in rows]}
