"""What a token is: a byte, or a word of a vocabulary that was counted on the training part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

PAD, UNKNOWN = "<pad>", "<unk>"

#: a word, or one mark; the rules of tables are one token each, or whole inputs would consist of nothing else
WORDS_AND_MARKS = re.compile(r"\w+|-+|=+|\*+|[^\w\s]")


class Units(Protocol):
    """Text to numbers and back."""

    size: int

    def encode(self, text: str) -> Tensor:
        """All tokens of a text, [N], in the smallest integers that hold them."""

    def decode(self, tokens: Iterable[int]) -> list[str]:
        """Each token as text that can be written on an axis."""


class Bytes:
    """The bytes of UTF-8: 256 of them in every text, nothing counted, nothing unknown.

    >>> Bytes().decode(Bytes().encode("a b\\n").tolist())
    ['a', ' ', 'b', '\\\\n']
    """

    size = 256

    def encode(self, text: str) -> Tensor:
        # through a bytearray, because torch wants memory that it may write to
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0).byte()

    def decode(self, tokens: Iterable[int]) -> list[str]:
        return [repr(chr(token))[1:-1] if token < 128 else f"\\x{token:02x}" for token in tokens]


class Words:
    """A fixed list of words: 0 is padding, 1 is every word that is not on the list.

    >>> words = Words.counted("to be or not to be".split(), limit=4)
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
    def counted(
        cls, words: Iterable[str], limit: int | None = None, pattern: re.Pattern[str] = WORDS_AND_MARKS
    ) -> Words:
        """The most frequent words, at most ``limit`` with padding and unknown; of equals the alphabetically first."""
        counts = Counter(words)
        for special in (PAD, UNKNOWN):  # a text may spell one out itself; it then is that token, not a second one
            counts.pop(special, None)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ordered if limit is None else ordered[: limit - 2], pattern)

    def encode(self, text: str) -> Tensor:
        return self.encode_words(self.pattern.findall(text))

    def encode_words(self, words: Sequence[str]) -> Tensor:
        """The tokens of words that were already told apart."""
        return torch.tensor(self.look_up(words), dtype=torch.int32)

    def look_up(self, words: Sequence[str]) -> list[int]:
        """The same as a list, for the many short texts that become one tensor together."""
        unknown = self.numbers[UNKNOWN]
        return [self.numbers.get(word, unknown) for word in words]

    def decode(self, tokens: Iterable[int]) -> list[str]:
        names = (self.names[token] for token in tokens)
        return [name if name.isprintable() else repr(name)[1:-1] for name in names]  # the end of a line may be a word
