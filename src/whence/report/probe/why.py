"""The explanations of a probe as one picture, for a text that shows them: where attention goes, how much of the hidden
states is position, and what the answer follows. The page has the same with every number around them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whence.errors import require_package, usage_error
from whence.report.probe import panels
from whence.report.probe.sentences import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Draw = Callable[[Axes, dict[str, Any]], None]

ACROSS, WIDE, HIGH = 3, 3.9, 3.0  # panels in a row, inches of each
LETTERS = 68  # that fit below a panel


@dataclass(frozen=True)
class Panel:
    """One explanation: what it asks, what it was measured on, and how it is drawn."""

    title: str
    measured: str
    draw: Callable[[Axes], None]


def why_picture(findings: dict[str, Any]) -> Figure:
    """A panel for each explanation that was measured, and below them what on."""
    require_package("matplotlib", "the picture of the explanations", "plot")
    from matplotlib.figure import Figure

    shown = _panels(findings)
    if not shown:
        raise usage_error("why_picture(findings)", "no explanations", "a picture needs one", "go on with the probe")
    down, across = -(-len(shown) // ACROSS), min(ACROSS, len(shown))
    drawn = Figure(figsize=(WIDE * across, HIGH * down + 0.5), facecolor="white", dpi=160, layout="constrained")
    drawn.suptitle(f"{findings['title']}: why", fontsize=11, fontweight="bold", x=0.01, ha="left")
    drawn.supxlabel(textwrap.fill(_measured(shown), LETTERS * across), fontsize=7.5, x=0.01, ha="left")
    for number, panel in enumerate(shown):
        axes = drawn.add_subplot(down, across, number + 1)
        axes.set_title(f"{_letter(number)}  {panel.title}", fontsize=8.5, loc="left", fontweight="bold")
        panel.draw(axes)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.label.set_fontsize(7.5)
        axes.yaxis.label.set_fontsize(7.5)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6.5, frameon=True, framealpha=0.85, edgecolor="none", handlelength=2.6)
    return drawn


def _letter(number: int) -> str:
    return chr(ord("a") + number)


def _measured(shown: Sequence[Panel]) -> str:
    """Panels that were measured on the same stand together: 'a, b: 50 items; c: 32 texts.'"""
    letters: dict[str, list[str]] = {}
    for number, panel in enumerate(shown):
        letters.setdefault(panel.measured, []).append(_letter(number))
    return "; ".join(f"{', '.join(own)}: {measured}" for measured, own in letters.items()) + "."


def _panels(findings: dict[str, Any]) -> list[Panel]:
    """Those that the records have; attention is that of the first task."""
    parts, names = findings["explanation"], {task["task"]: task["name"] for task in findings["tasks"]}
    made: list[Panel] = []
    if parts["attention"]:
        task, attention = next(iter(parts["attention"].items()))
        free = (parts.get("content-free") or {}).get(task)
        items = f"{names[task]}, {counted(findings['plan']['attention_items'], 'item')} at each place"
        made += [
            Panel("attention to the gold as it moves", items, lambda axes: panels.gold_by_head(axes, attention, free)),
            Panel(
                "where each head’s attention goes",
                items,
                lambda axes: panels.regions(axes, attention["regions"], attention.get("layers")),
            ),
        ]

    def add(name: str, title: str, measured: Callable[[dict[str, Any]], str], draw: Draw) -> None:
        if part := parts.get(name):
            made.append(Panel(title, measured(part), lambda axes: draw(axes, part)))

    def texts(kind: str) -> Callable[[dict[str, Any]], str]:
        return lambda part: f"{part['texts']} {kind} texts"

    def asked(part: dict[str, Any]) -> str:
        return f"{names.get(part['task'], part['task'])}, {counted(part['items'], 'item')} at each place"

    add(
        "distance",
        "attention by distance",
        lambda part: "all queries of plain texts, whose first token is among the farthest",
        panels.by_distance,
    )
    add("geometry", "variance of hidden states due to position", texts("plain"), panels.variance)
    if "curve" in (parts.get("channels") or {}):
        add("channels", "the smoothest positional channel", texts("random"), panels.channel)
    add("channels", "channels that run one way, by fit", texts("random"), panels.fits)
    add("mask-or-encoding", "is it the mask, or the encoding?", texts("random"), panels.arms)
    add("ablation", "the answer without positional vectors", asked, panels.ablated)
    emphasised = {
        part.get("quantity", "weight"): part
        for name in ("emphasis-weight", "emphasis-score")
        if (part := parts.get(name))
    }
    if emphasised:
        part = next(iter(emphasised.values()))
        items = f"{names.get(part['task'], part['task'])}, {counted(part['items'], 'item')}, the gold in slot {part['gold_slot'] + 1}"
        title = "does the answer follow the attention?"
        made.append(Panel(title, items, lambda axes: panels.followed(axes, emphasised)))
    return made
