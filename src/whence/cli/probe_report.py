"""The reports of one probe and of two: the table on the terminal, the page, the figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence.errors import MissingExtra, usage_error
from whence.records import find_folders

CAPTION = (
    "Slots count from 1. Choice: % of items whose answer is more likely than every rival. Probability: mean probability of "
    "the answer among the answer and its rivals, in %. Generation: % of items with the answer in the generated text. p: permutation test of "
    "the gap between best and worst slot, Holm-corrected over all rows."
)


def print_table(found: dict[str, Any]) -> None:
    """A row for every task and measure, then one sentence for each task and one for all of them."""
    from rich.console import Console
    from rich.table import Table

    from whence.report.probe.sentences import SHORT, few_items_note, headline, section_answer

    table = Table(title=found["title"], title_justify="left", caption=CAPTION, caption_justify="left", box=None,
                  padding=(0, 1, 0, 0))  # fmt: skip
    for name in ("task", "measure", "% by slot", "mean", "gap", "p", "worst", "closed", "oracle"):
        curve = name == "% by slot"
        table.add_column(name, no_wrap=not curve, min_width=13 if curve else None)
    for task in found["tasks"]:
        for number, curve in enumerate(task["curves"]):
            lines = (curve["baselines"].get(name) for name in ("closed book", "oracle"))
            table.add_row(
                ("" if number else task["task"]),
                SHORT[curve["score"]],
                " ".join(f"{p['slot'] + 1}:{100 * p['mean']:.0f}" for p in curve["points"]),
                f"{100 * curve['average']:.0f}",
                f"{100 * curve['gap']:.0f}",
                f"{curve['corrected_p']:.1g}",
                str(curve["worst"] + 1) if curve["gap"] else "-",
                *(f"{100 * line['mean']:.0f}" if line else "-" for line in lines),
            )
    console = Console(highlight=False)
    console.print(table)
    for task in found["tasks"]:
        few = few_items_note(task["items"])
        console.print(f"{task['task']}: {headline(task)}" + (f" {few}" if few else ""), markup=False)
    console.print(section_answer(found), markup=False, style="bold")
    if found["missing"]:
        print(f"not measured yet: {', '.join(found['missing'])}")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The table on the terminal and the page, from the records of a probe alone."""
    from whence.cli.probe_options import rerun_command
    from whence.probe import run_folder
    from whence.probe.findings import findings

    found = findings(folder, "")
    device = "cuda" if any(place["environment"]["machine"].get("accelerator") for place in found["ran"]) else "cpu"
    found["command"] = rerun_command(run_folder.load_plan(folder)[0], device) or f"whence report {folder}"
    print_table(found)
    page = write_page(found, out or folder / "report.html")
    write_pictures(found, page.parent)
    return page


def write_pictures(found: dict[str, Any], folder: Path) -> None:
    """Write the curves and the explanations as PNG files. The page does not depend on them."""
    from whence.report.image_files import write_png
    from whence.report.probe.figures import curves_figure, explanations_figure

    drawings = {"curves": curves_figure}
    if any(found["explanation"].values()):
        drawings["explanations"] = explanations_figure
    for name, drawing in drawings.items():
        try:
            write_png(drawing(found), folder / f"{name}.png")
        except MissingExtra as missing:
            print(f"no picture of the {name}: {missing}", file=sys.stderr)
        else:
            print(f"{name}: {folder / f'{name}.png'}")


def write_page(found: dict[str, Any], path: Path) -> Path:
    """Write the page atomically."""
    from whence import records
    from whence.report.probe import page

    records.write_text(path, page(found))
    return path


def write_comparison(folders: Sequence[Path], out: Path | None, labels: Sequence[str]) -> Path:
    """The sentences on the terminal and the page, from the records of two probes alone."""
    from whence import records
    from whence.probe.findings import compare_probes
    from whence.report.probe.comparison import comparison_page, overall, task_answer

    if len(folders) != 2:
        raise usage_error("whence report", f"{len(folders)} folders", "two probes are compared", "name two folders")
    if labels and (len(labels) != 2 or labels[0] == labels[1]):
        raise usage_error(
            "whence report --label", repr(list(labels)), "each probe has a name of its own", "pass it twice"
        )
    first, second = (one_probe(folder) for folder in folders)
    said = " ".join(["whence report", *map(str, folders), *(f'--label "{label}"' for label in labels)])
    found = compare_probes(first, second, labels, said)
    for task in found["tasks"]:
        print(f"{task['task']}: {task_answer(task, found)}")
    print(overall(found))
    page = out or second / "comparison.html"
    records.write_text(page, comparison_page(found))
    return page


def one_probe(folder: Path) -> Path:
    """The folder of a probe: itself, or the only one in it."""
    found = find_folders(folder, "plan.json")
    if len(found) != 1:
        raise usage_error(
            "whence report",
            f"{folder} with {len(found)} probes",
            "two probes are compared, and each folder holds one",
            "name the folders that hold plan.json",
        )
    return found[0]
