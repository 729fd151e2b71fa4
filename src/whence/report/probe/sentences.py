"""What the curves come to, in words. Nothing is claimed of a gap that chance makes too."""

from __future__ import annotations

from typing import Any

from whence.report.comparison.numbers import number, probability

ALPHA = 0.05
MOST = 4  # slots that are named where a wrong answer came from
SCORES = {"likelihood": "likeliest answer", "generation": "written answer", "share": "probability of the answer"}


def main_curve(task: dict[str, Any]) -> dict[str, Any]:
    """The curve a task is spoken of by: the first that was asked for."""
    return task["curves"][0]


def headline(task: dict[str, Any]) -> str:
    """One line: whether the place of the gold matters, as far as these items can tell."""
    curve = main_curve(task)
    if curve["gap"] == 0:
        return f"Alike at every place: {percent(curve['average'])} right."
    if curve["gap_p"] >= ALPHA:
        return "No effect of position can be claimed."
    return (
        f"Best with the gold in slot {curve['best'] + 1}, worst in slot {curve['worst'] + 1}: "
        f"{number(100 * curve['gap'], 0)} points apart."
    )


def detail(task: dict[str, Any]) -> str:
    """The numbers behind the line."""
    curve = main_curve(task)
    told = (
        f"{percent(curve['average'])} right on average ({between(curve['average_interval'])}; chance is "
        f"{percent(task['chance'])}), {counted(curve['items'], 'item')} at each of {len(curve['places'])} places."
    )
    if curve["gap"]:
        told += (
            f" The gap between best and worst place is {number(100 * curve['gap'], 0)} points; chance alone makes one of "
            f"{number(100 * curve['gap_by_chance'], 0)} (p = {probability(curve['gap_p'])})."
        )
    told += wrong(task["chosen"])
    lines = [f"{name} {percent(point['mean'])}" for name, point in curve["lines"].items()]
    return told + (f" For comparison: {', '.join(lines)}." if lines else "")


def wrong(chosen: dict[str, int]) -> str:
    """Which slots were read instead, most often first.

    >>> wrong({"0": 3, "4": 1})
    ' Where it was wrong, it took the answer of slot 1 (3 times), slot 5 (1 time).'
    """
    named = sorted(((count, slot) for slot, count in chosen.items() if slot != "none"), reverse=True)
    if not named:
        return ""
    slots = ", ".join(f"slot {int(slot) + 1} ({counted(count, 'time')})" for count, slot in named[:MOST])
    return f" Where it was wrong, it took the answer of {slots}{' and others' if len(named) > MOST else ''}."


def emphasised(short: dict[str, float]) -> str:
    """What became of the answers of slots that were emphasised, and of attention where it was looked at.

    >>> emphasised({"gained": 1.0})
    'The emphasised slot’s answer became likelier in 100% of the cases.'
    """
    share = {name: f"{100 * value:.3g}%" for name, value in short.items()}
    told = f"The emphasised slot’s answer became likelier in {share['gained']} of the cases."
    if "attention_rose" in short:
        told += (
            " A score below zero that is multiplied turns attention away; to the whole slot, in the mean over layers and heads, "
            f"it rose in {share['attention_rose']}. The answer went the way the attention did in {share['with_attention']}."
        )
    return told


def percent(share: float) -> str:
    return f"{number(100 * share, 0)}%"


def between(ends: dict[str, float] | None) -> str:
    """Both ends of an interval of shares, or why there is none."""
    return "too alike for an interval" if ends is None else f"{percent(ends['low'])} to {percent(ends['high'])}"


def counted(count: int, thing: str) -> str:
    """
    >>> counted(1, "item"), counted(2, "item")
    ('1 item', '2 items')
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"


def answer(value: bool | None) -> str:
    """A doubt's answer in words.

    >>> answer(True), answer(False), answer(None)
    ('held here', 'did not hold here', 'cannot be told from these numbers')
    """
    if value is None:
        return "cannot be told from these numbers"
    return "held here" if value else "did not hold here"
