"""The choices and generated answers of prompts under a cure, for any causal language model.

A batch of prompts is padded on the left and read once into a cache. The cache is then repeated for the choices of every
prompt, and the tokens in which they differ are scored. The numbers equal those of one plain forward pass for each choice.
The cure learns where the documents of a prompt are, and where the prompt ends, through ``whence.hf.request``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence import hf
from whence.mend.answer_loss import document_spans
from whence.mend.cure import Cure
from whence.mend.protocol import Intervention
from whence.probe import likelihood
from whence.probe.likelihood import MAX_SCORED_TOKENS, Branches
from whence.probe.measurement import generate_answers
from whence.probe.probed_model import ProbedModel, pad_batch
from whence.probe.tasks.task import Prompt, Span

#: tokens of repeated caches in memory at a time, as a multiple of the tokens of a batch
CACHE_ROOM = 4


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt with its choices as tokens: the documents, and where the prompt ends and the answer begins."""

    branches: Branches
    documents: tuple[Span, ...]
    end: int  # tokens of the prompt that do not depend on the answer
    gold: int | None  # the document that contains the answer


def tokenize_prompts(lm: ProbedModel, prompts: Sequence[Prompt], max_tokens: int) -> list[TokenizedPrompt]:
    """The tokens of prompts and their choices."""
    branches = likelihood.build_branches(lm, prompts, max_tokens)
    tokenized = []
    for prompt, one in zip(prompts, branches, strict=True):
        tokens, documents = locate_documents(lm, prompt)
        end = 0
        while end < min(len(tokens), len(one.shared)) and tokens[end] == one.shared[end]:
            end += 1
        tokenized.append(TokenizedPrompt(one, documents, end, prompt.gold))
    return tokenized


def locate_documents(lm: ProbedModel, prompt: Prompt) -> tuple[list[int], tuple[Span, ...]]:
    """The tokens of a prompt and the token spans of its documents."""
    return lm.tokens(prompt.text), tuple(document_spans(lm, prompt))


def rewrite_prompts(lm: ProbedModel, cure: Intervention | None, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that the model reads under a cure. The model itself must be untouched."""
    return [cure.rewrite(lm, prompt) for prompt in prompts] if isinstance(cure, Cure) else list(prompts)


def score_under_cure(
    lm: ProbedModel, cure: Intervention | None, prompts: Sequence[Prompt], max_tokens: int = MAX_SCORED_TOKENS
) -> list[list[float]]:
    """For each prompt the log-likelihood of the answer, then of each rival; ``None`` is the untouched model."""
    prompts = rewrite_prompts(lm, cure, prompts)
    with applied(lm, cure):
        return score_choices(lm, prompts, max_tokens)


@contextmanager
def applied(lm: ProbedModel, cure: Intervention | None) -> Iterator[None]:
    with nullcontext() if cure is None else cure.apply(lm.model):
        yield


def score_choices(lm: ProbedModel, prompts: Sequence[Prompt], max_tokens: int = MAX_SCORED_TOKENS) -> list[list[float]]:
    """The same for the model as it is now, with the cures that are applied to it."""
    return score_and_attend(lm, tokenize_prompts(lm, prompts, max_tokens), 0)[0]


@torch.inference_mode()
def score_and_attend(
    lm: ProbedModel, tokenized: Sequence[TokenizedPrompt], num_captured: int
) -> tuple[list[list[float]], list[float]]:
    """The scores of the choices and, for the first ``num_captured`` prompts, the answering token's attention to the gold.

    Attention is the share that goes to the gold, averaged over layers and heads. It is empty if it cannot be captured.
    """
    scores: list[list[float]] = []
    attention: list[float] = []
    for batch in lm.batches([one.branches.longest for one in tokenized]):
        part = [tokenized[index] for index in batch]
        rows = hf.LastRow() if batch.start < num_captured and not lm.capture_error else None
        with hf.request(lm.model, documents=[one.documents for one in part], prompt_ends=[one.end for one in part]):
            reading = PromptCache(lm, part, rows)
            scores += reading.scores()
        if rows is not None:
            attention += reading.gold_attention(rows)
    return scores, attention[:num_captured]


class PromptCache:
    """Prompts in a KV cache, with the scores of the tokens that follow."""

    def __init__(self, lm: ProbedModel, prompts: Sequence[TokenizedPrompt], rows: hf.LastRow | None = None) -> None:
        self.lm, self.prompts = lm, list(prompts)
        self.takes_positions = "position_ids" in inspect.signature(lm.model.forward).parameters
        tokens, self.real = pad_batch(lm, [one.branches.shared for one in prompts], left=True)
        with nullcontext() if rows is None else hf.capture(lm.model, rows, layers=lm.capture_layers):
            out = self._forward(tokens, self.real, None)
        self.cache: Any = out.past_key_values
        self.first = out.logits[:, -1].float().log_softmax(-1)  # [B, vocabulary]

    def _forward(self, tokens: Tensor, real: Tensor, cache: Any) -> Any:
        """One forward pass over the last columns of ``real``; padding comes first, so positions count the real tokens."""
        options: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
        if self.takes_positions:
            options["position_ids"] = (real.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        if cache is None:
            options["logits_to_keep"] = 1
        return self.lm.model(input_ids=tokens, attention_mask=real, **options)

    def scores(self) -> list[list[float]]:
        """For each prompt the log-likelihood of each choice."""
        ends = [list(one.branches.ends) for one in self.prompts]
        most = max(map(len, ends))
        padded = [row + [row[0]] * (most - len(row)) for row in ends]  # all prompts get the same number of choices
        copies = max(
            1, self.cache.layers[0].keys.shape[0] // len(self.prompts)
        )  # rows of a prompt, if a cure expands them
        step = max(1, CACHE_ROOM * self.lm.tokens_at_once // (copies * self.real.numel()))
        columns = [self._score([row[at : at + step] for row in padded]) for at in range(0, most, step)]
        totals = torch.cat(columns, 1).cpu()
        return [totals[index, : len(row)].tolist() for index, row in enumerate(ends)]

    def _score(self, ends: Sequence[Sequence[tuple[int, ...]]]) -> Tensor:
        """Some choices of every prompt: ``[B, choices]``."""
        choices = len(ends[0])
        flat = [end for row in ends for end in row]
        prompt_of = torch.arange(len(ends), device=self.first.device).repeat_interleave(choices)
        first = torch.tensor([end[0] for end in flat], device=self.first.device)
        totals = self.first[prompt_of, first]
        if max(map(len, flat)) > 1:
            tokens, used = pad_batch(self.lm, [end[:-1] or end for end in flat], left=False)
            cache = copy.deepcopy(self.cache)  # the next choices need it as it is
            cache.batch_repeat_interleave(choices)
            real = torch.cat((self.real.repeat_interleave(choices, 0), torch.ones_like(used)), 1)
            log_probs = self._forward(tokens, real, cache).logits.float().log_softmax(-1)
            targets, scored = pad_batch(self.lm, [end[1:] or end for end in flat], left=False)
            scored[[index for index, end in enumerate(flat) if len(end) == 1]] = 0
            later = log_probs.gather(2, targets[..., None])[..., 0]
            totals = totals + torch.where(scored.bool(), later, 0.0).sum(-1)
        return totals.reshape(len(ends), choices)

    def gold_attention(self, rows: hf.LastRow) -> list[float]:
        """The share of the answering token's attention that goes to the gold, for each prompt; empty if rows were mixed."""
        weights = rows.stack()  # [layers, B, heads, keys]
        if weights.shape[1] != len(self.prompts):
            return []
        width, shares = self.real.shape[1], []
        for index, one in enumerate(self.prompts):
            if one.gold is None:
                return []
            start, end = (width - len(one.branches.shared) + place for place in one.documents[one.gold])
            shares.append(float(weights[:, index, :, start:end].float().sum(-1).mean()))
        return shares


def generate_under_cure(
    lm: ProbedModel, cure: Intervention | None, prompts: Sequence[Prompt], metric: str
) -> list[str]:
    """The greedy continuation of each prompt under a cure."""
    prompts = rewrite_prompts(lm, cure, prompts)
    documents = [locate_documents(lm, prompt)[1] for prompt in prompts]
    with applied(lm, cure):
        return generate_answers(
            lm, prompts, metric, lambda batch: hf.request(lm.model, documents=[documents[index] for index in batch])
        )
