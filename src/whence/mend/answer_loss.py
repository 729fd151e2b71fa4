"""The loss of the answers of prompts, which cures minimize when they choose their settings on a validation set."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.requests import request
from whence.probe.likelihood import MAX_SCORED_TOKENS
from whence.probe.probed_model import ProbedModel, pad_batch
from whence.probe.tasks.task import Prompt, Span


@torch.inference_mode()
def answer_losses(
    lm: ProbedModel, prompts: Sequence[Prompt], *, documents: bool = False, max_tokens: int = MAX_SCORED_TOKENS
) -> Tensor:
    """The cross-entropy of each answer, summed over its first tokens: ``[prompts]`` in float64.

    Cures that are applied to the model see where each prompt ends, and its documents if asked.

    Args:
        prompts: as the model reads them, with the chat template if there is one.
        documents: state the spans of the slots as documents.
        max_tokens: of each answer.
    """
    if not prompts:
        raise usage_error("answer_losses(prompts)", "no prompts", "a mean needs at least one", "pass prompts")
    whole = lm.all_tokens([prompt.text + prompt.answer for prompt in prompts])
    ends = [_shared(a, b) for a, b in zip(lm.all_tokens([prompt.text for prompt in prompts]), whole, strict=True)]
    rows = [row[: end + max_tokens] for row, end in zip(whole, ends, strict=True)]
    lm.require_context("answer_losses(prompts)", max(map(len, rows)))
    losses: list[float] = []
    for batch in lm.batches([len(row) for row in rows]):
        tokens, real = pad_batch(lm, [rows[index] for index in batch], left=False)
        spans = [document_spans(lm, prompts[index]) for index in batch] if documents else None
        read = sorted({at for index in batch for at in range(ends[index] - 1, len(rows[index]) - 1)})
        with request(lm.model, documents=spans, prompt_ends=[ends[index] for index in batch]):
            columns = torch.tensor(read, device=tokens.device)
            logits = logits_at(lm.model, columns, input_ids=tokens, attention_mask=real)
        for place, index in enumerate(batch):
            answer = slice(ends[index], len(rows[index]))
            before = logits[place, [read.index(at - 1) for at in range(answer.start, answer.stop)]].double()
            losses.append(float(torch.nn.functional.cross_entropy(before, tokens[place, answer], reduction="sum")))
    return torch.tensor(losses, dtype=torch.float64)


def logits_at(model: Any, columns: Tensor, **inputs: Any) -> Tensor:
    """The logits of these columns, ``[B, columns, vocabulary]``. Those of all tokens of long prompts would fill the memory."""
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        return model(**inputs, logits_to_keep=columns).logits
    return model(**inputs).logits[:, columns]


def document_spans(lm: ProbedModel, prompt: Prompt) -> list[Span]:
    """The token spans of a prompt's slots. A token that two slots share belongs to the first."""
    spans, last = [], 0
    for start, end in lm.token_spans(prompt.text, prompt.slots):
        start = max(start, last)
        if start >= end:
            raise usage_error(
                "document_spans(prompt)",
                "two slots in one token",
                "every document has its own tokens",
                "separate the slots",
            )
        spans.append((start, end))
        last = end
    return spans


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens before the first difference.

    >>> _shared([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
