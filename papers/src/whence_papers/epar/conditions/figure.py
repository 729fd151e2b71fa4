"""One figure and one table of several studies: conditions as rows, arms as columns, verdicts from the baseline's side.

A study compares every arm with a baseline. Here the question is about the baseline, so a cell is the baseline minus the arm,
and an arm that the comparison calls worse is a win of the baseline. The verdicts are those of the comparison. Each verdict
has a symbol, a tint and a filled or hollow marker, and the numbers are printed in the cell: no reader depends on color.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import require_package
from whence.report.image_files import write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINS, LOSES, OPEN, MISSING = "wins", "loses", "undecided", "not compared"
FROM_BASELINE = {"worse": WINS, "better": LOSES, "equivalent": OPEN, "undecided": OPEN}
MIN_STUDIES = 3  # fewest studies for a figure; two are easily compared without one


@dataclass(frozen=True)
class Cell:
    """One arm in one condition; the numbers are None if there is no comparison."""

    against: str
    verdict: str
    difference: float | None = None  # baseline minus arm: positive favors the baseline in accuracy
    low: float | None = None  # ends of the interval at the corrected level
    high: float | None = None
    corrected_p: float | None = None
    own: float | None = None  # the baseline's mean
    other: float | None = None  # the arm's
    seeds: int | None = None
    comparisons: int | None = None  # for which p and the interval are corrected
    words: str = ""  # the comparison's verdict, or the reason for its absence


@dataclass(frozen=True)
class Row:
    """One condition. Its group is the part of the study's question before the colon."""

    group: str
    condition: str
    study: str
    cells: tuple[Cell, ...]


def are_comparable(studies: list[dict[str, Any]]) -> bool:
    """Whether studies have the same arms, baseline and metric, and are enough for a figure."""
    kinds = {
        (study["metric"], study["spec"]["decision"]["baseline"], tuple((a["name"], a["position"]) for a in study["arms"]))
        for study in studies
    }  # fmt: skip
    return len(kinds) == 1 and len(studies) >= MIN_STUDIES and len(studies[0]["arms"]) > 1


def build_rows(studies: list[dict[str, Any]]) -> list[Row]:
    """One row per study, in the given order; rows of a group are adjacent, groups in the order of their first row."""
    built = [_row(study) for study in studies]
    groups = list(dict.fromkeys(row.group for row in built))
    return sorted(built, key=lambda row: groups.index(row.group))


def _row(study: dict[str, Any]) -> Row:
    group, colon, condition = study["question"].partition(": ")
    if not colon:
        group, condition = "", study["question"]
    baseline = study["spec"]["decision"]["baseline"]
    names = [arm["name"] for arm in study["arms"] if arm["name"] != baseline]
    return Row(group, condition, study["name"], tuple(_cell(study, name) for name in names))


def _cell(study: dict[str, Any], name: str) -> Cell:
    comparison = study["comparison"]
    if comparison is None:
        return Cell(name, MISSING, words=study["why_no_comparison"] or "")
    arm, own = comparison["arms"][name], comparison["baseline_summary"]
    interval = arm["corrected_interval"]
    return Cell(
        against=name,
        verdict=FROM_BASELINE[arm["kind"]],
        difference=0.0 - arm["difference"],  # and not -0.0 where there is none
        low=None if interval is None else 0.0 - interval["high"],
        high=None if interval is None else 0.0 - interval["low"],
        corrected_p=arm["corrected_p"],
        own=own["mean"],
        other=arm["summary"]["mean"],
        seeds=own["n"],
        comparisons=comparison["m"],
        words=arm["verdict"],
    )


def format_csv(rows: list[Row]) -> str:
    """Every cell with all its numbers as CSV, one line per cell.

    >>> print(format_csv([Row("length", "64", "a", (Cell("none", "wins", 2.5),))]).splitlines()[1])
    length,64,a,none,wins,2.5,,,,,,,,
    """
    lines = [
        {"group": row.group, "condition": row.condition, "study": row.study} | asdict(cell)
        for row in rows
        for cell in row.cells
    ]
    text = io.StringIO()
    out = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    out.writeheader()
    out.writerows(lines)
    return text.getvalue()


#: symbol, color of marker and line, tint of the cell; they differ in lightness as well as hue
STYLES = {
    WINS: ("▲", "#08519c", "#a8cbe6"),
    LOSES: ("▼", "#b35806", "#fee0b6"),
    OPEN: ("○", "0.35", "white"),
    MISSING: ("×", "0.35", "0.93"),
}
MARKERS = {WINS: ("^", "filled"), LOSES: ("v", "filled"), OPEN: ("o", "hollow")}
CELL, ROW, NAMES = 2.35, 0.46, 3.0  # inches
WIDEST = 1.6  # intervals are clipped at this multiple of the largest difference


def write_figure(studies: list[dict[str, Any]], path: Path) -> None:
    """Write the figure of comparable studies as a PNG file, atomically."""
    unit = "points" if studies[0]["metric"] == "accuracy" else studies[0]["metric"]
    write_png(draw_figure(build_rows(studies), studies[0]["spec"]["decision"]["baseline"], unit), path)


def draw_figure(rows: list[Row], baseline: str, unit: str) -> Figure:
    """Draw the figure; ``unit`` is the unit of the differences."""
    require_package("matplotlib", "the figure of conditions", "plot")
    from matplotlib.figure import Figure

    columns = [cell.against for cell in rows[0].cells]
    lines = _lines(rows)
    height = ROW * len(lines)
    top, bottom = 1.0, 0.95  # inches for the heading with the columns' names, and for axes with the note
    width, total = NAMES + CELL * len(columns) + 0.15, height + top + bottom
    figure = Figure(figsize=(width, total), facecolor="white", dpi=160)
    edge = _edge(rows)
    for number, name in enumerate(columns):
        box = ((NAMES + CELL * number) / width, bottom / total, (CELL - 0.08) / width, height / total)
        axes = figure.add_axes(box)
        _frame(axes, len(lines), edge, f"against {name}", f"{baseline} minus {name} ({unit})")
        for place, line in enumerate(lines):
            if isinstance(line, Row):
                _draw(axes, place, line.cells[number], edge)
    for place, line in enumerate(lines):
        y = (bottom + height - ROW * (place + 0.5)) / total
        if isinstance(line, Row):
            figure.text(0.22 / width, y, f"{line.condition}\n{_own(line, baseline, unit)}", va="center", fontsize=8)
        else:
            figure.text(0.1 / width, y - 0.1 / total, line, va="center", fontsize=9, fontweight="bold")
    _heading(figure, rows, baseline, total)
    return figure


def _lines(rows: list[Row]) -> list[Row | str]:
    """The rows, with the name of each group before it."""
    lines: list[Row | str] = []
    for row in rows:
        if row.group and (not lines or not isinstance(lines[-1], Row) or lines[-1].group != row.group):
            lines.append(row.group)
        lines.append(row)
    return lines


def _edge(rows: list[Row]) -> float:
    """The limit of the axes on both sides, the same for all cells."""
    cells = [cell for row in rows for cell in row.cells if cell.difference is not None]
    largest = max((abs(cell.difference or 0.0) for cell in cells), default=0.0) or 1.0
    ends = [abs(end) for cell in cells for end in (cell.low, cell.high) if end is not None]
    return 1.08 * min(max([largest, *ends]), WIDEST * largest)


def _frame(axes: Axes, many: int, edge: float, title: str, label: str) -> None:
    axes.set_xlim(-edge, edge)
    axes.set_ylim(many, 0)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.set_title(title, fontsize=9, fontweight="bold", pad=5)
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(axis="x", labelsize=7.5, length=3)
    axes.set_yticks([])
    axes.spines[["left", "top", "right"]].set_visible(False)


def _draw(axes: Axes, place: int, cell: Cell, edge: float) -> None:
    sign, colour, tint = STYLES[cell.verdict]
    axes.axhspan(place + 0.04, place + 0.96, facecolor=tint, edgecolor="0.8", linewidth=0.6, zorder=0)
    if cell.difference is None:
        axes.text(0, place + 0.5, f"{sign} {cell.verdict}", ha="center", va="center", fontsize=7.5, color=colour)
        return
    between = "" if cell.low is None or cell.high is None else f"  [{cell.low:+.1f}, {cell.high:+.1f}]"
    axes.text(0, place + 0.32, f"{sign} {cell.difference:+.1f}{between}", ha="center", va="center", fontsize=7.5,
              bbox={"facecolor": tint, "edgecolor": "none", "pad": 0.6}, zorder=2)  # fmt: skip
    y = place + 0.72
    if cell.low is not None and cell.high is not None:
        axes.plot([max(cell.low, -edge), min(cell.high, edge)], [y, y], color=colour, linewidth=1.5, zorder=3)
        for end, mark in ((cell.low, "<"), (cell.high, ">")):
            if abs(end) > edge:  # the interval extends beyond the axes
                axes.plot([edge if end > 0 else -edge], [y], marker=mark, markersize=4, color=colour, clip_on=False)
    marker, face = MARKERS[cell.verdict]
    axes.plot([cell.difference], [y], marker=marker, markersize=5.5, color=colour, zorder=4,
              markerfacecolor=colour if face == "filled" else "white")  # fmt: skip


def _own(row: Row, baseline: str, unit: str) -> str:
    own = row.cells[0].own
    return "" if own is None else f"{baseline} {own:.1f} {'%' if unit == 'points' else ''}".rstrip()


def _heading(figure: Figure, rows: list[Row], baseline: str, total: float) -> None:
    counted = Counter(cell.verdict for row in rows for cell in row.cells)
    legend = ", ".join(f"{STYLES[verdict][0]} {verdict} {counted[verdict]}" for verdict in STYLES if counted[verdict])
    figure.text(0.01, 1 - 0.2 / total, f"Where {baseline} wins, loses or is undecided", fontsize=11,
               fontweight="bold", va="center")  # fmt: skip
    figure.text(0.01, 1 - 0.47 / total, f"{baseline}: {legend}", fontsize=9, va="center")
    finished = [cell for row in rows for cell in row.cells if cell.seeds is not None]
    if finished:
        seeds, comparisons = _each([cell.seeds for cell in finished]), _each([cell.comparisons for cell in finished])
        note = (
            f"{seeds} seeds per arm. Paired differences; p and intervals are corrected for {comparisons} comparisons. "
            "Wins and losses are significant after this correction; the rest is undecided."
        )
        figure.text(0.01, 0.12 / total, note, fontsize=7.5, color="0.3", va="center")


def _each(numbers: list[int | None]) -> str:
    """Every number that occurs: conditions that were added later are corrected for more comparisons."""
    return " or ".join(str(number) for number in sorted({number for number in numbers if number is not None}))
