"""Language modelling on a stream of tokens: random windows to learn from, and the same tokens scored at every length.

Extrapolation is measured on one fixed set of tokens. A test stream is cut into blocks of the training length; at 1x a
model sees a block alone, at 8x the same block with the seven blocks' length of text before it, and only the block is
scored. So a difference between lengths is never a difference of text: more context helps, or the longer input hurts.
At 1x the first token of a block has no context and the last has nearly all; that, too, is the same for all mechanisms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.lab.data.units import Units
from whence.lab.tasks.base import IGNORE_INDEX, Batch, Task, as_numbers, at_least, batch_rows, longer


class LanguageModelling(Task):
    """Next-token prediction. ``blocks`` is the number of test blocks scored, spread evenly over the stream."""

    kind = "lm"
    metric = "perplexity"

    def __init__(
        self, train: Tensor, test: Tensor, units: Units, context: int, blocks: int, settings: dict[str, Any]
    ) -> None:
        at_least(self.name, "context", context, 2)
        at_least(self.name, "blocks", blocks, 1)
        self.units, self.vocabulary, self.context = units, units.size, context
        self.train, self.test = train, test
        self._enough("training", train, context + 1)
        self._enough("test", test, max(self.splits().values()) + 1)
        self.starts = self._block_starts(blocks)
        self.settings = {"task": self.name, **settings, "context": context, "blocks": blocks}

    def splits(self) -> dict[str, int]:
        return longer(self.context)

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(self.train) - self.context, (size,), generator=generator)
        return windows(self.train, starts, self.context)

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Windows side by side from a random first token, so that epochs cut the text at different places."""
        first = int(torch.randint(min(self.context, len(self.train) - self.context), (1,), generator=generator))
        starts = torch.arange(first, len(self.train) - self.context, self.context)
        order = torch.randperm(len(starts), generator=generator)
        for chosen in starts[order].split(size):
            yield windows(self.train, chosen, self.context)

    def evaluation(self, split: str) -> list[Batch]:
        length = self.known_split(split)
        history = length - self.context
        return [
            windows(self.test, starts - history, length, history) for starts in self.starts.split(batch_rows(length))
        ]

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return self.units.decode(as_numbers(tokens))

    def _block_starts(self, blocks: int) -> Tensor:
        # the first block begins where the longest input still has its whole history
        starts = torch.arange(max(self.splits().values()) - self.context, len(self.test) - self.context, self.context)
        if len(starts) <= blocks:
            return starts
        return starts[torch.arange(blocks) * len(starts) // blocks]

    def _enough(self, part: str, stream: Tensor, least: int) -> None:
        if len(stream) < least:
            raise usage_error(
                f'load("{self.name}")',
                f"{len(stream)} tokens of {part} text",
                f"a context of {self.context} needs {least}",
                "give a smaller context or more text",
            )


def windows(stream: Tensor, starts: Tensor, length: int, history: int = 0) -> Batch:
    """Pieces of a stream and, as targets, the same pieces one token later; nothing is asked of the history.

    >>> batch = windows(torch.arange(10), torch.tensor([0, 4]), 3, history=1)
    >>> batch.tokens.tolist(), batch.targets.tolist()
    ([[0, 1, 2], [4, 5, 6]], [[-100, 2, 3], [-100, 6, 7]])
    """
    places = starts[:, None] + torch.arange(length + 1)
    pieces = stream[places].long()  # streams are kept in small integers
    targets = pieces[:, 1:].clone()
    targets[:, :history] = IGNORE_INDEX
    return Batch(pieces[:, :-1], targets)
