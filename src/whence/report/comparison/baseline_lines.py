"""Baselines of a task as lines in the charts: the best constant answer, the best simple rule, and the best possible."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from whence.report.comparison.svg import Scale
from whence.report.comparison.units import Units
from whence.report.formatting import format_number, is_finite_number

LABEL_ROW = 13  # height of the row of a name below a plot


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
        f"{line.name} {format_number(line.values[study['split']], units.decimals)}"
        for line in choose_baselines(study, units)
    ]
    return f" Dotted: {', '.join(texts)}; lines outside the axis are not drawn." if texts else ""


def shift_to_differences(lines: list[BaselineLine], split: str, reference: float) -> list[BaselineLine]:
    """The baselines as differences to ``reference``, for a plot of differences on one split."""
    return [BaselineLine(line.name, {split: line.values[split] - reference}) for line in lines if split in line.values]


def loss_caption(study: dict[str, Any]) -> str:
    """The losses of the baselines, for the caption of the training curves; empty if none is known."""
    texts = [f"{name} {format_number(loss, 2)}" for name, loss in baseline_losses(study).items()]
    return f" Dotted: loss of {', '.join(texts)}; lines outside the axis are not drawn." if texts else ""


def vertical_lines(lines: list[BaselineLine], split: str, x: Scale, top: float, bottom: float) -> str:
    """Dotted vertical lines with their names below the tick labels, one row for each."""
    parts = []
    for index, line in enumerate(lines):
        value = line.values.get(split)
        if value is None or not x.contains(value):
            continue
        at = x(value)
        anchor = "start" if at < (x.start + x.end) / 3 else "end" if at > 2 * (x.start + x.end) / 3 else "middle"
        y = bottom + 16 + LABEL_ROW * (index + 1)
        parts.append(
            f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="{top:g}" y2="{y - 10:g}"></line>'
            f'<text class="tick" x="{at:.1f}" y="{y:g}" text-anchor="{anchor}">{html.escape(line.name)}</text>'
        )
    return "".join(parts)


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
