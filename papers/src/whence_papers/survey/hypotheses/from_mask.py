"""The second hypothesis: the causal mask is what puts position into the hidden states."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.probe import ablation, hidden_states
from whence.probe.arrays import channels, geometry
from whence.probe.probed_model import ProbedModel
from whence_papers.survey.hypotheses.record import (
    ENOUGH_TEXTS,
    ENOUGH_TOKENS,
    both_ways,
    enough_texts,
    hypothesis_record,
    require_texts,
)

RUNS = 0.5  # rank correlation with position from which a channel is one to speak of, in texts that did not choose it
RULE = (
    "in both halves of the texts the mask alone leaves more position in what layers read than the encoding alone and than "
    "neither does, and cropping the mask of a span moves the positional channel there more than shifting its positions "
    f"does, in two spans, where that channel has a rank correlation with position of at least {RUNS:g}; fewer than "
    f"{ENOUGH_TEXTS} texts of {ENOUGH_TOKENS} tokens decide nothing"
)
IN_A_SPAN = ("shifted encoding", "cropped mask")


def from_mask(lm: ProbedModel, texts: int = 64, tokens: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Each source of position is changed in a span, and taken away; the channel is chosen on other texts."""
    require_texts(texts, tokens)
    shift = tokens // 5
    spans = [(tokens * 2 // 5, tokens * 3 // 5), (tokens * 3 // 5, tokens * 4 // 5)]
    choosing = hidden_states.mean_states(lm, hidden_states.random_texts(lm, texts // 2, tokens, seed=seed))
    found = channels.positional_channels(choosing, "cubic", most=1)
    channel = found[0].channel if found else None
    layer = found[0].layers[len(found[0].layers) // 2] if found else lm.layers // 2
    held_out = hidden_states.random_texts(lm, texts, tokens, seed=seed + 1)

    def seen(arm: tuple[Tensor, Tensor]) -> Tensor:
        told = {"positions": arm[0], "visible": arm[1]}
        return torch.stack([one[layer] for one in hidden_states.iterate_states(lm, held_out, **told)]).double()

    first, second = (ablation.arms(tokens, span, shift) for span in spans)
    untouched = seen(first["untouched"])
    arms = {name: _halves(seen(arm), untouched, channel, spans[0]) for name, arm in first.items()}
    elsewhere = {name: _halves(seen(second[name]), untouched, channel, spans[1]) for name in IN_A_SPAN}
    answer = decided(arms, elsewhere) if found and enough_texts(texts, tokens) else None
    numbers = {"channel": channel, "layer": layer, "arms": arms, "arms_in_the_second_span": elsewhere}
    return hypothesis_record(
        lm, "from-mask", "the causal mask, more than the position encoding, puts position into the hidden states",
        RULE, answer, numbers, texts=texts, tokens=tokens, spans=[list(span) for span in spans], shift=shift,
        seed=seed,
    )  # fmt: skip


def speaks(numbers: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether a record has texts enough, and a channel that follows position, so that its numbers may decide anything."""
    return (
        numbers["channel"] is not None
        and enough_texts(settings["texts"], settings["tokens"])
        and _runs(numbers["arms"]["untouched"])
    )


def _runs(halves: list[dict[str, float]]) -> bool:
    return all(abs(half["rank_correlation"]) >= RUNS for half in halves)


def decided(arms: dict[str, list[dict[str, float]]], elsewhere: dict[str, list[dict[str, float]]]) -> bool | None:
    """The rule, for texts enough and a channel that was found."""
    if not _runs(arms["untouched"]):
        return None

    def more(one: list[dict[str, float]], than: list[dict[str, float]], what: str) -> list[float]:
        return [left[what] - right[what] for left, right in zip(one, than, strict=True)]

    spans = [sign for where in (arms, elsewhere)
             for sign in more(where["cropped mask"], where["shifted encoding"], "change_in_span")]  # fmt: skip
    way = both_ways([*more(arms["mask alone"], arms["encoding alone"], "position_share"), *spans])
    if way and both_ways(more(arms["mask alone"], arms["neither"], "position_share")) is not True:
        return None
    return way


def over_positions(numbers: dict[str, Any]) -> tuple[list[float], list[float]]:
    """How many times as far a cropped mask moves the channel as shifted positions do, in each span and half; and what
    the mask alone leaves of position over what the encoding alone leaves, in each half."""

    def over(one: list[dict[str, float]], other: list[dict[str, float]], what: str) -> list[float]:
        return [a[what] / b[what] if b[what] else math.inf for a, b in zip(one, other, strict=True)]

    arms = numbers["arms"]
    moved = [times for where in (arms, numbers["arms_in_the_second_span"])
             for times in over(where["cropped mask"], where["shifted encoding"], "change_in_span")]  # fmt: skip
    return moved, over(arms["mask alone"], arms["encoding alone"], "position_share")


def describe_numbers(numbers: dict[str, Any]) -> str:
    moved, left = over_positions(numbers)
    runs = {name: " and ".join(f"{half['rank_correlation']:.2f}" for half in numbers["arms"][name])
            for name in ("mask alone", "encoding alone")}  # fmt: skip
    return (
        f"A cropped mask moves the channel {min(moved):.1f} to {max(moved):.1f} times as far as shifted positions. The share "
        f"of position with the mask alone is {min(left):.2f} to {max(left):.2f} of that with the encoding alone; the "
        f"channel's rank correlation with position is {runs['mask alone']} with the one, {runs['encoding alone']} with the "
        "other."
    )


def _halves(every: Tensor, untouched: Tensor, channel: int | None, span: tuple[int, int]) -> list[dict[str, float]]:
    """Both halves of the texts, each by itself: what holds in both is no accident of a few texts."""
    half = len(every) // 2
    return [_arm(every[part], untouched[part], channel, span) for part in (slice(0, half), slice(half, None))]


def _arm(every: Tensor, untouched: Tensor, channel: int | None, span: tuple[int, int]) -> dict[str, float]:
    """One half of the texts in one arm, ``[texts, tokens, width]``: the share in what layers read, the channel as it is."""
    told = {"position_share": geometry.decompose(hidden_states.normalize_states(every[:, 1:])).position_beyond_chance}
    if channel is not None:
        curve, before = every.mean(0)[:, channel], untouched.mean(0)[:, channel]
        told["rank_correlation"] = ablation.rank_correlation(curve[len(curve) // 10 :])
        told["change_in_span"] = ablation.change_in_span(curve, before, span)
    return told
