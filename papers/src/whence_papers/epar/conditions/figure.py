"""One picture of where the baseline wins, loses or cannot be told apart: conditions down, the others across.

Each verdict has a sign, a tint and a filled or hollow marker, and the numbers stand in the cell: no reader needs colour.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import require_package
from whence.report.png import write_png
from whence_papers.epar.conditions.rows import LOSES, MISSING, OPEN, WINS, Cell, Row, rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: sign, colour of marker and line, tint of the cell; dark and light differ as well as hue
LOOKS = {
    WINS: ("▲", "#08519c", "#a8cbe6"),
    LOSES: ("▼", "#b35806", "#fee0b6"),
    OPEN: ("○", "0.35", "white"),
    MISSING: ("×", "0.35", "0.93"),
}
MARKERS = {WINS: ("^", "filled"), LOSES: ("v", "filled"), OPEN: ("o", "hollow")}
CELL, ROW, NAMES = 2.35, 0.46, 3.0  # inches
WIDEST = 1.6  # an interval is cut at so many times the largest difference


def write_figure(studies: list[dict[str, Any]], path: Path) -> None:
    """The picture of studies that are comparable as a PNG file, whole or not at all."""
    unit = "points" if studies[0]["metric"] == "accuracy" else studies[0]["metric"]
    write_png(figure(rows(studies), studies[0]["spec"]["decision"]["baseline"], unit), path)


def figure(made: list[Row], baseline: str, unit: str) -> Figure:
    """The picture; ``unit`` is what the differences are in."""
    require_package("matplotlib", "the figure of conditions", "plot")
    from matplotlib.figure import Figure

    columns = [cell.against for cell in made[0].cells]
    lines = _lines(made)
    height = ROW * len(lines)
    top, bottom = 1.0, 0.95  # inches for the heading with the columns' names, and for axes with the note
    width, total = NAMES + CELL * len(columns) + 0.15, height + top + bottom
    drawn = Figure(figsize=(width, total), facecolor="white", dpi=160)
    edge = _edge(made)
    for number, name in enumerate(columns):
        box = ((NAMES + CELL * number) / width, bottom / total, (CELL - 0.08) / width, height / total)
        axes = drawn.add_axes(box)
        _frame(axes, len(lines), edge, f"against {name}", f"{baseline} minus {name} ({unit})")
        for place, line in enumerate(lines):
            if isinstance(line, Row):
                _draw(axes, place, line.cells[number], edge)
    for place, line in enumerate(lines):
        y = (bottom + height - ROW * (place + 0.5)) / total
        if isinstance(line, Row):
            drawn.text(0.22 / width, y, f"{line.condition}\n{_own(line, baseline, unit)}", va="center", fontsize=8)
        else:
            drawn.text(0.1 / width, y - 0.1 / total, line, va="center", fontsize=9, fontweight="bold")
    _heading(drawn, made, baseline, total)
    return drawn


def _lines(made: list[Row]) -> list[Row | str]:
    """The rows, and before each group its name."""
    lines: list[Row | str] = []
    for row in made:
        if row.group and (not lines or not isinstance(lines[-1], Row) or lines[-1].group != row.group):
            lines.append(row.group)
        lines.append(row)
    return lines


def _edge(made: list[Row]) -> float:
    """Where the axes end on both sides, the same for all cells."""
    cells = [cell for row in made for cell in row.cells if cell.difference is not None]
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
    sign, colour, tint = LOOKS[cell.verdict]
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
            if abs(end) > edge:  # the interval goes on
                axes.plot([edge if end > 0 else -edge], [y], marker=mark, markersize=4, color=colour, clip_on=False)
    marker, face = MARKERS[cell.verdict]
    axes.plot([cell.difference], [y], marker=marker, markersize=5.5, color=colour, zorder=4,
              markerfacecolor=colour if face == "filled" else "white")  # fmt: skip


def _own(row: Row, baseline: str, unit: str) -> str:
    own = row.cells[0].own
    return "" if own is None else f"{baseline} {own:.1f} {'%' if unit == 'points' else ''}".rstrip()


def _heading(drawn: Figure, made: list[Row], baseline: str, total: float) -> None:
    counted = Counter(cell.verdict for row in made for cell in row.cells)
    told = ", ".join(f"{LOOKS[verdict][0]} {verdict} {counted[verdict]}" for verdict in LOOKS if counted[verdict])
    drawn.text(0.01, 1 - 0.2 / total, f"Where {baseline} wins, loses or cannot be told apart", fontsize=11,
               fontweight="bold", va="center")  # fmt: skip
    drawn.text(0.01, 1 - 0.47 / total, f"{baseline}: {told}", fontsize=9, va="center")
    known = [cell for row in made for cell in row.cells if cell.seeds is not None]
    if known:
        seeds, comparisons = _each([cell.seeds for cell in known]), _each([cell.comparisons for cell in known])
        note = (
            f"{seeds} seeds an arm. Welch's test; p and intervals are corrected for {comparisons} comparisons "
            "(Bonferroni). A win or a loss is what that leaves standing; the rest cannot be told apart."
        )
        drawn.text(0.01, 0.12 / total, note, fontsize=7.5, color="0.3", va="center")


def _each(numbers: list[int | None]) -> str:
    """Every number that occurs: conditions that were asked later are corrected for more comparisons."""
    return " or ".join(str(number) for number in sorted({number for number in numbers if number is not None}))
