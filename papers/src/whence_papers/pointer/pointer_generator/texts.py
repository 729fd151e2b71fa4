"""Words and numbers: a vocabulary, and for each batch the words beyond it that its sources hold.

A word of the vocabulary has one number everywhere. A word beyond it has a number in its own source alone: V for the first
such word of the source, V + 1 for the next. The model reads it as unknown, and can only copy it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error

PAD, UNKNOWN, START, STOP = range(4)
SPECIAL = ("[pad]", "[unknown]", "[start]", "[stop]")
#: a target where there is none; what torch's losses leave out
NO_TARGET = -100


@dataclass(frozen=True)
class Sources:
    """What is read, padded on the right."""

    tokens: Tensor  # [B, S]: words beyond the vocabulary are unknown
    extended: Tensor  # [B, S]: they have numbers of their own
    lengths: Tensor  # [B]
    beyond: tuple[tuple[str, ...], ...]  # those words, for each source, in the order of their numbers

    @property
    def extra(self) -> int:
        """How many numbers the extended vocabulary of this batch has beyond the vocabulary."""
        return max(len(words) for words in self.beyond)

    def to(self, device: torch.device | str) -> Sources:
        return Sources(self.tokens.to(device), self.extended.to(device), self.lengths.to(device), self.beyond)


@dataclass(frozen=True)
class Targets:
    """What is written: the inputs of each step and the word that should follow, padded on the right."""

    inputs: Tensor  # [B, T], the start and then the words, as the model reads them
    words: Tensor  # [B, T], the words and then the stop, beyond the vocabulary unknown; NO_TARGET behind
    extended: Tensor  # [B, T], the same with the numbers of the extended vocabulary

    def to(self, device: torch.device | str) -> Targets:
        return Targets(self.inputs.to(device), self.words.to(device), self.extended.to(device))


class Vocabulary:
    """Words with numbers, behind the four special ones.

    >>> vocabulary = Vocabulary(["went", "to"])
    >>> sources = vocabulary.sources([["ann", "went", "to", "oslo", "ann"]])
    >>> sources.tokens.tolist(), sources.extended.tolist()
    ([[1, 4, 5, 1, 1]], [[6, 4, 5, 7, 6]])
    >>> vocabulary.targets([["to", "oslo", "bob"]], sources).extended.tolist()
    [[5, 7, 1, 3]]
    >>> vocabulary.text([5, 7, 1], sources.beyond[0])
    ['to', 'oslo', '[unknown]']
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIAL, *words)
        self.numbers = {word: number for number, word in enumerate(self.words)}
        if len(self.numbers) < len(self.words):
            twice = next(word for place, word in enumerate(self.words) if self.numbers[word] != place)
            raise usage_error(
                "Vocabulary(words)", f"{twice!r} twice", "each word has one number", "give each word once"
            )

    def __len__(self) -> int:
        return len(self.words)

    def sources(self, texts: Sequence[Sequence[str]]) -> Sources:
        """A batch of texts to read."""
        empty = [place for place, text in enumerate(texts) if not text]
        if not texts or empty:
            raise usage_error(
                "Vocabulary.sources(texts)",
                f"no words in text {empty[0]}" if empty else "no texts",
                "there is something to read in every text",
                "leave empty texts out",
            )
        beyond = tuple(tuple(dict.fromkeys(w for w in text if w not in self.numbers)) for text in texts)
        own = [{word: len(self) + place for place, word in enumerate(words)} for words in beyond]
        tokens = [[self.numbers.get(w, UNKNOWN) for w in text] for text in texts]
        extended = [[self.numbers.get(w, mine.get(w, UNKNOWN)) for w in t] for t, mine in zip(texts, own, strict=True)]
        lengths = torch.tensor([len(text) for text in texts])
        return Sources(_padded(tokens, PAD), _padded(extended, PAD), lengths, beyond)

    def targets(self, texts: Sequence[Sequence[str]], sources: Sources) -> Targets:
        """What should be written for a batch of sources. A word in neither vocabulary nor source is unknown."""
        if len(texts) != len(sources.beyond):
            raise usage_error(
                "Vocabulary.targets(texts, sources)",
                f"{len(texts)} texts for {len(sources.beyond)} sources",
                "each source has one target",
                "give as many texts",
            )
        own = [{word: len(self) + place for place, word in enumerate(words)} for words in sources.beyond]
        words = [[self.numbers.get(w, UNKNOWN) for w in text] for text in texts]
        extended = [[self.numbers.get(w, mine.get(w, UNKNOWN)) for w in t] for t, mine in zip(texts, own, strict=True)]
        return Targets(
            _padded([[START, *row] for row in words], PAD),
            _padded([[*row, STOP] for row in words], NO_TARGET),
            _padded([[*row, STOP] for row in extended], NO_TARGET),
        )

    def text(self, numbers: Sequence[int], beyond: Sequence[str]) -> list[str]:
        """Words from numbers of a source's extended vocabulary."""
        every = (*self.words, *beyond)
        outside = [n for n in numbers if not 0 <= n < len(every)]
        if outside:
            raise usage_error(
                "Vocabulary.text(numbers, beyond)",
                str(outside[0]),
                f"this source's words have numbers from 0 to {len(every) - 1}",
                "give the words beyond the vocabulary of the same source",
            )
        return [every[n] for n in numbers]


def _padded(rows: list[list[int]], filler: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])
