"""Copying: a random string, a separator, the string again.

    a c a b |  a c a     asked from the separator on:  a c a b

Symbols repeat, so content alone does not say which one comes next: the model must keep its place.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from whence.lab.tasks.base import IGNORE_INDEX, Batch, as_numbers, at_least
from whence.lab.tasks.generated import Generated


class Copying(Generated):
    """Symbols are the tokens below ``symbols``; the separator is the one after them.

    The last symbol is an answer only and never an input, so a string of n makes 2n tokens.
    """

    name = "copy"

    def __init__(self, string: int = 16, symbols: int = 16, items: int = 256, seed: int = 0) -> None:
        at_least(self.name, "string", string, 1)
        at_least(self.name, "symbols", symbols, 2)
        at_least(self.name, "items", items, 1)
        self.symbols = symbols
        self.vocabulary = symbols + 1
        settings = {"string": string, "symbols": symbols, "items": items, "seed": seed}
        super().__init__(string, items, seed, settings)

    def length(self, amount: int) -> int:
        return 2 * amount

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        string = torch.randint(self.symbols, (rows, amount), generator=generator)
        separator = torch.full((rows, 1), self.symbols)
        tokens = torch.cat([string, separator, string[:, :-1]], dim=1)
        targets = torch.cat([torch.full_like(string, IGNORE_INDEX), string], dim=1)
        return Batch(tokens, targets)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return ["|" if token == self.symbols else f"s{token}" for token in as_numbers(tokens)]
