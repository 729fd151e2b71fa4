"""What the tab of models shows: attention by layer and head, next tokens, and what a mechanism or a cure changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.explore import drawings
from whence.hf import AttentionRows, LastRow, LoadedModel, attach, capture, load
from whence.mend import CURES
from whence.probe.probed_model import tiny_random_model

MAX_TOKENS = 512
NEXT_TOKENS = 8
NOTHING = "nothing"
#: cures that need a search, documents in the prompt, or trained weights
NOT_SIMPLE = ("scale-channel", "calibration", "reorder", "in2", "parallel-windows", "pine")
SMALLEST = "tiny random model"
FILLER = "The sky was clear and the road went on between the fields. "


@dataclass(frozen=True)
class Reading:
    """One forward pass over a text."""

    tokens: list[str]
    rows: Tensor  # [H, T, T], attention of the chosen layer
    first_share: Tensor  # [layers, H], attention of the last token to the first one
    next_probabilities: Tensor  # [vocabulary]


def load_model(name: str) -> LoadedModel:
    """A model by name or folder; the tiny random one needs no file."""
    if not name.strip():
        raise usage_error("The model", "nothing", "it is a name or a folder", f"type smollm2 or {SMALLEST!r}")
    if name == SMALLEST:
        tiny = tiny_random_model()
        return LoadedModel(tiny.model, tiny.tokenizer)
    return load(name)


def simple_cures() -> list[str]:
    """The cures that act on any text, without documents, training or a search of their settings."""
    return [name for name, kind in CURES.items() if name not in NOT_SIMPLE and not kind.needs_documents]


@contextmanager
def changed(model: Any, change: str) -> Iterator[None]:
    """The model with a mechanism, written as an expression, or with a cure, by name. It is restored afterwards."""
    if change in (NOTHING, ""):
        block: Any = nullcontext()
    elif change in CURES:
        block = CURES[change]().apply(model)
    else:
        block = attach(model, change)
    with block:
        yield


def tokenize(lm: LoadedModel, text: str) -> Tensor:
    """The tokens of a text, ``[1, T]``."""
    tokens = lm.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][:, :MAX_TOKENS]
    if tokens.shape[1] < 2:
        raise usage_error("The text", f"{tokens.shape[1]} tokens", "attention needs at least 2", "type more words")
    return tokens


@torch.no_grad()
def read(lm: LoadedModel, text: str, layer: int, change: str = NOTHING) -> Reading:
    """Run the model once over a text and record its attention."""
    tokens = tokenize(lm, text)
    rows, last = AttentionRows(list(range(tokens.shape[1]))), LastRow()
    with changed(lm.model, change), capture(lm.model, last), capture(lm.model, rows, layers=[layer]):
        logits = lm.model(tokens).logits[0, -1].float()
    layers = sorted(last.layers)
    first = torch.stack([last[one][0].flatten(1)[:, 0] for one in layers]).float()
    pieces = [lm.tokenizer.decode([token]) for token in tokens[0].tolist()]
    return Reading(pieces, rows[layer][0].float(), first, torch.softmax(logits, -1))


def distance_profile(rows: Tensor) -> Tensor:
    """The mean weight at each distance, ``[H, T]``."""
    count = rows.shape[-1]
    return torch.stack([rows.diagonal(-distance, -2, -1).mean(-1) for distance in range(count)], -1)


def draw_reading(reading: Reading, layer: int, head: int, back: int) -> str:
    """Facts, arcs, map, distance profile and the share of the first token."""
    head = min(head, len(reading.rows) - 1)
    count = len(reading.tokens)
    query = max(0, count - 1 - back)
    rows = reading.rows[head]
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    profile = distance_profile(reading.rows)
    facts = drawings.tiles(
        ("tokens", str(count)),
        ("to the first token, this head", f"{100 * float(rows[query, 0]):.0f} %"),
        ("to the first token, all heads", f"{100 * float(reading.first_share.mean()):.0f} %"),
    )
    panels = [
        drawings.heatmap(f"Attention, layer {layer}, head {head}", rows.masked_fill(later, torch.nan), "weight", weights=True),
        drawings.heatmap(
            "Share of the first token, from the last", reading.first_share, "share", rows="layer", columns="head"
        ),
        drawings.line_chart(
            "Mean weight by distance", drawings.head_curves(torch.arange(count), profile, False),
            "distance to the key (tokens)", "mean weight", log_distance=True,
        ),
    ]  # fmt: skip
    arcs = drawings.arcs(f"From “{reading.tokens[query]}”", reading.tokens, rows[query].tolist(), query)
    words = drawings.shaded_words("The text", reading.tokens, rows[query].tolist(), query)
    return f'{facts}{arcs}<div class="panels">{"".join(panels)}</div>{words}'


def draw_next(lm: LoadedModel, reading: Reading, other: Reading | None) -> str:
    """The most probable next tokens, also with the change."""
    best = reading.next_probabilities.topk(NEXT_TOKENS).indices.tolist()
    if other is not None:
        best = list(dict.fromkeys([*best, *other.next_probabilities.topk(3).indices.tolist()]))
    rows = [
        (
            repr(lm.tokenizer.decode([token])),
            float(reading.next_probabilities[token]),
            None if other is None else float(other.next_probabilities[token]),
        )
        for token in best
    ]
    return drawings.bars("Next token", rows, ("as it is", "changed"))


@torch.no_grad()
def generate(lm: LoadedModel, text: str, change: str, count: int = 20) -> str:
    """The most probable continuation."""
    tokens = tokenize(lm, text)
    with changed(lm.model, change):
        output = lm.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False,
            pad_token_id=lm.tokenizer.eos_token_id,
        )  # fmt: skip
    return lm.tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)


@torch.no_grad()
def needle_probability(
    lm: LoadedModel, needle: str, question: str, answer: str, place: int, of: int, change: str
) -> float:
    """The probability of the answer's first token after a text of ``of`` filler sentences with the needle at ``place``."""
    if not answer.strip():
        raise usage_error("The answer", repr(answer), "it must have a token", "type a word")
    sentences = [FILLER] * of
    sentences.insert(place, needle.strip() + " ")
    tokens = tokenize(lm, "".join(sentences) + question.strip())
    target = lm.tokenizer(" " + answer.strip(), add_special_tokens=False)["input_ids"]
    with changed(lm.model, change):
        return float(torch.softmax(lm.model(tokens).logits[0, -1].float(), -1)[target[0]])
