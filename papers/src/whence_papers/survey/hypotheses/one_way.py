"""The first hypothesis: hidden states have channels which run one way, and smoothly, along a text."""

from __future__ import annotations

from typing import Any

import torch

from whence.probe import ablation, hidden_states
from whence.probe.arrays import channels, geometry
from whence.probe.probed_model import ProbedModel
from whence_papers.survey.hypotheses.record import (
    ENOUGH_TEXTS,
    ENOUGH_TOKENS,
    enough_texts,
    hypothesis_record,
    mean,
    require_texts,
)

AGREEMENT = 0.9  # rank correlation with position, in texts that did not choose the channel
TIMES_CHANCE = 2.0
RULE = (
    f"each of the three fits finds more than {TIMES_CHANCE:g} times as many channels as in a shuffled order, and its ten "
    f"smoothest have a mean rank correlation with position of at least {AGREEMENT:g} in texts that did not choose them; "
    f"fewer than {ENOUGH_TEXTS} texts of {ENOUGH_TOKENS} tokens decide nothing"
)


def one_way(lm: ProbedModel, texts: int = 64, tokens: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Half of the texts choose channels by each fit, the other half says whether they run the same way again."""
    require_texts(texts, tokens)
    half = texts // 2
    choosing = hidden_states.mean_states(lm, hidden_states.random_texts(lm, half, tokens, seed=seed))
    held_out = hidden_states.random_texts(lm, half, tokens, seed=seed + 1)
    judging = hidden_states.mean_states(lm, held_out)
    numbers: dict[str, Any] = {}
    passed: list[set[int]] = []
    best = None
    for fit in channels.FITS:
        found = channels.positional_channels(choosing, fit, most=None)
        passed.append({one.channel for one in found})
        best = best or (found[0] if found else None)
        again = [ablation.rank_correlation(judging[_middle(one), tokens // 10 :, one.channel]) * one.direction
                 for one in found[:10]]  # fmt: skip
        numbers[fit] = {
            "channels": len(found),
            "by_chance": channels.by_chance(choosing, fit, seed),
            "smoothest": [{"channel": one.channel, "direction": one.direction, "roughness": one.roughness}
                          for one in found[:10]],
            "rank_correlation_in_other_texts": mean(again),
        }  # fmt: skip
    union = set.union(*passed)
    numbers["agreement_of_fits"] = len(set.intersection(*passed)) / len(union) if union else 0.0
    numbers["position_in_one_token"] = None if best is None else _share(lm, best, held_out)
    numbers["hidden_size"] = choosing.shape[-1]
    answer = decided(numbers) if enough_texts(texts, tokens) else None
    return hypothesis_record(
        lm, "one-way", "some channels of the hidden states run one way, and smoothly, along a text", RULE, answer,
        numbers, texts=texts, tokens=tokens, seed=seed,
    )  # fmt: skip


def decided(numbers: dict[str, Any]) -> bool:
    """The rule, for texts enough."""
    return all(
        numbers[fit]["channels"] > TIMES_CHANCE * numbers[fit]["by_chance"]
        and numbers[fit]["rank_correlation_in_other_texts"] >= AGREEMENT
        for fit in channels.FITS
    )


def _middle(one: channels.Channel) -> int:
    return one.layers[len(one.layers) // 2]


def _share(lm: ProbedModel, one: channels.Channel, texts: torch.Tensor) -> float:
    """How much of a single token's value in the smoothest channel is its position: a smooth mean may say little of it."""
    skipped = texts.shape[1] // 10
    every = [text[_middle(one), skipped:, one.channel] for text in hidden_states.iterate_states(lm, texts)]
    return geometry.decompose(torch.stack(every)[..., None]).position_beyond_chance
