"""The second doubt: that the causal mask is what puts position into the hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.bias import interventions, states
from whence.bias.arrays import channels, geometry
from whence.bias.doubts.record import both_ways, doubt_record, require_texts
from whence.bias.subject import Subject

RULE = (
    "in both halves of the texts the mask alone leaves more position in the hidden states than the encoding alone, and "
    "cropping the mask of a span moves the positional channel there more than shifting its positions does"
)


def from_mask(subject: Subject, texts: int = 64, tokens: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Each source of position is changed in a span, and taken away; the channel is chosen on other texts."""
    require_texts(texts, tokens)
    half = texts // 2
    span, shift = (tokens * 2 // 5, tokens * 3 // 5), tokens // 5
    choosing = states.mean_states(subject, states.random_texts(subject, half, tokens, seed=seed))
    found = channels.positional_channels(choosing, "cubic", most=1)
    channel = found[0].channel if found else None
    layer = found[0].layers[len(found[0].layers) // 2] if found else subject.layers // 2
    held_out = states.random_texts(subject, texts, tokens, seed=seed + 1)
    numbers: dict[str, Any] = {"channel": channel, "layer": layer, "arms": {}}
    untouched: Tensor | None = None
    for name, (positions, visible) in interventions.arms(tokens, span, shift).items():
        told = {"positions": positions, "visible": visible}
        every = torch.stack([one[layer] for one in states.each_text(subject, held_out, **told)]).double()
        untouched = every if untouched is None else untouched
        numbers["arms"][name] = [
            _arm(every[part], untouched[part], channel, span) for part in (slice(0, half), slice(half, None))
        ]
    arms = numbers["arms"]
    signs = [
        mask["position_share"] - encoding["position_share"]
        for mask, encoding in zip(arms["mask alone"], arms["encoding alone"], strict=True)
    ]
    if channel is not None:
        signs += [
            cropped["change_in_span"] - shifted["change_in_span"]
            for cropped, shifted in zip(arms["cropped mask"], arms["shifted encoding"], strict=True)
        ]
    return doubt_record(
        subject, "from-mask", "the causal mask, more than the position encoding, puts position into the hidden states",
        RULE, both_ways(signs), numbers, texts=texts, tokens=tokens, span=list(span), shift=shift, seed=seed,
    )  # fmt: skip


def _arm(every: Tensor, untouched: Tensor, channel: int | None, span: tuple[int, int]) -> dict[str, float]:
    """One half of the texts in one arm, ``[texts, tokens, width]``: the share in what layers read, the channel as it is."""
    told = {"position_share": geometry.decompose(states.as_read(every[:, 1:])).position_beyond_chance}
    if channel is not None:
        curve, before = every.mean(0)[:, channel], untouched.mean(0)[:, channel]
        told["rank_correlation"] = interventions.rank_correlation(curve[len(curve) // 10 :])
        told["change_in_span"] = interventions.change_in_span(curve, before, span)
    return told
