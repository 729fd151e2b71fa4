"""Tokenizers: bytes, characters, the most frequent words of the training split, or a tokenizer file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from whence.errors import require_package, usage_error

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

    def decode_text(self, tokens: Sequence[int]) -> str:
        """The text of all tokens, such as a generated one."""


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

    def decode_text(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


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

    def decode_text(self, tokens: Sequence[int]) -> str:
        """Words with spaces where text usually has them, since its own spaces are not tokens; characters as they are."""
        names = [self.names[token] for token in tokens]
        return "".join(names) if self.pattern is CHARACTERS else join_words(names)


#: spaces that joined words have and text does not: before closing marks, after opening ones, around hyphens and apostrophes
EXTRA_SPACE = re.compile(r" (?=[.,;:!?%)\]}])|(?<=[(\[{]) | (?=[-'’] \w)|(?<=\w [-'’]) ")


def join_words(words: Sequence[str]) -> str:
    """A text of words and marks.

    >>> join_words("Ein Mann mit T - Shirt ( rot ) , der winkt .".split())
    'Ein Mann mit T-Shirt (rot), der winkt.'
    """
    return EXTRA_SPACE.sub("", " ".join(words))


#: a character, including line breaks
CHARACTERS = re.compile(r".", re.DOTALL)
TOKENS = ("words", "bytes", "characters")  # or the path of a tokenizer.json


class TokenizerFile:
    """A ``tokenizer.json`` of the package tokenizers, as published with most pretrained models."""

    def __init__(self, path: str) -> None:
        package = require_package("tokenizers", f"--tokens {path}", "data")
        if not Path(path).is_file():
            listed = ", ".join(TOKENS)
            raise usage_error(
                "--tokens", repr(path), f"it must be one of {listed}, or a tokenizer.json", "check the path"
            )
        try:
            self.tokenizer: Any = package.Tokenizer.from_file(path)
        except Exception as error:  # the package raises a bare Exception
            got = f"{path}, which cannot be read ({error})"
            raise usage_error(
                "--tokens", got, "it must be a tokenizer.json of the package tokenizers", "save it again"
            ) from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.size = self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int32)

    def decode(self, tokens: Iterable[int]) -> list[str]:
        names = (self.tokenizer.decode([token], skip_special_tokens=False) for token in tokens)
        return [name if name and name.isprintable() else repr(name)[1:-1] or "<empty>" for name in names]

    def decode_text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))


class ReservedTokenizer:
    """Another tokenizer after some reserved tokens, such as padding.

    >>> padded = ReservedTokenizer(ByteTokenizer(), [PAD])
    >>> padded.size, padded.encode("a").tolist(), padded.decode([0, 98])
    (257, [98], ['<pad>', 'a'])
    """

    def __init__(self, tokenizer: Tokenizer, reserved: Sequence[str]) -> None:
        self.tokenizer, self.reserved = tokenizer, list(reserved)
        self.size = tokenizer.size + len(self.reserved)

    def encode(self, text: str) -> Tensor:
        return self.tokenizer.encode(text).int() + len(self.reserved)

    def decode(self, tokens: Iterable[int]) -> list[str]:
        first = len(self.reserved)
        return [self.reserved[t] if t < first else self.tokenizer.decode([t - first])[0] for t in tokens]

    def decode_text(self, tokens: Sequence[int]) -> str:
        """The text without reserved tokens."""
        first = len(self.reserved)
        return self.tokenizer.decode_text([token - first for token in tokens if token >= first])


def build_tokenizer(tokens: str, train: Iterable[str], limit: int | None = None) -> Tokenizer:
    """A tokenizer by name or file. The vocabulary of words and characters comes from the training texts alone.

    Args:
        tokens: ``words``, ``bytes``, ``characters`` or the path of a ``tokenizer.json``.
        train: the training texts.
        limit: largest vocabulary of words or characters, including padding and unknown.
    """
    if tokens == "bytes":
        return ByteTokenizer()
    if tokens in ("words", "characters"):
        pattern = WORDS_AND_MARKS if tokens == "words" else CHARACTERS
        return WordTokenizer.count((token for text in train for token in pattern.findall(text)), limit, pattern)
    if Path(tokens).suffix != ".json":
        listed = ", ".join(TOKENS)
        raise usage_error(
            "--tokens", repr(tokens), f"it must be one of {listed}, or a tokenizer.json", "choose one of these"
        )
    return TokenizerFile(tokens)


def locate_tokens(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """The characters of each token of ``encode(text)``, as start and end.

    >>> locate_tokens(WordTokenizer.count(["a"]), "a  bc!"), locate_tokens(ByteTokenizer(), "aé")
    ([(0, 1), (3, 5), (5, 6)], [(0, 1), (1, 2), (1, 2)])
    """
    if isinstance(tokenizer, WordTokenizer):
        return [match.span() for match in tokenizer.pattern.finditer(text)]
    if isinstance(tokenizer, TokenizerFile):
        return list(tokenizer.tokenizer.encode(text, add_special_tokens=False).offsets)
    if isinstance(tokenizer, ReservedTokenizer):
        return locate_tokens(tokenizer.tokenizer, text)
    return [(at, at + 1) for at, character in enumerate(text) for _ in character.encode()]  # bytes


def token_unit(tokens: str) -> str:
    """The name of a tokenizer's tokens in a report."""
    return tokens if tokens in TOKENS else f"tokens of {Path(tokens).name}"
