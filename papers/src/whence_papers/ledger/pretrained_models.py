"""Evidence from a pretrained model: attention to documents, permuted documents, and a scaled channel.

Growth of positional channels and troughs of rotary position are measured in ``whence_papers.survey``.

The model is loaded by name and may be unavailable. Without it the stored records stay as they are.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence import hf
from whence.errors import MissingExtra, WhenceError
from whence.hf.intervene import intervene
from whence.mend.parallel_windows import ParallelWindows
from whence.mend.pine import Pine, PineEdit
from whence.mend.scale_channel import ScaleChannel, attention_by_scale
from whence.probe import probed_model
from whence.probe.arrays.attention_rows import slot_means
from whence.probe.likelihood import last_attention_row
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import ProbeTask, build_task
from whence.statistics import summary
from whence_papers.ledger.claims import MissingEvidence
from whence_papers.survey.growth import channel_growth
from whence_papers.survey.trough import rotary_trough

LEVEL = 0.95


@dataclass(frozen=True)
class DocumentPrompt:
    """A prompt as tokens. Its parts are tokenized separately, so a document has the same tokens at every position."""

    prefix: list[int]
    documents: list[list[int]]
    suffix: list[int]

    def arrange(self, order: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens with document ``order[k]`` at position k, and the span of each position."""
        tokens, spans = list(self.prefix), []
        for index in order:
            spans.append((len(tokens), len(tokens) + len(self.documents[index])))
            tokens += self.documents[index]
        return tokens + self.suffix, spans


def build_prompts(lm: ProbedModel, task: ProbeTask) -> list[DocumentPrompt]:
    """The items of a task as prompts whose documents have no numbers and end with a line break."""
    prompts = []
    for item in task.items:
        texts = [f"{text}\n" for text in (item.gold, *item.others)]
        suffix = "\n" + task.tail.format(question=item.question).lstrip()
        documents = lm.all_tokens(texts, special=False)
        prompts.append(DocumentPrompt(lm.tokens(task.head), documents, lm.all_tokens([suffix], special=False)[0]))
    return prompts


# --- attention to a document as document plus position ---


@torch.inference_mode()
def attention_additivity(lm: ProbedModel, task: ProbeTask, orders: int, seed: int) -> dict[str, Any]:
    """How much of the attention to documents the sum of a document's and a position's effect explains."""
    tables = [
        document_attention(lm, prompt, orders, seed + index) for index, prompt in enumerate(build_prompts(lm, task))
    ]
    figures = split_variance(torch.stack(tables))
    on_log = split_variance(torch.stack(tables).log())
    words = (
        f"Of the variance between cells, position has {100 * figures['position_share']:.0f} %, document "
        f"{100 * figures['document_share']:.0f} %, their interaction {100 * figures['interaction_share']:.0f} %. Of the variance "
        f"that is not position, the document's effect is {100 * figures['document_of_rest']:.0f} %. On the logarithm of "
        f"attention, document plus position explain {100 * on_log['explained']:.0f} %."
    )
    return {**figures, "explained_on_log": on_log["explained"], "words": words}


def document_attention(lm: ProbedModel, prompt: DocumentPrompt, orders: int, seed: int) -> Tensor:
    """Attention of the last token to a token of each document at each position, ``[orders, documents, positions]``.

    For each random order, all its rotations put every document at every position once.
    """
    count, draw = len(prompt.documents), random.Random(seed)
    table = torch.empty(orders, count, count, dtype=torch.float64)
    for number in range(orders):
        base = draw.sample(range(count), count)
        for shift in range(count):
            order = base[shift:] + base[:shift]
            tokens, spans = prompt.arrange(order)
            attention = slot_means(last_attention_row(lm, tokens), spans).double().mean((0, 1))
            table[number, order, range(count)] = attention
    return table


def split_variance(tables: Tensor) -> dict[str, Any]:
    """Shares of the variance between cells ``[questions, orders, documents, positions]``, summed over questions.

    The variance between orders of the other documents is noise. A cell is a mean over orders, so the noise in every sum of
    squares is its degrees of freedom times the noise of a cell, which is subtracted.
    """
    orders, documents, positions = tables.shape[1:]
    cells = tables.mean(1)
    noise = tables.var(1).mean((1, 2)) / orders  # of a cell
    centered = cells - cells.mean((1, 2), keepdim=True)
    by_document, by_position = centered.mean(2), centered.mean(1)
    squares = {
        "document": positions * by_document.square().sum(1) - (documents - 1) * noise,
        "position": documents * by_position.square().sum(1) - (positions - 1) * noise,
        "total": centered.square().sum((1, 2)) - (documents * positions - 1) * noise,
    }
    document, position, total = (float(squares[name].sum()) for name in ("document", "position", "total"))
    return {
        "explained": (document + position) / total,
        "document_share": document / total,
        "position_share": position / total,
        "interaction_share": 1 - (document + position) / total,
        "document_of_rest": document / (total - position),
        "explained_by_question": ((squares["document"] + squares["position"]) / squares["total"]).tolist(),
        "noise_of_cells": float((noise * (documents * positions - 1)).sum() / centered.square().sum()),
    }


# --- permuted documents ---


class BidirectionalEdit(PineEdit):
    """Attention between documents in both directions, at the model's own positions."""

    unrotated = False


@torch.inference_mode()
def permuted_documents(lm: ProbedModel, task: ProbeTask, orders: int, seed: int) -> dict[str, Any]:
    """The largest change of a probability of the next token when documents are permuted, for each treatment."""
    prompts = build_prompts(lm, task)
    treatments: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "untouched": nullcontext,
        "with_pine": lambda: Pine().apply(lm.model),
        "with_parallel_windows": lambda: ParallelWindows().apply(lm.model),
        "with_own_positions": lambda: intervene(lm.model, BidirectionalEdit(None)),
    }
    figures: dict[str, Any] = {}
    for name, apply in treatments.items():
        changes, flips = [], 0
        with apply():
            for index, prompt in enumerate(prompts):
                first, *others = (
                    next_token_probabilities(lm, prompt, order)
                    for order in draw_orders(len(prompt.documents), orders, seed + index)
                )
                changes += [float((other - first).abs().max()) for other in others]
                flips += sum(int(other.argmax() != first.argmax()) for other in others)
        figures |= {
            f"largest_change_{name}": max(changes),
            f"mean_change_{name}": sum(changes) / len(changes),
            f"other_next_token_{name}": flips / len(changes),
        }
    words = (
        f"{len(prompts)} questions, {orders} orders each. The likeliest next token changes in "
        f"{100 * figures['other_next_token_untouched']:.0f} % of the orders without a cure. With bidirectional attention at the "
        f"model's own positions a probability changes by up to {figures['largest_change_with_own_positions']:.2g}, with parallel "
        f"windows by up to {figures['largest_change_with_parallel_windows']:.2g}."
    )
    return figures | {"words": words}


def draw_orders(documents: int, orders: int, seed: int) -> list[list[int]]:
    """The written order, and random other ones."""
    draw, every = random.Random(seed), [list(range(documents))]
    while len(every) < orders:
        order = draw.sample(range(documents), documents)
        if order not in every:
            every.append(order)
    return every


def next_token_probabilities(lm: ProbedModel, prompt: DocumentPrompt, order: Sequence[int]) -> Tensor:
    tokens, spans = prompt.arrange(order)
    ids = torch.tensor([tokens], device=lm.device)
    with hf.request(lm.model, documents=[spans]):
        return lm.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].double().softmax(-1)


# --- one channel scaled ---


@torch.inference_mode()
def scaled_channel(
    lm: ProbedModel, task: ProbeTask, scales: Sequence[float], texts: int, tokens: int, seed: int
) -> dict[str, Any]:
    """The share of the first half of the documents in the attention to documents, by the scale of one channel.

    Changes are relative to scale 1, as means over questions with 95% t intervals. Above 1: scales above 1. Below minus 1:
    scales below -1. Between: scales from -1 to 0.5, and there the distance of the share from one half.
    """
    channels = ScaleChannel(texts=texts, tokens=tokens).find_channels(lm)
    if not channels:
        raise MissingEvidence(f"a channel of {lm.name} that is monotone in position")
    draw = random.Random(seed)
    prompts = [task.prompt(item, draw.randrange(task.slots)) for item in task.items]
    curves = [attention_by_scale(lm, [prompt], channels[0], scales) for prompt in prompts]
    shares = torch.tensor([curve["share_first"] for curve in curves], dtype=torch.float64)  # [questions, scales]
    figures = describe_scales(shares, list(scales))
    slots = torch.tensor([curve["slots"] for curve in curves]).double().mean(0)
    by_scale = ", ".join(f"{scale:g}: {share:.3f}" for scale, share in zip(scales, figures["first_half"], strict=True))
    return {
        **figures,
        "channel": channels[0],
        "slots": slots.tolist(),
        "words": f"Channel {channels[0]}, {len(prompts)} questions; share of the first half by scale: {by_scale}.",
    }


def describe_scales(shares: Tensor, scales: list[float]) -> dict[str, Any]:
    """Changes of the share of the first half, from a table ``[questions, scales]``."""
    change = shares - shares[:, scales.index(1.0), None]
    imbalance = (shares - 0.5).abs()
    imbalance_change = imbalance - imbalance[:, scales.index(1.0), None]
    groups = {
        "first_half_above_1": change[:, [scale > 1 for scale in scales]],
        "first_half_below_minus_1": change[:, [scale < -1 for scale in scales]],
        "imbalance_between": imbalance_change[:, [-1 <= scale <= 0.5 for scale in scales]],
    }
    figures: dict[str, Any] = {"first_half": shares.mean(0).tolist()}
    for name, table in groups.items():
        own = summary(table.mean(1).tolist(), LEVEL)
        low, high = (own.interval.low, own.interval.high) if own.interval else (own.mean, own.mean)
        figures |= {name: own.mean, f"{name}_low": low, f"{name}_high": high}
    return figures


def _with_model(measure: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Load the model and the questions, and then measure."""

    @functools.wraps(measure)
    def wrapper(model: str, documents: int, words: int, questions: int, **arguments: Any) -> dict[str, Any]:
        try:
            lm = probed_model.load(model)
            task = build_task("documents", questions, count=documents, words=words)
        except (WhenceError, MissingExtra) as error:
            raise MissingEvidence(f"{model} and questions over documents ({error})") from None
        return measure(lm, task, **arguments)

    return wrapper


def _with_model_alone(measure: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Load the model, and then measure."""

    @functools.wraps(measure)
    def wrapper(model: str, **arguments: Any) -> dict[str, Any]:
        try:
            lm = probed_model.load(model)
        except (WhenceError, MissingExtra) as error:
            raise MissingEvidence(f"{model} ({error})") from None
        return measure(lm, **arguments)

    return wrapper


PRETRAINED: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: _with_model(function) for function in (attention_additivity, permuted_documents, scaled_channel)
} | {function.__name__: _with_model_alone(function) for function in (channel_growth, rotary_trough)}
