"""Language modelling on a stream of tokens: random training windows, and the same test tokens scored at every length.

Extrapolation is measured on one fixed set of tokens. The test stream is cut into blocks of the training length. At 1x the
model sees a block alone, at 8x the same block after seven blocks' length of preceding text, and only the block is scored.
So a difference between lengths is never a difference of text: more context helps, or the longer input hurts. At 1x the
first token of a block has no context and the last has nearly all; this is the same for all mechanisms.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.lab.data import corpora, python_texts
from whence.lab.data.corpora import content_hash
from whence.lab.data.tokenizers import WORDS_AND_MARKS, ByteTokenizer, Tokenizer, WordTokenizer
from whence.lab.tasks.base import (
    IGNORE_INDEX,
    LENGTHS,
    Batch,
    Task,
    evaluation_batch_size,
    extrapolation_lengths,
    require_at_least,
    require_choice,
    require_lengths,
    to_ints,
)
from whence.lab.tasks.baselines import BigramModel, token_baselines


class LanguageModelling(Task):
    """Next-token prediction. ``blocks`` is the number of scored test blocks, evenly spaced in the stream.

    A validation stream, if there is one, is scored at the training length.
    """

    kind = "lm"
    metric = "perplexity"
    unit = "token"  # what a token is
    evaluation_settings = ("lengths",)

    def __init__(
        self,
        train: Tensor,
        test: Tensor,
        tokenizer: Tokenizer,
        context: int,
        blocks: int,
        settings: dict[str, Any],
        validation: Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_at_least(self.name, "context", context, 2)
        require_at_least(self.name, "blocks", blocks, 1)
        self.tokenizer, self.vocab_size, self.context = tokenizer, tokenizer.size, context
        self.train, self.test, self.validation_stream = train, test, validation
        self.lengths = require_lengths(self.name, lengths)
        # the same blocks are scored whatever lengths up to 8x are chosen; longer ones need more text before each block
        longest = max(*LENGTHS, *(self.lengths or ()))
        if self.lengths and len(test) <= longest * context:
            longest = max(self.lengths)  # of a short text
        self._enough("training", train)
        self._enough("test", test, longest)
        self.starts = self.choose_blocks("test", test, (longest - 1) * context, blocks)
        if validation is not None:
            self._enough("validation", validation)
            self.validation = "validation"
            self.validation_starts = self.choose_blocks("validation", validation, 0, blocks)
        self.settings = {"task": self.name, **settings, "context": context, "blocks": blocks}
        if longest != max(LENGTHS):
            self.settings["longest"] = longest

    def hold_out_validation(self) -> None:
        """The last tenth of the training stream, and at least one block of it, becomes the validation stream."""
        length = max(len(self.train) // 10, self.context + 1)
        self._enough("training", self.train, held_out=length)
        self.train, self.validation_stream = self.train[:-length], self.train[-length:]
        self.validation = "validation"
        self.validation_starts = self.choose_blocks("validation", self.validation_stream, 0, self.settings["blocks"])

    def choose_blocks(self, part: str, stream: Tensor, history: int, blocks: int) -> Tensor:
        """The starts of ``blocks`` blocks of a part, evenly spaced, each after at least ``history`` tokens of text."""
        return space_evenly(torch.arange(history, len(stream) - self.context, self.context), blocks)

    def splits(self) -> dict[str, int]:
        lengths = extrapolation_lengths(self.context, self.lengths or LENGTHS)
        return lengths if self.validation_stream is None else lengths | {"validation": self.context}

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(self.train) - self.context, (size,), generator=generator)
        return windows(self.train, starts, self.context)

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Adjacent windows from a random first token, so that epochs cut the text at different positions."""
        first = int(torch.randint(min(self.context, len(self.train) - self.context), (1,), generator=generator))
        starts = torch.arange(first, len(self.train) - self.context, self.context)
        order = torch.randperm(len(starts), generator=generator)
        for chosen in starts[order].split(size):
            yield windows(self.train, chosen, self.context)

    def evaluation(self, split: str) -> list[Batch]:
        length = self.split_length(split)
        if split == "validation" and self.validation_stream is not None:
            parts = self.validation_starts.split(evaluation_batch_size(length))
            return [windows(self.validation_stream, starts, length) for starts in parts]
        history = length - self.context
        return [
            windows(self.test, starts - history, length, history)
            for starts in self.starts.split(evaluation_batch_size(length))
        ]

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return self.tokenizer.decode(to_ints(tokens))

    def baselines(self) -> dict[str, Any]:
        evaluations = {split: self.evaluation(split) for split in self.splits()}
        return token_baselines(BigramModel(self.train, self.vocab_size), evaluations, self.unit)

    def describe_data(self) -> dict[str, Any]:
        streams = {"train": self.train, "validation": self.validation_stream, "test": self.test}
        return {
            "items": {part: len(stream) for part, stream in streams.items() if stream is not None},
            "counted": f"{self.unit}s",
            "tokens": f"{self.unit}s; a vocabulary of {self.vocab_size:,}",
        }

    def _enough(self, part: str, stream: Tensor, multiple: int = 1, held_out: int = 0) -> None:
        """Reject a stream without one block at ``multiple`` times the context beside the tokens that are held out."""
        least = multiple * self.context + 1 + held_out
        if len(stream) >= least:
            return
        rule, remedy = f"a context of {self.context} needs {least}", "use a smaller context or more text"
        if multiple > 1:
            rule = f"the evaluation at {multiple}x a context of {self.context} needs {multiple} x {self.context} + 1 = {least}"
            remedy = "use smaller lengths, such as --lengths 1x, a smaller context or more text"
        raise usage_error(f"task {self.name!r}", f"{len(stream)} tokens of {part} text", rule, remedy)


def space_evenly(starts: Tensor, count: int) -> Tensor:
    """``count`` evenly spaced entries, or all of them if there are not more.

    >>> space_evenly(torch.arange(10), 3).tolist(), space_evenly(torch.arange(2), 3).tolist()
    ([0, 3, 6], [0, 1])
    """
    return starts if len(starts) <= count else starts[torch.arange(count) * len(starts) // count]


def windows(stream: Tensor, starts: Tensor, length: int, history: int = 0) -> Batch:
    """Windows of a stream, with the next tokens as targets; the first ``history`` tokens are not scored.

    >>> batch = windows(torch.arange(10), torch.tensor([0, 4]), 3, history=1)
    >>> batch.tokens.tolist(), batch.targets.tolist()
    ([[0, 1, 2], [4, 5, 6]], [[-100, 2, 3], [-100, 6, 7]])
    """
    indices = starts[:, None] + torch.arange(length + 1)
    pieces = stream[indices].long()  # streams have small integer types
    targets = pieces[:, 1:].clone()
    targets[:, :history] = IGNORE_INDEX
    return Batch(pieces[:, :-1], targets)


class Topics(LanguageModelling):
    """The help topics of Python, which need no download. Tokens are bytes by default, without unknown tokens.

    With ``units="words"`` the vocabulary is the ``words`` most frequent ones of the training split. All other words are one
    token, so perplexities of different vocabulary sizes do not compare.
    """

    name = "topics"

    def __init__(
        self,
        context: int = 64,
        blocks: int = 128,
        units: str = "bytes",
        words: int = 2048,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_choice(self.name, "units", units, ("bytes", "words"))
        require_at_least(self.name, "words", words, 3)
        parts = python_texts.topics(f"task {self.name!r}")
        train, test = "\n\n".join(parts.train.values()), "\n\n".join(parts.test.values())
        chosen: Tokenizer = (
            ByteTokenizer() if units == "bytes" else WordTokenizer.count(WORDS_AND_MARKS.findall(train), words)
        )
        settings = {
            "units": units,
            "words": words if units == "words" else None,
            "python": platform.python_version(),
            "data_hash": content_hash([train, test]),
        }
        self.unit = units.removesuffix("s")
        super().__init__(chosen.encode(train), chosen.encode(test), chosen, context, blocks, settings, lengths=lengths)


#: the text is already split into words; a newline is a token, as in published perplexities
LINES_IN_WORDS = re.compile(r"\n|[^\s]+")


class WikiText(LanguageModelling):
    """WikiText in its published words. The vocabulary is that of the training text, limited to ``words``.

    ``train_part="valid"`` trains on the small validation split, for folders without the training split. It must be set
    explicitly, since its results are not those of the full set.
    """

    size: int
    unit = "word"

    def __init__(
        self,
        context: int = 64,
        blocks: int = 512,
        train_part: str = "train",
        words: int | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_choice(self.name, "train_part", train_part, ("train", "valid"))
        require_at_least(self.name, "words", 3 if words is None else words, 3)
        subject = f"task {self.name!r}"
        train, test = (corpora.wikitext(subject, self.size, part) for part in (train_part, "test"))
        split = LINES_IN_WORDS.findall(train)
        tokenizer = WordTokenizer.count(split, words, LINES_IN_WORDS)
        settings = {"train_part": train_part, "words": words, "data_hash": content_hash([train, test])}
        train_tokens, test_tokens = tokenizer.encode_words(split), tokenizer.encode(test)
        super().__init__(train_tokens, test_tokens, tokenizer, context, blocks, settings, lengths=lengths)


class WikiText2(WikiText):
    """WikiText-2: two million words."""

    name, size = "wikitext2", 2


class WikiText103(WikiText):
    """WikiText-103: a hundred million words. A limit on ``words`` keeps the output layer small."""

    name, size = "wikitext103", 103


class Books(LanguageModelling):
    """Bytes of public-domain books, split by book. ``characters`` limits the training text; None reads all of it."""

    name = "books"
    unit = "byte"

    def __init__(
        self,
        context: int = 256,
        blocks: int = 128,
        characters: int | None = 10_000_000,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_at_least(self.name, "characters", context + 1 if characters is None else characters, context + 1)
        subject = f"task {self.name!r}"
        train, test = corpora.books(subject, "train", characters), corpora.books(subject, "test")
        settings = {"characters": characters, "data_hash": content_hash([train, test])}
        tokenizer = ByteTokenizer()
        train_tokens, test_tokens = tokenizer.encode(train), tokenizer.encode(test)
        super().__init__(train_tokens, test_tokens, tokenizer, context, blocks, settings, lengths=lengths)


class PretrainedTokenizer:
    """A tokenizer of transformers, for ``OwnText``."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.size = len(tokenizer)

    def encode(self, text: str) -> Tensor:
        # the corpus is longer than any context; the model sees windows of it
        return torch.tensor(
            self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=torch.int32
        )

    def decode(self, tokens: Iterable[int]) -> list[str]:
        names = (self.tokenizer.decode([token]) for token in tokens)
        return [name if name.isprintable() else repr(name)[1:-1] for name in names]

    def decode_text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))


class OwnText(LanguageModelling):
    """Language modelling on any text in the tokens of a pretrained model, to fine-tune it.

    task = OwnText(tokenizer, train=..., test=..., context=256)
    train(whence.hf.LogitsModel(model), task, Budget(steps=200, lr=1e-4), seed=0, state=Path("build/tuning.safetensors"))
    """

    name = "own_text"

    def __init__(
        self,
        tokenizer: Any,
        train: str,
        test: str,
        context: int = 256,
        blocks: int = 64,
        lengths: Sequence[int] | None = None,
    ) -> None:
        wrapped = PretrainedTokenizer(tokenizer)
        settings = {"tokens": wrapped.size, "data_hash": content_hash([train, test])}
        train_tokens, test_tokens = wrapped.encode(train), wrapped.encode(test)
        super().__init__(train_tokens, test_tokens, wrapped, context, blocks, settings, lengths=lengths)
