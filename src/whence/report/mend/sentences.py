"""The answers of a trial's page as sentences."""

from __future__ import annotations

from collections import Counter
from typing import Any

from whence.probe.curves import FEW
from whence.report.formatting import NO_VALUE, format_number, format_p, format_signed
from whence.report.item_verdicts import describe_equivalence


def trial_answer(findings: dict[str, Any]) -> str:
    """Does a cure help? One sentence from the verdicts of all cures."""
    cures = findings["cures"]
    if not cures:
        return "No cure has been measured yet."
    best = best_cure(findings)
    many = f"{len(cures)} cure" + ("s were" if len(cures) > 1 else " was")
    if best is None:
        counts = Counter(cure["verdict"] for cure in cures)
        words = ", ".join(f"{counts[name]} {name}" for name in ("equivalent", "worse", "undecided") if counts[name])
        if counts["undecided"]:
            return f"Not shown: {many} tried, and none is shown to be better than the untouched model ({words})."
        return f"No: {many} tried, and none is better than the untouched model ({words})."
    change = best["contrast"]["estimate"]
    return (
        f"Yes: {best['title']} is better than the untouched model by {format_number(change, 1)} points of accuracy "
        f"({describe_interval(best['contrast'])}). {many.capitalize()} tried."
    )


def best_cure(findings: dict[str, Any]) -> dict[str, Any] | None:
    """The cure with the largest difference among those that are better; None if none is."""
    better = [cure for cure in findings["cures"] if cure["verdict"] == "better"]
    return max(better, key=lambda cure: cure["contrast"]["estimate"], default=None)


def describe_interval(contrast: dict[str, Any]) -> str:
    """The simultaneous interval and p of a contrast."""
    interval = contrast["interval"]
    ends = (
        NO_VALUE if interval is None else f"{format_signed(interval['low'], 1)} to {format_signed(interval['high'], 1)}"
    )
    return f"interval {ends}, p {'=' if (contrast['p'] or 0) >= 0.0001 else ''} {format_p(contrast['p'])}".replace(
        "p  <", "p <"
    )


def describe_verdict(cure: dict[str, Any]) -> str:
    """The verdict, with a note if the cure changed nothing at all."""
    return cure["verdict"] if cure["changed"] else f"{cure['verdict']}; changed no score"


def describe_rule(findings: dict[str, Any]) -> str:
    """How the verdicts are decided."""
    analysis, plan = findings["analysis"], findings["plan"]
    if analysis is None:
        return ""
    counts = sorted({cure["contrast"]["seeds"] for cure in findings["cures"]})
    items = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0] if counts else 0)
    cures, rounds = (
        f"{count} {name}{'s' if count > 1 else ''}"
        for count, name in ((len(findings["cures"]), "cure"), (plan["rounds"], "round"))
    )
    found_on = sorted(set(findings["best_slot_items"].values())) or [0]
    searched = f"{' to '.join(map(str, found_on[:: len(found_on) - 1 or 1]))} item{'s' if found_on[-1] != 1 else ''} of each task"
    return (
        "How it is decided. One half of the items chooses the settings of the cures, and the other half judges them. The "
        "value of an item is its mean accuracy over the slots of the gold. Each cure is compared with the untouched model "
        f"on the same {items} items. Intervals and p are corrected for {cures} and "
        f"{rounds} at alpha = {analysis['alpha']:g}. Better or worse: the interval excludes zero. "
        f"{describe_equivalence(plan['margin'])} Worst position, gap (best "
        "minus worst position) and average are means over the tasks, with 95% bootstrap intervals over items. The best position of the untouched model is "
        f"found on the search half, from {searched}. Slots count from 1."
    )


def few_items(findings: dict[str, Any]) -> str:
    """A note if the judging half is small."""
    seeds = [cure["contrast"]["seeds"] for cure in findings["cures"]]
    if not seeds or max(seeds) >= FEW:
        return ""
    return f"Few items: {max(seeds)} judge, fewer than {FEW}. With so few, a true effect is easily missed."
