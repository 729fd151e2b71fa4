"""Experiments that change a model: remove positional vectors, change positions or masks, emphasize slots, scale a channel.

Ablation of positional vectors (Dong et al. 2024, arXiv 2405.18009).

In every layer the attention's input at a position t is p[t] plus a text's own content; p is its mean over plain texts, u
the mean of p over positions, m = p - u the part that depends on position. If a bias depends on m, the curve without m is
flat. The control removes the m of another position: its effect is that of any damage, not of position.

Scaling of one channel of the input of queries and keys, for the answering rows only (Yu et al. 2024, arXiv 2406.02536).

Rows of the prompt are unchanged. The queries of the answering rows, and the keys they see, come from inputs in which one
channel is multiplied by s; values and norms are unchanged. While the prompt is read, the cache is filled with changed keys,
but the rows of the prompt use the unchanged ones.
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
from whence.probe.hidden_states import attention_modules, causal
from whence.probe.likelihood import Emphasis, ScaledScore, emphasis_class
from whence.probe.measurement import judge_choice, score_and_attend, to_rounded_list
from whence.probe.plan import Plan
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import ProbeTask, spread_slots

#: what an attention module reads in a layer, ``[batch, tokens, width]``, its positions, and what it reads instead
Change = Callable[[int, Tensor, Tensor], Tensor]


@contextmanager
def change_attention_inputs(lm: ProbedModel, change: Change) -> Iterator[None]:
    """Every attention module reads what ``change`` makes of its input. Afterwards the model is restored."""

    result: dict[str, Tensor | None] = {}

    def note(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        result["positions"] = named.get("position_ids")

    def hook_of(layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
            x = given[0] if given else named["hidden_states"]
            at = result["positions"]  # not every attention module is handed them
            if at is None:  # nor was the model: what is not in the cache yet follows it
                cache = named.get("past_key_values")
                before = 0 if cache is None else cache.get_seq_length(layer)
                at = torch.arange(before, before + x.shape[1], device=x.device)[None]
            read = change(layer, x, at.expand(x.shape[:2]))
            return ((read, *given[1:]), named) if given else (given, {**named, "hidden_states": read})

        return hook

    with ExitStack() as stack:
        stack.callback(lm.model.register_forward_pre_hook(note, with_kwargs=True).remove)
        for layer, module in hidden_states.attention_modules(lm).items():
            stack.callback(module.register_forward_pre_hook(hook_of(layer), with_kwargs=True).remove)
        yield


@torch.inference_mode()
def mean_attention_inputs(lm: ProbedModel, texts: Tensor) -> dict[int, Tensor]:
    """p by layer, ``[tokens, width]``: the mean over texts of one length of what enters the attention."""
    total: dict[int, Tensor] = {}

    def add(layer: int, x: Tensor, at: Tensor) -> Tensor:
        total[layer] = total.get(layer, 0) + x.double().sum(0)
        return x

    with change_attention_inputs(lm, add):
        for some in lm.batches([hidden_states.STATES * texts.shape[1]] * len(texts)):
            read = texts[some.start : some.stop].to(lm.device)
            lm.model(input_ids=read, use_cache=False, logits_to_keep=1)
    return {layer: (value / len(texts)).float() for layer, value in total.items()}


def ablation_arms(vectors: dict[int, Tensor]) -> dict[str, Change]:
    """What each arm does to the input of a layer. The first tokens stay as they are: without their sink a model breaks."""
    moving = {layer: vector - vector[NUM_UNCHANGED:].mean(0) for layer, vector in vectors.items()}
    # the control: a mean over few texts keeps their noise, which does harm whatever position it is taken from
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
    """For the first task of a plan, in each arm: how likely the answer is and how much attention the gold gets, by place."""
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
        answers = [judge_choice(prompt, found) for prompt, found in zip(prompts, scores, strict=True)]
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
    lm: ProbedModel, task: ProbeTask, items: int, multiplied: str = "weight", factor: float = 2.0, slots: int = 5
) -> dict[str, Any]:
    """Does the answer follow the attention? The gold stays in the middle slot; each slot is emphasized in turn.

    For each emphasised slot: how much likelier its own answer became among all of them, and how often it won. A weight
    that is multiplied rises; where it is the score, attention may rise or fall, so it is looked at too: the sum over the
    slot, from the last token before the answers, in the mean over layers and heads.

    Args:
        multiplied: ``"weight"`` or ``"score"``, as ``whence.probe.likelihood`` has them.
    """
    if not task.paired:
        raise usage_error("answer_follows", task.name, "every slot holds an answer of its own", "take key-value pairs")
    kind = emphasis_class(multiplied)
    middle, chosen = task.slots // 2, spread_slots(task.slots, min(slots, task.slots))
    prompts = [lm.apply_template(task.prompt(item, middle)) for item in task.items[:items]]
    spans = [lm.token_spans(prompt.text, prompt.slots) for prompt in prompts]
    choices = likelihood.build_branches(lm, prompts)
    rows = []
    for some in likelihood.batch_branches(lm, choices):
        reading = likelihood.CachedPrompts(lm, [choices[index] for index in some])
        plain = reading.scores()
        for slot in chosen:
            effects = [kind(spans[index][slot], factor) for index in some]
            changed = reading.scores(effects)
            looked = _attention_to_span(reading, effects)
            for place, (index, before, after) in enumerate(zip(some, plain, changed, strict=True)):
                own = prompts[index].owners.index(slot)
                rows.append({
                    "slot": slot,
                    "before": likelihood.choice_probabilities(before)[own],
                    "after": likelihood.choice_probabilities(after)[own],
                    "won_before": before[own] == max(before),
                    "won_after": after[own] == max(after),
                    **(looked[place] if looked else {}),
                })  # fmt: skip
    return {
        "quantity": multiplied,
        "factor": factor,
        "gold_slot": middle,
        "items": min(items, len(task.items)),
        "rows": rows,
    }


def _attention_to_span(reading: likelihood.CachedPrompts, effects: Sequence[Emphasis]) -> list[dict[str, float]]:
    """For each prompt the attention to the emphasised span before and after, where the effect is one on scores."""
    of_scores = [effect for effect in effects if isinstance(effect, ScaledScore)]
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


@contextmanager
def scale_channel(lm: ProbedModel, channel: int, factor: float, layers: Sequence[int]) -> Iterator[None]:
    """Every prompt that is read and answered inside has the channel scaled in these layers. Afterwards the model is restored."""
    modules = attention_modules(lm)
    width = int(lm.model.config.get_text_config().hidden_size)
    if not 0 <= channel < width or not set(layers) <= set(modules):
        raise usage_error(
            "scaled",
            f"channel {channel} in layers {list(layers)}",
            f"there are {width} channels and {len(modules)} layers",
            "take some of these",
        )
    before: list[tuple[nn.Module, Any]] = []
    try:
        for layer in layers:
            module = modules[layer]
            before.append((module, module.__dict__.get("forward")))
            module.forward = _wrap_forward(module, module.forward, channel, factor)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _wrap_forward(module: nn.Module, forward: Callable[..., Any], channel: int, factor: float) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        cache = named.get("past_key_values")
        if cache is None:
            raise usage_error(
                "a scaled model",
                "a forward without a cache",
                "the prompt is read into a cache, and the answering rows follow",
                "pass use_cache=True",
            )
        plain = None
        if cache.get_seq_length(module.layer_idx) == 0:
            plain = forward(*given, **{**named, "past_key_values": None})
        with _scale_projection_inputs(module, channel, factor):
            other = forward(*given, **named)
        return other if plain is None else plain

    return call


@contextmanager
def _scale_projection_inputs(module: nn.Module, channel: int, factor: float) -> Iterator[None]:
    def change(projection: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = given[0].clone()
        x[..., channel] *= factor
        return (x, *given[1:])

    hooks = [getattr(module, name).register_forward_pre_hook(change) for name in ("q_proj", "k_proj")]
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()
