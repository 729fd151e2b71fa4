"""The tables of a probe: curves, layers, channels, arms and emphasized slots in numbers."""

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
TEXT, NUMBER = ' class="text"', ' class="n"'

#: by the quantity that is multiplied
EMPHASIZED = {
    "weight": "the attention weight of one slot, before each row is normalized again, multiplied by",
    "score": "the attention score of one slot, before softmax, multiplied by",
}


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[str] = ()) -> str:
    """A table whose first column names its rows. It is aligned left, as are ``text_columns``; numbers are aligned right."""
    is_text = [not number or name in text_columns for number, name in enumerate(head)]
    top = "".join(
        f'<th scope="col"{TEXT if text else ""}>{html.escape(name)}</th>'
        for name, text in zip(head, is_text, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row"{TEXT}>{html.escape(row[0])}</th>'
        + "".join(
            f"<td{TEXT if text else NUMBER}>{html.escape(cell)}</td>"
            for cell, text in zip(row[1:], is_text[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    element = (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    )
    return scrollable(element, caption)


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


def channels(result: dict[str, Any]) -> str:
    """The channels that each fit finds, in order and in a random order."""
    rows = []
    for fit in ("cubic", "segmented", "window"):
        one = result[fit]
        best = ", ".join(str(channel["channel"]) for channel in one["best"][:5]) or "none"
        rows.append([fit, str(one["count"]), str(one["by_chance"]), best])
    caption = f"Channels of {result['hidden_size']} that are monotone in position over {result['texts']} random texts, by fit."
    return table(caption, ["fit", "channels", "in a shuffled order", "the smoothest"], rows)


def arms(result: dict[str, Any]) -> str:
    rows = [
        [name, f"{format_number(100 * arm['position_share'], 1)}%", format_number(arm["moved"], 2)]
        for name, arm in result["arms"].items()
    ]
    first, last = result["span"]
    caption = (
        f"Layer {result['layer']}, {result['texts']} random texts, states normalized to length 1. The span is tokens {first} to "
        f"{last - 1}; its positions are shifted by {result['shift']}."
    )
    head = ["arm", "variance explained by position", "distance the span moved (1.4: unrelated)"]
    return table(caption, head, rows)


def emphasis(result: dict[str, Any]) -> str:
    """For each emphasized slot: its answer's probability among all before and after."""
    slots = sorted({row["slot"] for row in result["rows"]})
    rows = []
    for slot in slots:
        slot_rows = [row for row in result["rows"] if row["slot"] == slot]
        before, after = (sum(row[key] for row in slot_rows) / len(slot_rows) for key in ("before", "after"))
        name = f"slot {slot + 1}" + (" (gold)" if slot == result["gold_slot"] else "")
        won = sum(row["won_after"] for row in slot_rows)
        rows.append([name, f"{format_number(100 * before, 1)}%", f"{format_number(100 * after, 1)}%",
                     format_signed(100 * (after - before), 1), f"{won} of {len(slot_rows)}"])  # fmt: skip
    caption = (
        f"{format_count(result['items'], 'item')}; {EMPHASIZED[result.get('quantity', 'weight')]} {result['factor']:g}."
    )
    head = ["emphasized slot", "probability of its answer before", "after", "difference, points", "most likely after"]
    return table(caption, head, rows)


#: how to read the last of the shares by layer
BOTH_HALVES = (
    "In both halves: an estimate from the product of the two halves of the texts at each frequency. It is unbiased, and noise "
    "moves it up or down. Where the high frequencies are mostly noise, their sum can be negative, and the share of the low "
    "frequencies exceeds 100%. Read such a number as 100% within noise."
)


def layers(result: dict[str, Any]) -> str:
    rows = []
    for index, layer in enumerate(result["layers"]):
        vectors = result["vectors"]
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
    caption = f"Hidden states of {result['texts']} plain texts of {result['tokens']} tokens, the first token left out."
    return table(caption, head, rows)


def _in_both_halves(result: dict[str, float] | None) -> list[str]:
    """The estimates from two halves of the texts; ``BOTH_HALVES`` explains shares above 100%."""
    if result is None:
        return ["–", "–"]
    return [format_number(result["rank"], 1), f"{format_number(100 * result['low_frequencies'], 0)}%"]


def scores(result: Sequence[dict[str, Any]]) -> str:
    """Shares of position and content in the variance of scores, averaged over heads."""
    if not result:
        return ""
    names = list(result[0]["heads"][0])
    rows = [
        [f"layer {one['layer']}"]
        + [f"{format_number(100 * sum(head[name] for head in one['heads']) / len(one['heads']), 0)}%" for name in names]
        for one in result
    ]
    return table("Variance of attention scores within a row, before rotation, mean over heads.", ["", *names], rows)
