"""How far back a model looks, and how much of that its position encoding makes: attention by distance, with it and without.

Without it all tokens have one position, so that a rotary model knows order from its causal mask alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.probe import states
from whence.probe.arrays import rows
from whence.probe.measuring import rounded
from whence.probe.plan import Plan
from whence.probe.subject import Subject

TEXTS = 2


def by_distance(subject: Subject, plan: Plan) -> dict[str, Any]:
    """Mean attention at each distance over all queries of plain texts, in doublings, ``[layers, heads, ranges]``."""
    texts = states.plain_texts(subject, min(TEXTS, plan.texts), plan.tokens)
    ranges, usual = _looked(subject, texts, {})
    told: dict[str, Any] = {"ranges": ranges, "attention": rounded(usual)}
    if subject.takes_branches:  # positions can be handed to it
        still = torch.zeros(1, texts.shape[1], dtype=torch.long, device=subject.device)
        # without a mask transformers takes positions that do not rise for packed texts
        _, alone = _looked(subject, texts, {"attention_mask": torch.ones_like(still), "position_ids": still})
        told["one_position"] = rounded(alone)
    return told


def _looked(subject: Subject, texts: Tensor, given: dict[str, Tensor]) -> tuple[list[tuple[int, int]], Tensor]:
    from whence import hf

    total: Tensor | None = None
    for text in texts:
        seen = hf.DistanceProfile()
        with torch.inference_mode(), hf.capture(subject.model, seen, layers=subject.chosen_layers):
            subject.model(input_ids=text[None].to(subject.device), use_cache=False, logits_to_keep=1, **given)
        here = seen.stack()[:, 0]
        total = here if total is None else total + here
    assert total is not None
    # rows.by_distance expects the looking token last and a sink first
    as_row = torch.cat([torch.zeros_like(total[..., :1]), (total / len(texts)).flip(-1)], -1)
    return rows.by_distance(as_row)
