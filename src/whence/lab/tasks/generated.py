"""Tasks whose inputs are made up: what they share is how evaluations stay fixed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from whence.lab.data.folder import content_hash
from whence.lab.tasks.base import Batch, Task, at_least, batch_rows, fixed_generator, longer


class Generated(Task):
    """A task with a rule instead of data. ``amount`` is what the rule counts in: pairs, or symbols.

    Evaluations go up to ``longest`` times the trained amount.
    """

    kind = "retrieve"
    metric = "accuracy"

    def __init__(self, amount: int, items: int, seed: int, settings: dict[str, Any], longest: int = 8) -> None:
        at_least(self.name, "longest", longest, 1)
        self.amount, self.items, self.seed, self.longest = amount, items, seed, longest
        self.context = self.length(amount)
        # torch promises the same random numbers only within a version: the hash shows when they changed
        drawn = (batch.tokens.numpy().tobytes() for batch in self.evaluation("test"))
        self.settings = {"task": self.name, **settings, "data_hash": content_hash(drawn)}

    @abstractmethod
    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        """Inputs by the rule."""

    @abstractmethod
    def length(self, amount: int) -> int:
        """Tokens of an input."""

    def amounts(self) -> dict[str, int]:
        return longer(self.amount, [factor for factor in (1, 2, 4, 8) if factor <= self.longest])

    def splits(self) -> dict[str, int]:
        return {split: self.length(amount) for split, amount in self.amounts().items()}

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        return self.draw(size, self.amount, generator)

    def evaluation(self, split: str) -> list[Batch]:
        rows = batch_rows(self.known_split(split))
        generator = fixed_generator(self.name, self.seed, split)
        sizes = [min(rows, self.items - done) for done in range(0, self.items, rows)]
        return [self.draw(size, self.amounts()[split], generator) for size in sizes]


def without_repetition(rows: int, many: int, chosen: int, generator: torch.Generator) -> torch.Tensor:
    """For each row some of ``many`` numbers, none twice, in random order."""
    return torch.rand(rows, many, generator=generator, dtype=torch.float64).argsort(dim=1, stable=True)[:, :chosen]
