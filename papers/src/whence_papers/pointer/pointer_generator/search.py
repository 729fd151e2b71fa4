"""Writing: the best word each time, or the best of several beginnings kept side by side. Coverage goes along with each.

All scores are sums of logarithms. What is impossible has -inf, and is never gone on from.
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
from whence_papers.pointer.pointer_generator.texts import PAD, START, STOP, Sources


@dataclass(frozen=True)
class Hypothesis:
    """A finished text in numbers of its source's extended vocabulary, without start and stop."""

    words: tuple[int, ...]
    log_p: float  # of all words and of the stop, where it came to one
    score: float  # log_p over the number of steps to the power that was asked for
    stopped: bool  # False: cut off at the longest length
    repeated: float  # the coverage loss, a mean over the steps


def hypothesis(words: tuple[int, ...], log_p: float, stopped: bool, repeated: float, power: float) -> Hypothesis:
    steps = max(1, len(words) + stopped)
    return Hypothesis(words, log_p, log_p / steps**power, stopped, repeated / steps)


@torch.no_grad()
def greedy_search(model: PointerGenerator, sources: Sources, *, longest: int = 100) -> list[Hypothesis]:
    """The most likely word at each step, for all sources together; one text for each."""
    require_integer("greedy_search", "longest", longest)
    with eval_mode(model):
        reading, carried = model.read(sources)
        batch = len(sources.lengths)
        words = sources.tokens.new_full((batch,), START)
        ended = torch.zeros_like(words, dtype=torch.bool)
        log_p, repeated = (carried.coverage.new_zeros(batch, dtype=torch.float64) for _ in range(2))
        written: list[Tensor] = []
        for length in range(longest + 1):
            step, carried = model.step(words, carried, reading)
            best, words = _allowed(step.log_p).max(-1)
            ended = ended | torch.isneginf(best)  # nothing can be said any more
            if length == longest:
                ended = ended | (words != STOP)  # cut off: this word is not written any more
            log_p += best.double().masked_fill(ended, 0.0)
            repeated += step.repeated.double().masked_fill(ended, 0.0)
            words = words.masked_fill(ended, PAD)
            written.append(words)
            ended = ended | (words == STOP)
            if bool(ended.all()):
                break
    out = []
    for row, total, again in zip(torch.stack(written, 1).tolist(), log_p.tolist(), repeated.tolist(), strict=True):
        stopped = STOP in row
        kept = tuple(word for word in row if word not in (STOP, PAD))
        out.append(hypothesis(kept, total, stopped, again, 1.0))
    return out


@torch.no_grad()
def beam_search(
    model: PointerGenerator,
    sources: Sources,
    *,
    beams: int = 4,
    best: int = 1,
    shortest: int = 0,
    longest: int = 100,
    power: float = 1.0,
) -> list[list[Hypothesis]]:
    """For each source its ``best`` texts, the highest score first; fewer where there are no more.

    The search ends when ``beams`` texts have come to a stop, as in the source, or when none is left to go on from.

    Args:
        beams: beginnings that are kept side by side.
        best: how many texts to give back for each source, at most ``beams``.
        shortest: words before which no text may stop.
        longest: words after which a text is cut off; such a text is given back only where too few came to a stop.
        power: the score is ``log_p / steps ** power``: 1 for the mean, as in the source, 0 for the sum.
    """
    for name, value in (("beams", beams), ("best", best), ("longest", longest)):
        require_integer("beam_search", name, value)
    whole = isinstance(shortest, int) and not isinstance(shortest, bool)
    if best > beams or not whole or not 0 <= shortest <= longest or not math.isfinite(power):
        raise usage_error(
            "beam_search(...)",
            f"beams={beams}, best={best}, shortest={shortest!r}, longest={longest}, power={power}",
            "best is at most beams, shortest lies between 0 and longest, and power is finite",
            "correct them",
        )
    with eval_mode(model):
        rows = range(len(sources.lengths))
        return [_search(model, _one(sources, row), beams, best, shortest, longest, power) for row in rows]


@dataclass(frozen=True)
class Beginning:
    """A text that has not come to a stop."""

    words: tuple[int, ...]
    log_p: float
    repeated: float  # a sum over the steps


def _search(
    model: PointerGenerator, source: Sources, beams: int, best: int, shortest: int, longest: int, power: float
) -> list[Hypothesis]:
    reading, carried = model.read(source)
    kept = [Beginning((), 0.0, 0.0)]
    done: list[Hypothesis] = []
    for length in range(longest + 1):
        words = source.tokens.new_tensor([text.words[-1] if text.words else START for text in kept])
        step, carried = model.step(words, carried, reading.of(torch.zeros_like(words)))
        sums = torch.tensor([text.log_p for text in kept], dtype=torch.float64, device=words.device)
        totals = sums[:, None] + _allowed(step.log_p).double()
        if length < shortest:
            totals[:, STOP] = -torch.inf
        repeated = [text.repeated + again for text, again in zip(kept, step.repeated.tolist(), strict=True)]
        longer: list[Beginning] = []
        parents: list[int] = []
        # each beginning has one stop, so among twice the beams enough goes on
        ranked = totals.flatten().topk(min(2 * beams, totals.numel()))
        for total, place in zip(ranked.values.tolist(), ranked.indices.tolist(), strict=True):
            if total == -torch.inf or len(longer) == beams or len(done) == beams:
                break
            parent, word = divmod(place, totals.shape[1])
            if word == STOP:
                done.append(hypothesis(kept[parent].words, total, True, repeated[parent], power))
            else:
                longer.append(Beginning((*kept[parent].words, word), total, repeated[parent]))
                parents.append(parent)
        if length == longest or len(done) == beams or not longer:
            break
        kept, carried = longer, carried.of(source.tokens.new_tensor(parents))
    stopped = {found.words for found in done}
    cut = [
        hypothesis(text.words, text.log_p, False, text.repeated, power)
        for text in kept
        if len(text.words) == longest and text.words not in stopped
    ]
    best_first = (sorted(some, key=lambda found: -found.score) for some in (done, cut))
    return [found for some in best_first for found in some][:best]


def _allowed(log_p: Tensor) -> Tensor:
    """No text goes on with padding or a second start."""
    log_p = log_p.clone()
    log_p[:, [PAD, START]] = -torch.inf
    return log_p


def _one(sources: Sources, row: int) -> Sources:
    """One source without its padding."""
    length = int(sources.lengths[row])
    tokens, extended = (x[row : row + 1, :length] for x in (sources.tokens, sources.extended))
    return Sources(tokens, extended, sources.lengths[row : row + 1], sources.beyond[row : row + 1])
