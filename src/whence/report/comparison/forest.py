"""The verdict as a picture: each arm's difference to the baseline with its corrected interval, and zero between."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.chart import shortened, svg
from whence.report.comparison.numbers import is_number, signed
from whence.report.comparison.scales import Scale, linear
from whence.report.comparison.style import Look
from whence.report.comparison.units import Units

WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 360, 20, 24, 26, 112, 14
LETTERS = 15


def forest(study: dict[str, Any], units: Units, looks: Mapping[str, Look], claimed: set[str]) -> str:
    """A filled marker is a claim, a hollow one is none; empty where nothing was compared."""
    comparison = study.get("comparison")
    if not comparison:
        return ""
    factor = units.comparison_factor
    rows = sorted(
        comparison["arms"].items(), key=lambda item: -item[1]["difference"] * (1 if study["higher_is_better"] else -1)
    )
    rows = [(name, arm) for name, arm in rows if name in looks]
    x = _axis([arm for _, arm in rows], factor)
    bottom, zero = TOP + ROW * len(rows), x(0)
    ticks = "".join(
        f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 4}" y2="{bottom}"></line>'
        f'<text class="tick" x="{x(value):.1f}" y="{bottom + 15}" text-anchor="middle">{text if value == 0 else signed_tick(value, text)}</text>'
        for value, text in x.ticks
    )
    parts = [
        ticks,
        f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="{TOP - 4}" y2="{bottom}"></line>',
        _sides(study, x),
    ]
    told = []
    for index, (name, arm) in enumerate(rows):
        parts.append(_row(name, arm, looks[name], x, TOP + ROW * (index + 0.5), factor, name in claimed))
        told.append(
            f"{name} {signed(arm['difference'] * factor, units.places)}{'' if name in claimed else ' (no claim)'}"
        )
    return svg("".join(parts), f"Differences to {comparison['baseline']}: {'; '.join(told)}", WIDTH, bottom + BOTTOM)


def signed_tick(value: float, text: str) -> str:
    return f"+{text}" if value > 0 else text


def _axis(arms: list[dict[str, Any]], factor: float) -> Scale:
    """Zero and all differences; an interval far wider than these is cut, and ends in an arrow."""
    shown = [0.0, *(arm["difference"] * factor for arm in arms)]
    room = (max(shown) - min(shown)) or 1.0
    ends = [
        min(max(end * factor, min(shown) - room), max(shown) + room)
        for arm in arms
        if arm["corrected_interval"]
        for end in (arm["corrected_interval"]["low"], arm["corrected_interval"]["high"])
        if is_number(end)
    ]
    return linear([*shown, *ends], LEFT, WIDTH - RIGHT, most=5)


def _sides(study: dict[str, Any], x: Scale) -> str:
    """Which way is better, said only on a side that has room for it."""
    zero, parts = x(0), []
    names = ("worse", "better") if study["higher_is_better"] else ("better", "worse")
    if zero - x.start > 50:
        parts.append(f'<text class="tick" x="{zero - 6:.1f}" y="12" text-anchor="end">← {names[0]}</text>')
    if x.end - zero > 50:
        parts.append(f'<text class="tick" x="{zero + 6:.1f}" y="12">{names[1]} →</text>')
    return "".join(parts)


def _row(name: str, arm: dict[str, Any], look: Look, x: Scale, y: float, factor: float, claim: bool) -> str:
    parts = [
        look.opened(),
        f'<text class="name" x="0" y="{y + 4:g}">{html.escape(shortened(name, LETTERS))}<title>{html.escape(name)}</title></text>',
    ]
    ends = arm["corrected_interval"]
    if ends and is_number(ends["low"]) and is_number(ends["high"]):
        low, high = ends["low"] * factor, ends["high"] * factor
        parts.append(f'<line class="whisker" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y:g}" y2="{y:g}"></line>')
        for end, turn in ((low, 1), (high, -1)):
            if not x.holds(end):
                parts.append(
                    f'<path class="end" transform="translate({x(end):.1f} {y:g})" d="M{5 * turn} -4L0 0L{5 * turn} 4"></path>'
                )
    parts.append(look.marker(x(arm["difference"] * factor), y, 4.4, name, "dot" if claim else "dot hollow"))
    return "".join(parts) + "</g>"
