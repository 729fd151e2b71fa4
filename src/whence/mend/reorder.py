"""Reordering of documents: the relevant ones at the edges of the prompt, where models read best.

``long_context_reorder`` is the order of LangChain's transformer of that name. ``two_stage_order`` is that of LongLLMLingua
(Jiang et al. 2024, arXiv 2310.06839). Both put the least relevant documents into the middle. The first puts the most
relevant document first for an odd number of documents and last for an even one; the second always puts it first.

Documents are ranked by the model itself: by the attention of the last token of the prompt to a token of the document, or by
the likelihood of the rest of the prompt, which contains the question, after this document alone. The first takes one
forward pass over the prompt, and its ranks depend on where the documents are. The second takes a short pass for each
document, and its ranks do not.

The cure changes the text of a prompt and nothing in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from whence.errors import usage_error
from whence.hf.capture import capture_unavailable
from whence.mend.cure import Cure
from whence.probe import likelihood
from whence.probe.arrays.attention_rows import slot_means
from whence.probe.probed_model import ProbedModel, pad_batch
from whence.probe.tasks.task import Prompt
from whence.validation import require_choice

T = TypeVar("T")


def long_context_reorder(documents: Sequence[T]) -> list[T]:
    """The order of LangChain, from documents with the best first: from the worst on, in turn to the front and to the end.

    >>> long_context_reorder([1, 2, 3, 4, 5]), long_context_reorder([1, 2, 3, 4, 5, 6])
    ([1, 3, 5, 4, 2], [2, 4, 6, 5, 3, 1])
    """
    placed: list[T] = []
    for index, document in enumerate(reversed(documents)):
        placed.insert(0 if index % 2 == 0 else len(placed), document)
    return placed


def two_stage_order(documents: Sequence[T]) -> list[T]:
    """The order of LongLLMLingua, from documents with the best first: every second one, then the others backwards.

    >>> two_stage_order([1, 2, 3, 4, 5]), two_stage_order([1, 2, 3, 4, 5, 6])
    ([1, 3, 5, 4, 2], [1, 3, 5, 6, 4, 2])
    """
    return [*documents[::2], *documents[1::2][::-1]]


ORDERS = {"long_context": long_context_reorder, "two_stage": two_stage_order}


class ReorderDocuments(Cure):
    """Reorder the documents of a prompt by relevance. Numbers and labels stay in place, and the texts move.

    Args:
        order: ``"long_context"``, ``"two_stage"``, or ``"none"`` for the prompt as it is.
        rank: ``"attention"`` or ``"likelihood"``.
    """

    name = "reorder"
    title = "Document reordering"
    paper = "Jiang et al. 2024, arXiv 2310.06839; LangChain's LongContextReorder"

    def __init__(self, order: str = "long_context", rank: str = "likelihood") -> None:
        self.order = require_choice("ReorderDocuments", "order", order, (*ORDERS, "none"))
        self.rank = require_choice("ReorderDocuments", "rank", rank, tuple(RANKS))

    def identity(self) -> ReorderDocuments:
        return ReorderDocuments("none", self.rank)

    def unavailable(self, model: Any) -> str | None:
        return capture_unavailable(model) if self.rank == "attention" else None

    def rewrite(self, lm: ProbedModel, prompt: Prompt) -> Prompt:
        """The prompt with its documents reordered. Call it on the untouched model, with the chat template applied."""
        if self.order == "none" or len(prompt.slots) < 2:
            return prompt
        relevance = RANKS[self.rank](lm, prompt)
        best_first = sorted(range(len(relevance)), key=lambda slot: -relevance[slot])
        return move_texts(prompt, ORDERS[self.order](best_first))


def move_texts(prompt: Prompt, order: Sequence[int]) -> Prompt:
    """The prompt with other texts in its slots: slot i gets the text of slot ``order[i]``. Labels stay where they are."""
    if sorted(order) != list(range(len(prompt.slots))):
        raise usage_error(
            "move_texts(order)",
            str(list(order)),
            f"it names each of the {len(prompt.slots)} slots once",
            "pass a permutation",
        )
    labels = prompt.labels or (0,) * len(prompt.slots)
    texts = [prompt.text[start + label : end] for (start, end), label in zip(prompt.slots, labels, strict=True)]
    text, spans, last = "", [], 0
    for (start, end), label, source in zip(prompt.slots, labels, order, strict=True):
        text += prompt.text[last:start]
        begin = len(text)
        text += prompt.text[start : start + label] + texts[source]
        spans.append((begin, len(text)))
        last = end
    where = {source: slot for slot, source in enumerate(order)}
    return replace(
        prompt,
        text=text + prompt.text[last:],
        slots=tuple(spans),
        gold=None if prompt.gold is None else where[prompt.gold],
        owners=tuple(None if owner is None else where[owner] for owner in prompt.owners),
    )


def attention_to_documents(lm: ProbedModel, prompt: Prompt) -> list[float]:
    """The mean attention of the last token to a token of each document, over layers and heads."""
    row = likelihood.last_attention_row(lm, lm.tokens(prompt.text))
    return slot_means(row, lm.token_spans(prompt.text, prompt.slots)).mean((0, 1)).tolist()


@torch.inference_mode()
def question_likelihoods(lm: ProbedModel, prompt: Prompt) -> list[float]:
    """The mean log-likelihood of a token after the documents, when one document is the only one, for each document.

    The document is read in the first slot, with the label of that slot.
    """
    labels = prompt.labels or (0,) * len(prompt.slots)
    head = prompt.text[: prompt.slots[0][0] + labels[0]]
    tail = prompt.text[prompt.slots[-1][1] :]
    texts = [
        head + prompt.text[start + label : end] + tail for (start, end), label in zip(prompt.slots, labels, strict=True)
    ]
    rows = lm.all_tokens(texts)
    spans = [lm.token_spans(text, [(len(text) - len(tail), len(text))])[0] for text in texts]
    result: list[float] = []
    for batch in lm.batches([len(row) for row in rows]):
        tokens, real = pad_batch(lm, [rows[index] for index in batch], left=False)
        logits = lm.model(input_ids=tokens, attention_mask=real).logits
        for place, index in enumerate(batch):
            start, end = spans[index]
            log_probs = logits[place, start - 1 : end - 1].float().log_softmax(-1)
            result.append(float(log_probs.gather(1, tokens[place, start:end, None]).mean()))
    return result


RANKS = {"attention": attention_to_documents, "likelihood": question_likelihoods}
