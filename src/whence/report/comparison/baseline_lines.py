"""Baselines of a task as lines in the charts: the best constant answer, the best simple rule, and the best possible."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whence.report.comparison.svg import Scale
from whence.report.comparison.units import Units
from whence.report.formatting import format_exact, format_number, is_finite_number

LABEL_ROW = 13  # height of the row of a name below a plot
CHAR = 6.6  # width of a character of such a name
MAX_ORDERED = 4  # names whose rows are chosen among all orders, which are factorial in number
MARGIN = 12  # beyond the end of the axis, where a name may still be


@dataclass(frozen=True)
class BaselineLine:
    """A baseline with its values by split, in the shown unit."""

    name: str
    values: dict[str, float]


def choose_baselines(study: dict[str, Any], units: Units) -> list[BaselineLine]:
    """At most one baseline of each kind, in the metric of the study: the best constant and rule, and a ceiling below perfection."""
    metric, sign = study["metric"], 1 if study["higher_is_better"] else -1
    lines = []
    for kind in ("constant", "rule", "ceiling"):
        found = []
        for entry in study.get("baselines") or []:
            values = {s: row[metric] for s, row in entry["splits"].items() if is_finite_number(row.get(metric))}
            if entry["kind"] == kind and study["split"] in values:
                found.append((sign * values[study["split"]], entry["name"], values))
        if kind == "ceiling":
            found = [one for one in found if abs(one[0]) != 1]  # 100 %, or a perplexity of 1: the end of the axis
        if found:
            _, name, values = max(found, key=lambda one: one[0])
            lines.append(BaselineLine(name, {split: value * units.value_factor for split, value in values.items()}))
    return lines


def near_values(lines: list[BaselineLine], split: str, values: list[float]) -> list[float]:
    """The values of the baselines that an axis over ``values`` can include without more than doubling on a side."""
    return choose_near((line.values[split] for line in lines if split in line.values), values)


def choose_near(levels: Iterable[float], values: Sequence[float]) -> list[float]:
    """The levels that an axis over ``values`` can include without more than doubling on a side.

    >>> choose_near([0.0, 40.0, 200.0], [60.0, 90.0])
    [40.0]
    """
    if not values:
        return []
    low, high = min(values), max(values)
    extent = high - low or abs(high) * 0.05 or 1.0
    return [level for level in levels if low - extent <= level <= high + extent]


def baseline_losses(study: dict[str, Any]) -> dict[str, float]:
    """The cross-entropy in nats of the best constant, rule and ceiling, on a split of the trained length if there is one."""
    split = next((s for s, length in study["lengths"].items() if length == study["trained_length"]), study["split"])
    best: dict[str, tuple[float, str]] = {}
    for entry in study.get("baselines") or []:
        perplexity = entry["splits"].get(split, {}).get("perplexity")
        if is_finite_number(perplexity) and perplexity > 0:
            best[entry["kind"]] = min(best.get(entry["kind"], (math.inf, "")), (math.log(perplexity), entry["name"]))
    return {name: loss for loss, name in best.values()}


def baseline_caption(study: dict[str, Any], units: Units) -> str:
    """The baselines and their values, for the caption of a chart; empty if there are none."""
    texts = [
        f"{line.name} {format_exact(line.values[study['split']], units.decimals)}"
        for line in choose_baselines(study, units)
    ]
    return f" Dotted: {', '.join(texts)}; lines outside the axis are not drawn." if texts else ""


def shift_to_differences(lines: list[BaselineLine], split: str, reference: float) -> list[BaselineLine]:
    """The baselines as differences to ``reference``, for a plot of differences on one split."""
    return [BaselineLine(line.name, {split: line.values[split] - reference}) for line in lines if split in line.values]


def shift_to_ratios(lines: list[BaselineLine], split: str, reference: float) -> list[BaselineLine]:
    """The baselines as ratios to ``reference``, in per cent more or less."""
    return [
        BaselineLine(line.name, {split: 100 * (line.values[split] / reference - 1)})
        for line in lines
        if split in line.values
    ]


def loss_caption(study: dict[str, Any]) -> str:
    """The losses of the baselines, for the caption of the training curves; empty if none is known."""
    texts = [f"{name} {format_number(loss, 2)}" for name, loss in baseline_losses(study).items()]
    return f" Dotted: loss of {', '.join(texts)}; lines outside the axis are not drawn." if texts else ""


def vertical_lines(lines: list[BaselineLine], split: str, x: Scale, top: float, bottom: float) -> str:
    """Dotted vertical lines with their names below the tick labels, one row for each. No line crosses a label."""
    shown = {
        line.name: x(line.values[split]) for line in lines if split in line.values and x.contains(line.values[split])
    }
    parts = []
    for row, label in enumerate(place_names(shown, x.end + MARGIN)):
        y = bottom + 16 + LABEL_ROW * (row + 1)
        anchor, shift = ("start", 4) if label.is_right else ("end", -4)
        parts.append(
            f'<line class="reference" x1="{label.at:.1f}" x2="{label.at:.1f}" y1="{top:g}" y2="{bottom + 3:g}"></line>'
            f'<line class="reference" x1="{label.at:.1f}" x2="{label.at:.1f}" y1="{bottom + 19:g}" y2="{y:g}"></line>'
            f'<text class="tick" x="{label.at + shift:.1f}" y="{y:g}" text-anchor="{anchor}">{html.escape(label.name)}</text>'
        )
    return "".join(parts)


@dataclass(frozen=True)
class NameBesideLine:
    """A name beside the lower end of a vertical line."""

    name: str
    at: float  # of the line
    is_right: bool  # of the line

    @property
    def width(self) -> float:
        return CHAR * len(self.name) + 4

    def covers(self, at: float) -> bool:
        return 0 <= (at - self.at if self.is_right else self.at - at) <= self.width

    def count_faults(self, later: Iterable[float], end: float) -> int:
        """The lines of later rows that cross the name, and one more if it passes ``end``."""
        return sum(map(self.covers, later)) + (self.is_right and self.at + self.width > end)


def place_names(lines: Mapping[str, float], end: float) -> list[NameBesideLine]:
    """The order of the rows and the side of each name, so that no line crosses the name of another in an earlier row.

    Names to the right of their lines are preferred; they end before ``end``. With more than ``MAX_ORDERED`` names, each row
    takes the best of the remaining names.

    >>> [(label.name, label.is_right) for label in place_names({"chance": 100.0, "bag of words": 104.0}, 400.0)]
    [('bag of words', True), ('chance', True)]
    >>> [(label.name, label.is_right) for label in place_names({"chance": 380.0, "bag of words": 384.0}, 400.0)]
    [('chance', False), ('bag of words', False)]
    """

    if len(lines) > MAX_ORDERED:
        return _place_row_by_row(lines, end)

    def rate(labels: Sequence[NameBesideLine]) -> tuple[int, int]:
        faults = (label.count_faults((later.at for later in labels[i + 1 :]), end) for i, label in enumerate(labels))
        return sum(faults), sum(not label.is_right for label in labels)

    return min(
        (
            [NameBesideLine(name, at, is_right) for (name, at), is_right in zip(order, sides, strict=True)]
            for order in itertools.permutations(lines.items())
            for sides in itertools.product((True, False), repeat=len(lines))
        ),
        key=rate,
    )


def _place_row_by_row(lines: Mapping[str, float], end: float) -> list[NameBesideLine]:
    remaining = dict(lines)
    placed: list[NameBesideLine] = []
    while remaining:
        candidates = [NameBesideLine(name, at, side) for side in (True, False) for name, at in remaining.items()]
        best = min(
            candidates,
            key=lambda label: label.count_faults((at for name, at in remaining.items() if name != label.name), end),
        )
        placed.append(best)
        del remaining[best.name]
    return placed


def horizontal_line(name: str, points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    """A dotted line through points with its name at the left end; empty if it leaves the axis."""
    if not points or not all(y.contains(value) for _, value in points):
        return ""
    path = "".join(f"{'L' if index else 'M'}{x(px):.1f} {y(py):.1f}" for index, (px, py) in enumerate(points))
    start, at = x(points[0][0]), y(points[0][1])
    return (
        f'<path class="reference" fill="none" d="{path}"></path>'
        f'<text class="tick" x="{start + 4:.1f}" y="{at - 4:.1f}">{html.escape(name)}</text>'
    )
