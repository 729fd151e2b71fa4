"""The record of a hypothesis, and how much evidence an answer needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from whence.errors import usage_error
from whence.probe import run_folder
from whence.probe.arrays.channels import FITS
from whence.probe.probed_model import ProbedModel
from whence.records import rerun_command
from whence.report.probe.sentences import format_count

MIN_TEXTS, MIN_TOKENS, MIN_ITEMS = 32, 500, 50


def hypothesis_record(
    lm: ProbedModel,
    hypothesis: str,
    claim: str,
    rule: str,
    answer: bool | None,
    numbers: dict[str, Any],
    **settings: Any,
) -> dict[str, Any]:
    """The record of one hypothesis test.

    ``claim`` is the assumption that the survey questions, in our words. ``rule`` states how the numbers decide; it is fixed in
    the code before a run. ``answer`` is True if the claim is supported, False if not, None if undecided.
    """
    return {
        "kind": "hypothesis",
        "source": "002",
        "hypothesis": hypothesis,
        "claim": claim,
        "rule": rule,
        "answer": answer,
        "model": {"name": lm.name, **lm.about},
        "settings": settings,
        "numbers": numbers,
        "started": run_folder.utc_now(),  # time of writing
        "command": rerun_command(),
        "environment": run_folder.environment(lm),
    }


def has_enough_texts(texts: int, tokens: int) -> bool:
    """Whether there are enough texts for an answer about hidden states. Means of fewer texts are mostly noise."""
    return texts >= MIN_TEXTS and tokens >= MIN_TOKENS


def shared_sign(signs: Sequence[float]) -> bool | None:
    """True if all signs are positive, False if all are negative, None otherwise.

    >>> shared_sign([0.1, 0.2]), shared_sign([-0.1, -0.2]), shared_sign([0.1, -0.1]), shared_sign([0.0])
    (True, False, None, None)
    """
    if all(sign > 0 for sign in signs):
        return True
    return False if all(sign < 0 for sign in signs) else None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def require_texts(texts: int, tokens: int) -> None:
    if texts < 4 or tokens < 40:
        raise usage_error(
            "a hypothesis",
            f"{texts} texts of {tokens} tokens",
            "at least 4 texts of 40 tokens are needed",
            "raise texts or tokens",
        )


MIN_RANK_CORRELATION = 0.5  # of a channel with position, in texts that did not select the channel


def can_decide(numbers: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether a from-mask record has enough texts and a channel that follows position."""
    return (
        numbers["channel"] is not None
        and has_enough_texts(settings["texts"], settings["tokens"])
        and follows_position(numbers["arms"]["untouched"])
    )


def follows_position(halves: list[dict[str, float]]) -> bool:
    return all(abs(half["rank_correlation"]) >= MIN_RANK_CORRELATION for half in halves)


def mask_over_position(numbers: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Two ratios: the change of the channel by a cropped mask over that by shifted positions, in each span and half; and the
    share of position with the mask alone over that with the encoding alone, in each half."""

    def over(one: list[dict[str, float]], other: list[dict[str, float]], what: str) -> list[float]:
        return [a[what] / b[what] if b[what] else math.inf for a, b in zip(one, other, strict=True)]

    arms = numbers["arms"]
    by_crop = [times for where in (arms, numbers["arms_in_the_second_span"])
             for times in over(where["cropped mask"], where["shifted encoding"], "change_in_span")]  # fmt: skip
    return by_crop, over(arms["mask alone"], arms["encoding alone"], "position_share")


def describe_from_mask(numbers: dict[str, Any]) -> str:
    by_crop, by_mask = mask_over_position(numbers)
    runs = {name: " and ".join(f"{half['rank_correlation']:.2f}" for half in numbers["arms"][name])
            for name in ("mask alone", "encoding alone")}  # fmt: skip
    return (
        f"A cropped mask moves the channel {min(by_crop):.1f} to {max(by_crop):.1f} times as far as shifted positions. The share "
        f"of position with the mask alone is {min(by_mask):.2f} to {max(by_mask):.2f} of that with the encoding alone; the "
        f"channel's rank correlation with position is {runs['mask alone']} with the mask alone and "
        f"{runs['encoding alone']} with the encoding alone."
    )


def describe_result(hypothesis: dict[str, Any]) -> str:
    """Describe the numbers of a record in a sentence or two; empty if it has none."""
    numbers = hypothesis.get("numbers") or {}
    describe = DESCRIPTIONS.get(hypothesis["hypothesis"])
    if not describe or not numbers or (hypothesis["hypothesis"] != "one-way" and numbers.get("channel") is None):
        return ""
    return describe(numbers)


def _describe_one_way(numbers: dict[str, Any]) -> str:
    fits = [f"{fit} {numbers[fit]['channels']} ({numbers[fit]['by_chance']} with shuffled positions)" for fit in FITS]
    again = [f"{fit} {numbers[fit]['rank_correlation_in_other_texts']:.2f}" for fit in FITS if numbers[fit]["channels"]]
    return (
        f"Channels of {numbers['hidden_size']} that pass a fit: {'; '.join(fits)}. Mean rank correlation of the smoothest channels "
        f"with position in other texts: {', '.join(again) or 'none passed'}."
    )


def _describe_scaling_helps(numbers: dict[str, Any]) -> str:
    rows = numbers["channels"].values()
    own = next(row for row in rows if not row["control"])
    ends = own["gap_interval"]
    controls = ", ".join(f"{100 * row['gap_shrinks_by']:+.1f}" for row in rows if row["control"])
    return (
        f"With the channel scaled by {own['scale']:g}, the gap of {100 * numbers['before']['gap']:.0f} points shrinks by "
        f"{100 * own['gap_shrinks_by']:.1f} (95% interval {100 * ends['low']:.1f} to {100 * ends['high']:.1f}) and the mean rises by "
        f"{100 * own['average_rises_by']:.1f}, {format_count(own['n'], 'item')}. Control channels shrink it by {controls}."
    )


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "one-way": _describe_one_way,
    "from-mask": describe_from_mask,
    "scaling-helps": _describe_scaling_helps,
}
