"""Weighted votes: places hold votes or filler, each place has a weight of its own, and the heavier side wins.

    . + . - - . ?   ->   +        if the place of the first vote weighs more than those of the other two together

Where the weights fall with distance from the question, a mechanism that prefers near keys is at home; where they come in
waves, in blocks or at random, it is not; where every input has its own weights, position tells nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from whence.errors import refusal
from whence.lab.tasks.base import NOT_ASKED, Batch, as_numbers, at_least, fixed_generator, one_of
from whence.lab.tasks.generated import Generated, without_repetition

FILLER, QUESTION, MINUS, PLUS = 0, 1, 2, 3
STRUCTURES = ("near", "waves", "blocks", "random", "flat")
ORDERS = ("kept", "shuffled")
BLOCKS = 8


class Votes(Generated):
    """``length`` places and the question behind them; ``votes`` of the places vote, an odd number.

    ``structure`` is the weight of a place by its distance from the question, the same for all inputs, unless ``order``
    is "shuffled": then each input has it in an order of its own. ``noise`` is the share of votes that are turned round
    after the answer was decided. Weights stretch with the input, so a longer one is the same question; evaluations
    go up to ``longest`` times the trained length.
    """

    name = "votes"

    def __init__(
        self, length: int = 64, votes: int = 15, structure: str = "near", order: str = "kept", noise: float = 0.0,
        longest: int = 8, items: int = 512, seed: int = 0,
    ) -> None:  # fmt: skip
        at_least(self.name, "votes", votes, 1)
        at_least(self.name, "length", length, max(votes, BLOCKS))
        at_least(self.name, "longest", longest, 1)
        at_least(self.name, "items", items, 1)
        one_of(self.name, "structure", structure, STRUCTURES)
        one_of(self.name, "order", order, ORDERS)
        if votes % 2 == 0 or not 0 <= noise <= 1:
            raise refusal(
                'load("votes")',
                f"votes={votes}, noise={noise}",
                "votes are an odd number, noise a share",
                "correct them",
            )
        self.votes, self.structure, self.order, self.noise, self.longest = votes, structure, order, noise, longest
        self.vocabulary = 4
        settings = {
            "length": length, "votes": votes, "structure": structure, "order": order, "noise": noise,
            "longest": longest, "items": items, "seed": seed,
        }  # fmt: skip
        super().__init__(length, items, seed, settings)

    def length(self, amount: int) -> int:
        return amount + 1

    def amounts(self) -> dict[str, int]:
        return {split: amount for split, amount in super().amounts().items() if amount <= self.longest * self.amount}

    def weights(self, length: int) -> Tensor:
        """The weight of each place, from the first to the one before the question.

        >>> Votes(length=8, votes=1, structure="near").weights(8)[-1] > Votes(length=8, votes=1).weights(8)[0]
        tensor(True)
        """
        distance = torch.arange(length, 0, -1, dtype=torch.float64)
        if self.structure == "near":
            return torch.exp(-4 * distance / length)
        if self.structure == "waves":
            return 0.5 + 0.5 * torch.sin(2 * math.pi * distance / length)
        if self.structure == "flat":
            return torch.ones(length, dtype=torch.float64)
        drawn = torch.rand(length, generator=fixed_generator(self.name, self.structure, length), dtype=torch.float64)
        if self.structure == "blocks":
            return drawn[:BLOCKS].repeat_interleave(math.ceil(length / BLOCKS))[:length]
        return drawn

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        places = without_repetition(rows, amount, self.votes, generator)
        sides = torch.randint(2, (rows, self.votes), generator=generator)
        weights = self.weights(amount).expand(rows, amount)
        if self.order == "shuffled":
            weights = weights.gather(1, without_repetition(rows, amount, amount, generator))
        heavier = ((2 * sides - 1) * weights.gather(1, places)).sum(1) > 0
        turned = torch.rand(rows, self.votes, generator=generator) < self.noise
        tokens = torch.full((rows, amount + 1), FILLER)
        tokens[:, -1] = QUESTION
        tokens.scatter_(1, places, torch.where(turned, 1 - sides, sides) + MINUS)
        targets = torch.full_like(tokens, NOT_ASKED)
        targets[:, -1] = heavier.long() + MINUS
        return Batch(tokens, targets)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [".?-+"[token] for token in as_numbers(tokens)]
