"""Copy and summarise: generated texts with a marked part, for models that read a text and write a shorter one.

    weather the n412 saw of [ n93 n7 n508 ] n31 by the      ->      storm n93 n7 n508 today

The names are all beyond the vocabulary, and those of the test are in no training text: they can be copied and in no way
generated. The first word decides two words of the summary that the text does not hold: they can be generated and not
copied. How many names are marked, and where, differs from text to text, so a model must keep its place.

A task of ``lab.tasks`` asks one model about one sequence of numbered words; here are two texts with words that have no
number, so these have a small trainer and judge of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from whence.errors import usage_error
from whence.lab.tasks.base import named_generator
from whence_papers.pointer.pointer_generator import PointerGenerator, Sources, Targets, Vocabulary, greedy_search

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
    """Pairs by the rule above.

    Args:
        marked: the largest number of marked names; the least is 1.
        around: the largest number of other words and names on each side of them.
        names: how many names training texts draw from; those of test texts are as many others.

    >>> pair = Summaries().draw(1, torch.Generator().manual_seed(1))[0]
    >>> " ".join(pair.text), " ".join(pair.summary)
    ('sport n323 by of [ n448 n390 ]', 'match n448 n390 won')
    """

    def __init__(self, marked: int = 4, around: int = 4, names: int = 500) -> None:
        for setting, got, least in (
            ("marked", marked, 1),
            ("around", around, 0),
            ("names", names, marked + 2 * around),
        ):
            if got < least:
                rule = f"{setting} is at least {least}" + (
                    ", so that no text has a name twice" if setting == "names" else ""
                )
                raise usage_error(f"Summaries({setting}=...)", str(got), rule, "give a larger one")
        self.marked, self.around, self.names = marked, around, names
        written = [word for pair in TOPICS.values() for word in pair]
        self.vocabulary = Vocabulary([OPEN, CLOSE, *TOPICS, *written, *FILLING])

    def draw(self, rows: int, generator: torch.Generator) -> list[Pair]:
        """Training pairs, decided by the generator's state alone."""
        return [self._pair(0, generator) for _ in range(rows)]

    def test(self, rows: int) -> list[Pair]:
        """Test pairs, the same at every call, with names that no training text has."""
        generator = named_generator("summaries", self.marked, self.around, self.names)
        return [self._pair(self.names, generator) for _ in range(rows)]

    def batch(self, pairs: Sequence[Pair]) -> tuple[Sources, Targets]:
        """Pairs in numbers."""
        sources = self.vocabulary.sources([pair.text for pair in pairs])
        return sources, self.vocabulary.targets([pair.summary for pair in pairs], sources)

    def _pair(self, first: int, generator: torch.Generator) -> Pair:
        def below(n: int) -> int:
            return int(torch.randint(n, (), generator=generator))

        numbers = torch.randperm(self.names, generator=generator)[: self.marked + 2 * self.around] + first
        unused = [f"n{number}" for number in numbers.tolist()]
        sides = [
            [FILLING[below(len(FILLING))] if below(2) else unused.pop() for _ in range(below(self.around + 1))]
            for _ in range(2)
        ]
        chosen = [unused.pop() for _ in range(1 + below(self.marked))]
        topic = list(TOPICS)[below(len(TOPICS))]
        opening, closing = TOPICS[topic]
        return Pair((topic, *sides[0], OPEN, *chosen, CLOSE, *sides[1]), (opening, *chosen, closing))


def train(
    model: PointerGenerator,
    task: Summaries,
    *,
    steps: int,
    batch: int = 24,
    rate: float = 1e-2,
    clip: float = 2.0,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Train in place on freshly drawn pairs: surprise and coverage loss of every step."""
    device = next(model.parameters()).device
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    curve = []
    for _ in range(steps):
        sources, targets = task.batch(task.draw(batch, generator))
        loss = model.loss(sources.to(device), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        curve.append({"surprise": loss.surprise.item(), "repeated": loss.repeated.item()})
    return curve


@dataclass(frozen=True)
class Judgement:
    """What summaries are worth, as shares of what was asked."""

    exact: float  # summaries without a mistake
    copied: float  # names at their place
    generated: float  # other words at their place
    said_again: float  # words of the summaries that stand there for a second time
    repeated: float  # the coverage loss, a mean over the summaries


def judge(model: PointerGenerator, task: Summaries, pairs: Sequence[Pair], *, longest: int = 20) -> Judgement:
    """Greedy summaries against what they should be, word by word."""
    device = next(model.parameters()).device
    sources, _ = task.batch(pairs)
    found = greedy_search(model, sources.to(device), longest=longest)
    exact = again = written = 0
    right, asked = {"copied": 0, "generated": 0}, {"copied": 0, "generated": 0}
    for hypothesis, beyond, pair in zip(found, sources.beyond, pairs, strict=True):
        words = task.vocabulary.text(hypothesis.words, beyond)
        exact += tuple(words) == pair.summary
        again += len(words) - len(set(words))
        written += len(words)
        for place, word in enumerate(pair.summary):
            kind = "copied" if word in beyond else "generated"
            asked[kind] += 1
            right[kind] += words[place : place + 1] == [word]
    shares = {kind: right[kind] / asked[kind] for kind in right}
    repeated = sum(hypothesis.repeated for hypothesis in found) / len(found)
    return Judgement(exact / len(pairs), **shares, said_again=again / max(1, written), repeated=repeated)
