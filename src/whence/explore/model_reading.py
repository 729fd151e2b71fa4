"""A text through a pretrained model: its attention in every layer, next tokens, a continuation, and changes of the model.

Each function that runs the model for longer than a moment takes ``report``, which it calls as the work advances, and where the
model is unchanged the tokens that are known from an earlier pass, which it does not read again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.explore.known_tokens import KnownTokens, join_calls, keep_cache, keep_calls
from whence.hf import LastRow, LoadedModel, attach, capture, load, request
from whence.hf.attach import model_dims, rotates_queries
from whence.hf.interface import AttentionCall
from whence.mend import CURES
from whence.mend.cure import Cure
from whence.mend.protocol import BUILT_IN, Intervention, load_intervention
from whence.position import catalogue
from whence.position.expression import build_position
from whence.probe.probed_model import ProbedModel, tiny_random_model, token_span
from whence.probe.tasks.task import Prompt, Span

MAX_TOKENS = 512
NEW_TOKENS = 20
NOTHING = "nothing"
#: cures that need a search or trained weights: the setting to type, why, and how
NEED_SETTINGS = {
    "scale-channel": (
        "channel",
        "it scales one channel of the hidden states",
        "type scale-channel(channel=12), for example; whence mend MODEL --cure scale-channel searches for a channel",
    ),
    "in2": (
        "adapter",
        "it loads fine-tuned weights",
        'type in2(adapter="FOLDER"), with the folder that whence.mend.in2_training wrote',
    ),
}
SMALLEST = "tiny random model"
FILLER = "The sky was clear and the road went on between the fields."


class LayerAttention(LastRow):
    """The last row of every layer, and what gives the others when they are asked for.

    Queries and keys are kept, not weights: that is less memory and no work. An edit of the attention may hold state that
    lasts for the pass alone, so the weights of an edited layer are kept, in half precision.
    """

    def __init__(
        self, report: Callable[[int], None], before: Mapping[int, AttentionCall | Tensor] | None = None, count: int = 0
    ) -> None:
        super().__init__()
        self.report = report
        self.before, self.count = before or {}, count  # an earlier pass over the first ``count`` tokens
        self.sources: dict[int, AttentionCall | Tensor] = {}

    def record(self, layer: int, call: AttentionCall) -> None:
        super().record(layer, call)
        earlier = self.before.get(layer)
        if isinstance(earlier, AttentionCall):
            call = join_calls(earlier, call, self.count)
        self.sources[layer] = call if call.edited is None else self.weights(call).half()
        self.report(layer)

    def all_rows(self, layer: int) -> Tensor:
        """The attention of all queries of a layer, ``[H, T, S]``."""
        source = self.sources[layer]
        return source.float() if isinstance(source, Tensor) else self.weights(source)

    @staticmethod
    @torch.no_grad()
    def weights(call: AttentionCall) -> Tensor:
        return call.weights(torch.arange(call.q.shape[2], device=call.q.device))[0].float().cpu()


@dataclass(frozen=True)
class Reading:
    """One forward pass over a text, also while it runs: later layers are then missing."""

    tokens: list[str]
    total: int  # tokens of the text, of which the first ``MAX_TOKENS`` are read
    layers: int
    attention: LayerAttention
    next_probabilities: Tensor | None = None  # [vocabulary]; None until the pass has ended
    known: KnownTokens | None = None  # of an unchanged model, for a text that begins alike

    def rows(self, layer: int) -> Tensor:
        """The attention of a layer, ``[H, T, T]``."""
        return self.attention.all_rows(layer)

    def first_share(self) -> Tensor:
        """The attention of the last token to the first one, ``[layers, H]``; NaN for a layer that has not run."""
        shares = {layer: row[0].flatten(1)[:, 0].float() for layer, row in dict(self.attention.layers).items()}
        missing = torch.full_like(next(iter(shares.values())), torch.nan)
        return torch.stack([shares.get(layer, missing) for layer in range(self.layers)])


def load_model(name: str) -> LoadedModel:
    """A model by name or folder; the tiny random one needs no file."""
    if not name.strip():
        raise usage_error("The model", "nothing", "it is a name or a folder", f"type smollm2 or {SMALLEST!r}")
    if name == SMALLEST:
        tiny = tiny_random_model()
        return LoadedModel(tiny.model, tiny.tokenizer)
    return load(name)


def ready_cures() -> list[str]:
    """The cures that act without trained weights and without a search of their settings."""
    return [name for name in CURES if name not in NEED_SETTINGS]


def build_prompt(documents: list[str], question: str, joint: str) -> Prompt:
    """A prompt of documents and the text after them."""
    text, slots = "", []
    for document in documents:
        text += joint if text else ""
        slots.append((len(text), len(text) + len(document)))
        text += document
    text += (joint if text else "") + question
    return Prompt(text, tuple(slots), None, "", (), (None,), ())


def split_documents(text: str) -> Prompt:
    """A text as a prompt: each paragraph but the last is a document, and the last is the question.

    >>> prompt = split_documents("Ann is 5.\\n\\nBob is 7.\\n\\nHow old is Bob?")
    >>> [prompt.text[start:end] for start, end in prompt.slots]
    ['Ann is 5.', 'Bob is 7.']
    >>> split_documents(" one paragraph ").text, split_documents(" one paragraph ").slots
    (' one paragraph ', ())
    """
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(paragraphs) < 2:
        return build_prompt([], text, "")
    return build_prompt(paragraphs[:-1], paragraphs[-1], "\n\n")


def find_change(change: str) -> Intervention | str | None:
    """The cure that a text names, with its settings; a mechanism stays a text; None for no change."""
    change = change.strip()
    if change in (NOTHING, ""):
        return None
    name = change.partition("(")[0].strip()
    if name not in BUILT_IN:
        mechanisms = (*catalogue.SHORT_NAMES, *catalogue.__all__)
        close = [] if name in mechanisms else get_close_matches(name, [*CURES, *mechanisms], 1)
        if close and close[0] in CURES:
            raise usage_error("Change", repr(change), f"the cures are {', '.join(CURES)}", f"did you mean {close[0]}?")
        return change
    cure = load_intervention(change, "Change")
    if name in NEED_SETTINGS:
        setting, rule, remedy = NEED_SETTINGS[name]
        if cure.settings()[setting] is None:
            raise usage_error("Change", f"{name} without {setting}", rule, remedy)
    return cure


def tokenize(lm: LoadedModel, prompt: Prompt) -> tuple[Tensor, int, list[Span]]:
    """The first tokens of a prompt, ``[1, T]``, the number of all of them, and the spans of its documents in those read."""
    encoded = lm.tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=bool(prompt.slots))
    ids = encoded["input_ids"]
    if len(ids) < 2:
        raise usage_error("The text", f"{len(ids)} tokens", "attention needs at least 2", "type more words")
    spans = [token_span(encoded["offset_mapping"], start, end) for start, end in prompt.slots]
    count = min(len(ids), MAX_TOKENS)
    return torch.tensor([ids[:count]]), len(ids), [(start, min(end, count)) for start, end in spans if start < count]


def has_rotary(model: Any) -> bool:
    """Whether the config of a model has rotary embeddings."""
    return bool(getattr(model.config.get_text_config(), "rope_parameters", None))


@contextmanager
def changed(lm: LoadedModel, change: str, prompt: Prompt) -> Iterator[tuple[Tensor, int]]:
    """The tokens of a prompt and the number of all its tokens, while the model is changed. It is restored afterwards.

    Args:
        change: a mechanism as an expression, or a cure by name or with its settings. A mechanism that rotates takes the place
            of the model's own rotation.
    """
    found = find_change(change)
    if isinstance(found, Cure):
        acts_on_documents = found.needs_documents or found.rewrites_prompts
        if acts_on_documents and len(prompt.slots) < 2:
            raise usage_error(
                f"The text for {found.name}",
                f"{len(prompt.slots)} documents",
                "this cure treats at least two documents separately",
                "write each document as a paragraph, with an empty line between them, and the question last",
            )
        prompt = found.rewrite(ProbedModel("explore", lm.model, lm.tokenizer), prompt)
    tokens, total, documents = tokenize(lm, prompt)
    block: Any = nullcontext()
    if isinstance(found, str):
        position = build_position(found, model_dims(lm.model))
        replaces = rotates_queries(position) and has_rotary(lm.model)
        block = attach(lm.model, position, keep_rotary=not replaces)
    elif found is not None:
        block = found.apply(lm.model)
    with block, request(lm.model, documents=[documents]) if documents else nullcontext():
        yield tokens, total


@torch.no_grad()
def read(
    lm: LoadedModel,
    text: str,
    change: str = NOTHING,
    report: Callable[[Reading], None] = lambda reading: None,
    before: Reading | None = None,
) -> Reading:
    """Run the model once over a text and keep its attention. ``report`` gets the reading so far after each layer.

    Args:
        before: a reading of the unchanged model: tokens with which both texts begin are not read again.
    """
    with changed(lm, change, split_documents(text)) as (tokens, total):
        ids = tokens[0].tolist()
        pieces = [lm.tokenizer.decode([token]) for token in ids]
        layers = int(lm.model.config.get_text_config().num_hidden_layers)
        known = before.known if before is not None and change == NOTHING else None
        sources, count = (before.attention.sources, known.count_common(ids)) if before and known else ({}, 0)
        attention = LayerAttention(lambda layer: report(Reading(pieces, total, layers, attention)), sources, count)
        with capture(lm.model, attention):
            logits, _ = _last_logits(lm.model, tokens, known)
    attention.before = {}
    known = keep_calls(lm.model, ids, attention.sources) if change == NOTHING else None
    return Reading(pieces, total, layers, attention, torch.softmax(logits, -1), known)


@torch.no_grad()
def generate(
    lm: LoadedModel,
    text: str,
    change: str,
    report: Callable[[int], None] = lambda count: None,
    known: KnownTokens | None = None,
) -> str:
    """The most probable continuation. ``report`` gets the number of tokens so far."""
    with changed(lm, change, split_documents(text)) as (tokens, _):
        count = known.count_common(tokens[0].tolist()) if known is not None and change == NOTHING else 0
        options = {"past_key_values": known.build_cache(count)} if known is not None and count else {}
        output = lm.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False, **options,
            pad_token_id=lm.tokenizer.eos_token_id, streamer=TokenCounter(report),
        )  # fmt: skip
    return lm.tokenizer.decode(output[0, tokens.shape[1] :], skip_special_tokens=True)


class TokenCounter:
    """What ``generate`` calls a streamer: it gets the prompt first and then each new token."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self.report, self.count = report, -1

    def put(self, tokens: Tensor) -> None:
        self.count += 1
        self.report(self.count)

    def end(self) -> None:
        pass


@torch.no_grad()
def needle_probability(
    lm: LoadedModel,
    needle: str,
    question: str,
    answer: str,
    place: int,
    of: int,
    change: str,
    known: KnownTokens | None = None,
) -> tuple[float, KnownTokens | None]:
    """The probability of the answer's first token after a text of ``of`` filler sentences with the needle at ``place``.

    Also returns what is known for the next place.
    """
    if not answer.strip():
        raise usage_error("The answer", repr(answer), "it must have a token", "type a word")
    sentences = [FILLER] * of
    sentences.insert(place, needle.strip() or " ")
    target = lm.tokenizer(" " + answer.strip(), add_special_tokens=False)["input_ids"]
    unchanged = find_change(change) is None
    with changed(lm, change, build_prompt(sentences, question.strip(), " ")) as (tokens, _):
        logits, cache = _last_logits(lm.model, tokens, known if unchanged else None, keep=unchanged)
    kept = keep_cache(lm.model, tokens[0].tolist(), cache) if unchanged else known
    return float(torch.softmax(logits, -1)[target[0]]), kept


def _last_logits(
    model: Any, tokens: Tensor, known: KnownTokens | None = None, *, keep: bool = False
) -> tuple[Tensor, Any]:
    """The logits after the last token and the cache. Logits of the others are not computed where the model can leave them out.

    Args:
        known: tokens that are not read again.
        keep: return the cache of all tokens.
    """
    parameters = inspect.signature(model.forward).parameters
    count = 0 if known is None else known.count_common(tokens[0].tolist())
    options: dict[str, Any] = {"use_cache": keep or count > 0, "logits_to_keep": 1}
    if known is not None and count:
        options["past_key_values"] = known.build_cache(count)
    used = {name: value for name, value in options.items() if name in parameters}
    output = model(tokens[:, count:], **used)
    return output.logits[0, -1].float(), getattr(output, "past_key_values", None)
