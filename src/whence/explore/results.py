"""Reports in a folder: find the HTML reports that whence has written, and the records that have none yet."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from whence.errors import usage_error
from whence.explore import drawings

#: what the file beside a report says about its records
KINDS = {"study.json": "study", "plan.json": "probe", "trial.json": "trial of cures", "bench.json": "benchmarks"}
REPORTS = ("report.html", "comparison.html")
MAX_DEPTH = 6
MAX_CHARS = 12_000_000


@dataclass(frozen=True)
class FoundReport:
    """A folder with a report, or with records without one."""

    path: Path  # of the report, or of the folder
    title: str
    kind: str
    has_report: bool


def find_reports(folder: Path) -> list[FoundReport]:
    """The reports below a folder, and then the folders of records that have no report, each in order of path."""
    if not folder.is_dir():
        raise usage_error(
            "--results", str(folder), "it must be an existing folder", "pass the folder that holds results"
        )
    found: list[FoundReport] = []
    for path, names in _walk(folder):
        kind = next((kind for name, kind in KINDS.items() if name in names), "")
        reports = [name for name in REPORTS if name in names]
        for name in reports:
            title = _read_title(path / name)
            if title is not None:
                found.append(FoundReport(path / name, title, kind or "report", True))
        if kind and not reports and not any(one.path.parent in path.parents for one in found):
            found.append(FoundReport(path, path.name, kind, False))
    return sorted(found, key=lambda one: (not one.has_report, str(one.path)))


def label_report(report: FoundReport, folder: Path) -> str:
    """The name of a report in the list."""
    where = report.path.parent if report.has_report else report.path
    place = where.relative_to(folder).as_posix() if where != folder else folder.name
    return (
        f"{report.title} ({report.kind}, {place})" if report.has_report else f"{place} ({report.kind}, no report yet)"
    )


def show_report(report: FoundReport) -> str:
    """The report in a frame of its own, or the command that writes it. The frame cannot reach the page around it."""
    if not report.has_report:
        return drawings.note(
            f"This {report.kind} has records and no report. Write it with: whence report {report.path}"
        )
    text = report.path.read_text("utf-8", errors="replace")
    if len(text) > MAX_CHARS:
        return drawings.note(f"This report is too large to show here. Open {report.path} in the browser.")
    return (
        f'<iframe class="report" sandbox="allow-scripts" title="{html.escape(report.title)}" '
        f'srcdoc="{html.escape(text)}"></iframe>{drawings.note(str(report.path))}'
    )


def _walk(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders with their file names, without hidden ones, and not deeper than ``MAX_DEPTH``."""
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(
            name for name in folders if not name.startswith((".", "node_modules")) and depth < MAX_DEPTH
        )
        yield Path(place), set(names)


def _read_title(path: Path) -> str | None:
    """The title of a report of whence; None for a page of another program."""
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4000)
    match = re.search(r"<title>(.*?)</title>", start, re.DOTALL)
    return html.unescape(match[1]).strip() if match and "Content-Security-Policy" in start else None
