"""Every seed's own value as a dot, with the mean and its interval: what the table summarises, unsummarised."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.chart import WIDTH, shortened, svg
from whence.report.comparison.numbers import is_number, mean, number
from whence.report.comparison.scales import Scale, linear, logarithmic
from whence.report.comparison.style import Look, baseline_of
from whence.report.comparison.units import Units, best_first, diverged_words, values_of

ROW, TOP, BOTTOM, LEFT, RIGHT = 38, 26, 42, 12, 22
STRIP = 26  # where in a row the dots lie; the name stands above them, so that a long one takes nothing from the plot
LETTERS = 40
HALF_LETTER = 3.6  # of a tick's text
WIDE = 8.0  # perplexities further apart than this factor are shown on a logarithmic axis


def dot_plot(study: dict[str, Any], units: Units, looks: Mapping[str, Look]) -> str:
    """One row an arm, the best above."""
    arms = best_first(study)
    rows = {arm["name"]: values_of(study, arm["name"], study["split"], units.value_factor) for arm in arms}
    intervals = _intervals(study, units)
    shown = [value for row in rows.values() for value in row.values()]
    ends = [end for pair in intervals.values() for end in pair]
    height = TOP + ROW * len(arms) + BOTTOM
    x, note = _axis(shown, ends, units)
    bottom = TOP + ROW * len(arms)
    parts = [_grid(x, bottom), _baseline(study, rows, x, bottom)]
    for index, arm in enumerate(arms):
        parts.append(
            _row(arm, rows[arm["name"]], intervals.get(arm["name"]), looks[arm["name"]], x, TOP + ROW * index, units)
        )
    better = "higher is better" if study["higher_is_better"] else "lower is better"
    label = f"{units.label}{note} on {study['split']}; {better}"
    parts.append(
        f'<text class="label" x="{WIDTH / 2:g}" y="{height - 6}" text-anchor="middle">{html.escape(label)}</text>'
    )
    told = "Each seed's value. " + "; ".join(
        f"{name}: {', '.join(number(value, units.places) for value in row.values()) or 'no value'}"
        for name, row in rows.items()
    )
    return svg("".join(parts), told, WIDTH, height)


def _intervals(study: dict[str, Any], units: Units) -> dict[str, tuple[float, float]]:
    comparison = study.get("comparison")
    if not comparison:
        return {}
    sides = {comparison["baseline"]: comparison["baseline_summary"]}
    sides |= {name: arm["summary"] for name, arm in comparison["arms"].items()}
    return {
        name: (side["interval"]["low"] * units.comparison_factor, side["interval"]["high"] * units.comparison_factor)
        for name, side in sides.items()
        if side["interval"] and is_number(side["interval"]["low"]) and is_number(side["interval"]["high"])
    }


def _axis(shown: list[float], ends: list[float], units: Units) -> tuple[Scale, str]:
    """An interval of few seeds can be far wider than the dots; it may not squeeze them into one, so it is cut there."""
    start, end = LEFT, WIDTH - RIGHT
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    room = high - low or abs(high) * 0.05 or 1.0
    within = [min(max(value, low - room / 2), high + room / 2) for value in ends]
    positive = [value for value in [*shown, *within] if value > 0]
    if units.logarithmic and low > 0 and high > WIDE * low:
        return logarithmic(positive, start, end), " (log scale)"
    if not units.logarithmic:  # a share cannot leave 0 to 100, even where the t-interval does
        within = [min(max(value, 0.0), 100.0) for value in within]
    return linear([*shown, *within], start, end), ""


def _grid(x: Scale, bottom: float) -> str:
    return "".join(
        f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 6}" y2="{bottom:g}"></line>'
        f'<text class="tick" x="{max(x(value), HALF_LETTER * len(text)):.1f}" y="{bottom + 16:g}" '
        f'text-anchor="middle">{text}</text>'  # a long number at the left end moves in rather than being cut
        for value, text in x.ticks
    )


def _baseline(study: dict[str, Any], rows: Mapping[str, Mapping[str, float]], x: Scale, bottom: float) -> str:
    name = baseline_of(study)
    row = rows.get(name or "")
    if not row:
        return ""
    at = x(mean(row.values()))
    anchor = "start" if at < WIDTH / 4 else "end" if at > 3 * WIDTH / 4 else "middle"
    return (
        f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 6}" y2="{bottom:g}"></line>'
        f'<text class="tick" x="{at:.1f}" y="{TOP - 12}" text-anchor="{anchor}">baseline mean</text>'
    )


def _row(
    arm: dict[str, Any], row: Mapping[str, float], ends: tuple[float, float] | None, look: Look, x: Scale, top: float,
    units: Units,
) -> str:  # fmt: skip
    at = top + STRIP
    lost = "; ".join(f"seed {lost['seed']} diverged" for lost in arm["diverged"])
    said = f'<tspan class="lost" dx="8">{html.escape(shortened(lost, 34))}<title>{html.escape(diverged_words(arm))}</title></tspan>'
    if not lost:
        said = "" if row else '<tspan class="lost" dx="8">no value</tspan>'
    parts = [
        look.opened(),
        f'<line class="rail" x1="{x.start:g}" x2="{x.end:g}" y1="{at:g}" y2="{at:g}"></line>',
        f'<text class="name" x="{x.start:g}" y="{at - 11:g}">{html.escape(shortened(arm["name"], LETTERS))}{said}</text>',
    ]
    if ends:
        low, high = ends
        parts.append(f'<line class="interval" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{at:g}" y2="{at:g}"></line>')
        for end, turn in ((low, 1), (high, -1)):  # an end off the axis is an arrow, one on it a bar
            shape = "M0 -5V5" if x.holds(end) else f"M{5 * turn} -5L0 0L{5 * turn} 5"
            parts.append(f'<path class="end" transform="translate({x(end):.1f} {at:g})" d="{shape}"></path>')
    if row:
        middle = x(mean(row.values()))
        parts.append(
            f'<line class="middle" x1="{middle:.1f}" x2="{middle:.1f}" y1="{at - 8:g}" y2="{at + 8:g}"></line>'
        )
    for seed, value in row.items():
        parts.append(look.marker(x(value), at, 4.2, f"{arm['name']}, seed {seed}: {number(value, units.places)}"))
    return "".join(parts) + "</g>"
