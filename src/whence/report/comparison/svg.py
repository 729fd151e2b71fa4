"""SVG charts: axis scales with round ticks, and line charts with a thick line per arm and a thin line per seed.

Colors are CSS classes, so one drawing serves light mode, dark mode and print.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from whence.report.comparison.arm_style import ArmStyle
from whence.report.formatting import format_tick

WIDTH, HEIGHT = 480, 300
LEFT, TOP, BOTTOM = 46, 34, 44
LABEL_WIDTH = 104
MAX_LABELS = 8  # more names at the ends of lines would overlap
MAX_LABEL_CHARS = 14
LABEL_SPACING = 14

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """A monotone map from values in [low, high] to coordinates in [start, end]; values outside are clamped."""

    transform: Callable[[float], float]
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        left, right = self.transform(self.low), self.transform(self.high)
        share = (self.transform(value) - left) / (right - left) if right > left else 0.5
        return self.start + share * (self.end - self.start)

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def linear_scale(
    values: Iterable[float], start: float, end: float, *, max_ticks: int = 6, include_zero: bool = False
) -> Scale:
    """A linear axis over all values, extended to whole ticks.

    >>> [text for _, text in linear_scale([0.12, 0.97], 0, 100).ticks]
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    low, high = _value_range(values)
    low = min(0.0, low) if include_zero else low
    if low == high:
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    step = _round_step((high - low) / (max_ticks - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [index * step for index in range(first, last + 1)]
    return Scale(float, ticks[0], ticks[-1], start, end, _label_ticks(ticks))


def log_scale(values: Iterable[float], start: float, end: float, *, max_ticks: int = 6) -> Scale:
    """A logarithmic axis over all positive values, with ticks at round numbers.

    >>> [text for _, text in log_scale([12.0, 900.0], 0, 100).ticks]
    ['20', '50', '100', '200', '500']
    >>> [text for _, text in log_scale([487.0, 505.0], 0, 100).ticks]
    ['460', '480', '500', '520']
    """
    low, high = _value_range(value for value in values if value > 0)
    low, high = (low / 1.06, high * 1.06) if low > 0 else (0.5, 2.0)
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits: tuple[float, ...]
    for digits in ((1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1,)):
        ticks = [digit * 10.0**power for power in range(lowest, highest + 1) for digit in digits]
        ticks = [value for value in ticks if low <= value <= high]
        if len(ticks) <= max_ticks:
            break
    if len(ticks) < 2:  # values that are close together
        ticks = [value for value, _ in linear_scale([low, high], start, end).ticks if low <= value <= high]
    ticks = ticks[:: math.ceil(len(ticks) / max_ticks)] if ticks else []
    return Scale(math.log, low, high, start, end, _label_ticks(ticks))


def length_scale(lengths: Iterable[int], start: float, end: float) -> Scale:
    """Lengths in tokens on a log2 axis, with a tick at each of them."""
    ticks = sorted(set(lengths))
    return Scale(math.log2, ticks[0], ticks[-1], start, end, _label_ticks(ticks))


def distance_scale(distances: Iterable[int], start: float, end: float) -> Scale:
    """Distances in tokens as log2(1 + distance), which includes distance 0.

    >>> [text for _, text in distance_scale(range(24), 0, 100).ticks]
    ['0', '1', '2', '4', '8', '16']
    """
    high = max(distances, default=1)
    ticks = [0] + [2**power for power in range(31) if 2**power <= high]
    if len(ticks) > 7:
        ticks = ticks[:2] + ticks[2::2]
    return Scale(lambda distance: math.log2(1 + distance), 0, max(high, 1), start, end, _label_ticks(ticks))


def _label_ticks(ticks: Iterable[float]) -> tuple[tuple[float, str], ...]:
    return tuple((value, format_tick(value)) for value in ticks)


def _value_range(values: Iterable[float]) -> tuple[float, float]:
    listed = list(values)
    return (min(listed), max(listed)) if listed else (0.0, 1.0)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= step * (1 - 1e-9))


@dataclass(frozen=True)
class Series:
    """One arm: a thin line per seed, and the thick line of their mean."""

    style: ArmStyle
    seed_lines: Sequence[Sequence[Point]]
    mean_line: Sequence[Point]
    has_markers: bool = False  # a marker at each point of the mean
    tooltips: Sequence[str] = field(default_factory=tuple)  # of the markers

    @property
    def all_points(self) -> list[Point]:
        return [point for line in (self.mean_line, *self.seed_lines) for point in line]


def right_edge(series: Sequence[Series]) -> int:
    """The right end of the plot area. Names at the ends of the lines are to the right of it, if there are few."""
    return WIDTH - (LABEL_WIDTH if 1 <= len(series) <= MAX_LABELS else 14)


def line_chart(
    series: Sequence[Series], x: Scale, y: Scale, x_label: str, y_label: str, description: str, *, background: str = "",
    height: int = HEIGHT, label_lines: bool = True,
) -> str:  # fmt: skip
    """A line chart.

    Args:
        description: for screen readers.
        background: SVG drawn below the lines.
        label_lines: write the names of the arms at the ends of their lines.
    """
    parts = [_draw_axes(x, y, x_label, y_label, height), background]
    ends: list[tuple[float, Series]] = []
    for one in series:
        content = "".join(_path(line, x, y, "seed") for line in one.seed_lines) + _path(one.mean_line, x, y, "mean")
        if one.has_markers:
            tooltips = one.tooltips or [""] * len(one.mean_line)
            for (px, py), tooltip in zip(one.mean_line, tooltips, strict=True):
                content += one.style.marker(x(px), y(py), 3.6, tooltip) if y.contains(py) else ""
        parts.append(f"{one.style.open_group()}{content}</g>")
        inside = [point for point in one.mean_line if y.contains(point[1])]
        if inside:
            ends.append((y(inside[-1][1]), one))
    if label_lines and len(series) <= MAX_LABELS:
        parts.append(_end_labels(ends, x.end + 8, y.end, y.start))
    return svg_element("".join(parts), description, WIDTH, height)


def distance_chart(
    series: Sequence[Series], distances: Iterable[int], values: Iterable[float], y_label: str, description: str, *,
    background: Callable[[Scale, Scale], str] = lambda x, y: "", height: int = HEIGHT, label_lines: bool = True,
    include_zero: bool = False,
) -> str:  # fmt: skip
    """A line chart over the distance between query and key. The axes cover ``distances`` and ``values``; ``background`` receives them."""
    x = distance_scale(distances, LEFT, right_edge(series) if label_lines else WIDTH - 14)
    max_ticks = 6 if height == HEIGHT else 4
    y = linear_scale(values, height - BOTTOM, TOP, max_ticks=max_ticks, include_zero=include_zero)
    label = "distance between query and key (tokens, log scale)"
    return line_chart(
        series, x, y, label, y_label, description, background=background(x, y), height=height, label_lines=label_lines
    )


def svg_element(content: str, description: str, width: int, height: int) -> str:
    label = html.escape(description)
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{content}</svg>'


def _draw_axes(x: Scale, y: Scale, x_label: str, y_label: str, height: int) -> str:
    """Horizontal grid lines, ticks, and the labels: of y above the axis, of x below it."""
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


def shorten(name: str, max_chars: int) -> str:
    return name if len(name) <= max_chars else name[: max_chars - 1].rstrip() + "…"


def _path(points: Sequence[Point], x: Scale, y: Scale, css_class: str) -> str:
    """A line through the points, with a gap where a value is outside the axis."""
    steps, command = [], "M"
    for px, py in points:
        if y.contains(py):
            steps.append(f"{command}{x(px):.1f} {y(py):.1f}")
            command = "L"
        else:
            command = "M"
    return f'<path class="{css_class}" d="{"".join(steps)}"></path>' if steps else ""


def _end_labels(ends: list[tuple[float, Series]], x: float, top: float, bottom: float) -> str:
    """Names at the ends of their lines, moved apart where they would overlap."""
    ends = sorted(ends, key=lambda end: end[0])
    label_y: list[float] = []
    for line_y, _ in ends:
        label_y.append(max(line_y, label_y[-1] + LABEL_SPACING) if label_y else max(line_y, top))
    limit = bottom
    for index in reversed(range(len(label_y))):  # labels below the axis move up again
        label_y[index] = min(label_y[index], limit)
        limit = label_y[index] - LABEL_SPACING
    return "".join(
        f'{one.style.open_group()}<path class="leader" d="M{x - 7:.1f} {line_y:.1f}L{x - 1:.1f} {at:.1f}"></path>'
        f'<text class="name" x="{x + 2:.1f}" y="{at + 4:.1f}">{html.escape(shorten(one.style.name, MAX_LABEL_CHARS))}'
        f"<title>{html.escape(one.style.name)}</title></text></g>"
        for at, (line_y, one) in zip(label_y, ends, strict=True)
    )
