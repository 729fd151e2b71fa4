"""What a cure costs and what it harms: passes over the prompt, time, memory, and the perplexity of plain text.

Costs of the untouched model are measured in the same process, and a record stores both.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from whence import hf
from whence.errors import WhenceError
from whence.mend.answer_loss import logits_at
from whence.mend.cure import Cure
from whence.mend.measurement import applied, locate_documents, score_choices
from whence.mend.protocol import Intervention
from whence.probe.hidden_states import plain_texts
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt

NEW_TOKENS = 8  # generated to measure the time of one


def measure_costs(lm: ProbedModel, cure: Intervention | None, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    """The tokens that are read until the choices of a prompt are scored, seconds, and the peak of the memory.

    The time to read a prompt includes the time in which a cure rewrites it. ``None`` is the untouched model. A ratio of two
    results is about the cure only if one process measured both.
    """
    rewriting_seconds = 0.0
    rewriting: list[int] = []
    if isinstance(cure, Cure) and cure.rewrites_prompts:
        cure.rewrite(lm, prompt)  # the first time is slower
        start = time.perf_counter()
        with _count_tokens(lm) as rewriting:
            prompt = cure.rewrite(lm, prompt)
        rewriting_seconds = _seconds_since(start, lm.device)
    tokens, documents = locate_documents(lm, prompt)
    ids = torch.tensor([tokens], device=lm.device)

    def generate(new: int) -> float:
        start = time.perf_counter()
        options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": lm.pad_token_id}
        with hf.request(lm.model, documents=[documents]):
            lm.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return _seconds_since(start, lm.device)

    with torch.inference_mode(), applied(lm, cure):
        with _count_tokens(lm) as scoring:
            score_choices(lm, [prompt], max_tokens)
        with _peak_memory(lm.device) as peak:
            generate(1)
        short, long = generate(1), generate(1 + NEW_TOKENS)
    return {
        "tokens_read": sum(rewriting) + sum(scoring),
        "prompt_seconds": rewriting_seconds + short,
        "token_seconds": max(0.0, long - short) / NEW_TOKENS,
        "peak_bytes": peak[0] if peak else None,
    }


def _seconds_since(start: float, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@contextmanager
def _count_tokens(lm: ProbedModel) -> Iterator[list[int]]:
    """The number of tokens that enter the model in each forward pass inside the block."""
    counts: list[int] = []
    embedding = lm.model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda module, args, output: counts.append(output.shape[:-1].numel()))
    try:
        yield counts
    finally:
        hook.remove()


@contextmanager
def _peak_memory(device: torch.device) -> Iterator[list[int]]:
    """The largest memory in use inside the block, the model included; empty where it cannot be measured."""
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.append(torch.cuda.max_memory_allocated(device))
        return
    try:
        if sys.platform == "linux":
            Path("/proc/self/clear_refs").write_text("5")  # starts the peak of the resident memory again
    except OSError:
        yield peak
        return
    yield peak
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        peak += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]


@torch.inference_mode()
def measure_text_loss(lm: ProbedModel, cure: Intervention | None, texts: int, tokens: int) -> dict[str, Any]:
    """The mean cross-entropy of the second half of plain texts, in nats for each token, after the first half as a prompt."""
    ids = plain_texts(lm, texts, tokens).to(lm.device)
    half = tokens // 2
    losses: list[float] = []
    try:
        with applied(lm, cure):
            for row in ids:
                with hf.request(lm.model, documents=[()], prompt_ends=[half]):
                    columns = torch.arange(half - 1, tokens - 1, device=row.device)
                    logits = logits_at(lm.model, columns, input_ids=row[None], use_cache=False)[0].float()
                losses.append(float(torch.nn.functional.cross_entropy(logits, row[half:])))
    except WhenceError as error:
        return {"unavailable": str(error)}
    return {"losses": [round(loss, 6) for loss in losses]}


def ratio(costs: dict[str, Any], name: str) -> float | None:
    """A cost of the cure divided by that of the untouched model; None if it is not known."""
    before, after = (costs[side].get(name) for side in ("untouched", "cure"))
    return None if not before or after is None else after / before
