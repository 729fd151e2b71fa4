"""The files of an experiment: CSV, and a text report of sections and aligned tables."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from whence.records import write_text
from whence_papers.intervals import mean_and_interval

Record = dict[str, Any]


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    text = io.StringIO()
    out = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    write_text(path, text.getvalue())


def write_report(path: Path, record: Record, title: str, parts: Iterable[str]) -> None:
    """Write a text report with a title, the spec, and the provenance of the record."""
    where, spec = record["environment"], record["spec"]
    head = [title, "=" * len(title), ""]
    if record["quick"]:
        head += ["QUICK RUN: the numbers are not meaningful.", ""]
    head += [paragraph(f"Spec: {', '.join(f'{name} {value}' for name, value in spec.items())}.")]
    commit = where["commit"] or "unknown"
    changed = " with uncommitted changes" if where["uncommitted_changes"] else ""
    head += [f"Commit {commit[:12]}{changed}; record {record['experiment']}.json; {record['seconds']:g} s.", ""]
    write_text(path, "\n".join([*head, "\n\n".join(part.rstrip() for part in parts), ""]))


def paragraph(text: str) -> str:
    return textwrap.fill(text, 110)


def section(title: str, *lines: str) -> str:
    return "\n".join([title, "-" * len(title), *lines])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns: the first left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *others]).rstrip())
    return "\n".join(lines)


def format_mean(values: Sequence[float], digits: int = 3) -> str:
    """Format a mean with its interval."""
    mean, low, high = mean_and_interval(values)
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
