"""Two plots with one row per arm: every seed's value with its mean, and the differences to the baseline."""

from __future__ import annotations

import html
import statistics
from collections.abc import Mapping
from typing import Any, TypeGuard

from whence.report.comparison.arm_style import ArmStyle, baseline_name
from whence.report.comparison.baseline_lines import (
    LABEL_ROW,
    choose_baselines,
    choose_near,
    near_values,
    shift_to_differences,
    shift_to_ratios,
    vertical_lines,
)
from whence.report.comparison.svg import WIDTH, Scale, linear_scale, log_scale, shorten, svg_element
from whence.report.comparison.units import (
    Units,
    describe_failures,
    is_ratio,
    list_failures,
    reverse_ratio,
    sort_best_first,
    values_of,
)
from whence.report.formatting import format_number, format_signed, is_finite_number

ROW, TOP, BOTTOM, LEFT, RIGHT = 38, 26, 42, 12, 22
DOTS_Y = 26  # of the dots in a row; the name is above them and may be long
MAX_NAME_CHARS = 40
HALF_CHAR = 3.6  # half the width of a character of a tick label
MIN_LOG_RATIO = 8.0  # perplexities that differ by more than this factor have a log axis

FOREST_WIDTH, FOREST_ROW, FOREST_TOP, FOREST_BOTTOM, FOREST_LEFT, FOREST_RIGHT = 360, 20, 24, 26, 112, 14
MIN_FOREST_CHARS, MAX_FOREST_CHARS, CHAR = 15, 19, 7.2  # characters of a name, and the width of one
MAX_WIDTH_RATIO = 2.0  # to the median width: an interval that reaches further beyond the differences is cut off


def seed_plot(study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle]) -> str:
    """Every seed's value, with the mean and its interval; the best arm is at the top."""
    arms = sort_best_first(study)
    values = {arm["name"]: values_of(study, arm["name"], study["split"], units.value_factor) for arm in arms}
    intervals = _mean_intervals(study, units)
    bottom = TOP + ROW * len(arms)
    dots = [value for row in values.values() for value in row.values()]
    levels = choose_baselines(study, units)
    x, note = _seed_axis(
        [*dots, *near_values(levels, study["split"], dots)],
        [end for interval in intervals.values() for end in interval],
        units,
    )
    levels = [line for line in levels if x.contains(line.values[study["split"]])]
    parts = [_grid(x, bottom), _baseline_line(study, values, x, bottom, units)]
    parts.append(vertical_lines(levels, study["split"], x, TOP - 6, bottom))
    for index, arm in enumerate(arms):
        name = arm["name"]
        parts.append(_seed_row(arm, values[name], intervals.get(name), styles[name], x, TOP + ROW * index, units))
    better = "higher is better" if study["higher_is_better"] else "lower is better"
    label = html.escape(f"{units.label}{note} on {study['split']}; {better}")
    height = bottom + BOTTOM + LABEL_ROW * len(levels)
    parts.append(f'<text class="label" x="{WIDTH / 2:g}" y="{height - 6}" text-anchor="middle">{label}</text>')
    description = "Value of each seed. " + "; ".join(
        f"{name}: {', '.join(format_number(value, units.decimals) for value in row.values()) or 'no value'}"
        for name, row in values.items()
    )
    return svg_element("".join(parts), description, WIDTH, height)


def _mean_intervals(study: dict[str, Any], units: Units) -> dict[str, tuple[float, float]]:
    comparison = study.get("comparison")
    if not comparison:
        return {}
    summaries = {comparison["baseline"]: comparison["baseline_summary"]}
    summaries |= {name: arm["summary"] for name, arm in comparison["arms"].items()}
    factor = units.comparison_factor
    return {
        name: (summary["interval"]["low"] * factor, summary["interval"]["high"] * factor)
        for name, summary in summaries.items()
        if _is_finite(summary["interval"])
    }


def _seed_axis(values: list[float], ends: list[float], units: Units) -> tuple[Scale, str]:
    """The axis and a note on it. Intervals of few seeds can be far wider than the dots; they are cut off."""
    start, end = LEFT, WIDTH - RIGHT
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    extent = high - low or abs(high) * 0.05 or 1.0
    ends = [min(max(value, low - extent / 2), high + extent / 2) for value in ends]
    if units.is_log and low > 0 and high > MIN_LOG_RATIO * low:
        return log_scale([value for value in [*values, *ends] if value > 0], start, end), " (log scale)"
    if units.is_percent:  # a percentage is within 0 to 100, even if its t-interval is not
        ends = [min(max(value, 0.0), 100.0) for value in ends]
    return linear_scale([*values, *ends], start, end), ""


def _grid(x: Scale, bottom: float) -> str:
    return "".join(
        f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 6}" y2="{bottom:g}"></line>'
        f'<text class="tick" x="{max(x(value), HALF_CHAR * len(text)):.1f}" y="{bottom + 16:g}" '
        f'text-anchor="middle">{text}</text>'  # a long label at the left end moves to the right
        for value, text in x.ticks
    )


def _baseline_line(
    study: dict[str, Any], values: Mapping[str, Mapping[str, float]], x: Scale, bottom: float, units: Units
) -> str:
    row = values.get(baseline_name(study) or "")
    if not row:
        return ""
    at = x(units.average(row.values()))
    anchor = "start" if at < WIDTH / 4 else "end" if at > 3 * WIDTH / 4 else "middle"
    return (
        f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 6}" y2="{bottom:g}"></line>'
        f'<text class="tick" x="{at:.1f}" y="{TOP - 12}" text-anchor="{anchor}">baseline mean</text>'
    )


def _seed_row(
    arm: dict[str, Any], values: Mapping[str, float], interval: tuple[float, float] | None, style: ArmStyle, x: Scale,
    top: float, units: Units,
) -> str:  # fmt: skip
    y = top + DOTS_Y
    failures = "; ".join(list_failures(arm))
    note = "" if values else '<tspan class="lost" dx="8">no value</tspan>'
    if failures:
        title = f"<title>{html.escape(describe_failures(arm))}</title>"
        note = f'<tspan class="lost" dx="8">{html.escape(shorten(failures, 34))}{title}</tspan>'
    name = html.escape(shorten(arm["name"], MAX_NAME_CHARS))
    parts = [
        style.open_group(),
        f'<line class="rail" x1="{x.start:g}" x2="{x.end:g}" y1="{y:g}" y2="{y:g}"></line>',
        f'<text class="name" x="{x.start:g}" y="{y - 11:g}">{name}{note}</text>',
    ]
    if interval:
        low, high = interval
        parts.append(f'<line class="interval" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y:g}" y2="{y:g}"></line>')
        for end, inward in ((low, 1), (high, -1)):  # an end outside the axis is an arrow, one inside a bar
            shape = "M0 -5V5" if x.contains(end) else f"M{5 * inward} -5L0 0L{5 * inward} 5"
            parts.append(f'<path class="end" transform="translate({x(end):.1f} {y:g})" d="{shape}"></path>')
    if values:
        at = x(units.average(values.values()))
        parts.append(f'<line class="middle" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 8:g}" y2="{y + 8:g}"></line>')
    for seed, value in values.items():
        tooltip = f"{arm['name']}, seed {seed}: {format_number(value, units.decimals)}"
        parts.append(style.marker(x(value), y, 4.2, tooltip))
    return "".join(parts) + "</g>"


def forest_plot(study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle], significant: set[str]) -> str:
    """Differences to the baseline with corrected intervals; empty without a comparison.

    Markers of ``significant`` arms are filled, the others hollow.
    """
    comparison = study.get("comparison")
    if not comparison:
        return ""
    factor, direction = units.comparison_factor, 1 if study["higher_is_better"] else -1
    arms = sorted(comparison["arms"].items(), key=lambda item: -item[1]["difference"] * direction)
    arms = [(name, arm) for name, arm in arms if name in styles]
    split = study["split"]
    lines, ratio = choose_baselines(study, units), is_ratio(comparison)
    shift = shift_to_ratios if ratio else shift_to_differences
    levels = shift(lines, split, comparison["baseline_summary"]["mean"] * factor)
    differences = [0.0, *(arm["difference"] * factor for _, arm in arms)]
    margin = comparison["margin"]
    margins = [] if margin is None else [reverse_ratio(margin) if ratio else -margin * factor, margin * factor]
    near = near_values(levels, split, differences) + choose_near(margins, differences)
    longest = min(max((len(name) for name, _ in arms), default=0), MAX_FOREST_CHARS)
    left = FOREST_LEFT + CHAR * max(0, longest - MIN_FOREST_CHARS)
    x = _difference_axis([arm for _, arm in arms], factor, near, left)
    levels = [line for line in levels if x.contains(line.values[split])]
    bottom, zero = FOREST_TOP + FOREST_ROW * len(arms), x(0)
    parts = [
        f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{FOREST_TOP - 4}" y2="{bottom}"></line>'
        f'<text class="tick" x="{x(value):.1f}" y="{bottom + 15}" text-anchor="middle">'
        f"{'+' if value > 0 else ''}{text}</text>"
        for value, text in x.ticks
    ]
    parts.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="{FOREST_TOP - 4}" y2="{bottom}"></line>')
    parts += [
        f'<line class="margin" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{FOREST_TOP - 4}" y2="{bottom}"></line>'
        for at in margins
        if x.contains(at)
    ]
    parts.append(_direction_labels(study, x))
    parts.append(vertical_lines(levels, split, x, FOREST_TOP - 4, bottom))
    texts = []
    for index, (name, arm) in enumerate(arms):
        y = FOREST_TOP + FOREST_ROW * (index + 0.5)
        parts.append(_forest_row(name, arm, styles[name], x, y, factor, name in significant))
        note = "" if name in significant else " (not significant)"
        texts.append(f"{name} {format_signed(arm['difference'] * factor, units.difference_decimals)}{note}")
    description = f"Differences to {comparison['baseline']}: {'; '.join(texts)}"
    return svg_element("".join(parts), description, FOREST_WIDTH, bottom + FOREST_BOTTOM + LABEL_ROW * len(levels))


def _difference_axis(arms: list[dict[str, Any]], factor: float, levels: list[float], left: float) -> Scale:
    """Zero, all differences, ``levels`` and the intervals. One that is far wider than the others is cut off and ends in an arrow."""
    differences = [0.0, *(arm["difference"] * factor for arm in arms), *levels]
    found = [arm["corrected_interval"] for arm in arms if _is_finite(arm["corrected_interval"])]
    intervals = [(interval["low"] * factor, interval["high"] * factor) for interval in found]
    widths = [high - low for low, high in intervals]
    beyond = max(max(differences) - min(differences), MAX_WIDTH_RATIO * statistics.median_low(widths or [1.0]))
    low, high = min(differences) - beyond, max(differences) + beyond
    ends = [min(max(end, low), high) for interval in intervals for end in interval]
    return linear_scale([*differences, *ends], left, FOREST_WIDTH - FOREST_RIGHT, max_ticks=5)


def _direction_labels(study: dict[str, Any], x: Scale) -> str:
    """Which direction is better, on each side of zero that has room for the word."""
    zero, parts = x(0), []
    left, right = ("worse", "better") if study["higher_is_better"] else ("better", "worse")
    if zero - x.start > 50:
        parts.append(f'<text class="tick" x="{zero - 6:.1f}" y="12" text-anchor="end">← {left}</text>')
    if x.end - zero > 50:
        parts.append(f'<text class="tick" x="{zero + 6:.1f}" y="12">{right} →</text>')
    return "".join(parts)


def _forest_row(
    name: str, arm: dict[str, Any], style: ArmStyle, x: Scale, y: float, factor: float, significant: bool
) -> str:
    title = f"<title>{html.escape(name)}</title>"
    parts = [
        style.open_group(),
        f'<text class="name" x="0" y="{y + 4:g}">{html.escape(shorten(name, MAX_FOREST_CHARS))}{title}</text>',
    ]
    interval = arm["corrected_interval"]
    if _is_finite(interval):
        low, high = interval["low"] * factor, interval["high"] * factor
        parts.append(f'<line class="whisker" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y:g}" y2="{y:g}"></line>')
        for end, inward in ((low, 1), (high, -1)):
            if not x.contains(end):
                shape = f"M{5 * inward} -4L0 0L{5 * inward} 4"
                parts.append(f'<path class="end" transform="translate({x(end):.1f} {y:g})" d="{shape}"></path>')
    css_class = "dot" if significant else "dot hollow"
    parts.append(style.marker(x(arm["difference"] * factor), y, 4.4, name, css_class))
    return "".join(parts) + "</g>"


def _is_finite(interval: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    return interval is not None and is_finite_number(interval["low"]) and is_finite_number(interval["high"])
