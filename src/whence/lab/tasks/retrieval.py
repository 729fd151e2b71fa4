"""Key-value retrieval: pairs, then a key again; the answer is the value that stood behind it.

    k3 v7 k9 v1 k4 v7 k9   ->   v1

Content finds the key and position finds the value, one place to its right: without both the answer is a guess.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.lab.tasks.base import IGNORE_INDEX, Batch, as_numbers, at_least
from whence.lab.tasks.generated import Generated, without_repetition


class Retrieval(Generated):
    """Keys are the tokens below ``keys``, values come after them. All keys of an input differ, so one answer is right."""

    name = "retrieval"

    def __init__(self, pairs: int = 8, keys: int = 64, values: int = 16, items: int = 256, seed: int = 0) -> None:
        at_least(self.name, "pairs", pairs, 1)
        at_least(self.name, "values", values, 2)
        at_least(self.name, "items", items, 1)
        if keys < 8 * pairs:
            raise usage_error(
                'load("retrieval")',
                f"keys={keys} with pairs={pairs}",
                "the longest evaluation has 8 times the pairs and no key twice",
                f"give keys={8 * pairs} or more",
            )
        self.keys, self.values = keys, values
        self.vocabulary = keys + values
        settings = {"pairs": pairs, "keys": keys, "values": values, "items": items, "seed": seed}
        super().__init__(pairs, items, seed, settings)

    def length(self, amount: int) -> int:
        return 2 * amount + 1

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        keys = without_repetition(rows, self.keys, amount, generator)
        values = self.keys + torch.randint(self.values, (rows, amount), generator=generator)
        asked = torch.randint(amount, (rows, 1), generator=generator)
        pairs = torch.stack([keys, values], dim=2).flatten(1)  # [B, 2 * amount]: k v k v ...
        tokens = torch.cat([pairs, keys.gather(1, asked)], dim=1)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        targets[:, -1:] = values.gather(1, asked)
        return Batch(tokens, targets)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [f"k{token}" if token < self.keys else f"v{token - self.keys}" for token in as_numbers(tokens)]
