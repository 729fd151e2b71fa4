"""The curves once more, with positional vectors taken out of what attention reads (Dong et al. 2024, arXiv 2405.18009).

In every layer the attention's input at a position t is p[t] plus a text's own content; p is its mean over plain texts, u
the mean of p over positions, m = p - u what moves with position. If a bias rests on m, the curve without it is flat. With
the m of another position taken out instead, what is seen is harm of any kind, and no proof of anything about position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.probe import states
from whence.probe.arrays.positional_vectors import KEPT
from whence.probe.measuring import asked_together, judged, rounded
from whence.probe.plan import Plan
from whence.probe.subject import Subject
from whence.probe.tasks import spread

#: what an attention module reads in a layer, ``[batch, tokens, width]``, its positions, and what it reads instead
Change = Callable[[int, Tensor, Tensor], Tensor]


@contextmanager
def changed_inputs(subject: Subject, change: Change) -> Iterator[None]:
    """Every attention module reads what ``change`` makes of its input. Afterwards all is as before."""

    told: dict[str, Tensor | None] = {}

    def note(model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        told["positions"] = named.get("position_ids")

    def hook_of(layer: int) -> Callable[..., Any]:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
            x = given[0] if given else named["hidden_states"]
            at = told["positions"]  # not every attention module is handed them
            if at is None:  # nor was the model: what is not in the cache yet follows it
                cache = named.get("past_key_values")
                before = 0 if cache is None else cache.get_seq_length(layer)
                at = torch.arange(before, before + x.shape[1], device=x.device)[None]
            read = change(layer, x, at.expand(x.shape[:2]))
            return ((read, *given[1:]), named) if given else (given, {**named, "hidden_states": read})

        return hook

    with ExitStack() as stack:
        stack.callback(subject.model.register_forward_pre_hook(note, with_kwargs=True).remove)
        for layer, module in states.attention_modules(subject).items():
            stack.callback(module.register_forward_pre_hook(hook_of(layer), with_kwargs=True).remove)
        yield


@torch.inference_mode()
def input_vectors(subject: Subject, texts: Tensor) -> dict[int, Tensor]:
    """p by layer, ``[tokens, width]``: the mean over texts of one length of what enters the attention."""
    total: dict[int, Tensor] = {}

    def add(layer: int, x: Tensor, at: Tensor) -> Tensor:
        total[layer] = total.get(layer, 0) + x.double().sum(0)
        return x

    with changed_inputs(subject, add):
        for some in subject.batches([states.STATES * texts.shape[1]] * len(texts)):
            read = texts[some.start : some.stop].to(subject.device)
            subject.model(input_ids=read, use_cache=False, logits_to_keep=1)
    return {layer: (value / len(texts)).float() for layer, value in total.items()}


def changes(vectors: dict[int, Tensor]) -> dict[str, Change]:
    """What each arm does to the input of a layer. The first tokens stay as they are: without their sink a model breaks."""
    moving = {layer: vector - vector[KEPT:].mean(0) for layer, vector in vectors.items()}
    # the control: a mean over few texts keeps their noise, which does harm whatever position it is taken from
    tokens = len(next(iter(vectors.values())))
    other = torch.randperm(tokens, generator=torch.Generator().manual_seed(0))

    def beyond_first(made: Change) -> Change:
        return lambda layer, x, at: torch.where((at < KEPT)[..., None], x, made(layer, x, at).to(x.dtype))

    return {
        "untouched": lambda layer, x, at: x,
        "no moving": beyond_first(lambda layer, x, at: x - moving[layer][at]),
        "no vector": beyond_first(lambda layer, x, at: x - vectors[layer][at]),
        "shuffled": beyond_first(lambda layer, x, at: x - moving[layer][other.to(at.device)[at]]),
        "no content": beyond_first(lambda layer, x, at: vectors[layer][at]),
    }


def ablated(subject: Subject, plan: Plan) -> dict[str, Any]:
    """For the first task of a plan, in each arm: how likely the answer is and how much attention the gold gets, by place."""
    asked = plan.asked[0]
    task = asked.made().first(max(2, plan.intervened))
    places = spread(task.slots, plan.ablated)
    prompts = [subject.framed(task.prompt(item, place)) for place in places for item in task.items]
    if not states.has_projections(subject):
        return {}
    tokens = max(len(row) for row in subject.all_tokens([prompt.text for prompt in prompts])) + 2 * plan.scored
    vectors = input_vectors(subject, states.plain_texts(subject, plan.texts, tokens))
    told: dict[str, Any] = {
        "task": asked.label, "items": len(task.items), "places": list(places), "texts": plan.texts, "tokens": tokens,
        "arms": {},
    }  # fmt: skip
    for name, change in changes(vectors).items():
        with changed_inputs(subject, change):
            scores, looks = asked_together(subject, prompts, plan.scored, len(prompts))
        answers = [judged(prompt, found) for prompt, found in zip(prompts, scores, strict=True)]
        gold = [look["slots"][..., prompt.gold].mean() for prompt, look in zip(prompts, looks, strict=True)]
        told["arms"][name] = {
            "share": rounded(by_place([answer["share"] for answer in answers], len(places))),
            "right": rounded(by_place([float(answer["right"]) for answer in answers], len(places))),
            "gold": rounded(by_place([float(one) for one in gold], len(places))),
        }
    return told


def by_place(values: list[float], places: int) -> Tensor:
    """The mean over items, of values that stand place after place.

    >>> by_place([1.0, 3.0, 5.0, 7.0], 2).tolist()
    [2.0, 6.0]
    """
    return torch.tensor(values, dtype=torch.float64).reshape(places, -1).mean(1)
