"""``request``: what an intervention must know about the prompts of a batch: where each prompt ends, and its documents.

Spans count the tokens of a sequence from its first real token, so padding on either side does not change them. A batch
with several rows for each prompt, as in beam search, uses the state of a prompt for all its rows.

Each thread of a server has its own requests. A thread that states none, such as one that a block starts to stream the text
of ``generate``, uses the last one that is stated.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.integrations import unwrap_peft
from whence.validation import format_value

REQUEST = "_whence_request"  # the attribute of a model with the requests of the enclosing blocks, each with its thread
_CHANGES = threading.Lock()  # of that attribute

Span = tuple[int, int]


@dataclass(frozen=True)
class Request:
    """The prompts of a batch.

    Args:
        documents: for each prompt the token spans (start, end) of its documents, in order and without overlap.
        prompt_ends: for each prompt its number of tokens. The answer begins there; the row before it predicts the first
            token of the answer.
        last_slot: the same for all prompts as a slot of the cache, padding included; ``generate`` sets it.
    """

    documents: tuple[tuple[Span, ...], ...] | None = None
    prompt_ends: tuple[int, ...] | None = None
    last_slot: int | None = None

    @property
    def prompts(self) -> int | None:
        """The number of prompts; None if the request holds for any batch."""
        for values in (self.documents, self.prompt_ends):
            if values is not None:
                return len(values)
        return None

    def repeats(self, batch: int) -> int:
        """The number of rows of each prompt in a batch of this size."""
        prompts = self.prompts or batch
        if batch % prompts:
            raise usage_error(
                "hf.request(...)",
                f"{prompts} prompts for a batch of {batch} sequences",
                "every prompt has the same number of sequences in the batch",
                "pass documents and prompt_ends for every prompt of the batch",
            )
        return batch // prompts

    def require_documents(self, subject: str) -> tuple[tuple[Span, ...], ...]:
        if self.documents is None:
            raise usage_error(
                subject,
                "no documents",
                "it treats the documents of a prompt separately",
                "run the model inside: with whence.hf.request(model, documents=[[(start, end), ...]])",
            )
        return self.documents


@contextmanager
def request(
    model: Any,
    *,
    documents: Sequence[Sequence[Span]] | None = None,
    prompt_ends: Sequence[int] | Tensor | None = None,
) -> Iterator[Request]:
    """Tell the interventions on a model about the prompts of the forward passes, or of the ``generate``, inside the block.

    Args:
        model: the model.
        documents: for each prompt a list of token spans (start, end), counted from its first real token.
        prompt_ends: for each prompt its number of tokens. ``generate`` knows it. Without it, the tokens of the first
            forward pass into a cache are the prompt.

    Example::

        with mend.Pine().apply(model), hf.request(model, documents=[[(4, 40), (40, 77)]]):
            model.generate(tokens)
    """
    ends = None if prompt_ends is None else _read_ends(prompt_ends)
    spans = None if documents is None else _read_spans(documents)
    _check(spans, ends)
    with set_request(model, Request(spans, ends)) as current:
        yield current


@contextmanager
def set_request(model: Any, new: Request) -> Iterator[Request]:
    """Make a request the current one inside the block."""
    model = unwrap_peft(model)
    entry = (threading.get_ident(), new)
    with _CHANGES:
        model.__dict__[REQUEST] = (*model.__dict__.get(REQUEST, ()), entry)
    try:
        yield new
    finally:
        with _CHANGES:
            others = tuple(one for one in model.__dict__[REQUEST] if one is not entry)
            if others:
                model.__dict__[REQUEST] = others
            else:
                del model.__dict__[REQUEST]


def current_request(model: Any) -> Request:
    """The request of the enclosing block of this thread; else the last one of another thread, or an empty one."""
    stated: tuple[tuple[int, Request], ...] = model.__dict__.get(REQUEST, ())
    own = [one for thread, one in stated if thread == threading.get_ident()]
    return (own or [one for _, one in stated] or [Request()])[-1]


@contextmanager
def set_prompt_ends(model: Any, ends: Sequence[int]) -> Iterator[None]:
    """Set the ends of the prompts, and keep the documents of the enclosing block."""
    with set_request(model, replace(current_request(unwrap_peft(model)), prompt_ends=tuple(ends))):
        yield


@contextmanager
def generating(model: Any, slots: int) -> Iterator[None]:
    """Set the end of the prompts for one call of ``generate``, unless the user has."""
    now = current_request(model)
    if now.prompt_ends is not None:
        yield
        return
    with set_request(model, replace(now, last_slot=slots)):
        yield


def prompt_end_positions(current: Request, batch: int, first_slot: Tensor | None, device: Any) -> Tensor | None:
    """The number of tokens of each prompt, ``[B, 1]``, as far as the request states it."""
    if current.prompt_ends is not None:
        ends = torch.tensor(current.prompt_ends, device=device).repeat_interleave(current.repeats(batch))
        return ends[:, None]
    if current.last_slot is None:
        return None
    slots = torch.full((batch, 1), current.last_slot, device=device)
    return slots if first_slot is None else slots - first_slot


def _read_spans(documents: Any) -> tuple[tuple[Span, ...], ...]:
    """The spans of each prompt as pairs of int. Anything else than a list of spans for each prompt is an error."""
    try:
        spans = tuple(tuple((operator.index(a), operator.index(b)) for a, b in row) for row in documents)
    except (TypeError, ValueError):
        spans = ()
    if not spans:
        raise usage_error(
            "hf.request(documents=...)",
            format_value(documents),
            "documents is a list of spans (start, end) of tokens for each prompt of the batch",
            "pass [[(start, end), ...]] for one prompt",
        )
    return spans


def _read_ends(prompt_ends: Any) -> tuple[int, ...]:
    try:
        ends = tuple(operator.index(end) for end in prompt_ends)
    except (TypeError, ValueError):
        ends = ()
    if not ends:
        raise usage_error(
            "hf.request(prompt_ends=...)",
            format_value(prompt_ends),
            "prompt_ends is a list of whole numbers, one for each prompt of the batch",
            "pass token counts",
        )
    return ends


def _check(documents: tuple[tuple[Span, ...], ...] | None, ends: tuple[int, ...] | None) -> None:
    if documents is not None and ends is not None and len(documents) != len(ends):
        raise usage_error(
            "hf.request(...)",
            f"documents of {len(documents)} prompts and prompt_ends of {len(ends)}",
            "both have one entry for each prompt",
            "pass lists of one length",
        )
    if ends is not None and any(end < 1 for end in ends):
        raise usage_error(
            "hf.request(prompt_ends=...)", str(list(ends)), "a prompt has at least one token", "pass token counts"
        )
    for row, spans in enumerate(documents or ()):
        last = 0
        for start, end in spans:
            if not last <= start < end:
                raise usage_error(
                    "hf.request(documents=...)",
                    f"the span ({start}, {end}) after token {last} in prompt {row}",
                    "documents are in order, not empty, and do not overlap",
                    "pass spans (start, end) of tokens, sorted",
                )
            last = end
        if ends is not None and last > ends[row]:
            raise usage_error(
                "hf.request(documents=...)",
                f"a document up to token {last} in a prompt of {ends[row]} tokens",
                "documents lie inside their prompt",
                "check the spans and prompt_ends",
            )
