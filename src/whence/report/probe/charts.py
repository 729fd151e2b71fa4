"""The charts of a probe. The page and the image files use the same drawing functions of matplotlib.

Every chart also has its numbers as rows of a table, for a page that is written without matplotlib, and a description for
screen readers. Colors are those of the light page; ``figures.svg`` replaces them by the CSS variables of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whence.probe.curves import leading_curve
from whence.report.formatting import format_number
from whence.report.probe.sentences import SCORES, format_count, format_interval, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: names of the page's variables and their values on a light page
COLORS = {
    "ink": "#1b1d21", "faint": "#626a75", "line": "#dcdfe3", "raised": "#ffffff", "hue1": "#0079e9", "hue2": "#b26313",
    "hue3": "#06884a", "hue4": "#e724b5", "hue5": "#6b3600", "hue6": "#4f6595",
}  # fmt: skip


#: color, marker and line style of the curves of a chart; each alone distinguishes them
STYLES = (
    ("hue1", "o", "-"), ("hue2", "s", "--"), ("hue3", "^", "-."), ("hue4", "D", ":"), ("hue5", "v", "-"), ("hue6", "P", "--"),
)  # fmt: skip


BASELINE_STYLES = {"oracle": (0, (4, 2)), "closed book": (0, (1, 1.5)), "chance": (0, (5, 1.5, 1, 1.5))}


PERCENT, THOUSANDTHS = 100, 1000


@dataclass(frozen=True)
class Chart:
    """One chart: a drawing function, a description, and its numbers as a table.

    Args:
        name: unique on a page; the ids inside the SVG begin with it.
        size: in inches.
        legend_above: put the legend above the axes, where it covers no curve.
    """

    name: str
    description: str
    draw: Callable[[Axes], None]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    size: tuple[float, float] = (4.6, 3.1)
    legend_above: bool = False


Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def gold_curve(task: dict[str, Any]) -> Chart:
    """Every measure by the slot of the gold, with intervals; the baselines are those of the leading measure."""
    levels = {name: point["mean"] for name, point in leading_curve(task)["baselines"].items()} | {
        "chance": task["chance"]
    }
    named_curves = [(SCORES[curve["score"]], curve) for curve in task["curves"]]
    description = f"{task['name']}: accuracy and probability of the answer by the slot of the gold"
    return slot_curves(
        f"curve-{task['task']}", named_curves, task["slots"], levels, "accuracy or probability (%)", description
    )


def slot_curves(
    name: str,
    named_curves: Sequence[tuple[str, dict[str, Any]]],
    slots: int,
    levels: Mapping[str, float],
    label: str,
    description: str,
) -> Chart:
    """Named curves by the slot of the gold with their intervals, and some levels as horizontal lines."""

    def draw(axes: Axes) -> None:
        for level, share in levels.items():
            style = BASELINE_STYLES.get(level, "--")
            axes.axhline(PERCENT * share, color=COLORS["faint"], linewidth=1.1, linestyle=style,
                         label=f"{level}, {PERCENT * share:.0f}%")  # fmt: skip
        for index, (words, curve) in enumerate(named_curves):
            color, marker, line = STYLES[index % len(STYLES)]
            offset = (index - (len(named_curves) - 1) / 2) * 0.012 * slots  # so that intervals do not cover each other
            at = [point["slot"] + 1 + offset for point in curve["points"]]
            means = [PERCENT * point["mean"] for point in curve["points"]]
            ends = [point["interval"] or {"low": point["mean"], "high": point["mean"]} for point in curve["points"]]
            bars = [
                [max(0.0, mean - PERCENT * one["low"]) for mean, one in zip(means, ends, strict=True)],
                [max(0.0, PERCENT * one["high"] - mean) for mean, one in zip(means, ends, strict=True)],
            ]
            axes.errorbar(at, means, yerr=bars, color=COLORS[color], marker=marker, linestyle=line, capsize=3,
                          markersize=4, label=words)  # fmt: skip
        axes.set_ylim(-3, 103)
        axes.set_xlim(1 - 0.05 * slots, slots * 1.05)
        axes.set_xticks([point["slot"] + 1 for point in named_curves[0][1]["points"]])
        axes.set_xlabel("slot of the gold")
        axes.set_ylabel(label)

    values = "; ".join(
        f"{words}: "
        + ", ".join(
            f"slot {p['slot'] + 1}: {format_percent(p['mean'])} (95% interval {format_interval(p['interval'])}, {format_count(p['n'], 'item')})"
            for p in curve["points"]
        )
        for words, curve in named_curves
    )
    rows = [
        [f"slot {point['slot'] + 1}"]
        + [
            f"{format_percent(curve['points'][i]['mean'])} ({format_interval(curve['points'][i]['interval'])})"
            for _, curve in named_curves
        ]
        for i, point in enumerate(named_curves[0][1]["points"])
    ]
    return Chart(name, f"{description}. {values}.", draw, ["", *(words for words, _ in named_curves)], rows)


def depth_by_length(kind: str, tasks: Sequence[dict[str, Any]]) -> Chart:
    """One task at several lengths: a row for each number of slots, a cell for each slot of the gold."""
    ordered = sorted(tasks, key=lambda task: task["slots"])
    score = min(ordered, key=lambda task: not task["supported"])["lead"]  # one measure for all rows
    lines = [(t["slots"], next(c["points"] for c in t["curves"] if c["score"] == score)) for t in ordered]

    def draw(axes: Axes) -> None:
        for row, (_, points) in enumerate(lines):
            width = 1 / len(points)
            # light enough to read the number on it
            draw_cells(axes, [(i * width, row, width, 0.05 + 0.45 * point["mean"]) for i, point in enumerate(points)])
            for i, point in enumerate(points):
                axes.text(
                    (i + 0.5) * width,
                    row + 0.5,
                    format_number(100 * point["mean"], 0),
                    ha="center",
                    va="center",
                    fontsize=8,
                )
        axes.set_ylim(len(lines), 0)
        axes.set_xlim(0, 1)
        axes.set_yticks([row + 0.5 for row in range(len(lines))], [str(slots) for slots, _ in lines])
        axes.set_xticks([0, 1], ["first slot", "last slot"])
        axes.set_ylabel("slots")
        axes.set_xlabel(f"depth of the gold; {SCORES[score]} (%)")

    values = "; ".join(
        f"{slots} slots, gold in slot {p['slot'] + 1}: {format_percent(p['mean'])}"
        for slots, points in lines
        for p in points
    )
    rows = [
        [f"{slots} slots", ", ".join(f"slot {p['slot'] + 1}: {format_percent(p['mean'])}" for p in points)]
        for slots, points in lines
    ]
    description = f"{kind}: {SCORES[score]} by length and by the depth of the gold. {values}."
    return Chart(f"depth-{kind}", description, draw, ["", SCORES[score]], rows, (4.6, 0.9 + 0.45 * len(lines)))


def line_chart(
    name: str, description: str, draw: Callable[[Axes], None], column: str, series: Series, scale: float, unit: str
) -> Chart:
    """A chart of lines with a table of the same numbers: a row for each place on the x axis."""
    positions = sorted({x for at, _ in series.values() for x in at})
    values_by_line = {words: dict(zip(at, values, strict=True)) for words, (at, values) in series.items()}
    rows = [
        [
            f"{x:g}",
            *(f"{scale * line_values[x]:.3g}" if x in line_values else "–" for line_values in values_by_line.values()),
        ]
        for x in positions
    ]
    head = [column, *(f"{words} ({unit})" if unit else words for words in series)]
    return Chart(name, f"{description}.", draw, head, rows)


def draw_cells(axes: Axes, cells: Sequence[tuple[float, float, float, float]]) -> None:
    """Cells of one color: left edge, top edge, width and opacity of each."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    corners = [[(x, y), (x + w, y), (x + w, y + 1), (x, y + 1)] for x, y, w, _ in cells]
    colors = [to_rgba(COLORS["hue1"], round(opacity, 3)) for *_, opacity in cells]
    axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors=COLORS["raised"], linewidths=0.4))


def draw_line(axes: Axes, index: int, at: Sequence[float], values: Sequence[float], words: str) -> None:
    color, marker, line = STYLES[index % len(STYLES)]
    axes.plot(at, values, color=COLORS[color], marker=marker, linestyle=line, markersize=3, linewidth=1.3, label=words)


def scale_values(values: Sequence[float], scale: float) -> list[float]:
    return [scale * value for value in values]
