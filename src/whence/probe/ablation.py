"""Experiments that change a model: remove positional vectors, change positions or masks, emphasize slots.

Ablation of positional vectors (Dong et al. 2024, arXiv 2405.18009).

In every layer, the input of attention at position t is p[t] plus the content of the text. p is the mean of the input over
plain texts, u the mean of p over positions, and m = p - u the part that depends on position. If a bias depends on m, the
curve without m is flat. The control removes the m of another position: it does the same damage, unrelated to position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.probe import hidden_states, likelihood
from whence.probe.arrays.geometry import NUM_UNCHANGED
from whence.probe.hidden_states import causal
from whence.probe.likelihood import Emphasis, ScaledScore, emphasis_class
from whence.probe.measurement import judge_choice, score_and_attend, to_rounded_list
from whence.probe.plan import Plan
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import ProbeTask, spread_slots

#: from the layer, the input of its attention module ``[batch, tokens, hidden_size]`` and its positions to another input
Change = Callable[[int, Tensor, Tensor], Tensor]


@contextmanager
def change_attention_inputs(lm: ProbedModel, change: Change) -> Iterator[None]:
    """Replace the input of every attention module by ``change(layer, input, positions)``. Restore the model afterwards."""

    result: dict[str, Tensor | None] = {}

    def record_positions(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        result["positions"] = kwargs.get("position_ids")

    def build_hook(layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
            x = args[0] if args else kwargs["hidden_states"]
            at = result["positions"]  # not every attention module receives them
            if at is None:  # nor does the model: new tokens follow the cached ones
                cache = kwargs.get("past_key_values")
                before = 0 if cache is None else cache.get_seq_length(layer)
                at = torch.arange(before, before + x.shape[1], device=x.device)[None]
            changed = change(layer, x, at.expand(x.shape[:2]))
            return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

        return hook

    with ExitStack() as stack:
        stack.callback(lm.model.register_forward_pre_hook(record_positions, with_kwargs=True).remove)
        for layer, module in hidden_states.attention_modules(lm).items():
            stack.callback(module.register_forward_pre_hook(build_hook(layer), with_kwargs=True).remove)
        yield


@torch.inference_mode()
def mean_attention_inputs(lm: ProbedModel, texts: Tensor) -> dict[int, Tensor]:
    """p by layer, ``[tokens, hidden_size]``: the mean input of attention over texts of one length."""
    total: dict[int, Tensor] = {}

    def add(layer: int, x: Tensor, at: Tensor) -> Tensor:
        total[layer] = total.get(layer, 0) + x.double().sum(0)
        return x

    with change_attention_inputs(lm, add):
        for batch in lm.batches([hidden_states.STATES * texts.shape[1]] * len(texts)):
            tokens = texts[batch.start : batch.stop].to(lm.device)
            lm.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    return {layer: (value / len(texts)).float() for layer, value in total.items()}


def ablation_arms(vectors: dict[int, Tensor]) -> dict[str, Change]:
    """The change of each arm. The first tokens are not changed, because a model breaks without its attention sink."""
    moving = {layer: vector - vector[NUM_UNCHANGED:].mean(0) for layer, vector in vectors.items()}
    # the control: a mean over few texts contains their noise, which does harm at any position
    tokens = len(next(iter(vectors.values())))
    other = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))

    def beyond_first(choices: Change) -> Change:
        return lambda layer, x, at: torch.where((at < NUM_UNCHANGED)[..., None], x, choices(layer, x, at).to(x.dtype))

    return {
        "untouched": lambda layer, x, at: x,
        "no moving": beyond_first(lambda layer, x, at: x - moving[layer][at]),
        "no vector": beyond_first(lambda layer, x, at: x - vectors[layer][at]),
        "shuffled": beyond_first(lambda layer, x, at: x - moving[layer][other.to(at.device)[at]]),
        "no content": beyond_first(lambda layer, x, at: vectors[layer][at]),
    }


def run_ablation(lm: ProbedModel, plan: Plan) -> dict[str, Any]:
    """For the first task of a plan, in each arm and by slot: the probability of the answer and the attention to the gold."""
    spec = plan.tasks[0]
    task = spec.build().first(max(2, plan.intervention_items))
    places = spread_slots(task.slots, plan.ablation_slots)
    prompts = [lm.apply_template(task.prompt(item, place)) for place in places for item in task.items]
    if not hidden_states.has_projections(lm):
        return {}
    tokens = max(len(row) for row in lm.all_tokens([prompt.text for prompt in prompts])) + 2 * plan.scored_tokens
    vectors = mean_attention_inputs(lm, hidden_states.plain_texts(lm, plan.texts, tokens))
    result: dict[str, Any] = {
        "task": spec.label, "items": len(task.items), "gold_slots": list(places), "texts": plan.texts, "tokens": tokens,
        "arms": {},
    }  # fmt: skip
    for name, change in ablation_arms(vectors).items():
        with change_attention_inputs(lm, change):
            scores, attention_parts = score_and_attend(lm, prompts, plan.scored_tokens, len(prompts))
        answers = [judge_choice(prompt, choice_scores) for prompt, choice_scores in zip(prompts, scores, strict=True)]
        gold = [part["slots"][..., prompt.gold].mean() for prompt, part in zip(prompts, attention_parts, strict=True)]
        result["arms"][name] = {
            "probability": to_rounded_list(mean_by_slot([answer["probability"] for answer in answers], len(places))),
            "correct": to_rounded_list(mean_by_slot([float(answer["correct"]) for answer in answers], len(places))),
            "gold_attention": to_rounded_list(mean_by_slot([float(one) for one in gold], len(places))),
        }
    return result


def mean_by_slot(values: list[float], places: int) -> Tensor:
    """The mean over items of values that are ordered by slot.

    >>> mean_by_slot([1.0, 3.0, 5.0, 7.0], 2).tolist()
    [2.0, 6.0]
    """
    return torch.tensor(values, dtype=torch.float64).reshape(places, -1).mean(1)


def emphasize_slots(
    lm: ProbedModel, task: ProbeTask, items: int, quantity: str = "weight", factor: float = 2.0, slots: int = 5
) -> dict[str, Any]:
    """Test whether the answer follows the attention. The gold stays in the middle slot; each slot is emphasized in turn.

    For each emphasized slot: the probability of its answer before and after, and whether it was the most likely one. A
    larger weight means more attention. A multiplied score may raise or lower attention, so attention is recorded too: the
    sum over the slot, from the last token before the answers, averaged over layers and heads.

    Args:
        quantity: ``"weight"`` or ``"score"``; see ``whence.probe.likelihood``.
    """
    if not task.paired:
        raise usage_error(
            "emphasize_slots(task)", task.name, "every slot must contain an answer", "use the task key-value"
        )
    kind = emphasis_class(quantity)
    middle, emphasized = task.slots // 2, spread_slots(task.slots, min(slots, task.slots))
    prompts = [lm.apply_template(task.prompt(item, middle)) for item in task.items[:items]]
    spans = [lm.token_spans(prompt.text, prompt.slots) for prompt in prompts]
    choices = likelihood.build_branches(lm, prompts)
    rows = []
    for batch in likelihood.batch_branches(lm, choices):
        reading = likelihood.CachedPrompts(lm, [choices[index] for index in batch])
        plain = reading.scores()
        for slot in emphasized:
            effects = [kind(spans[index][slot], factor) for index in batch]
            changed = reading.scores(effects)
            attention = _attention_to_span(reading, effects)
            for place, (index, before, after) in enumerate(zip(batch, plain, changed, strict=True)):
                choice = prompts[index].owners.index(slot)
                rows.append({
                    "slot": slot,
                    "before": likelihood.choice_probabilities(before)[choice],
                    "after": likelihood.choice_probabilities(after)[choice],
                    "won_before": before[choice] == max(before),
                    "won_after": after[choice] == max(after),
                    **(attention[place] if attention else {}),
                })  # fmt: skip
    return {
        "quantity": quantity,
        "factor": factor,
        "gold_slot": middle,
        "items": min(items, len(task.items)),
        "rows": rows,
    }


def _attention_to_span(reading: likelihood.CachedPrompts, effects: Sequence[Emphasis]) -> list[dict[str, float]]:
    """For each prompt the attention to the emphasized span before and after, for effects on scores; else nothing."""
    score_effects = [effect for effect in effects if isinstance(effect, ScaledScore)]
    if not score_effects:
        return []
    rows = zip(reading.rows(), reading.rows(score_effects), score_effects, strict=True)
    return [
        {
            name: float(row[..., effect.span[0] : effect.span[1]].sum(-1).mean())
            for name, row in (("attention_before", before), ("attention_after", after))
        }
        for before, after, effect in rows
    ]


def summarize_emphasis(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Summarize the rows of ``emphasize_slots``: how often and by how much the emphasized slot's answer gained; with recorded
    attention also how often it rose, and how often answer and attention changed in the same direction."""
    gains = [row["after"] - row["before"] for row in rows]
    result = {
        "gained": sum(gain > 0 for gain in gains) / len(gains),
        "mean_gain": sum(gains) / len(gains),
        "won_before": sum(row["won_before"] for row in rows) / len(rows),
        "won_after": sum(row["won_after"] for row in rows) / len(rows),
    }
    if all("attention_after" in row for row in rows):
        rose = [row["attention_after"] > row["attention_before"] for row in rows]
        same = [up == (gain > 0) for up, gain in zip(rose, gains, strict=True)]
        result |= {"attention_rose": sum(rose) / len(rose), "same_direction": sum(same) / len(same)}
    return result


def arms(tokens: int, span: tuple[int, int], shift: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Positions ``[tokens]`` and mask ``[tokens, tokens]`` of each arm of the experiment that separates mask and encoding.

    Two arms move the tokens of a span ``shift`` positions earlier: one changes their positions, the other masks that many
    of the first tokens for them. Three more arms remove one source of position or both. With equal positions, a rotary
    model gets order from its mask only. With a mask that hides nothing, it gets order from its encoding only. With both,
    it has no order: what still varies with position is noise, the floor for the other arms.
    """
    start, end = span
    if not 0 < shift <= start < end <= tokens:
        raise usage_error(
            "arms",
            f"a span from {start} to {end} of {tokens} tokens, moved by {shift}",
            "the span must lie inside the text and be moved no further than its beginning",
            "pass a later span or a smaller shift",
        )
    positions, mask = torch.arange(tokens), causal(tokens)
    shifted = positions.clone()
    shifted[start:end] -= shift
    cropped = mask.clone()
    cropped[start:end, :shift] = False
    equal_positions, full_mask = torch.zeros_like(positions), torch.ones_like(mask)
    return {
        "untouched": (positions, mask),
        "shifted encoding": (shifted, mask),
        "cropped mask": (positions, cropped),
        "mask alone": (equal_positions, mask),
        "encoding alone": (positions, full_mask),
        "neither": (equal_positions, full_mask),
    }


def change_in_span(curve: Tensor, original: Tensor, span: tuple[int, int]) -> float:
    """Mean change of a channel's curve ``[tokens]`` inside the span, relative to the range of the original curve."""
    room = float(original.max() - original.min())
    moved = float((curve - original)[span[0] : span[1]].abs().mean())
    return moved / room if room else 0.0


def rank_correlation(curve: Tensor) -> float:
    """Spearman's correlation of a curve with position: 1 for a curve that rises throughout.

    >>> rank_correlation(torch.tensor([1.0, 4.0, 9.0])), rank_correlation(torch.tensor([3.0, 2.0, 1.0]))
    (1.0, -1.0)
    """
    ranks = curve.cpu().argsort().argsort().double()
    here = torch.arange(len(curve)).double()
    a, b = ranks - ranks.mean(), here - here.mean()
    return round(float((a * b).sum() / (a.norm() * b.norm())), 12)
