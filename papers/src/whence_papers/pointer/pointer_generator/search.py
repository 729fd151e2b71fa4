"""Greedy search and beam search. Each hypothesis carries its own coverage.

Scores are sums of log-probabilities. Impossible continuations have -inf and are never extended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.models import eval_mode
from whence.validation import require_integer
from whence_papers.pointer.pointer_generator.model import PointerGenerator
from whence_papers.pointer.pointer_generator.vocabulary import PAD, START, STOP, SourceBatch


@dataclass(frozen=True)
class Hypothesis:
    """A finished text in ids of its source's extended vocabulary, without start and stop."""

    words: tuple[int, ...]
    log_p: float  # of all words and of the stop, if there is one
    score: float  # log_p / steps ** length_penalty
    stopped: bool  # False: cut off at max_length
    coverage_loss: float  # the coverage loss, a mean over the steps


def make_hypothesis(
    words: tuple[int, ...], log_p: float, stopped: bool, coverage_loss: float, length_penalty: float
) -> Hypothesis:
    steps = max(1, len(words) + stopped)
    return Hypothesis(words, log_p, log_p / steps**length_penalty, stopped, coverage_loss / steps)


@torch.no_grad()
def greedy_search(model: PointerGenerator, sources: SourceBatch, *, max_length: int = 100) -> list[Hypothesis]:
    """Take the most likely word at each step. All sources run as one batch."""
    require_integer("greedy_search", "max_length", max_length)
    with eval_mode(model):
        encoded, state = model.encode(sources)
        batch = len(sources.lengths)
        words = sources.tokens.new_full((batch,), START)
        ended = torch.zeros_like(words, dtype=torch.bool)
        log_p, coverage_loss = (state.coverage.new_zeros(batch, dtype=torch.float64) for _ in range(2))
        written: list[Tensor] = []
        for length in range(max_length + 1):
            step, state = model.step(words, state, encoded)
            best_log_p, words = _allowed(step.log_p).max(-1)
            ended = ended | torch.isneginf(best_log_p)  # no continuation is possible
            if length == max_length:
                ended = ended | (words != STOP)  # cut off: this word is not written
            log_p += best_log_p.double().masked_fill(ended, 0.0)
            coverage_loss += step.coverage_loss.double().masked_fill(ended, 0.0)
            words = words.masked_fill(ended, PAD)
            written.append(words)
            ended = ended | (words == STOP)
            if bool(ended.all()):
                break
    out = []
    for row, total, coverage in zip(
        torch.stack(written, 1).tolist(), log_p.tolist(), coverage_loss.tolist(), strict=True
    ):
        stopped = STOP in row
        text = tuple(word for word in row if word not in (STOP, PAD))
        out.append(make_hypothesis(text, total, stopped, coverage, 1.0))
    return out


@torch.no_grad()
def beam_search(
    model: PointerGenerator,
    sources: SourceBatch,
    *,
    num_beams: int = 4,
    num_return_sequences: int = 1,
    min_length: int = 0,
    max_length: int = 100,
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """For each source up to ``num_return_sequences`` texts, the highest score first.

    The search ends when ``num_beams`` texts have stopped, as in the source, or when no hypothesis can be extended.

    Args:
        num_beams: number of partial hypotheses.
        num_return_sequences: number of texts per source, at most ``num_beams``.
        min_length: smallest number of words.
        max_length: number of words after which a text is cut off. Cut texts are returned only if too few texts stopped.
        length_penalty: the score is ``log_p / steps ** length_penalty``: 1 for the mean, as in the source, 0 for the sum.
    """
    for name, value in (
        ("num_beams", num_beams),
        ("num_return_sequences", num_return_sequences),
        ("max_length", max_length),
    ):
        require_integer("beam_search", name, value)
    whole = isinstance(min_length, int) and not isinstance(min_length, bool)
    if (
        num_return_sequences > num_beams
        or not whole
        or not 0 <= min_length <= max_length
        or not math.isfinite(length_penalty)
    ):
        raise usage_error(
            "beam_search(...)",
            f"num_beams={num_beams}, num_return_sequences={num_return_sequences}, min_length={min_length!r}, max_length={max_length}, length_penalty={length_penalty}",
            "num_return_sequences is at most num_beams, min_length is between 0 and max_length, and length_penalty is finite",
            "correct them",
        )
    with eval_mode(model):
        rows = range(len(sources.lengths))
        return [
            _search(model, _one(sources, row), num_beams, num_return_sequences, min_length, max_length, length_penalty)
            for row in rows
        ]


@dataclass(frozen=True)
class PartialHypothesis:
    """A text that has not stopped yet."""

    words: tuple[int, ...]
    log_p: float
    coverage_loss: float  # a sum over the steps


def _search(
    model: PointerGenerator,
    source: SourceBatch,
    num_beams: int,
    num_return_sequences: int,
    min_length: int,
    max_length: int,
    length_penalty: float,
) -> list[Hypothesis]:
    encoded, state = model.encode(source)
    partials = [PartialHypothesis((), 0.0, 0.0)]
    done: list[Hypothesis] = []
    for length in range(max_length + 1):
        words = source.tokens.new_tensor([text.words[-1] if text.words else START for text in partials])
        step, state = model.step(words, state, encoded.of(torch.zeros_like(words)))
        sums = torch.tensor([text.log_p for text in partials], dtype=torch.float64, device=words.device)
        totals = sums[:, None] + _allowed(step.log_p).double()
        if length < min_length:
            totals[:, STOP] = -torch.inf
        coverage_loss = [
            text.coverage_loss + coverage for text, coverage in zip(partials, step.coverage_loss.tolist(), strict=True)
        ]
        longer: list[PartialHypothesis] = []
        parents: list[int] = []
        # each hypothesis has one stop, so twice the number of beams leaves enough continuations
        ranked = totals.flatten().topk(min(2 * num_beams, totals.numel()))
        for total, place in zip(ranked.values.tolist(), ranked.indices.tolist(), strict=True):
            if total == -torch.inf or len(longer) == num_beams or len(done) == num_beams:
                break
            parent, word = divmod(place, totals.shape[1])
            if word == STOP:
                done.append(make_hypothesis(partials[parent].words, total, True, coverage_loss[parent], length_penalty))
            else:
                longer.append(PartialHypothesis((*partials[parent].words, word), total, coverage_loss[parent]))
                parents.append(parent)
        if length == max_length or len(done) == num_beams or not longer:
            break
        partials, state = longer, state.of(source.tokens.new_tensor(parents))
    stopped = {hypothesis.words for hypothesis in done}
    cut = [
        make_hypothesis(text.words, text.log_p, False, text.coverage_loss, length_penalty)
        for text in partials
        if len(text.words) == max_length and text.words not in stopped
    ]
    best_first = (sorted(some, key=lambda hypothesis: -hypothesis.score) for some in (done, cut))
    return [hypothesis for some in best_first for hypothesis in some][:num_return_sequences]


def _allowed(log_p: Tensor) -> Tensor:
    """Exclude padding and a second start."""
    log_p = log_p.clone()
    log_p[:, [PAD, START]] = -torch.inf
    return log_p


def _one(sources: SourceBatch, row: int) -> SourceBatch:
    """One source without its padding."""
    length = int(sources.lengths[row])
    tokens, extended = (x[row : row + 1, :length] for x in (sources.tokens, sources.extended))
    return SourceBatch(tokens, extended, sources.lengths[row : row + 1], sources.beyond[row : row + 1])
