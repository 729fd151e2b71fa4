"""The reports of one probe and of two: the table on the terminal, the page, the figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence.cli.fitted_table import NARROW
from whence.cli.json_output import select
from whence.errors import MissingExtra, usage_error
from whence.records import find_folders

CAPTION = (
    "Slots count from 1. Choice: % of items whose answer is more likely than every rival. Probability: mean probability of "
    "the answer among the answer and its rivals, in %. Generation: % of items with the answer in the generated text. p: permutation test of "
    "the gap between best and worst slot, Holm-corrected over all rows."
)


def print_table(findings: dict[str, Any]) -> None:
    """A row for every task and measure, then one sentence for each task and one for all of them.

    On a narrow terminal the table has the curve, its gap and p, and a task is a row of its own.
    """
    from rich.console import Console
    from rich.table import Table

    from whence.report.probe.sentences import SHORT, few_items_note, headline, section_answer

    table = Table(title=findings["title"], title_justify="left", caption=CAPTION, caption_justify="left", box=None,
                  padding=(0, 1, 0, 0))  # fmt: skip
    console = Console(highlight=False)
    columns = ("task", "measure", "% by slot", "mean", "gap", "p", "worst", "closed", "oracle")
    shown = columns if console.width >= NARROW else ("measure", "% by slot", "gap", "p")
    for name in shown:
        curve = name == "% by slot"
        table.add_column(name, no_wrap=not curve, min_width=13 if curve else None)
    for task in findings["tasks"]:
        if "task" not in shown:
            table.add_row(task["task"], style="bold")
        for number, curve in enumerate(task["curves"]):
            lines = (curve["baselines"].get(name) for name in ("closed book", "oracle"))
            cells = (
                ("" if number else task["task"]),
                SHORT[curve["score"]],
                " ".join(f"{p['slot'] + 1}:{100 * p['mean']:.0f}" for p in curve["points"]),
                f"{100 * curve['average']:.0f}",
                f"{100 * curve['gap']:.0f}",
                f"{curve['corrected_p']:.1g}",
                str(curve["worst"] + 1) if curve["gap"] else "-",
                *(f"{100 * line['mean']:.0f}" if line else "-" for line in lines),
            )
            table.add_row(*(cell for name, cell in zip(columns, cells, strict=True) if name in shown))
    console.print(table)
    for task in findings["tasks"]:
        few = few_items_note(task["items"])
        console.print(f"{task['task']}: {headline(task)}" + (f" {few}" if few else ""), markup=False)
    console.print(section_answer(findings), markup=False, style="bold")
    if findings["missing"]:
        print(f"not measured yet: {', '.join(findings['missing'])}")


def summarize_probe(findings: dict[str, Any]) -> dict[str, Any]:
    """The curves and what they say, for ``--json``."""
    from whence.report.probe.sentences import section_answer

    return select(findings, "title", "model", "hash", "tasks", "decision", "missing") | {
        "answer": section_answer(findings)
    }


def write_report(folder: Path, out: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """The table on the terminal and the page, from the records of a probe alone. Returns the page and the findings."""
    from whence.cli.probe_options import rerun_command
    from whence.probe import run_folder
    from whence.probe.findings import findings as collect_findings

    findings = collect_findings(folder, "")
    device = "cuda" if any(run["environment"]["machine"].get("accelerator") for run in findings["ran"]) else "cpu"
    findings["command"] = rerun_command(run_folder.load_plan(folder)[0], device) or f"whence report {folder}"
    print_table(findings)
    page = write_page(findings, out or folder / "report.html")
    write_figures(findings, page.parent)
    return page, findings


def write_figures(findings: dict[str, Any], folder: Path) -> None:
    """Write the curves and the explanations as PNG files. The page does not depend on them."""
    from whence.report.image_files import write_png
    from whence.report.probe.figures import curves_figure, explanations_figure

    drawings = {"curves": curves_figure}
    if any(findings["explanation"].values()):
        drawings["explanations"] = explanations_figure
    for name, drawing in drawings.items():
        try:
            write_png(drawing(findings), folder / f"{name}.png")
        except MissingExtra as missing:
            print(f"no figure of the {name}: {missing}", file=sys.stderr)
        else:
            print(f"{name}: {folder / f'{name}.png'}")


def write_page(findings: dict[str, Any], path: Path) -> Path:
    """Write the page atomically."""
    from whence import records
    from whence.report.probe import page

    records.write_text(path, page(findings))
    return path


def write_comparison(folders: Sequence[Path], out: Path | None, labels: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The sentences on the terminal and the page, from the records of two probes alone. Returns the page and the findings."""
    from whence import records
    from whence.probe.findings import compare_probes
    from whence.report.probe.comparison import comparison_page, overall, task_answer

    if len(folders) != 2:
        raise usage_error(
            "whence report", f"{len(folders)} folders", "a comparison needs two probes", "name two folders"
        )
    if labels and (len(labels) != 2 or labels[0] == labels[1]):
        raise usage_error(
            "whence report --label", repr(list(labels)), "the two probes must have different names", "pass it twice"
        )
    first, second = (one_probe(folder) for folder in folders)
    command = " ".join(["whence report", *map(str, folders), *(f'--label "{label}"' for label in labels)])
    findings = compare_probes(first, second, labels, command)
    for task in findings["tasks"]:
        print(f"{task['task']}: {task_answer(task, findings)}")
    print(overall(findings))
    page = out or second / "comparison.html"
    records.write_text(page, comparison_page(findings))
    return page, findings | {"answer": overall(findings)}


def one_probe(folder: Path) -> Path:
    """The folder of a probe: itself, or the only one in it."""
    probes = find_folders(folder, "plan.json")
    if len(probes) != 1:
        raise usage_error(
            "whence report",
            f"{folder} with {len(probes)} probes",
            "each folder of a comparison must hold one probe",
            "name the folders that hold plan.json",
        )
    return probes[0]
