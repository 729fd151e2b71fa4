"""Accuracy by the slot of the gold as one figure; the page shows the same with tests and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whence.errors import require_package
from whence.probe.curves import leading
from whence.report.probe.sentences import SCORES, counted, too_few

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: colour, marker and line of each measure: any one of the three is enough to tell them apart
LOOKS = {
    "likelihood": ("#08519c", "o", "-"),
    "probability": ("#4292c6", "^", ":"),
    "generation": ("#b35806", "s", "--"),
}
LEVELS = {"oracle": (0, (4, 2)), "closed book": (0, (1, 1.5)), "chance": (0, (5, 1.5, 1, 1.5))}
ACROSS, WIDE, HIGH = 2, 4.6, 3.1  # panels in a row, inches of each


def curves_picture(findings: dict[str, Any]) -> Figure:
    """A panel for each task: every measure by the slot of the gold with 95% intervals, chance, and the two baselines."""
    require_package("matplotlib", "the picture of the curves", "plot")
    from matplotlib.figure import Figure

    tasks = findings["tasks"]
    down = -(-len(tasks) // ACROSS)
    across = min(ACROSS, len(tasks))
    drawn = Figure(figsize=(WIDE * across, HIGH * down + 0.3), facecolor="white", dpi=160, layout="constrained")
    drawn.suptitle(findings["title"], fontsize=11, fontweight="bold", x=0.01, ha="left")
    for number, task in enumerate(tasks, 1):
        _panel(drawn.add_subplot(down, across, number), task)
    return drawn


def _panel(axes: Axes, task: dict[str, Any]) -> None:
    shown = task["curves"]
    levels = {name: point["mean"] for name, point in leading(task)["baselines"].items()} | {"chance": task["chance"]}
    for name, share in levels.items():
        axes.axhline(
            100 * share, color="0.45", linewidth=1.1, linestyle=LEVELS[name], label=f"{name}, {100 * share:.0f}%"
        )
    for curve in shown:
        colour, marker, line = LOOKS[curve["score"]]
        at = [point["slot"] + 1 for point in curve["points"]]
        means = [100 * point["mean"] for point in curve["points"]]
        both = [point["interval"] or {"low": point["mean"], "high": point["mean"]} for point in curve["points"]]
        ends = [
            [max(0.0, mean - 100 * one["low"]) for mean, one in zip(means, both, strict=True)],
            [max(0.0, 100 * one["high"] - mean) for mean, one in zip(means, both, strict=True)],
        ]
        axes.errorbar(at, means, yerr=ends, color=colour, marker=marker, linestyle=line, capsize=3, markersize=5,
                      label=SCORES[curve["score"]])  # fmt: skip
    few = " (few)" if too_few(task["items"]) else ""
    axes.set_title(f"{task['name']}, {counted(task['items'], 'item')}{few}", fontsize=9, loc="left")
    axes.set_ylim(-3, 103)
    axes.set_xlim(1 - 0.05 * task["slots"], task["slots"] * 1.05)
    axes.set_xticks([point["slot"] + 1 for point in shown[0]["points"]])
    axes.set_xlabel("slot of the gold", fontsize=8)
    axes.set_ylabel("accuracy or probability (%)", fontsize=8)
    axes.tick_params(labelsize=7.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=True, framealpha=0.85, edgecolor="none")
