"""Byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909; on bytes as in GPT-2), trained by the package tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from whence.errors import require_package, usage_error
from whence.lab.data.tokenizers import TokenizerFile

#: the last token of every document
END_OF_TEXT = "<|endoftext|>"
#: 256 bytes and the end of a document
MIN_VOCABULARY = 257
#: characters that the trainer gets at once; it reads a longer text slowly
CHUNK = 100_000


def train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """A tokenizer as the text of a ``tokenizer.json``. Every text can be encoded, without unknown tokens, and restored exactly.

    Args:
        texts: training texts.
        vocab_size: largest number of tokens, with the 256 bytes and the end of a document. Little text gives fewer.

    >>> from tokenizers import Tokenizer
    >>> trained = Tokenizer.from_str(train_bpe(["low lower lowest"], 262))
    >>> trained.decode(trained.encode("slow ö").ids), trained.encode("low").tokens
    ('slow ö', ['low'])
    """
    require_vocabulary(vocab_size)
    package = require_package("tokenizers", "a byte-level BPE", "data")
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_split_long(texts), trainer)
    return tokenizer.to_str()


def require_vocabulary(vocab_size: int) -> None:
    if vocab_size < MIN_VOCABULARY:
        rule = f"a byte-level BPE has 256 bytes and {END_OF_TEXT}, so at least {MIN_VOCABULARY} tokens"
        raise usage_error("--vocab-size", str(vocab_size), rule, "use 8192, for example")


def read_tokenizer(path: Path) -> str:
    """The text of a ``tokenizer.json`` with a token for the end of a document, which is added if it is missing."""
    tokenizer: Any = TokenizerFile(str(path)).tokenizer
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer.to_str()


def _split_long(texts: Iterable[str]) -> Iterator[str]:
    """Pieces of at most ``CHUNK`` characters that end after a line, if they can."""
    for text in texts:
        start = 0
        while start < len(text):
            end = min(start + CHUNK, len(text))
            if end < len(text):
                end = text.rfind("\n", start, end) + 1 or end
            yield text[start:end]
            start = end
