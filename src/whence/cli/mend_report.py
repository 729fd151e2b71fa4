"""The report of one trial of cures: the table on the terminal and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.cli.fitted_table import NARROW
from whence.cli.json_output import select
from whence.report.formatting import NO_VALUE, format_number

HEAD = ("cure", "verdict", "change", "average", "worst", "gap", "time")
SHOWN_IF_NARROW = ("cure", "verdict", "change")
CAPTION = (
    "Accuracy in % on the judging half of the items. Change: in points; the verdict is corrected for the number of cures. Worst: "
    "worst position. Gap: best minus worst position. Time: to read a prompt, as a ratio to the untouched model, which is the "
    "model without a cure. The report has intervals."
)
CAPTION_IF_NARROW = (
    "Change: of the accuracy on the judging half, in points; the verdict is corrected for the number of cures. The report has "
    "the rest."
)


def write_trial_report(folder: Path, out: Path | None = None, caller: str = "whence report") -> dict[str, Any]:
    """The table on the terminal and the page, from the records of a trial alone. Returns the findings. ``caller`` is named in errors."""
    from whence import records
    from whence.mend.judgement import collect_trial
    from whence.report.mend import page

    findings = collect_trial(folder, caller=caller)
    print_trial(findings)
    path = out or folder / "report.html"
    records.write_text(path, page(findings))
    print(f"report: {path}")
    return findings


def summarize_trial(findings: dict[str, Any]) -> dict[str, Any]:
    """The verdict on every cure, for ``--json``."""
    from whence.report.mend.sentences import trial_answer

    names = ("title", "model", "hash", "score", "untouched", "cures", "unavailable", "missing")
    return select(findings, *names) | {"answer": trial_answer(findings)}


def print_trial(findings: dict[str, Any]) -> None:
    """A row for every cure, then what is missing and one sentence for all. A narrow terminal gets the first columns."""
    from rich.console import Console
    from rich.table import Table

    from whence.report.mend.page import verdict_rows
    from whence.report.mend.sentences import trial_answer

    console = Console(highlight=False)
    narrow = console.width < NARROW
    shown, caption = (SHOWN_IF_NARROW, CAPTION_IF_NARROW) if narrow else (HEAD, CAPTION)
    table = Table(title=findings["title"], title_justify="left", caption=caption, caption_justify="left", box=None,
                  padding=(0, 1, 0, 0))  # fmt: skip
    settings = any(cure["display_name"] != cure["name"] for cure in findings["cures"])  # long names, which wrap
    for name in shown:
        table.add_column(
            name, no_wrap=name != "cure" or not settings, justify="left" if name in ("cure", "verdict") else "right"
        )
    times = [NO_VALUE, *(format_number(cure["ratios"]["prompt_seconds"], 2) for cure in findings["cures"])]
    for row, seconds in zip(verdict_rows(findings), times, strict=True):
        name, verdict, change, _, *numbers = row[:7]
        cells = (name, verdict.partition(";")[0], change, *(cell.partition(" (")[0] for cell in numbers), seconds)
        table.add_row(*cells[: len(shown)])
    console.print(table)
    for cure in findings["unavailable"]:
        console.print(f"{cure['display_name']} cannot be applied: {cure['reason']}", markup=False)
    for words in findings["missing"]:
        console.print(f"not measured yet: {words}", markup=False)
    console.print(trial_answer(findings), markup=False, style="bold")
