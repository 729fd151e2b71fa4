"""Attention calibration with a dummy document (Hsieh et al. 2024, arXiv 2406.16008).

The attention of the last token of a prompt to a document is its relevance plus a bias of its position. Attn(x, k) is the
mean attention to a token of document x at place k; a dummy document there gets Attn(dummy, k). Relevance is
``rel(k) = Attn(x, k) - Attn(dummy, k)``, up to a constant. With ``alpha = softmax(rel / t)``, the attention to every token
of document k is multiplied so that the mean attention to documents becomes proportional to alpha. The sum over all
documents stays, so every row keeps its mass.

What the paper leaves open, and what is done here:

- The dummy has as many tokens as the document it replaces, so all other tokens stay where they are. It repeats the tokens
  ``dummy``, or by default the last token of the document, which is usually punctuation.
- The other documents stay in place while one is a dummy. A prompt with K documents takes K + 1 further forward passes: K
  with a dummy, and one as it is, because the pass that answers is calibrated from its first calibrated layer on.
- Relevance is computed for each layer and head, or with ``scope="model"`` once from the mean over all of them.
- The last token of a prompt may be one that needs no document, such as the colon before a quotation mark. With
  ``query_tokens`` above 1, Attn is the mean over so many last tokens of the prompt, as far as they follow the documents.
- The last row of the prompt and all generated rows are calibrated, by their own attention and the relevance of the prompt.
- The published t, 5e-5, has the unit of attention to a token and fits one length of prompt. Here t is ``temperature``
  times the mean of Attn(x, k) over documents; ``absolute=True`` takes it as published.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.edits import AttentionEdit, EditedCall, fit_batch
from whence.hf.integrations import execution_device, unwrap_peft
from whence.hf.intervene import intervene
from whence.hf.prompt_tokens import PromptWatcher
from whence.hf.requests import Request, Span, current_request, set_request
from whence.mend.answer_loss import answer_losses
from whence.mend.cure import Cure, number_of_layers
from whence.mend.scale_channel import spread_prompts
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import require_choice, require_flag, require_integer, require_list, require_number

SUBJECT = "AttentionCalibration"
PUBLISHED_TEMPERATURE = 5e-5
DUMMY_TEXT = " This page is left blank."


class AttentionCalibration(Cure):
    """Make the attention to documents proportional to their relevance, measured against a dummy document.

    Args:
        temperature: of the softmax over relevance, relative to the mean attention to a token of a document. A large one
            equalizes the documents.
        layers: the layers that are calibrated; by default the last half.
        scope: relevance for each layer and ``"head"``, or one for the ``"model"``.
        query_tokens: the last tokens of a prompt whose attention is relevance; 1 as published.
        strength: 0 changes nothing, 1 is the published method; numbers between mix both weights.
        absolute: whether ``temperature`` has the unit of attention, as published (5e-5).
        dummy: token ids that are repeated to fill a dummy document; by default the last token of the document.
        temperatures: the search: the temperatures that are tried.
        query_counts: the search: the values of ``query_tokens`` that are tried.
        samples: the search: at most so many prompts are used.
    """

    name = "calibration"
    title = "Attention calibration"
    paper = "Hsieh et al. 2024, arXiv 2406.16008"
    needs_documents = True

    def __init__(
        self,
        temperature: float = 0.5,
        layers: Sequence[int] | None = None,
        *,
        scope: str = "head",
        query_tokens: int = 1,
        strength: float = 1.0,
        absolute: bool = False,
        dummy: Sequence[int] | None = None,
        temperatures: Sequence[float] = (0.25, 0.5, 1.0, 2.0),
        query_counts: Sequence[int] = (1, 32),
        samples: int = 24,
    ) -> None:
        if layers is not None:
            layers = require_list(
                SUBJECT, "layers", layers, empty=True, remedy="pass indices of layers, such as [10, 11]"
            )
        if dummy is not None:
            dummy = require_list(SUBJECT, "dummy", dummy, remedy="pass token ids")
        temperatures = require_list(SUBJECT, "temperatures", temperatures, remedy="pass numbers, such as [0.5, 1]")
        query_counts = require_list(SUBJECT, "query_counts", query_counts, remedy="pass integers, such as [1, 32]")
        for name, number in (("temperature", temperature), *(("temperatures", one) for one in temperatures)):
            require_number(SUBJECT, name, number, above=0, remedy="pass a large number to equalize documents")
        require_choice(SUBJECT, "scope", scope, ("head", "model"))
        require_number(SUBJECT, "strength", strength, low=0, high=1, remedy="pass 1 for the published method")
        require_flag(SUBJECT, "absolute", absolute)
        require_integer(SUBJECT, "samples", samples)
        for name, count in (("query_tokens", query_tokens), *(("query_counts", one) for one in query_counts)):
            require_integer(SUBJECT, name, count, remedy="pass 1 for the published method")
        for token in dummy or ():
            require_integer(SUBJECT, "dummy", token, low=0, remedy="pass token ids")
        self.temperature, self.layers = float(temperature), layers
        self.scope, self.strength, self.absolute = scope, float(strength), absolute
        self.dummy = dummy
        self.query_tokens, self.query_counts = query_tokens, query_counts
        self.temperatures, self.samples = [float(one) for one in temperatures], samples

    def _with(self, **changes: Any) -> AttentionCalibration:
        return AttentionCalibration(**{**self.settings(), **changes})

    def identity(self) -> AttentionCalibration:
        return self._with(strength=0.0)

    @contextmanager
    def _apply(self, model: Any) -> Iterator[None]:
        size = int(unwrap_peft(model).config.get_text_config().vocab_size)
        if max(self.dummy or [0]) >= size:
            raise usage_error(
                f"{SUBJECT}(dummy=...)",
                str(max(self.dummy or [0])),
                f"the model has the tokens 0 to {size - 1}",
                "pass token ids of its tokenizer",
            )
        calibrator = Calibrator(self, model)
        with calibrator.watcher.watch(), intervene(model, calibrator.edits()):
            yield

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> AttentionCalibration:
        """The temperature and query tokens with the least cross-entropy of the answers.

        The dummy becomes ``DUMMY_TEXT`` unless one was given. An absolute temperature stays, and so do its query tokens.
        """
        chosen = spread_prompts(prompts, self.samples)
        dummy = lm.all_tokens([DUMMY_TEXT], special=False)[0] if self.dummy is None else self.dummy
        if self.absolute:
            return self._with(dummy=dummy)
        losses = {}
        for temperature, count in product(self.temperatures, self.query_counts):
            cure = self._with(temperature=temperature, query_tokens=count, dummy=dummy)
            with cure.apply(lm.model):
                losses[cure] = float(answer_losses(lm, chosen, documents=True).mean())
        return min(losses, key=lambda cure: losses[cure])


class Calibrator:
    """The relevance of the documents of the current prompts, and the edits that use it."""

    def __init__(self, cure: AttentionCalibration, model: Any) -> None:
        self.cure, self.model = cure, unwrap_peft(model)
        self.watcher = PromptWatcher(SUBJECT, model, self.measure)
        self.reading: Reading | None = None  # while a pass is measured

    def edits(self) -> dict[int, AttentionEdit]:
        count = number_of_layers(self.model)
        chosen = list(range(count // 2, count)) if self.cure.layers is None else self.cure.layers
        measured = range(count) if self.cure.scope == "model" else chosen
        return {layer: CalibrationEdit(self, layer in chosen) for layer in sorted({*measured, *chosen})}

    def measure(self, rows: list[list[int]]) -> dict[int, Tensor]:
        """The relevance of each document over t, by layer: ``[prompts, H or 1, documents]``; -inf where there is none."""
        documents = current_request(self.model).require_documents(SUBJECT)
        if not any(documents):
            return {}
        for row, spans in zip(rows, documents, strict=True):
            if spans and spans[-1][1] > len(row):
                raise usage_error(
                    f"{SUBJECT}: hf.request(documents=...)",
                    f"a document up to token {spans[-1][1]} in a prompt of {len(row)} tokens",
                    "documents lie inside their prompt",
                    "check the spans and prompt_ends",
                )
        plain = self._read(rows, documents)
        biases = {layer: torch.zeros_like(attention) for layer, attention in plain.items()}
        for place in range(max(map(len, documents))):
            which = [index for index, spans in enumerate(documents) if len(spans) > place]
            their_documents = [documents[index] for index in which]
            replaced = [self._replace(rows[index], documents[index][place]) for index in which]
            for layer, attention in self._read(replaced, their_documents).items():
                biases[layer][which, :, place] = attention[..., place]
        if self.cure.scope == "model" and plain:
            plain, biases = (_average(attention) for attention in (plain, biases))
        result = {}
        for layer, attention in plain.items():
            exists = _exists(documents, attention.device)[:, None]
            result[layer] = relevance_logits(
                attention, biases[layer], exists, self.cure.temperature, self.cure.absolute
            )
        return result

    def _replace(self, row: list[int], span: Span) -> list[int]:
        start, end = span
        pattern = self.cure.dummy or [row[end - 1]]
        return [*row[:start], *(pattern[index % len(pattern)] for index in range(end - start)), *row[end:]]

    def _read(self, rows: list[list[int]], documents: Sequence[Sequence[Span]]) -> dict[int, Tensor]:
        """The attention of the query tokens of each prompt to its documents, by layer: ``[prompts, H, documents]``."""
        device = execution_device(SUBJECT, self.model.get_input_embeddings())
        longest = max(map(len, rows))
        tokens = torch.tensor([[row[0]] * (longest - len(row)) + row for row in rows], device=device)
        real = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        request = Request(tuple(map(tuple, documents)), tuple(map(len, rows)))
        options = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(self.model.forward).parameters else {}
        follow = [len(row) - (spans[-1][1] if spans else 0) for row, spans in zip(rows, documents, strict=True)]
        counts = torch.tensor(follow, device=device).clamp(1, self.cure.query_tokens)
        self.reading = reading = Reading(torch.arange(longest, device=device) >= longest - counts[:, None])
        try:
            with set_request(self.model, request):
                self.model(input_ids=tokens, attention_mask=real, position_ids=positions, use_cache=False, **options)
            return reading.attention()
        finally:
            self.reading = None


class Reading:
    """The attention of query tokens to documents in one forward pass.

    Args:
        queries: which rows are query tokens, ``[B, T]``.
    """

    def __init__(self, queries: Tensor) -> None:
        self.queries = queries
        self._means: dict[int, Tensor] = {}  # by layer: [B, H, T, K], 0 outside the rows that were added

    def add(self, layer: int, rows: Tensor, means: Tensor) -> None:
        """The mean attention of rows ``[n]`` to a token of each document: ``[B, H, n, K]``. A row may be added again."""
        if layer not in self._means:
            shape = (*means.shape[:2], self.queries.shape[1], means.shape[-1])
            self._means[layer] = means.new_zeros(shape)
        self._means[layer][:, :, rows] = means

    def attention(self) -> dict[int, Tensor]:
        """The mean over query tokens, by layer: ``[B, H, K]``."""
        shares = self.queries / self.queries.sum(1, keepdim=True)
        return {layer: torch.einsum("bhtk,bt->bhk", means, shares.to(means)) for layer, means in self._means.items()}


class CalibrationEdit(AttentionEdit):
    """One layer: measure the attention to documents, or calibrate it."""

    needs_documents = True

    def __init__(self, calibrator: Calibrator, calibrates: bool) -> None:
        self.calibrator, self.calibrates = calibrator, calibrates

    def affected_rows(self, call: EditedCall) -> Tensor:
        if self.calibrator.reading is not None:
            return self.calibrator.reading.queries
        answering = call.answering_rows()
        return answering if self.calibrates else torch.zeros_like(answering)

    def change_weights(self, call: EditedCall, rows: Tensor, weights: Tensor) -> Tensor:
        spans = call.documents(SUBJECT)
        if not any(spans):
            return weights
        ids = call.document_ids(SUBJECT, call.k_positions)
        lengths = _lengths(spans, weights)
        reading = self.calibrator.reading
        if reading is not None:
            means = document_masses(weights, ids, lengths) / lengths[:, None, None].clamp(min=1)
            reading.add(call.layer, rows, means)
            return weights
        result = self.calibrator.watcher.result
        if result is None or call.layer not in result:
            raise usage_error(
                SUBJECT,
                "a forward pass of a part of the model",
                "the relevance of documents is measured with the whole model",
                "call the model itself, or its generate",
            )
        logits = fit_batch(result[call.layer], weights.shape[0])
        calibrated = calibrate(weights, ids, lengths, logits.to(weights))
        return weights + self.calibrator.cure.strength * (calibrated - weights)


def relevance_logits(
    attention: Tensor, bias: Tensor, exists: Tensor, temperature: float, absolute: bool = False
) -> Tensor:
    """Relevance over t, from the mean attention to each document and to a dummy in its place, all ``[..., documents]``.

    >>> bias, relevance = torch.tensor([0.4, 0.1, 0.2]), torch.tensor([0.02, 0.1, 0.05])
    >>> logits = relevance_logits(bias + relevance, bias + 0.01, torch.ones(3, dtype=torch.bool), 0.1, absolute=True)
    >>> [round(logit * 0.1 + 0.01, 4) for logit in logits.tolist()]
    [0.02, 0.1, 0.05]
    """
    t: Tensor | float = temperature
    if not absolute:
        count = exists.sum(-1, keepdim=True).clamp(min=1)
        t = temperature * (attention * exists).sum(-1, keepdim=True) / count
        t = t.clamp(min=torch.finfo(attention.dtype).tiny)
    return ((attention - bias) / t).masked_fill(~exists, -torch.inf)


def document_masses(weights: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """The weight on each document, ``[B, H, n, K]``, from weights ``[B, H, n, S]`` and the document of each key ``[B, S]``."""
    return torch.einsum("bhns,bsk->bhnk", weights, _members(ids, lengths).to(weights))


def calibrate(weights: Tensor, ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    """Weights whose mean over each document is proportional to the softmax of its logit, with the same sum over documents.

    A document that a row does not see at all stays so.

    Args:
        weights: ``[B, H, n, S]``.
        ids: the document of each key, -1 for none: ``[B, S]``.
        lengths: the number of tokens of each document, ``[B, K]``; 0 for none.
        logits: ``[B, H or 1, K]``.
    """
    masses = document_masses(weights, ids, lengths)
    seen = (masses > 0) & (lengths > 0)[:, None, None]
    alpha = logits[:, :, None].expand_as(masses).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    wanted = alpha * lengths[:, None, None]
    wanted = (
        wanted / wanted.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny) * masses.sum(-1, keepdim=True)
    )
    factors = torch.where(seen, wanted / masses.where(seen, 1.0), 1.0)
    by_key = torch.einsum("bhnk,bsk->bhns", factors, _members(ids, lengths).to(weights))
    return torch.where((ids >= 0)[:, None, None], weights * by_key, weights)


def _members(ids: Tensor, lengths: Tensor) -> Tensor:
    """Which keys belong to which document, ``[B, S, K]``."""
    return ids[..., None] == torch.arange(lengths.shape[1], device=ids.device)


def _lengths(spans: Sequence[Sequence[Span]], like: Tensor) -> Tensor:
    most = max(map(len, spans))
    rows = [[end - start for start, end in row] + [0] * (most - len(row)) for row in spans]
    return torch.tensor(rows, dtype=like.dtype, device=like.device)


def _exists(documents: Sequence[Sequence[Span]], device: torch.device) -> Tensor:
    """Which places of the longest list of documents each prompt has, ``[prompts, K]``."""
    most = max(map(len, documents))
    rows = [[place < len(spans) for place in range(most)] for spans in documents]
    return torch.tensor(rows, dtype=torch.bool, device=device)


def _average(attention: dict[int, Tensor]) -> dict[int, Tensor]:
    """The mean over layers and heads, for every layer, ``[prompts, 1, K]``."""
    mean = torch.stack([one.mean(1, keepdim=True) for one in attention.values()]).mean(0)
    return dict.fromkeys(attention, mean)
