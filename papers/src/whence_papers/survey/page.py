"""What the experiment on a hypothesis found, in a sentence or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whence.probe.arrays.channels import FITS
from whence.report.probe.sentences import counted
from whence_papers.survey.hypotheses.from_mask import describe_numbers


def found_in(hypothesis: dict[str, Any]) -> str:
    """The numbers of a record in words; empty where a record has none."""
    numbers = hypothesis.get("numbers") or {}
    told = TOLD.get(hypothesis["hypothesis"])
    return (
        told(numbers)
        if told and (hypothesis["hypothesis"] == "one-way" or numbers.get("channel") is not None) and numbers
        else ""
    )


def _one_way(numbers: dict[str, Any]) -> str:
    fits = [f"{fit} {numbers[fit]['channels']}, in a shuffled order {numbers[fit]['by_chance']}" for fit in FITS]
    again = [f"{fit} {numbers[fit]['rank_correlation_in_other_texts']:.2f}" for fit in FITS if numbers[fit]["channels"]]
    return (
        f"Channels of {numbers['hidden_size']} that pass a fit: {'; '.join(fits)}. Mean rank correlation of the smoothest channels "
        f"with position in other texts: {', '.join(again) or 'none passed'}."
    )


def _scaling_helps(numbers: dict[str, Any]) -> str:
    rows = numbers["channels"].values()
    own = next(row for row in rows if not row["control"])
    ends = own["gap_interval"]
    controls = ", ".join(f"{100 * row['gap_shrinks_by']:+.1f}" for row in rows if row["control"])
    return (
        f"With the channel scaled by {own['scale']:g}, the gap of {100 * numbers['before']['gap']:.0f} points shrinks by "
        f"{100 * own['gap_shrinks_by']:.1f} (95% interval {100 * ends['low']:.1f} to {100 * ends['high']:.1f}) and the mean rises by "
        f"{100 * own['average_rises_by']:.1f}, {counted(own['n'], 'item')}. Control channels shrink it by {controls}."
    )


TOLD: dict[str, Callable[[dict[str, Any]], str]] = {
    "one-way": _one_way,
    "from-mask": describe_numbers,
    "scaling-helps": _scaling_helps,
}
