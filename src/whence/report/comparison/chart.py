"""A line chart as SVG: an axis on two sides, one thick line an arm, a thin one for each of its seeds.

The colours are classes, so that one drawing serves light, dark and print.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from whence.report.comparison.scales import Scale
from whence.report.comparison.style import Look

WIDTH, HEIGHT = 480, 300
LEFT, TOP, BOTTOM = 46, 34, 44
LABEL_ROOM = 104
LABELS = 8  # more names than this at the ends of lines cannot be kept apart
LABEL_LETTERS = 14
GAP = 14

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One arm: its seeds' lines, and the line that stands for it."""

    look: Look
    thin: Sequence[Sequence[Point]]
    thick: Sequence[Point]
    marked: bool = False  # a marker at each point, where the points are few
    told: Sequence[str] = field(default_factory=tuple)  # what the markers say under the pointer


def right_edge(series: Sequence[Series], width: int = WIDTH) -> int:
    """Where the plot ends: before the names at the ends of the lines, if there is room for them."""
    return width - (LABEL_ROOM if 1 <= len(series) <= LABELS else 14)


def lines(
    series: Sequence[Series], x: Scale, y: Scale, x_label: str, y_label: str, told: str, extra: str = "",
    width: int = WIDTH, height: int = HEIGHT, named: bool = True, above: str = "",
) -> str:  # fmt: skip
    """The chart; ``told`` is what a reader who cannot see it gets to know. ``extra`` lies below the lines, ``above`` on them."""
    parts = [frame(x, y, x_label, y_label, height), extra]
    ends: list[tuple[float, Series]] = []
    for one in series:
        drawn = "".join(_path(points, x, y, "seed") for points in one.thin) + _path(one.thick, x, y, "mean")
        if one.marked:
            says = one.told or [""] * len(one.thick)
            inside = [(point, say) for point, say in zip(one.thick, says, strict=True) if y.holds(point[1])]
            drawn += "".join(one.look.marker(x(px), y(py), 3.6, say) for (px, py), say in inside)
        parts.append(f"{one.look.opened()}{drawn}</g>")
        within = [point for point in one.thick if y.holds(point[1])]
        if within:
            ends.append((y(within[-1][1]), one))
    if named and len(series) <= LABELS:
        parts.append(_end_labels(ends, x.end + 8, y.end, y.start))
    parts.append(above)
    return svg("".join(parts), told, width, height)


def svg(inside: str, told: str, width: int, height: int) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(told)}">{inside}</svg>'
    )


def frame(x: Scale, y: Scale, x_label: str, y_label: str, height: int) -> str:
    """Grid lines across, ticks below, the unit of each axis where reading begins: above the one, after the other."""
    parts = []
    for value, text in y.ticks:
        at = y(value)
        parts.append(f'<line class="grid" x1="{x.start:g}" x2="{x.end:g}" y1="{at:.1f}" y2="{at:.1f}"></line>')
        parts.append(f'<text class="tick" x="{x.start - 7:g}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in x.ticks:
        at = x(value)
        parts.append(f'<line class="notch" x1="{at:.1f}" x2="{at:.1f}" y1="{y.start:g}" y2="{y.start + 5:g}"></line>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{y.start + 18:g}" text-anchor="middle">{text}</text>')
    parts.append(f'<line class="axis" x1="{x.start:g}" x2="{x.end:g}" y1="{y.start:g}" y2="{y.start:g}"></line>')
    parts.append(f'<text class="label" x="2" y="14">{html.escape(y_label)}</text>')
    middle = (x.start + x.end) / 2
    parts.append(
        f'<text class="label" x="{middle:g}" y="{height - 5}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    return "".join(parts)


def shortened(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1].rstrip() + "…"


def _path(points: Sequence[Point], x: Scale, y: Scale, kind: str) -> str:
    """A line through the points; where a value lies off the axis the line has a gap rather than a false plateau."""
    steps, pen = [], "M"
    for px, py in points:
        if y.holds(py):
            steps.append(f"{pen}{x(px):.1f} {y(py):.1f}")
            pen = "L"
        else:
            pen = "M"
    return f'<path class="{kind}" d="{"".join(steps)}"></path>' if steps else ""


def _end_labels(ends: list[tuple[float, Series]], x: float, top: float, bottom: float) -> str:
    """Names beside the ends of their lines, moved apart where they would overlap."""
    ends = sorted(ends, key=lambda end: end[0])
    at: list[float] = []
    for wanted, _ in ends:
        at.append(max(wanted, at[-1] + GAP) if at else max(wanted, top))
    limit = bottom
    for index in reversed(range(len(at))):  # whatever was pushed below the axis is pushed back up
        at[index] = min(at[index], limit)
        limit = at[index] - GAP
    return "".join(
        f'{one.look.opened()}<path class="leader" d="M{x - 7:.1f} {wanted:.1f}L{x - 1:.1f} {place:.1f}"></path>'
        f'<text class="name" x="{x + 2:.1f}" y="{place + 4:.1f}">{html.escape(shortened(one.look.name, LABEL_LETTERS))}'
        f"<title>{html.escape(one.look.name)}</title></text></g>"
        for place, (wanted, one) in zip(at, ends, strict=True)
    )
