"""Copy and summarize: synthetic texts with a marked part, for models that read a text and write a shorter one.

    weather the n412 saw of [ n93 n7 n508 ] n31 by the      ->      storm n93 n7 n508 today

All names are out of vocabulary, and the names of the test texts occur in no training text: they can only be copied. The
first word determines two words of the summary that are not in the text: they can only be generated. The number and the
position of the marked names differ from text to text, so a model must track its position.

A task of ``whence.lab.tasks`` has one sequence of token ids. This one has two texts with out-of-vocabulary words, so it has
its own small training loop and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from whence.errors import usage_error
from whence.lab.tasks.base import named_generator
from whence_papers.pointer.pointer_generator import (
    PointerGenerator,
    SourceBatch,
    TargetBatch,
    Vocabulary,
    greedy_search,
)

OPEN, CLOSE = "[", "]"
FILLING = ("the", "of", "a", "by", "saw", "and", "with", "near")
TOPICS = {
    "weather": ("storm", "today"),
    "sport": ("match", "won"),
    "trade": ("deal", "signed"),
    "music": ("concert", "played"),
}


@dataclass(frozen=True)
class Pair:
    """A text and its summary."""

    text: tuple[str, ...]
    summary: tuple[str, ...]


class Summaries:
    """Generator of pairs by the rule above.

    Args:
        max_names: largest number of marked names; the smallest is 1.
        around: largest number of other words and names on each side.
        names: number of names in training texts; test texts have as many different names.

    >>> pair = Summaries().draw(1, torch.Generator().manual_seed(1))[0]
    >>> " ".join(pair.text), " ".join(pair.summary)
    ('sport n323 by of [ n448 n390 ]', 'match n448 n390 won')
    """

    def __init__(self, max_names: int = 4, around: int = 4, names: int = 500) -> None:
        for setting, got, least in (
            ("max_names", max_names, 1),
            ("around", around, 0),
            ("names", names, max_names + 2 * around),
        ):
            if got < least:
                rule = f"{setting} is at least {least}" + (
                    ", so that no text has a name twice" if setting == "names" else ""
                )
                raise usage_error(f"Summaries({setting}=...)", str(got), rule, f"raise {setting}")
        self.max_names, self.around, self.names = max_names, around, names
        generated = [word for pair in TOPICS.values() for word in pair]
        self.vocabulary = Vocabulary([OPEN, CLOSE, *TOPICS, *generated, *FILLING])

    def draw(self, rows: int, generator: torch.Generator) -> list[Pair]:
        """Draw training pairs; only the generator's state determines them."""
        return [self._pair(0, generator) for _ in range(rows)]

    def test(self, rows: int) -> list[Pair]:
        """Test pairs, the same at every call, with names that occur in no training text."""
        generator = named_generator("summaries", self.max_names, self.around, self.names)
        return [self._pair(self.names, generator) for _ in range(rows)]

    def batch(self, pairs: Sequence[Pair]) -> tuple[SourceBatch, TargetBatch]:
        """Encode pairs."""
        sources = self.vocabulary.sources([pair.text for pair in pairs])
        return sources, self.vocabulary.targets([pair.summary for pair in pairs], sources)

    def _pair(self, first: int, generator: torch.Generator) -> Pair:
        def below(n: int) -> int:
            return int(torch.randint(n, (), generator=generator))

        numbers = torch.randperm(self.names, generator=generator)[: self.max_names + 2 * self.around] + first
        unused = [f"n{number}" for number in numbers.tolist()]
        sides = [
            [FILLING[below(len(FILLING))] if below(2) else unused.pop() for _ in range(below(self.around + 1))]
            for _ in range(2)
        ]
        marked_names = [unused.pop() for _ in range(1 + below(self.max_names))]
        topic = list(TOPICS)[below(len(TOPICS))]
        opening, closing = TOPICS[topic]
        return Pair((topic, *sides[0], OPEN, *marked_names, CLOSE, *sides[1]), (opening, *marked_names, closing))


def train(
    model: PointerGenerator,
    task: Summaries,
    *,
    steps: int,
    batch_size: int = 24,
    lr: float = 1e-2,
    max_grad_norm: float = 2.0,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Train in place on freshly drawn pairs. Returns cross-entropy and coverage loss of every step."""
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    curve = []
    for _ in range(steps):
        sources, targets = task.batch(task.draw(batch_size, generator))
        loss = model.loss(sources.to(device), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        curve.append({"cross_entropy": loss.cross_entropy.item(), "coverage_loss": loss.coverage_loss.item()})
    return curve


@dataclass(frozen=True)
class SummaryScores:
    """Scores of generated summaries. The field names are keys of stored records."""

    exact: float  # share of summaries without an error
    copied: float  # share of names at the right position
    generated: float  # share of other words at the right position
    repeated_words: float  # share of words that repeat an earlier word of the summary
    coverage_loss: float  # coverage loss, mean over the summaries


def score_summaries(
    model: PointerGenerator, task: Summaries, pairs: Sequence[Pair], *, max_length: int = 20
) -> SummaryScores:
    """Compare greedy summaries with the targets, word by word."""
    device = next(model.parameters()).device
    sources, _ = task.batch(pairs)
    hypotheses = greedy_search(model, sources.to(device), max_length=max_length)
    exact = repetitions = total_words = 0
    correct, total = {"copied": 0, "generated": 0}, {"copied": 0, "generated": 0}
    for hypothesis, beyond, pair in zip(hypotheses, sources.beyond, pairs, strict=True):
        words = task.vocabulary.text(hypothesis.words, beyond)
        exact += tuple(words) == pair.summary
        repetitions += len(words) - len(set(words))
        total_words += len(words)
        for place, word in enumerate(pair.summary):
            kind = "copied" if word in beyond else "generated"
            total[kind] += 1
            correct[kind] += words[place : place + 1] == [word]
    shares = {kind: correct[kind] / total[kind] for kind in correct}
    coverage_loss = sum(hypothesis.coverage_loss for hypothesis in hypotheses) / len(hypotheses)
    return SummaryScores(
        exact / len(pairs), **shares, repeated_words=repetitions / max(1, total_words), coverage_loss=coverage_loss
    )
