"""The charts of a trial: curves and attention to the gold, without and with cures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from whence.report.formatting import format_number
from whence.report.probe.charts import COLORS, Chart, draw_line, line_chart, slot_curves
from whence.report.probe.sentences import SCORES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNTOUCHED = "untouched"
PERCENT = 100


def cure_curves(findings: dict[str, Any], task: dict[str, Any], cures: Sequence[dict[str, Any]], name: str) -> Chart:
    """Accuracy by the slot of the gold: the untouched model and some cures."""
    label = task["task"]
    curves = [(UNTOUCHED, findings["untouched"]["curves"][label])]
    curves += [(cure["display_name"], cure["curves"][label]) for cure in cures if label in cure["curves"]]
    words = f"{task['name']}: {SCORES[findings['score']]} by the slot of the gold, without and with cures"
    axis = f"{SCORES[findings['score']]} (%)"
    chart = slot_curves(f"{name}-{label}", curves, task["slots"], {"chance": task["chance"]}, axis, words)
    return replace(chart, legend_above=True)


def gold_attention(findings: dict[str, Any], task: dict[str, Any], cures: Sequence[dict[str, Any]]) -> Chart | None:
    """The answering token's attention to the gold by its slot; None if none was recorded."""
    label = task["task"]
    series = {
        name: ([one["slot"] + 1 for one in points], [one["share"] for one in points])
        for name, points in (
            (UNTOUCHED, findings["untouched"]["attention"].get(label)),
            *((cure["display_name"], cure["attention"].get(label)) for cure in cures),
        )
        if points
    }
    if not series:
        return None

    def draw(axes: Axes) -> None:
        for index, (name, (at, shares)) in enumerate(series.items()):
            draw_line(axes, index, at, [PERCENT * share for share in shares], name)
        axes.set_ylim(bottom=0)
        axes.set_xticks(next(iter(series.values()))[0])
        axes.set_xlabel("slot of the gold")
        axes.set_ylabel("attention to the gold (%)")
        axes.grid(axis="y", color=COLORS["line"], linewidth=0.6)

    words = f"{task['name']}: attention of the answering token to the gold by its slot"
    return replace(line_chart(f"attention-{label}", words, draw, "slot", series, PERCENT, "%"), legend_above=True)


def effect_curves(cure: dict[str, Any]) -> Chart | None:
    """The attention to a token of each slot for several values of a cure's main setting; None if none was recorded."""
    effect = cure["effect"]
    if effect is None:
        return None
    slots = list(range(1, len(effect["slots"][0]) + 1))
    series = {
        f"{effect['setting']} {format_number(value, 1)}": (slots, shares)
        for value, shares in zip(effect["values"], effect["slots"], strict=True)
    }

    def draw(axes: Axes) -> None:
        for index, (name, (at, shares)) in enumerate(series.items()):
            draw_line(axes, index, at, [PERCENT * share for share in shares], name)
        axes.set_xticks(slots)
        axes.set_xlabel("slot")
        axes.set_ylabel("attention to a token of the slot (%)")
        axes.grid(axis="y", color=COLORS["line"], linewidth=0.6)

    words = f"{cure['title']}: attention of the answering token to each slot by {effect['setting']}"
    return replace(line_chart(f"effect-{cure['label']}", words, draw, "slot", series, PERCENT, "%"), legend_above=True)
