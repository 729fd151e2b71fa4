"""Results in a folder: the HTML reports that whence has written, and those of records, packed or not, that have none."""

from __future__ import annotations

import html
import os
import re
import shlex
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from whence.errors import WhenceError, usage_error
from whence.explore import drawings
from whence.records import RecordFolder
from whence.report.record_page import DISCOVERY, PROFILES, render_records

#: the first record of a folder and what the folder holds
KINDS = {
    "study.json": "study",
    "plan.json": "probe",
    "trial.json": "trial of cures",
    "bench.json": "benchmarks",
    DISCOVERY: "discovery",
    PROFILES: "profiles of a model",
}
REPORTS = ("report.html", "comparison.html")
#: in a page, once for each study
STUDY_HASH = re.compile(rb'<p class="kicker">[^\n]*?<code>([0-9a-f]+)</code></p>')
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
            "Folder", str(folder), "it must be an existing folder", "type the path of one that holds results"
        )
    found: list[FoundReport] = []
    for path, names in _walk(folder):
        kind = _find_kind(names)
        reports = [name for name in REPORTS if name in names]
        for name in reports:
            title = _read_title(path / name)
            above = [one.path for one in found if one.has_report and one.path.parent in path.parents]
            # the studies of a comparison are folders beside their report
            if title is not None and not any(_holds(report, path / name) for report in above):
                found.append(FoundReport(path / name, title, kind or _find_kind_below(path) or "report", True))
        covered = any(one.has_report and one.path.parent in path.parents for one in found)
        if kind and not reports and not covered:
            found.append(FoundReport(path, path.name, kind, False))
    return sorted(found, key=lambda one: (not one.has_report, str(one.path)))


def label_report(report: FoundReport, folder: Path) -> str:
    """The name of a report in the list."""
    where = report.path.parent if report.has_report else report.path
    place = where.relative_to(folder).as_posix() if where != folder else folder.name
    return f"{report.title} ({report.kind}, {place})" if report.has_report else f"{place} ({report.kind}, from records)"


def show_report(report: FoundReport) -> str:
    """The report in a frame of its own, drawn from the records where there is none. The frame cannot reach the page around it."""
    if report.has_report:
        return _show_page(report.path.read_text("utf-8", errors="replace"), report) + drawings.note(str(report.path))
    try:
        return _show_page(render_records(report.path), report) + _describe_records(report)
    except Exception as error:  # records of another version, or of another program with the same file names
        reason = f"these are no records of this version of whence ({type(error).__name__}: {error})"
        words = str(error) if isinstance(error, WhenceError) else f"{reason}; run the command that made them again."
        return drawings.problem(f"No report can be drawn from {report.path}: {words}")


def _show_page(text: str, report: FoundReport) -> str:
    if len(text) > MAX_CHARS:
        return drawings.note(f"This report is too large to show here. Open {report.path} in the browser.")
    return (
        f'<iframe class="report" sandbox="allow-scripts" title="{html.escape(report.title)}" '
        f'srcdoc="{html.escape(text)}"></iframe>'
    )


def _describe_records(report: FoundReport) -> str:
    """Where a drawn report is from: the number of records, the command that made them, and the one that writes the report."""
    folder = RecordFolder(report.path)
    names = folder.names()
    command = folder.read(next(name for name in KINDS if name in names)).get("command")
    lines = [f"Drawn from {len(names)} records in {report.path}."]
    lines += [f"Made by: {command}"] if isinstance(command, str) else []
    lines.append(f"Write this report to a file: whence report {shlex.quote(str(report.path))}")
    return "".join(map(drawings.note, lines))


def _find_kind(names: Collection[str]) -> str:
    return next((kind for name, kind in KINDS.items() if name in names), "")


def _find_kind_below(folder: Path) -> str:
    """What the folders of a folder hold, if it is one kind."""
    below = [child for child in folder.iterdir() if child.is_dir()]
    kinds = {_find_kind([record.name for record in child.glob("*.json")]) for child in below} - {""}
    return kinds.pop() if len(kinds) == 1 else ""


def _walk(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders with their file names, packed records too, without hidden folders, and not deeper than ``MAX_DEPTH``."""
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(
            name for name in folders if not name.startswith((".", "node_modules")) and depth < MAX_DEPTH
        )
        yield Path(place), set(names) | _list_packed(Path(f"{place}.zip"))
        for name in names:
            if name.endswith(".zip") and name.removesuffix(".zip") not in folders:
                yield Path(place, name).with_suffix(""), _list_packed(Path(place, name))


def _list_packed(path: Path) -> set[str]:
    """The names in a packed file; none if there is no such file or it cannot be read."""
    try:
        with zipfile.ZipFile(path) as packed:  # reads the list of names alone
            return set(packed.namelist())
    except (zipfile.BadZipFile, OSError):
        return set()


def _holds(report: Path, own: Path) -> bool:
    """Whether a report shows all studies of another one, or is the same file."""
    text, other = (path.read_bytes() for path in (report, own))
    studies = set(STUDY_HASH.findall(other))
    return studies <= set(STUDY_HASH.findall(text)) if studies else text == other


def _read_title(path: Path) -> str | None:
    """The title of a report of whence; None for a page of another program."""
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4000)
    match = re.search(r"<title>(.*?)</title>", start, re.DOTALL)
    return html.unescape(match[1]).strip() if match and "Content-Security-Policy" in start else None
