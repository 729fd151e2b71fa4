"""The report of one trial of cures: the table on the terminal and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: columns of the table on the terminal; the page has all of them, with intervals
SHOWN = ("cure", "verdict", "difference, points", "average, %", "worst position, %", "gap, points", "time to read")
CAPTION = "Items of the judging half; corrected for the number of cures. Time is a ratio to the untouched model."


def write_trial_report(folder: Path, out: Path | None = None) -> Path:
    """The table on the terminal and the page, from the records of a trial alone."""
    from whence import records
    from whence.mend.judgement import collect_trial
    from whence.report.mend import page

    findings = collect_trial(folder)
    print_trial(findings)
    path = out or folder / "report.html"
    records.write_text(path, page(findings))
    return path


def print_trial(findings: dict[str, Any]) -> None:
    """A row for every cure, then what is missing and one sentence for all."""
    from rich.console import Console
    from rich.table import Table

    from whence.report.mend.page import cure_rows
    from whence.report.mend.sentences import trial_answer

    head, rows = cure_rows(findings)
    shown = [head.index(name) for name in SHOWN]
    table = Table(title=findings["title"], title_justify="left", caption=CAPTION, caption_justify="left", box=None,
                  padding=(0, 1, 0, 0))  # fmt: skip
    for column in shown:
        table.add_column(head[column].replace("difference", "change"), no_wrap=head[column] != "verdict")
    for row, verdict in zip(rows, ["–", *(cure["verdict"] for cure in findings["cures"])], strict=True):
        cells = [verdict if head[column] == "verdict" else row[column].partition(" (")[0] for column in shown]
        table.add_row(*cells)
    console = Console(highlight=False)
    console.print(table)
    for cure in findings["unavailable"]:
        console.print(f"{cure['name']} cannot be applied: {cure['reason']}", markup=False)
    for words in findings["missing"]:
        console.print(f"not measured yet: {words}", markup=False)
    console.print(trial_answer(findings), markup=False, style="bold")
