"""Where a snippet comes from: prose of the language reference, code of the standard library, or its docstrings."""

from __future__ import annotations

import platform

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.lab.data import python_texts
from whence.lab.data.folder import content_hash
from whence.lab.data.units import WORDS_AND_MARKS, Words
from whence.lab.tasks.base import at_least, longer
from whence.lab.tasks.labelled import Classification, Items

SOURCES = ("prose", "code", "docstrings")  # in the order of the labels


class Sources(Classification):
    """Snippets of exactly ``context`` tokens, so nothing is padded, and equally many of each source.

    A topic or a file is in training or in test, whole; a file's code and its docstrings are on the same side. Longer
    evaluations begin where the short ones do and read on, so they ask the same question with more evidence.
    """

    name = "sources"

    def __init__(self, context: int = 32, words: int = 4096, items: int = 200) -> None:
        at_least(self.name, "context", context, 1)
        at_least(self.name, "words", words, 3)
        at_least(self.name, "items", items, 1)
        asked = f'load("{self.name}")'
        parts = (python_texts.topics(asked), *python_texts.library(asked))
        split = WORDS_AND_MARKS.findall
        train_texts = [[split(text) for text in part.train.values()] for part in parts]
        test_texts = [[split(text) for text in part.test.values()] for part in parts]
        units = Words.counted((word for texts in train_texts for text in texts for word in text), words)
        lengths = longer(context, (1, 2, 4, 8))
        train = [_snippets([units.encode_words(text) for text in texts], context, context) for texts in train_texts]
        longest = [
            _snippets([units.encode_words(text) for text in texts], context, lengths["8x"]) for texts in test_texts
        ]
        if not all(map(len, train + longest)):
            raise usage_error(
                asked, f"context={context}", "every source needs a text 8 times as long", "give a smaller one"
            )
        per_train = min(map(len, train))
        per_test = min(items, *map(len, longest))
        tests = {
            name: _stacked([_spread(part, per_test)[:, :length] for part in longest])
            for name, length in lengths.items()
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
        # nothing is padded, so there is nothing to mask
        super().__init__(_stacked([_spread(part, per_train) for part in train]), tests, units, 3, "none", settings)


def _snippets(texts: list[Tensor], step: int, length: int) -> Tensor:
    """All pieces of a length that begin at multiples of a step and lie within one text, [N, length].

    >>> _snippets([torch.arange(5), torch.arange(2)], 2, 3).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    pieces = [text.unfold(0, length, step) for text in texts if len(text) >= length]
    return torch.cat(pieces) if pieces else torch.empty(0, length, dtype=torch.int32)


def _spread(pieces: Tensor, count: int) -> Tensor:
    """So many of the pieces, evenly spaced."""
    return pieces[torch.arange(count) * len(pieces) // count]


def _stacked(classes: list[Tensor]) -> Items:
    labels = [label for label, pieces in enumerate(classes) for _ in range(len(pieces))]
    return Items(torch.cat(classes).contiguous(), torch.tensor(labels))
