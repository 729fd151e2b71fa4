"""Text classification: fixed items, padded on the right to one length."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.lab.data import corpora, python_texts
from whence.lab.data.corpora import content_hash, data_folder
from whence.lab.data.splits import describe_lengths
from whence.lab.data.tokenizers import WORDS_AND_MARKS, Tokenizer, WordTokenizer
from whence.lab.tasks.base import (
    LENGTHS,
    Batch,
    Task,
    evaluation_batch_size,
    extrapolation_lengths,
    named_generator,
    require_at_least,
    require_choice,
    require_lengths,
    to_ints,
)
from whence.lab.tasks.baselines import classification_baselines

MASKS = ("none", "keys")


@dataclass(frozen=True)
class Items:
    """The texts and labels of a split, as rows of one length."""

    tokens: Tensor  # [N, T] int32, padding is 0
    labels: Tensor  # [N] int64

    @classmethod
    def from_texts(cls, texts: Sequence[list[int]], labels: Sequence[int], length: int) -> Items:
        """Truncate or pad texts to a length.

        >>> Items.from_texts([[5, 6, 7], [8]], [0, 1], 2).tokens.tolist()
        [[5, 6], [8, 0]]
        """
        rows = [text[:length] + [0] * (length - len(text)) for text in texts]
        return cls(torch.tensor(rows, dtype=torch.int32), torch.tensor(labels, dtype=torch.int64))


class Classification(Task):
    """Classification of short texts. ``mask_padding="keys"`` sets ``Batch.key_mask``; "none" does not mask padding.

    Unmasked padding is a token like any other. Some published studies train that way.
    """

    kind = "classify"
    metric = "accuracy"
    pad = 0
    class_names: tuple[str, ...] = ()  # in the order of the labels; numbers if it is empty

    def __init__(
        self,
        train: Items,
        tests: dict[str, Items],
        tokenizer: Tokenizer,
        classes: int,
        mask: str,
        settings: dict[str, Any],
    ) -> None:
        require_choice(self.name, "mask_padding", mask, MASKS)
        self.train, self.tests, self.tokenizer, self.mask = train, tests, tokenizer, mask
        self.vocab_size, self.num_classes = tokenizer.size, classes
        self.context = train.tokens.shape[1]
        require_at_least(self.name, "context", self.context, 1)
        self.settings = {"task": self.name, **settings, "context": self.context}

    def splits(self) -> dict[str, int]:
        return {split: items.tokens.shape[1] for split, items in self.tests.items()}

    def hold_out_validation(self) -> None:
        """A tenth of the training rows, drawn at random, becomes the validation split."""
        count = len(self.train.labels)
        require_at_least(self.name, "training rows", count, 2)
        order = torch.randperm(count, generator=named_generator(self.name, "validation"))
        held_out, rest = order[: max(1, count // 10)], order[max(1, count // 10) :]
        self.tests = self.tests | {"validation": Items(self.train.tokens[held_out], self.train.labels[held_out])}
        self.train = Items(self.train.tokens[rest], self.train.labels[rest])
        self.validation = "validation"

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        return self._batch(self.train, torch.randint(len(self.train.labels), (size,), generator=generator))

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        for rows in torch.randperm(len(self.train.labels), generator=generator).split(size):
            yield self._batch(self.train, rows)

    def evaluation(self, split: str) -> list[Batch]:
        rows = evaluation_batch_size(self.split_length(split))
        items = self.tests[split]
        return [self._batch(items, chosen) for chosen in torch.arange(len(items.labels)).split(rows)]

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return self.tokenizer.decode(to_ints(tokens))

    def baselines(self) -> dict[str, Any]:
        tests = {split: (items.tokens, items.labels) for split, items in self.tests.items()}
        return classification_baselines(
            self.train.tokens, self.train.labels, tests, self.num_classes or 0, self.vocab_size
        )

    def describe_data(self) -> dict[str, Any]:
        parts = {"train": self.train, **self.tests}
        names = self.class_names or tuple(map(str, range(self.num_classes or 0)))
        counts = {part: items.labels.bincount(minlength=len(names)).tolist() for part, items in parts.items()}
        lengths = [int(n) for n in (self.train.tokens != 0).sum(1)]
        return {
            "items": {part: len(items.labels) for part, items in parts.items()},
            "classes": {name: {part: own[label] for part, own in counts.items()} for label, name in enumerate(names)},
            "lengths": describe_lengths(lengths, None, "words"),
            "tokens": f"words; a vocabulary of {self.vocab_size:,}",
        }

    def _batch(self, items: Items, rows: Tensor) -> Batch:
        tokens = items.tokens[rows].long()
        return Batch(tokens, items.labels[rows], tokens != 0 if self.mask == "keys" else None)


SOURCES = ("prose", "code", "docstrings")  # in the order of the labels


class Sources(Classification):
    """The source of a snippet: prose of the language reference, code of the standard library, or its docstrings.

    Snippets have exactly ``context`` tokens, so there is no padding, and all sources have the same number of them. A whole
    topic or file is in training or in test; a file's code and its docstrings are in the same split. Longer evaluations start
    where the short ones start and continue, so they ask the same question with more evidence.
    """

    name = "sources"
    class_names = SOURCES
    evaluation_settings = ("lengths",)

    def __init__(
        self, context: int = 32, words: int = 4096, items: int = 200, lengths: Sequence[int] | None = None
    ) -> None:
        require_at_least(self.name, "context", context, 1)
        require_at_least(self.name, "words", words, 3)
        require_at_least(self.name, "items", items, 1)
        self.lengths = require_lengths(self.name, lengths)
        subject = f"task {self.name!r}"
        parts = (python_texts.topics(subject), *python_texts.library(subject))
        split = WORDS_AND_MARKS.findall
        train_texts = [[split(text) for text in part.train.values()] for part in parts]
        test_texts = [[split(text) for text in part.test.values()] for part in parts]
        tokenizer = WordTokenizer.count((word for texts in train_texts for text in texts for word in text), words)
        splits = extrapolation_lengths(context, self.lengths or LENGTHS)
        most = max(*LENGTHS, *(self.lengths or ()))  # snippets are the same whatever lengths up to 8x are chosen
        train = [_snippets([tokenizer.encode_words(text) for text in texts], context, context) for texts in train_texts]
        longest = [
            _snippets([tokenizer.encode_words(text) for text in texts], context, most * context) for texts in test_texts
        ]
        if not all(map(len, train + longest)):
            raise usage_error(
                subject,
                f"context={context}",
                f"every source needs a text {most} times as long",
                "use a smaller context",
            )
        per_train = min(map(len, train))
        per_test = min(items, *map(len, longest))
        tests = {
            name: _stack_classes([_spread(part, per_test)[:, :length] for part in longest])
            for name, length in splits.items()
        }
        text = [text for part in parts for side in (part.train, part.test) for text in side.values()]
        settings = {
            "words": words,
            "items": items,
            "train_items": 3 * per_train,
            "test_items": 3 * per_test,
            "python": platform.python_version(),
            "data_hash": content_hash(text),
        }
        if most > max(LENGTHS):
            settings["longest"] = most
        # no padding, so no mask
        super().__init__(
            _stack_classes([_spread(part, per_train) for part in train]), tests, tokenizer, 3, "none", settings
        )


def _snippets(texts: list[Tensor], step: int, length: int) -> Tensor:
    """All pieces of a length that start at multiples of a step and lie within one text, [N, length].

    >>> _snippets([torch.arange(5), torch.arange(2)], 2, 3).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    pieces = [text.unfold(0, length, step) for text in texts if len(text) >= length]
    return torch.cat(pieces) if pieces else torch.empty(0, length, dtype=torch.int32)


def _spread(pieces: Tensor, count: int) -> Tensor:
    """``count`` of the pieces, evenly spaced."""
    return pieces[torch.arange(count) * len(pieces) // count]


def _stack_classes(classes: list[Tensor]) -> Items:
    labels = [label for label, pieces in enumerate(classes) for _ in range(len(pieces))]
    return Items(torch.cat(classes).contiguous(), torch.tensor(labels))


#: the published test split has no labels; a labelled copy in the folder is scored too
FILES = {"dev": "dev.tsv", "test": "test-labeled.tsv"}


class Sst2(Classification):
    """Sentiment of film reviews, positive or negative.

    The text is published as words separated by spaces. The vocabulary is the ``words`` most frequent ones of training.
    """

    name = "sst2"
    class_names = ("negative", "positive")

    def __init__(self, context: int = 64, words: int = 10_000, mask_padding: str = "keys") -> None:
        require_at_least(self.name, "context", context, 1)
        require_at_least(self.name, "words", words, 3)
        subject = f"task {self.name!r}"
        texts, labels = corpora.sentiment(subject, "train_full.tsv")
        train = [text.split() for text in texts]
        tokenizer = WordTokenizer.count((word for text in train for word in text), words)
        tests, read = {}, list(texts)
        for split, name in FILES.items():
            if split == "test" and not (data_folder(subject) / "glue/SST-2" / name).exists():
                continue
            test_texts, test_labels = corpora.sentiment(subject, name)
            tests[split] = Items.from_texts([tokenizer.look_up(t.split()) for t in test_texts], test_labels, context)
            read += test_texts
        settings = {"words": words, "mask_padding": mask_padding, "data_hash": content_hash(read)}
        items = Items.from_texts([tokenizer.look_up(text) for text in train], labels, context)
        super().__init__(items, tests, tokenizer, 2, mask_padding, settings)
