"""Classification of short texts: fixed items, padded on the right to one length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.data.units import Words
from whence.lab.tasks.base import Batch, Task, as_numbers, at_least, batch_rows, one_of

MASKS = ("none", "keys")


@dataclass(frozen=True)
class Items:
    """Texts of one part, as rows of one length."""

    tokens: Tensor  # [N, T] int32, padding is 0
    labels: Tensor  # [N] int64

    @classmethod
    def padded(cls, texts: Sequence[list[int]], labels: Sequence[int], length: int) -> Items:
        """Texts cut at the length, and padded to it.

        >>> Items.padded([[5, 6, 7], [8]], [0, 1], 2).tokens.tolist()
        [[5, 6], [8, 0]]
        """
        rows = [text[:length] + [0] * (length - len(text)) for text in texts]
        return cls(torch.tensor(rows, dtype=torch.int32), torch.tensor(labels, dtype=torch.int64))


class Classification(Task):
    """``mask_padding`` decides what a model is told: "keys" gives Batch.padding, "none" leaves padding unmarked.

    Unmarked padding is a token like any other. Some published studies train that way, and can only be repeated so.
    """

    kind = "classify"
    metric = "accuracy"
    pad = 0

    def __init__(
        self, train: Items, tests: dict[str, Items], units: Words, classes: int, mask: str, settings: dict[str, Any]
    ) -> None:
        one_of(self.name, "mask_padding", mask, MASKS)
        self.train, self.tests, self.units, self.mask = train, tests, units, mask
        self.vocabulary, self.classes = units.size, classes
        self.context = train.tokens.shape[1]
        at_least(self.name, "context", self.context, 1)
        self.settings = {"task": self.name, **settings, "context": self.context}

    def splits(self) -> dict[str, int]:
        return {split: items.tokens.shape[1] for split, items in self.tests.items()}

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        return self._batch(self.train, torch.randint(len(self.train.labels), (size,), generator=generator))

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        for rows in torch.randperm(len(self.train.labels), generator=generator).split(size):
            yield self._batch(self.train, rows)

    def evaluation(self, split: str) -> list[Batch]:
        rows = batch_rows(self.known_split(split))
        items = self.tests[split]
        return [self._batch(items, chosen) for chosen in torch.arange(len(items.labels)).split(rows)]

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return self.units.decode(as_numbers(tokens))

    def _batch(self, items: Items, rows: Tensor) -> Batch:
        tokens = items.tokens[rows].long()
        return Batch(tokens, items.labels[rows], tokens != 0 if self.mask == "keys" else None)
