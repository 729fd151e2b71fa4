"""The same task at several lengths: one measure by the depth of the gold and the length."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from whence.report.comparison.chart import WIDTH, svg
from whence.report.comparison.numbers import number
from whence.report.probe.sentences import SCORES, between, counted, percent

LEFT, TOP, ROW, RIGHT = 64, 34, 34, 10


def depth_by_length(tasks: Sequence[dict[str, Any]]) -> str:
    """A row for each length, a cell for each place of the gold; the number stands in the cell, so that grey will do."""
    rows = sorted(tasks, key=lambda task: task["slots"])
    score = min(rows, key=lambda task: not task["supported"])["lead"]  # one measure for all rows
    parts = [f'<text class="label" x="2" y="14">slots, and {html.escape(SCORES[score])} (%)</text>']
    heard = []
    for index, task in enumerate(rows):
        [places] = [curve["points"] for curve in task["curves"] if curve["score"] == score]
        top = TOP + index * ROW
        width = (WIDTH - LEFT - RIGHT) / len(places)
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{top + ROW / 2 + 4}" text-anchor="end">{task["slots"]}</text>'
        )
        for column, point in enumerate(places):
            parts.append(_cell(point, task["slots"], LEFT + column * width, top, width))
        heard.append(f"{task['slots']} slots: " + ", ".join(percent(point["mean"]) for point in places))
    bottom = TOP + len(rows) * ROW
    for x, anchor, words in ((LEFT, "start", "first slot"), (WIDTH - RIGHT, "end", "last slot")):
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="{anchor}">{words}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label" x="{middle}" y="{bottom + 16}" text-anchor="middle">depth of the gold</text>')
    told = f"{SCORES[score]} by length and by the depth of the gold. " + "; ".join(heard)
    return svg("".join(parts), told, WIDTH, bottom + 24)


def _cell(point: dict[str, Any], slots: int, x: float, y: float, width: float) -> str:
    says = (
        f"{slots} slots, gold in slot {point['slot'] + 1}: {percent(point['mean'])}, 95% interval "
        f"{between(point['interval'])}, {counted(point['n'], 'item')}"
    )
    # never so dark that the number could not be read on it
    return (
        f'<rect class="dot hue1" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{ROW - 1}" '
        f'style="fill-opacity:{0.04 + 0.46 * point["mean"]:.3f}"><title>{html.escape(says)}</title></rect>'
        f'<text class="label" x="{x + width / 2:.1f}" y="{y + ROW / 2 + 4:.1f}" text-anchor="middle">'
        f"{number(100 * point['mean'], 0)}</text>"
    )
