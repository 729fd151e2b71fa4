"""What follows what: emphasis on a slot and the answer, positions and masks and the hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe import likelihood
from whence.probe.emphasis import Emphasis, ScoreTimes, emphasis
from whence.probe.states import causal
from whence.probe.subject import Subject
from whence.probe.tasks import Task, spread


def answer_follows(
    subject: Subject, task: Task, items: int, multiplied: str = "weight", times: float = 2.0, slots: int = 5
) -> dict[str, Any]:
    """Does the answer follow the attention? The gold stays in the middle; one slot after the other is emphasised.

    For each emphasised slot: how much likelier its own answer became among all of them, and how often it won. A weight
    that is multiplied rises; where it is the score, attention may rise or fall, so it is looked at too: the sum over the
    slot, from the last token before the answers, in the mean over layers and heads.

    Args:
        multiplied: ``"weight"`` or ``"score"``, as ``whence.probe.emphasis`` has them.
    """
    if not task.paired:
        raise usage_error("answer_follows", task.name, "every slot holds an answer of its own", "take key-value pairs")
    kind = emphasis(multiplied)
    middle, chosen = task.slots // 2, spread(task.slots, min(slots, task.slots))
    prompts = [subject.framed(task.prompt(item, middle)) for item in task.items[:items]]
    spans = [subject.token_spans(prompt.text, prompt.slots) for prompt in prompts]
    made = likelihood.branches(subject, prompts)
    rows = []
    for some in likelihood.together(subject, made):
        reading = likelihood.Reading(subject, [made[index] for index in some])
        plain = reading.scores()
        for slot in chosen:
            effects = [kind(spans[index][slot], times) for index in some]
            changed = reading.scores(effects)
            looked = _looked_at(reading, effects)
            for place, (index, before, after) in enumerate(zip(some, plain, changed, strict=True)):
                own = prompts[index].owners.index(slot)
                rows.append({
                    "slot": slot,
                    "before": likelihood.shares(before)[own],
                    "after": likelihood.shares(after)[own],
                    "won_before": before[own] == max(before),
                    "won_after": after[own] == max(after),
                    **(looked[place] if looked else {}),
                })  # fmt: skip
    return {
        "multiplied": multiplied,
        "times": times,
        "gold": middle,
        "items": min(items, len(task.items)),
        "rows": rows,
    }


def _looked_at(reading: likelihood.Reading, effects: Sequence[Emphasis]) -> list[dict[str, float]]:
    """For each prompt the attention to the emphasised span before and after, where the effect is one on scores."""
    of_scores = [effect for effect in effects if isinstance(effect, ScoreTimes)]
    if not of_scores:
        return []
    both = zip(reading.rows(), reading.rows(of_scores), of_scores, strict=True)
    return [
        {
            name: float(row[..., effect.span[0] : effect.span[1]].sum(-1).mean())
            for name, row in (("attention_before", before), ("attention_after", after))
        }
        for before, after, effect in both
    ]


def followed(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The rows of ``answer_follows`` in short: how often the emphasised slot's answer gained, and how much on average; where
    attention was looked at, how often it rose, and how often the answer went the way the attention did."""
    gains = [row["after"] - row["before"] for row in rows]
    told = {
        "gained": sum(gain > 0 for gain in gains) / len(gains),
        "mean_gain": sum(gains) / len(gains),
        "won_before": sum(row["won_before"] for row in rows) / len(rows),
        "won_after": sum(row["won_after"] for row in rows) / len(rows),
    }
    if all("attention_after" in row for row in rows):
        rose = [row["attention_after"] > row["attention_before"] for row in rows]
        together = [up == (gain > 0) for up, gain in zip(rose, gains, strict=True)]
        told |= {"attention_rose": sum(rose) / len(rose), "with_attention": sum(together) / len(together)}
    return told


def arms(tokens: int, span: tuple[int, int], shift: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Positions ``[tokens]`` and mask ``[tokens, tokens]`` of each arm of the experiment: is it the mask, or the encoding?

    Two arms tell the tokens of a span that they stand ``shift`` places earlier: one by their positions, the other by a
    mask in which they see that many tokens fewer, the first ones. Three more take away one source of position or both:
    with all positions equal a rotary model knows order from its mask alone, with a mask that hides nothing from its
    encoding alone, and with both from nothing: what varies with position there is noise, and the floor for the others.
    """
    start, end = span
    if not 0 < shift <= start < end <= tokens:
        raise usage_error(
            "arms",
            f"a span from {start} to {end} of {tokens} tokens, moved by {shift}",
            "the span lies inside and is moved no further than the beginning",
            "take a later span or a smaller shift",
        )
    here, seen = torch.arange(tokens), causal(tokens)
    moved = here.clone()
    moved[start:end] -= shift
    cropped = seen.clone()
    cropped[start:end, :shift] = False
    still, open_ = torch.zeros_like(here), torch.ones_like(seen)
    return {
        "untouched": (here, seen),
        "shifted encoding": (moved, seen),
        "cropped mask": (here, cropped),
        "mask alone": (still, seen),
        "encoding alone": (here, open_),
        "neither": (still, open_),
    }


def change_in_span(curve: Tensor, untouched: Tensor, span: tuple[int, int]) -> float:
    """How far a channel's curve moved inside the span, beside the range it runs through untouched: ``[tokens]`` each."""
    room = float(untouched.max() - untouched.min())
    moved = float((curve - untouched)[span[0] : span[1]].abs().mean())
    return moved / room if room else 0.0


def rank_correlation(curve: Tensor) -> float:
    """Spearman's correlation of a curve with its place: 1 for one that rises throughout.

    >>> rank_correlation(torch.tensor([1.0, 4.0, 9.0])), rank_correlation(torch.tensor([3.0, 2.0, 1.0]))
    (1.0, -1.0)
    """
    ranks = curve.cpu().argsort().argsort().double()
    here = torch.arange(len(curve)).double()
    a, b = ranks - ranks.mean(), here - here.mean()
    return round(float((a * b).sum() / (a.norm() * b.norm())), 12)
