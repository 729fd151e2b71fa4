"""The tables of a probe: every curve in numbers, and what was found about layers, channels, arms and slots."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from whence.report.formatting import NO_VALUE, format_number, format_p, format_signed
from whence.report.html_page import scrollable
from whence.report.probe.sentences import (
    SHORT,
    few_items_note,
    format_count,
    format_gap_interval,
    format_interval,
    format_percent,
    format_points,
)

BASELINES = ("closed book", "oracle")

#: by what is multiplied
EMPHASISED = {
    "weight": "the attention weight of one slot, before each row is normalised again, multiplied by",
    "score": "the attention score of one slot, before softmax, multiplied by",
}


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows."""
    top = "".join(
        f'<th scope="col"{"" if i else " class=text"}>{html.escape(name)}</th>' for i, name in enumerate(head)
    ).replace("class=text", 'class="text"')
    body = "".join(
        f'<tr><th scope="row" class="text">{html.escape(row[0])}</th>'
        + "".join(f'<td class="n">{html.escape(cell)}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    made = f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return scrollable(made, caption)


def curves(tasks: Sequence[dict[str, Any]]) -> str:
    """Mean, gap and its test by task and measure."""
    rows = []
    for task in tasks:
        for curve in task["curves"]:
            rows.append([
                f"{task['task']}: {SHORT[curve['score']]}",  # short, because this column stays in view on a phone
                format_percent(curve["average"]),
                format_interval(curve["average_interval"]),
                format_points(curve["gap"]),
                format_gap_interval(curve) if curve["gap"] else NO_VALUE,
                format_p(curve["gap_p"]),
                format_p(curve["corrected_p"]),
                f"{curve['best'] + 1}, {curve['worst'] + 1}" if curve["gap"] else NO_VALUE,
                *(format_percent(line["mean"]) if (line := curve["baselines"].get(name)) else NO_VALUE for name in BASELINES),
                f"{curve['items']}{' (few)' if few_items_note(curve['items']) else ''}",
            ])  # fmt: skip
    head = ["", "mean", "95% interval", "gap, points", "95% interval of the gap", "p", "p, Holm", "best, worst slot", *BASELINES, "items"]  # fmt: skip
    return table("All measures. Slots count from 1.", head, rows)


def channels(found: dict[str, Any]) -> str:
    """What each fit finds, beside what it finds in a random order."""
    rows = []
    for fit in ("cubic", "segmented", "window"):
        one = found[fit]
        best = ", ".join(str(channel["channel"]) for channel in one["best"][:5]) or "none"
        rows.append([fit, str(one["count"]), str(one["by_chance"]), best])
    caption = (
        f"Channels of {found['hidden_size']} that are monotone in position over {found['texts']} random texts, by fit."
    )
    return table(caption, ["fit", "channels", "in a shuffled order", "the smoothest"], rows)


def arms(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{format_number(100 * arm['position_share'], 1)}%", format_number(arm["moved"], 2)]
        for name, arm in found["arms"].items()
    ]
    first, last = found["span"]
    caption = (
        f"Layer {found['layer']}, {found['texts']} random texts, states normalised to length 1. The span is tokens {first} to "
        f"{last - 1}; its positions are shifted by {found['shift']}."
    )
    head = ["arm", "variance explained by position", "distance the span moved (1.4: unrelated)"]
    return table(caption, head, rows)


def emphasis(found: dict[str, Any]) -> str:
    """For each emphasised slot: its answer's probability among all before and after."""
    slots = sorted({row["slot"] for row in found["rows"]})
    rows = []
    for slot in slots:
        own = [row for row in found["rows"] if row["slot"] == slot]
        before, after = (sum(row[key] for row in own) / len(own) for key in ("before", "after"))
        name = f"slot {slot + 1}" + (" (gold)" if slot == found["gold_slot"] else "")
        won = sum(row["won_after"] for row in own)
        rows.append([name, f"{format_number(100 * before, 1)}%", f"{format_number(100 * after, 1)}%",
                     format_signed(100 * (after - before), 1), f"{won} of {len(own)}"])  # fmt: skip
    caption = f"{format_count(found['items'], 'item')}; {EMPHASISED[found.get('quantity', 'weight')]} {found['factor']:g}."
    head = ["emphasised slot", "probability of its answer before", "after", "difference, points", "most likely after"]
    return table(caption, head, rows)


#: how to read the last of the shares by layer
BOTH_HALVES = (
    "In both halves: an estimate from the product of the two halves of the texts at each frequency. It is unbiased, and noise "
    "moves it up or down. Where the high frequencies are mostly noise, their sum can be negative, and the share of the low "
    "frequencies exceeds 100%. Read such a number as 100% within noise."
)


def layers(found: dict[str, Any]) -> str:
    rows = []
    for index, layer in enumerate(found["layers"]):
        vectors = found["vectors"]
        rows.append([
            str(index),
            f"{format_number(100 * layer['beyond_chance'], 1)}%",
            f"{format_number(100 * layer['beyond_chance_without_outliers'], 1)}%",
            str(len(layer["outliers"])),
            format_number(layer["relative_norm"], 2),
            format_number(layer["stable_rank"], 1),
            str(layer["rank"]),
            str(layer["signal_rank"]),
            f"{format_number(100 * layer['low_frequencies'], 0)}%",
            *_in_both_halves(layer.get("in_both_halves")),
            format_number(layer["incoherence"]["mean"], 2),
            format_number(vectors["moving"][index], 2),
            format_number(vectors["nearest"][index], 3),
        ])  # fmt: skip
    head = ["layer", "position, beyond chance", "without outlier channels", "outliers", "relative norm", "stable rank",
            "rank (95%)", "rank above noise", "low frequencies", "rank in both halves", "low frequencies in both halves",
            "cosine to context", "positional vector", "nearest inside"]  # fmt: skip
    caption = f"Hidden states of {found['texts']} plain texts of {found['tokens']} tokens, the first token left out."
    return table(caption, head, rows)


def _in_both_halves(found: dict[str, float] | None) -> list[str]:
    """What two halves of the texts agree on, as it was estimated: ``BOTH_HALVES`` says what a share above 100% is."""
    if found is None:
        return ["–", "–"]
    return [format_number(found["rank"], 1), f"{format_number(100 * found['low_frequencies'], 0)}%"]


def scores(found: Sequence[dict[str, Any]]) -> str:
    """How much of the scores position with position explains, and so on, averaged over heads."""
    if not found:
        return ""
    names = list(found[0]["heads"][0])
    rows = [
        [f"layer {one['layer']}"]
        + [f"{format_number(100 * sum(head[name] for head in one['heads']) / len(one['heads']), 0)}%" for name in names]
        for one in found
    ]
    return table("Variance of attention scores within a row, before rotation, mean over heads.", ["", *names], rows)
