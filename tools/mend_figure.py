"""Draw docs/mend.png, the picture of the README: accuracy by the slot of the answer, without and with the best cures.

    python tools/mend_figure.py                                  # from the committed trials
    python tools/mend_figure.py --results FOLDER --out FILE      # FOLDER/mend holds trials of `whence mend`

A row for each model, a panel for each task, a line for the untouched model and for each of the model's best cures. The best
are those with the largest change of the average over all tasks, among the cures that were judged in every task and whose 95%
interval is above zero; without one, the cure with the largest change.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whence.mend.catalogue import CURES
from whence.probe.curves import LEVEL, bootstrap_means
from whence.report.image_files import write_png
from whence.report.probe.charts import COLORS, STYLES
from whence_papers import FOLDER
from whence_papers.ledger import LedgerFolders, MissingEvidence
from whence_papers.ledger.headlines import MODELS
from whence_papers.ledger.mend_records import MIN_ITEMS, PairedAnswers, find_trials, load_pairs, measure_change

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "mend.png"
BEST = 2  # cures of each model; there are six line styles for those of two models and the untouched one
OFFSET = 0.012  # of the width of a panel between two lines, so that intervals do not cover each other


@dataclass(frozen=True)
class CureCurves:
    """The answers of one cure in each task of a model, and the change of the average over tasks with its interval."""

    cure: str
    pairs: dict[str, PairedAnswers]
    change: float
    low: float
    high: float


def load_cures(folders: LedgerFolders, model: str, min_items: int = MIN_ITEMS) -> list[CureCurves]:
    """The cures that were judged on a model in the most tasks, the largest change first; averages over other tasks differ."""
    found = []
    for cure in CURES:
        try:
            pairs = load_pairs(folders, model, cure, min_items=min_items)
        except MissingEvidence:
            continue
        change = measure_change(pairs)
        ends = (change[f"average_change{end}"] for end in ("", "_low", "_high"))
        found.append(CureCurves(cure, {pair.task: pair for pair in pairs}, *ends))
    most = max((len(one.pairs) for one in found), default=0)
    return sorted((one for one in found if len(one.pairs) == most), key=lambda one: -one.change)


def choose_best(cures: list[CureCurves]) -> list[CureCurves]:
    """The cures of a model that are drawn, of all that were judged, the largest change first."""
    most = max((len(one.pairs) for one in cures), default=0)
    everywhere = [one for one in cures if len(one.pairs) == most]
    return [one for one in everywhere if one.low > 0][:BEST] or everywhere[:1]


def by_length(task: str) -> tuple[str, int]:
    """The order of tasks: by kind and then by length, as a number."""
    kind, _, length = task.partition("-of-")
    return kind, int(length) if length.isdigit() else 0


def draw_trials(models: dict[str, list[CureCurves]], task_names: dict[str, str]) -> Figure:
    """The figure of the trials of each model, by its title."""
    from matplotlib.figure import Figure

    tasks = sorted({task for cures in models.values() for one in cures for task in one.pairs}, key=by_length)
    shown = {title: choose_best(cures) for title, cures in models.items()}
    names = list(dict.fromkeys(one.cure for cures in shown.values() for one in cures))
    styles = {name: STYLES[(index + 1) % len(STYLES)] for index, name in enumerate(names)}
    panel = max(1.7, min(2.6, 9.5 / len(tasks)))  # inches; a wider figure is too small to read in a README
    width, height = max(6.0, panel * len(tasks)), 2.2 * len(models) + 1.0
    figure = Figure(figsize=(width, height), facecolor="white", dpi=160, layout="constrained")
    grid = figure.subplots(len(models), len(tasks), squeeze=False, sharey=True)
    for row, (title, cures) in zip(grid, shown.items(), strict=True):
        for axes, task in zip(row, tasks, strict=True):
            draw_task(axes, task, cures, styles)
            axes.set_title(task_names.get(task, task).replace(", ", "\n", 1), fontsize=8)
        row[0].set_ylabel(f"{title}\naccuracy (%)", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("slot of the answer", fontsize=8)
    handles = {label: one for axes in grid.flat for one, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles), fontsize=8, frameon=False
    )
    figure.supxlabel(
        textwrap.fill(describe(shown), int(17 * width)), fontsize=7, x=0.01, ha="left", color=COLORS["faint"]
    )
    return figure


def draw_task(axes: Axes, task: str, cures: list[CureCurves], styles: dict[str, tuple[str, str, str]]) -> None:
    """One panel: the untouched model and the cures in one task."""
    present = [one for one in cures if task in one.pairs]
    axes.set_ylim(-3, 103)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
    if not present:
        axes.text(
            0.5, 0.5, "no trial", ha="center", va="center", transform=axes.transAxes, fontsize=7, color=COLORS["faint"]
        )
        return
    first = present[0].pairs[task]
    step = OFFSET * (max(first.slots) - min(first.slots))
    draw_line(axes, first.slots, first.before, STYLES[0], "without a cure", 0.0)
    for number, one in enumerate(present, 1):
        draw_line(
            axes, one.pairs[task].slots, one.pairs[task].after, styles[one.cure], CURES[one.cure].title, number * step
        )
    axes.set_xticks([slot + 1 for slot in first.slots])


def draw_line(
    axes: Axes, slots: tuple[int, ...], answers: Tensor, style: tuple[str, str, str], label: str, offset: float
) -> None:
    """Mean accuracy at each slot with bootstrap intervals over items."""
    import torch

    color, marker, line = style
    means = answers.mean(0)
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=answers.dtype)
    low, high = torch.quantile(bootstrap_means(answers, 0), tails, dim=0)
    bars = torch.stack((means - low, high - means)).clamp(min=0).tolist()
    at = [slot + 1 + offset for slot in slots]
    axes.errorbar(at, means.tolist(), yerr=bars, color=COLORS[color], marker=marker, linestyle=line, markersize=3,
                  linewidth=1.2, elinewidth=0.8, capsize=1.5, label=label)  # fmt: skip


def describe(shown: dict[str, list[CureCurves]]) -> str:
    """The items, the intervals and the change of each cure, in words."""
    parts = []
    for title, cures in shown.items():
        if not cures:
            parts.append(f"{title}: no trial")
            continue
        counts = sorted({len(pair.before) for one in cures for pair in one.pairs.values()})
        items = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        changes = ", ".join(
            f"{CURES[one.cure].title} {one.change:+.1f} ({one.low:+.1f} to {one.high:+.1f})" for one in cures
        )
        parts.append(f"{title}, {items} items a slot: {changes}")
    return (
        f"Shown are up to {BEST} cures with the largest change of the average over all tasks, on items that chose no settings, if its "
        f"interval is above zero. Points of that change with 95% bootstrap intervals over items, not corrected for the choice. "
        f"{'. '.join(parts)}."
    )


def draw(results: Path, out: Path, min_items: int = MIN_ITEMS, models: dict[str, str] = MODELS) -> bool:
    """Write the picture, unless there is no trial. Returns whether it was written."""
    folders = LedgerFolders(results=results)
    found = {title: load_cures(folders, name, min_items) for title, name in models.items()}
    found = {title: cures for title, cures in found.items() if cures}
    task_names = {
        task["task"]: task["name"]
        for name in models.values()
        for _, _, content in find_trials(folders, name)
        for task in content["tasks"]
    }
    if not found:
        return False
    write_png(draw_trials(found, task_names), out)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=FOLDER / "results", help="Folder that holds the folder mend.")
    parser.add_argument("--out", type=Path, default=PICTURE, help="Output file.")
    arguments = parser.parse_args()
    if draw(arguments.results, arguments.out):
        print(arguments.out)
    else:
        print(f"no trial with {MIN_ITEMS} items or more in {arguments.results / 'mend'}; run whence mend first")


if __name__ == "__main__":
    main()
