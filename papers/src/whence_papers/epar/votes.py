"""Weighted votes: places hold votes or filler, each place has a weight of its own, and the heavier side wins.

    . + . - - . ?   ->   +        if the place of the first vote weighs more than those of the other two together

Where the weights fall with distance from the question, a mechanism that prefers near keys is at home; where they come in
waves, in blocks or at random, it is not; where every input has its own weights, position tells nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.tasks.base import IGNORE_INDEX, Batch, as_numbers, at_least, fixed_generator, one_of
from whence.lab.tasks.generated import Generated, without_repetition

FILLER, QUESTION, MINUS, PLUS = 0, 1, 2, 3
STRUCTURES = ("near", "waves", "blocks", "random", "flat")
ORDERS = ("kept", "shuffled")
BLOCKS = 8
TIE = 1e-9  # sides that differ by less weigh the same, but for rounding


class Votes(Generated):
    """``length`` places and the question behind them; ``votes`` of the places vote, an odd number.

    ``structure`` is the weight of a place by its distance from the question, the same for all inputs, unless ``order``
    is "shuffled": then each input has it in an order of its own. ``noise`` is the share of votes that are turned round
    after the answer was decided. Weights stretch with the input, so a longer one is the same question; evaluations
    go up to ``longest`` times the trained length.

    Each vote stands in ``run`` places side by side, so that a question can be stretched over a longer input and stay the
    same. Of several ``questions`` the last stands at the end and the others anywhere in the second half; each asks
    about the places before it, weighed by their distance from it.
    """

    name = "votes"

    def __init__(
        self, length: int = 64, votes: int = 15, structure: str = "near", order: str = "kept", noise: float = 0.0,
        longest: int = 8, items: int = 512, seed: int = 0, run: int = 1, questions: int = 1,
    ) -> None:  # fmt: skip
        at_least(self.name, "votes", votes, 1)
        at_least(self.name, "run", run, 1)
        at_least(self.name, "questions", questions, 1)
        at_least(self.name, "length", length, max(votes * run, BLOCKS, 2 * questions))
        at_least(self.name, "items", items, 1)
        one_of(self.name, "structure", structure, STRUCTURES)
        one_of(self.name, "order", order, ORDERS)
        if votes % 2 == 0 or not 0 <= noise <= 1:
            raise usage_error(
                'load("votes")',
                f"votes={votes}, noise={noise}",
                "votes are an odd number, noise a share",
                "correct them",
            )
        self.votes, self.structure, self.order, self.noise = votes, structure, order, noise
        self.run, self.questions = run, questions
        self.vocabulary = 4
        settings = {
            "length": length, "votes": votes, "structure": structure, "order": order, "noise": noise,
            "longest": longest, "items": items, "seed": seed, "run": run, "questions": questions,
        }  # fmt: skip
        super().__init__(length, items, seed, settings, longest)

    def length(self, amount: int) -> int:
        return amount + 1

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
        places = without_repetition(rows, amount // self.run, self.votes, generator)
        sides = torch.randint(2, (rows, self.votes), generator=generator)
        weights = self.weights(amount).expand(rows, amount)
        if self.order == "shuffled":
            weights = weights.gather(1, without_repetition(rows, amount, amount, generator))
        turned = torch.rand(rows, self.votes, generator=generator) < self.noise
        asked = self._asked(rows, amount, generator)
        votes = self._placed(2 * sides - 1, places, amount).scatter(1, asked[:, :-1], 0)
        shown = self._placed(torch.where(turned, 1 - sides, sides) + MINUS, places, amount + 1)
        tokens = shown.scatter(1, asked, QUESTION)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        for number in range(self.questions):
            targets.scatter_(1, asked[:, number : number + 1], self._answers(votes, weights, asked[:, number]))
        return Batch(tokens, targets)

    def _asked(self, rows: int, amount: int, generator: torch.Generator) -> Tensor:
        """The places of the questions, ``[rows, questions]``; that of the last is behind all others."""
        end = torch.full((rows, 1), amount)
        if self.questions == 1:
            return end
        others = without_repetition(rows, amount - amount // 2, self.questions - 1, generator) + amount // 2
        return torch.cat([others, end], dim=1)

    def _placed(self, values: Tensor, places: Tensor, amount: int) -> Tensor:
        """One value a vote, written into all places of its run; 0, which is filler, elsewhere."""
        among = torch.zeros(len(values), amount // self.run, dtype=torch.int64).scatter(1, places, values)
        wide = among.repeat_interleave(self.run, 1)
        return nn.functional.pad(wide, (0, amount - wide.shape[1]))

    def _answers(self, votes: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        """Which side weighs more before a place of each row, ``[rows, 1]``; not asked where both weigh the same."""
        amount = votes.shape[1]
        # the weights are counted from the end: a question so many places before it sees them moved by as many
        moved = torch.arange(amount) + amount - place[:, None]
        seen = weights.gather(1, moved.clamp(max=amount - 1)).masked_fill(moved >= amount, 0.0)
        total = (votes * seen).sum(1, keepdim=True)
        return torch.where(total.abs() < TIE, IGNORE_INDEX, (total > 0).long() + MINUS)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [".?-+"[token] for token in as_numbers(tokens)]
