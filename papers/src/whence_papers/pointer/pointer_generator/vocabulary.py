"""A vocabulary, and for each batch the out-of-vocabulary words of its sources.

A word of the vocabulary has one id everywhere. An out-of-vocabulary word has an id in its own source alone: V for the first
such word of the source, V + 1 for the next. The model reads it as unknown and can only copy it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error

PAD, UNKNOWN, START, STOP = range(4)
SPECIAL = ("[pad]", "[unknown]", "[start]", "[stop]")
#: no target; the ignore index of torch's losses
NO_TARGET = -100


@dataclass(frozen=True)
class SourceBatch:
    """A batch of source texts, padded on the right."""

    tokens: Tensor  # [B, S]: out-of-vocabulary words are unknown
    extended: Tensor  # [B, S]: out-of-vocabulary words have their own ids
    lengths: Tensor  # [B]
    beyond: tuple[tuple[str, ...], ...]  # out-of-vocabulary words of each source, in the order of their ids

    @property
    def extra(self) -> int:
        """Number of additional ids in the extended vocabulary of this batch."""
        return max(len(words) for words in self.beyond)

    def to(self, device: torch.device | str) -> SourceBatch:
        return SourceBatch(self.tokens.to(device), self.extended.to(device), self.lengths.to(device), self.beyond)


@dataclass(frozen=True)
class TargetBatch:
    """A batch of target texts: the input and the target of each step, padded on the right."""

    inputs: Tensor  # [B, T], the start and then the words
    words: Tensor  # [B, T], the words and then the stop; out-of-vocabulary words are unknown; NO_TARGET is padding
    extended: Tensor  # [B, T], the same in the extended vocabulary

    def to(self, device: torch.device | str) -> TargetBatch:
        return TargetBatch(self.inputs.to(device), self.words.to(device), self.extended.to(device))


class Vocabulary:
    """Words with ids, after the four special ones.

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
            raise usage_error("Vocabulary(words)", f"{twice!r} twice", "words are unique", "list each word once")

    def __len__(self) -> int:
        return len(self.words)

    def sources(self, texts: Sequence[Sequence[str]]) -> SourceBatch:
        """Encode a batch of source texts."""
        empty = [place for place, text in enumerate(texts) if not text]
        if not texts or empty:
            raise usage_error(
                "Vocabulary.sources(texts)",
                f"no words in text {empty[0]}" if empty else "no texts",
                "every text needs at least one word",
                "remove empty texts",
            )
        beyond = tuple(tuple(dict.fromkeys(w for w in text if w not in self.numbers)) for text in texts)
        own = [{word: len(self) + place for place, word in enumerate(words)} for words in beyond]
        tokens = [[self.numbers.get(w, UNKNOWN) for w in text] for text in texts]
        extended = [[self.numbers.get(w, mine.get(w, UNKNOWN)) for w in t] for t, mine in zip(texts, own, strict=True)]
        lengths = torch.tensor([len(text) for text in texts])
        return SourceBatch(_padded(tokens, PAD), _padded(extended, PAD), lengths, beyond)

    def targets(self, texts: Sequence[Sequence[str]], sources: SourceBatch) -> TargetBatch:
        """Encode the target texts of a batch of sources. A word in neither vocabulary nor source is unknown."""
        if len(texts) != len(sources.beyond):
            raise usage_error(
                "Vocabulary.targets(texts, sources)",
                f"{len(texts)} texts for {len(sources.beyond)} sources",
                "each source has one target",
                "pass one text per source",
            )
        own = [{word: len(self) + place for place, word in enumerate(words)} for words in sources.beyond]
        words = [[self.numbers.get(w, UNKNOWN) for w in text] for text in texts]
        extended = [[self.numbers.get(w, mine.get(w, UNKNOWN)) for w in t] for t, mine in zip(texts, own, strict=True)]
        return TargetBatch(
            _padded([[START, *row] for row in words], PAD),
            _padded([[*row, STOP] for row in words], NO_TARGET),
            _padded([[*row, STOP] for row in extended], NO_TARGET),
        )

    def text(self, numbers: Sequence[int], beyond: Sequence[str]) -> list[str]:
        """Decode ids of a source's extended vocabulary."""
        every = (*self.words, *beyond)
        outside = [n for n in numbers if not 0 <= n < len(every)]
        if outside:
            raise usage_error(
                "Vocabulary.text(numbers, beyond)",
                str(outside[0]),
                f"ids of this source are from 0 to {len(every) - 1}",
                "pass sources.beyond of the same source",
            )
        return [every[n] for n in numbers]


def _padded(rows: list[list[int]], filler: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])
