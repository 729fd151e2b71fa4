"""Generate tokens with caches: greedy search, sampling and beam search, for every model that predicts the next token."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from whence.errors import usage_error


class DecodingState(Protocol):
    """The state of a model that generates sequences, one row for each: its caches, and what they depend on."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Append tokens ``[B, T]`` and return the logits ``[B, V]`` of the token after them."""

    def reorder(self, index: Tensor) -> None:
        """Row b becomes the former row ``index[b]``. The number of rows may change."""


def sample_sequences(
    state: DecodingState,
    first: Tensor,
    max_new_tokens: int,
    *,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
    eos_token_id: int | None,
) -> Tensor:
    """Up to ``max_new_tokens`` tokens ``[B, N]`` after the tokens ``first`` ``[B, T]``.

    Finished sequences are filled with ``eos_token_id``; generation stops when all are finished.
    """
    new, finished = first, None
    sampled: list[Tensor] = []
    for _ in range(max_new_tokens):
        token = sample_token(state.next_logits(new), temperature, top_k, generator)
        if eos_token_id is not None:
            token = token if finished is None else token.masked_fill(finished, eos_token_id)
            finished = token == eos_token_id
        sampled.append(token)
        new = token[:, None]
        if finished is not None and bool(finished.all()):
            break
    return torch.stack(sampled, 1) if sampled else first[:, :0]


def search_beams(
    state: DecodingState,
    first: Tensor,
    max_new_tokens: int,
    *,
    num_beams: int,
    length_penalty: float,
    eos_token_id: int | None,
) -> Tensor:
    """The best of ``num_beams`` hypotheses for each row: up to ``max_new_tokens`` tokens ``[B, N]`` after ``first``.

    Hypotheses are ranked by the sum of their log-probabilities divided by ``length ** length_penalty``, where the length
    counts the generated tokens with the end. A finished hypothesis keeps its place in the beam while no other outranks it.
    The search stops when no running hypothesis can outrank the best finished one. Shorter results are filled with
    ``eos_token_id``.
    """
    batch, device = first.shape[0], first.device
    if max_new_tokens == 0:
        return first[:, :0]
    logits = state.next_logits(first).repeat_interleave(num_beams, 0)
    base = torch.arange(batch, device=device)[:, None]
    state.reorder(base.expand(batch, num_beams).flatten())
    scores = torch.full((batch, num_beams), -math.inf, dtype=torch.float64, device=device)
    scores[:, 0] = 0.0  # all beams of a row are alike at first, and one of them counts
    lengths = torch.zeros_like(scores)
    finished = torch.zeros_like(scores, dtype=torch.bool)
    tokens = first.new_empty(batch, num_beams, 0)
    for count in range(1, max_new_tokens + 1):
        totals = scores[:, :, None] + logits.double().log_softmax(-1).unflatten(0, (batch, num_beams))  # [B, K, V]
        if eos_token_id is not None:  # a finished hypothesis goes on as itself only
            frozen = torch.full_like(totals, -math.inf)
            frozen[:, :, eos_token_id] = scores
            totals = torch.where(finished[:, :, None], frozen, totals)
        lengths = torch.where(finished, lengths, count)
        ranks = totals / lengths[:, :, None] ** length_penalty
        vocabulary = ranks.shape[2]
        best = ranks.flatten(1).topk(num_beams, dim=1)
        parents, token = best.indices // vocabulary, best.indices % vocabulary
        scores = totals.flatten(1).gather(1, best.indices)
        lengths, finished = lengths.gather(1, parents), finished.gather(1, parents)
        tokens = torch.cat([tokens.gather(1, parents[:, :, None].expand_as(tokens)), token[:, :, None]], 2)
        if eos_token_id is not None:
            finished = finished | (token == eos_token_id)
        if count == max_new_tokens or _is_decided(best.values, scores, finished, count, max_new_tokens, length_penalty):
            break
        state.reorder((base * num_beams + parents).flatten())
        logits = state.next_logits(token.flatten()[:, None])
    return tokens[:, 0, : int(lengths[:, 0].max())]  # topk sorts, so the best is first


def _is_decided(
    ranks: Tensor, scores: Tensor, finished: Tensor, count: int, max_new_tokens: int, length_penalty: float
) -> bool:
    """Whether no running hypothesis of any row can outrank the best finished one.

    A running hypothesis only loses probability, so its rank is largest if the rest of it is certain.
    """
    attainable = torch.stack([scores / float(length) ** length_penalty for length in (count + 1, max_new_tokens)]).amax(
        0
    )
    best_running = attainable.masked_fill(finished, -math.inf).amax(1)
    best_finished = ranks.masked_fill(~finished, -math.inf).amax(1)
    return bool((finished.any(1) & (best_finished >= best_running)).all())


def sample_token(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token ``[B]`` from logits ``[B, V]``: the most likely at temperature 0, otherwise sampled.

    >>> sample_token(torch.tensor([[0.0, 2.0, 1.0]]), 0.0, None, None)
    tensor([1])
    """
    if temperature == 0:
        return logits.argmax(-1)
    # in float64 and after subtracting the maximum, no temperature is too low
    best = logits.double().topk(logits.shape[-1] if top_k is None else top_k, dim=-1)
    probabilities = ((best.values - best.values[:, :1]) / temperature).softmax(-1)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return best.indices.gather(1, drawn)[:, 0]


def check_sampling(
    max_new_tokens: int, temperature: float, top_k: int | None, eos_token_id: int | None, vocab_size: int
) -> None:
    """Raise for invalid arguments of ``generate``."""
    _check_length("generate", max_new_tokens)
    if not _is_number(temperature) or temperature < 0:
        raise usage_error(
            "generate(temperature=...)",
            repr(temperature),
            "temperature must be a finite number of at least 0",
            "pass temperature=0 for the most likely token",
        )
    if top_k is not None and not _is_integer(top_k, 1, vocab_size):
        raise usage_error(
            "generate(top_k=...)",
            repr(top_k),
            f"top_k must be an integer from 1 to the vocabulary's {vocab_size}",
            "omit top_k to sample from all tokens",
        )
    _check_end("generate", eos_token_id, vocab_size)


def check_beams(
    max_new_tokens: int, num_beams: int, length_penalty: float, eos_token_id: int | None, vocab_size: int
) -> None:
    """Raise for invalid arguments of ``beam_search``."""
    _check_length("beam_search", max_new_tokens)
    if not _is_integer(num_beams, 1):
        raise usage_error(
            "beam_search(num_beams=...)",
            repr(num_beams),
            "num_beams must be an integer of at least 1",
            "pass num_beams=1 for greedy search",
        )
    if not _is_number(length_penalty):
        raise usage_error(
            "beam_search(length_penalty=...)",
            repr(length_penalty),
            "length_penalty must be a finite number",
            "pass 0 to rank by probability, 1 by probability per token",
        )
    _check_end("beam_search", eos_token_id, vocab_size)


def _check_length(owner: str, max_new_tokens: int) -> None:
    if not _is_integer(max_new_tokens, 0):
        raise usage_error(
            f"{owner}(max_new_tokens=...)",
            repr(max_new_tokens),
            "max_new_tokens must be an integer of at least 0",
            "pass a number of tokens",
        )


def _check_end(owner: str, eos_token_id: int | None, vocab_size: int) -> None:
    if eos_token_id is not None and not _is_integer(eos_token_id, 0, vocab_size - 1):
        raise usage_error(
            f"{owner}(eos_token_id=...)",
            repr(eos_token_id),
            f"eos_token_id must be a token, 0 to {vocab_size - 1}",
            "omit eos_token_id to generate max_new_tokens",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object, low: int, high: int | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)
