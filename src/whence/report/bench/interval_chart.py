"""A chart of estimates with intervals, one row each, as SVG.

Each label is above its interval, so the chart is narrow and its words stay readable on a phone.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from whence.report.comparison.svg import linear_scale
from whence.report.formatting import format_number

WIDTH, ROW, TOP, BOTTOM = 440, 38, 4, 26
LEFT, RIGHT = 12, 425
LABEL, LINE = 14, 27  # below the top of a row
MAX_LABEL = 62


@dataclass(frozen=True)
class Interval:
    """A row: its label, its estimate and both ends of its interval, if it has one."""

    label: str
    estimate: float
    ends: Sequence[float] | None


def interval_chart(rows: Sequence[Interval], title: str, *, zero: bool = False, margin: float | None = None) -> str:
    """The rows on one axis. ``zero`` draws a line at no difference, and ``margin`` two lines around it."""
    values = [value for row in rows for value in (row.estimate, *(row.ends or ()))]
    marks = [-margin, margin] if margin is not None else []
    scale = linear_scale([*values, *marks, *([0.0] if zero else [])], LEFT, RIGHT, include_zero=True)
    height = TOP + ROW * len(rows) + BOTTOM
    floor = TOP + ROW * len(rows)
    parts = [
        f'<line class="grid" x1="{scale(at):.1f}" x2="{scale(at):.1f}" y1="{TOP}" y2="{floor}"/>'
        f'<text x="{scale(at):.1f}" y="{floor + 17}" text-anchor="middle">{html.escape(text)}</text>'
        for at, text in scale.ticks
    ]
    if zero:
        parts.append(f'<line class="axis" x1="{scale(0):.1f}" x2="{scale(0):.1f}" y1="{TOP}" y2="{floor}"/>')
    for at in marks:
        parts.append(f'<line class="margin" x1="{scale(at):.1f}" x2="{scale(at):.1f}" y1="{TOP}" y2="{floor}"/>')
    for number, row in enumerate(rows):
        parts.append(_draw_row(row, TOP + ROW * number, [scale(value) for value in (row.estimate, *(row.ends or ()))]))
    return (
        f'<svg class="chart" style="max-width: 34rem" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )


def _draw_row(row: Interval, top: float, places: Sequence[float]) -> str:
    y = top + LINE
    label = row.label if len(row.label) <= MAX_LABEL else row.label[: MAX_LABEL - 1] + "…"
    ends = " to ".join(format_number(end, 1) for end in row.ends) if row.ends else "no interval"
    words = f"{row.label}: {format_number(row.estimate, 1)} ({ends})"
    whisker = ""
    if row.ends is not None:
        whisker = f'<line class="whisker" x1="{places[1]:.1f}" x2="{places[2]:.1f}" y1="{y}" y2="{y}"/>'
    return (
        f'<g class="hue1"><title>{html.escape(words)}</title>'
        f'<text class="label" x="0" y="{top + LABEL}">{html.escape(label)}</text>'
        f'{whisker}<circle class="dot" cx="{places[0]:.1f}" cy="{y}" r="4.5"/></g>'
    )
