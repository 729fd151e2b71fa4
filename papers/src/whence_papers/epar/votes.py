"""Weighted votes: each position holds a vote or filler and has a weight, and the side with the larger total weight wins.

    . + . - - . ?   ->   +        if the first vote weighs more than the other two together

If the weights decrease with the distance from the question, a mechanism that prefers near keys has an advantage. If they
come in waves, in blocks or at random, it has none. If every input has its own weights, position is uninformative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.tasks.base import IGNORE_INDEX, Batch, named_generator, require_at_least, require_choice, to_ints
from whence.lab.tasks.generated import GeneratedTask, sample_without_replacement

FILLER, QUESTION, MINUS, PLUS = 0, 1, 2, 3
STRUCTURES = ("near", "waves", "blocks", "random", "flat")
ORDERS = ("fixed", "shuffled")
BLOCKS = 8
TIE = 1e-9  # a smaller difference is rounding error: the sides are tied


class Votes(GeneratedTask):
    """``length`` positions followed by the question; an odd number of them, ``votes``, hold votes.

    ``structure`` defines the weight of a position by its distance from the question. It is the same for all inputs, unless
    ``order`` is "shuffled": then each input has its own permutation of the weights. ``noise`` is the share of votes that are
    flipped after the answer is computed. Weights scale with the length of the input, so a longer input poses the same
    question; evaluations use up to ``longest`` times the trained length.

    Each vote occupies ``run`` adjacent positions, so that the same question can be posed over a longer input. With several
    ``questions`` the last is at the end and the others are at random positions in the second half. Each question is about
    the positions before it, weighted by their distance from it.
    """

    name = "votes"

    def __init__(
        self, length: int = 64, votes: int = 15, structure: str = "near", order: str = "fixed", noise: float = 0.0,
        longest: int = 8, items: int = 512, seed: int = 0, run: int = 1, questions: int = 1,
    ) -> None:  # fmt: skip
        require_at_least(self.name, "votes", votes, 1)
        require_at_least(self.name, "run", run, 1)
        require_at_least(self.name, "questions", questions, 1)
        require_at_least(self.name, "length", length, max(votes * run, BLOCKS, 2 * questions))
        require_at_least(self.name, "items", items, 1)
        require_choice(self.name, "structure", structure, STRUCTURES)
        require_choice(self.name, "order", order, ORDERS)
        if votes % 2 == 0 or not 0 <= noise <= 1:
            raise usage_error(
                "task 'votes'",
                f"votes={votes}, noise={noise}",
                "votes must be odd and noise between 0 and 1",
                "change votes or noise",
            )
        self.votes, self.structure, self.order, self.noise = votes, structure, order, noise
        self.run, self.questions = run, questions
        self.vocab_size = 4
        settings = {
            "length": length, "votes": votes, "structure": structure, "order": order, "noise": noise,
            "longest": longest, "items": items, "seed": seed, "run": run, "questions": questions,
        }  # fmt: skip
        super().__init__(length, items, seed, settings, longest)

    def length(self, amount: int) -> int:
        return amount + 1

    def weights(self, length: int) -> Tensor:
        """The weight of each position, from the first to the one before the question.

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
        uniform = torch.rand(length, generator=named_generator(self.name, self.structure, length), dtype=torch.float64)
        if self.structure == "blocks":
            return uniform[:BLOCKS].repeat_interleave(math.ceil(length / BLOCKS))[:length]
        return uniform

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        runs = sample_without_replacement(rows, amount // self.run, self.votes, generator)
        sides = torch.randint(2, (rows, self.votes), generator=generator)
        weights = self.weights(amount).expand(rows, amount)
        if self.order == "shuffled":
            weights = weights.gather(1, sample_without_replacement(rows, amount, amount, generator))
        flipped = torch.rand(rows, self.votes, generator=generator) < self.noise
        questions = self._question_positions(rows, amount, generator)
        votes = self._expand_runs(2 * sides - 1, runs, amount).scatter(1, questions[:, :-1], 0)
        tokens = self._expand_runs(torch.where(flipped, 1 - sides, sides) + MINUS, runs, amount + 1)
        tokens = tokens.scatter(1, questions, QUESTION)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        for number in range(self.questions):
            targets.scatter_(1, questions[:, number : number + 1], self._answers(votes, weights, questions[:, number]))
        return Batch(tokens, targets)

    def _question_positions(self, rows: int, amount: int, generator: torch.Generator) -> Tensor:
        """The positions of the questions, ``[rows, questions]``; the last one is after all others."""
        end = torch.full((rows, 1), amount)
        if self.questions == 1:
            return end
        others = sample_without_replacement(rows, amount - amount // 2, self.questions - 1, generator) + amount // 2
        return torch.cat([others, end], dim=1)

    def _expand_runs(self, values: Tensor, runs: Tensor, amount: int) -> Tensor:
        """Write one value per vote into all positions of its run; 0, which is filler, elsewhere."""
        among = torch.zeros(len(values), amount // self.run, dtype=torch.int64).scatter(1, runs, values)
        wide = among.repeat_interleave(self.run, 1)
        return nn.functional.pad(wide, (0, amount - wide.shape[1]))

    def _answers(self, votes: Tensor, weights: Tensor, question: Tensor) -> Tensor:
        """The side with the larger weight before a position of each row, ``[rows, 1]``; IGNORE_INDEX for a tie."""
        amount = votes.shape[1]
        # weights are counted from the end: for an earlier question they are shifted by its distance from the end
        distance = torch.arange(amount) + amount - question[:, None]
        weight = weights.gather(1, distance.clamp(max=amount - 1)).masked_fill(distance >= amount, 0.0)
        total = (votes * weight).sum(1, keepdim=True)
        return torch.where(total.abs() < TIE, IGNORE_INDEX, (total > 0).long() + MINUS)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [".?-+"[token] for token in to_ints(tokens)]
