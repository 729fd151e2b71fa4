"""Tokenizers: bytes, or the most frequent words of the training split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

PAD, UNKNOWN = "<pad>", "<unk>"

#: a word or one punctuation mark; a table rule such as ----- is one token, or it would fill whole inputs
WORDS_AND_MARKS = re.compile(r"\w+|-+|=+|\*+|[^\w\s]")


class Tokenizer(Protocol):
    """Text to token numbers and back."""

    size: int

    def encode(self, text: str) -> Tensor:
        """All tokens of a text, [N], in the smallest sufficient integer type."""

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Each token as printable text, for the axis of a plot."""


class ByteTokenizer:
    """The bytes of UTF-8: a vocabulary of 256 for every text, without unknown tokens.

    >>> ByteTokenizer().decode(ByteTokenizer().encode("a b\\n").tolist())
    ['a', ' ', 'b', '\\\\n']
    """

    size = 256

    def encode(self, text: str) -> Tensor:
        # torch needs writable memory, hence the bytearray
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0).byte()

    def decode(self, tokens: Iterable[int]) -> list[str]:
        return [repr(chr(token))[1:-1] if token < 128 else f"\\x{token:02x}" for token in tokens]


class WordTokenizer:
    """A fixed vocabulary of words: 0 is padding, 1 is every word outside the vocabulary.

    >>> words = WordTokenizer.count("to be or not to be".split(), limit=4)
    >>> words.encode_words(["to", "be", "king"]).tolist()
    [3, 2, 1]
    >>> words.decode([0, 2, 3])
    ['<pad>', 'be', 'to']
    """

    def __init__(self, words: Sequence[str], pattern: re.Pattern[str] = WORDS_AND_MARKS) -> None:
        self.names = [PAD, UNKNOWN, *(word for word in words if word not in (PAD, UNKNOWN))]
        self.numbers = {word: number for number, word in enumerate(self.names)}
        self.pattern = pattern
        self.size = len(self.names)

    @classmethod
    def count(
        cls, words: Iterable[str], limit: int | None = None, pattern: re.Pattern[str] = WORDS_AND_MARKS
    ) -> WordTokenizer:
        """The most frequent words, at most ``limit`` including padding and unknown; ties are broken alphabetically."""
        counts = Counter(words)
        for special in (PAD, UNKNOWN):  # a text may contain them; they are these tokens, not further words
            counts.pop(special, None)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ordered if limit is None else ordered[: limit - 2], pattern)

    def encode(self, text: str) -> Tensor:
        return self.encode_words(self.pattern.findall(text))

    def encode_words(self, words: Sequence[str]) -> Tensor:
        """The tokens of a text that is already split into words."""
        return torch.tensor(self.look_up(words), dtype=torch.int32)

    def look_up(self, words: Sequence[str]) -> list[int]:
        """The same as a list, for many short texts that become one tensor."""
        unknown = self.numbers[UNKNOWN]
        return [self.numbers.get(word, unknown) for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        names = (self.names[token] for token in tokens)
        return [name if name.isprintable() else repr(name)[1:-1] for name in names]  # a newline may be a word
