"""The reports of benchmarks: the table on the terminal and the page, of one model and of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.cli.fitted_table import NARROW
from whence.cli.json_output import select
from whence.errors import usage_error
from whence.records import find_folders


def summarize_benchmarks(findings: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of a model, or the verdicts on two, for ``--json``."""
    return select(findings, "title", "name", "labels", "model", "hash", "tasks", "answer")


def write_bench_report(folder: Path, out: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """The table on the terminal and the page, from the records of a folder alone. Returns the page and the findings."""
    from whence import records
    from whence.bench.findings import collect_findings
    from whence.report.bench import page
    from whence.report.bench.page import score_rows

    findings = collect_findings(folder)
    print_rows(findings["title"], ("task", "metric", "score (95% interval)", "items"), score_rows(findings))
    path = out or folder / "report.html"
    records.write_text(path, page(findings))
    print(f"report: {path}")
    return path, findings


def write_bench_comparison(
    folders: Sequence[Path],
    out: Path | None,
    labels: Sequence[str] = (),
    margin: float | None = None,
    hashes: Mapping[tuple[str, str], str] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """The verdicts on the terminal and the page, from the records of two folders alone. Returns the page and the findings.

    ``hashes`` names the tasks to compare, as ``compare_benchmarks`` says; all common tasks without it.
    """
    from whence import records
    from whence.bench.findings import MARGIN, compare_benchmarks
    from whence.report.bench import comparison_page
    from whence.report.bench.page import comparison_rows
    from whence.report.bench.sentences import compare_answer

    if len(folders) != 2:
        raise usage_error("whence report", f"{len(folders)} folders", "a comparison needs two", "name two folders")
    if labels and (len(labels) != 2 or labels[0] == labels[1]):
        raise usage_error(
            "whence report --label", repr(list(labels)), "the two models must have different names", "pass it twice"
        )
    before, after = folders
    # a report of some tasks is made again by the command that names them
    command = records.rerun_command() or "" if hashes is not None else ""
    findings = compare_benchmarks(before, after, labels, MARGIN if margin is None else margin, command, hashes)
    head = ("task", "verdict", "metric", "before", "after", "difference (interval)")
    print_rows(findings["title"], head, comparison_rows(findings))
    print(compare_answer(findings))
    path = out or after / "comparison.html"
    records.write_text(path, comparison_page(findings))
    print(f"comparison: {path}")
    return path, findings | {"answer": compare_answer(findings)}


def find_benchmarks(folder: Path) -> list[Path]:
    """The folders with benchmarks: itself, or those in it."""
    return find_folders(folder, "bench.json")


def print_rows(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on the terminal with the first columns of the rows. A narrow terminal gets a paragraph for each row."""
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    console = Console(highlight=False)
    if console.width < NARROW:
        console.print(title, style="italic", markup=False)
        for task, lead, *cells in (row[: len(head)] for row in rows):
            if task:
                console.print(task, style="bold", markup=False)
            names = [name.partition(" (")[0] for name in head[2:]]
            values = ", ".join(f"{name} {cell}" for name, cell in zip(names, cells, strict=True))
            console.print(Padding(escape(f"{lead}: {values}"), (0, 0, 0, 2)))
        return
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*row[: len(head)])
    console.print(table)
