"""Synthetic tasks: retrieval of the value of a key, copying, and recall of the latest marked symbol."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.lab.data.corpora import content_hash
from whence.lab.tasks.base import (
    IGNORE_INDEX,
    LENGTHS,
    Batch,
    Task,
    evaluation_batch_size,
    extrapolation_lengths,
    named_generator,
    require_at_least,
    require_lengths,
    to_ints,
)
from whence.lab.tasks.baselines import answer_baselines


class GeneratedTask(Task):
    """A task that generates its inputs. ``amount`` counts the items of an input: pairs, symbols or tokens.

    Evaluations go up to ``longest`` times the trained amount, or have ``lengths`` times that amount.
    """

    kind = "retrieve"
    metric = "accuracy"

    def __init__(
        self,
        amount: int,
        items: int,
        seed: int,
        settings: dict[str, Any],
        longest: int = 8,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_at_least(self.name, "longest", longest, 1)
        self.lengths = require_lengths(self.name, lengths)
        self.amount, self.items, self.seed, self.longest = amount, items, seed, longest
        self.context = self.length(amount)
        # torch guarantees the same random numbers only within a version; the hash shows a change
        tokens = (batch.tokens.numpy().tobytes() for batch in self.evaluation("test"))
        self.settings = {"task": self.name, **settings, "data_hash": content_hash(tokens)}

    @abstractmethod
    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        """Random inputs with their targets."""

    @abstractmethod
    def length(self, amount: int) -> int:
        """The number of tokens of an input."""

    def amounts(self) -> dict[str, int]:
        usual = [multiple for multiple in LENGTHS if multiple <= self.longest]
        lengths = extrapolation_lengths(self.amount, self.lengths or usual)
        return lengths if self.validation is None else lengths | {self.validation: self.amount}

    def hold_out_validation(self) -> None:
        """Training never repeats an input, so validation inputs are further ones of the same length."""
        self.validation = "validation"

    def splits(self) -> dict[str, int]:
        return {split: self.length(amount) for split, amount in self.amounts().items()}

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        return self.draw(size, self.amount, generator)

    def evaluation(self, split: str) -> list[Batch]:
        rows = evaluation_batch_size(self.split_length(split))
        generator = named_generator(self.name, self.seed, split)
        sizes = [min(rows, self.items - done) for done in range(0, self.items, rows)]
        return [self.draw(size, self.amounts()[split], generator) for size in sizes]

    def describe_data(self) -> dict[str, Any]:
        return {
            "items": dict.fromkeys(self.splits(), self.items),
            "split": "generated: training never repeats an input",
        }


def sample_without_replacement(rows: int, many: int, chosen: int, generator: torch.Generator) -> torch.Tensor:
    """For each row ``chosen`` different numbers below ``many``, in random order."""
    return torch.rand(rows, many, generator=generator, dtype=torch.float64).argsort(dim=1, stable=True)[:, :chosen]


class Retrieval(GeneratedTask):
    """Key-value retrieval: pairs, then one of the keys; the target is the value that followed it.

        k3 v7 k9 v1 k4 v7 k9   ->   v1

    Content finds the key, and position finds the value next to it: without either the answer is a guess. Keys are the
    tokens below ``keys``, values the tokens after them. All keys of an input differ, so there is one correct answer.
    """

    name = "retrieval"
    evaluation_settings = ("lengths",)

    def __init__(
        self,
        pairs: int = 8,
        keys: int = 64,
        values: int = 16,
        items: int = 256,
        seed: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_at_least(self.name, "pairs", pairs, 1)
        require_at_least(self.name, "values", values, 2)
        require_at_least(self.name, "items", items, 1)
        longest = max(require_lengths(self.name, lengths) or LENGTHS)
        if keys < longest * pairs:
            raise usage_error(
                "task 'retrieval'",
                f"keys={keys} with pairs={pairs}",
                f"the longest evaluation has {longest} times the pairs and all its keys differ",
                f"set keys={longest * pairs} or more",
            )
        self.keys, self.values = keys, values
        self.vocab_size = keys + values
        settings = {"pairs": pairs, "keys": keys, "values": values, "items": items, "seed": seed}
        super().__init__(pairs, items, seed, settings, lengths=lengths)

    def length(self, amount: int) -> int:
        return 2 * amount + 1

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        keys = sample_without_replacement(rows, self.keys, amount, generator)
        values = self.keys + torch.randint(self.values, (rows, amount), generator=generator)
        query = torch.randint(amount, (rows, 1), generator=generator)
        pairs = torch.stack([keys, values], dim=2).flatten(1)  # [B, 2 * amount]: k v k v ...
        tokens = torch.cat([pairs, keys.gather(1, query)], dim=1)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        targets[:, -1:] = values.gather(1, query)
        return Batch(tokens, targets)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [f"k{token}" if token < self.keys else f"v{token - self.keys}" for token in to_ints(tokens)]

    def baselines(self) -> dict[str, Any]:
        shown = {
            split: torch.cat([_share_of_values(batch) for batch in self.evaluation(split)]) for split in self.splits()
        }
        rule = "One of the values in the input, drawn at random: content without position."
        return answer_baselines(self.values, self.splits(), {"a value of the input": (shown, rule)})


def _share_of_values(batch: Batch) -> Tensor:
    """The share of the values in each input that equal its target."""
    return (batch.tokens[:, 1:-1:2] == batch.targets[:, -1:]).double().mean(1)


class Copying(GeneratedTask):
    """Copying: a random string, a separator, the string again.

        a c a b |  a c a     targets from the separator on:  a c a b

    Symbols repeat, so content alone does not determine the next one: the model must track its position. Symbols are the
    tokens below ``symbols``; the separator is the next token. The last symbol is a target only, so a string of n symbols
    makes an input of 2n tokens.
    """

    name = "copy"
    evaluation_settings = ("lengths",)

    def __init__(
        self,
        string: int = 16,
        symbols: int = 16,
        items: int = 256,
        seed: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_at_least(self.name, "string", string, 1)
        require_at_least(self.name, "symbols", symbols, 2)
        require_at_least(self.name, "items", items, 1)
        self.symbols = symbols
        self.vocab_size = symbols + 1
        settings = {"string": string, "symbols": symbols, "items": items, "seed": seed}
        super().__init__(string, items, seed, settings, lengths=lengths)

    def length(self, amount: int) -> int:
        return 2 * amount

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        string = torch.randint(self.symbols, (rows, amount), generator=generator)
        separator = torch.full((rows, 1), self.symbols)
        tokens = torch.cat([string, separator, string[:, :-1]], dim=1)
        targets = torch.cat([torch.full_like(string, IGNORE_INDEX), string], dim=1)
        return Batch(tokens, targets)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return ["|" if token == self.symbols else f"s{token}" for token in to_ints(tokens)]

    def baselines(self) -> dict[str, Any]:
        shown = {
            split: torch.cat([_share_of_successors(batch) for batch in self.evaluation(split)])
            for split in self.splits()
        }
        rule = (
            "One of the symbols that follow the current one in the string, drawn at random: content without position."
        )
        return answer_baselines(self.symbols, self.splits(), {"a successor of the symbol": (shown, rule)})


def _share_of_successors(batch: Batch) -> Tensor:
    """For each target, its share among the symbols that follow the current symbol in the string; [rows * targets].

    The first target follows the separator, which is not in the string: its share among all symbols counts.
    """
    string = batch.targets[:, batch.targets.shape[1] // 2 :]
    follows = torch.ones(*string.shape, string.shape[1], dtype=torch.bool)  # [B, targets, places in the string]
    follows[:, 1:, 0] = False
    follows[:, 1:, 1:] = string[:, :-1, None] == string[:, None, :-1]
    right = follows & (string[:, :, None] == string[:, None, :])
    return (right.sum(2) / follows.sum(2)).flatten()


class Recall(GeneratedTask):
    """Recall: some symbols are marked; at every other token the target is the latest marked symbol.

        B' a c D' a b b      targets:  - B B - D D D

    Content finds the marked symbols, and position finds the latest of them: without it the answer is a guess among those
    seen so far. The distance to the latest mark does not depend on the length of the input, but in longer inputs the earlier
    marks are farther away than any in training, and they must stay ignored. Symbols are the tokens below ``symbols``, marked
    symbols the tokens after them. One token in ``interval`` is marked on average, and always the first. Only the last
    ``tokens`` tokens of an input are scored, so every length has the same number of targets.
    """

    name = "recall"
    evaluation_settings = ("lengths",)

    def __init__(
        self,
        tokens: int = 32,
        symbols: int = 8,
        interval: int = 4,
        items: int = 256,
        seed: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> None:
        require_at_least(self.name, "tokens", tokens, 2)
        require_at_least(self.name, "symbols", symbols, 2)
        require_at_least(self.name, "interval", interval, 2)
        require_at_least(self.name, "items", items, 1)
        self.symbols, self.interval = symbols, interval
        self.vocab_size = 2 * symbols
        settings = {"tokens": tokens, "symbols": symbols, "interval": interval, "items": items, "seed": seed}
        super().__init__(tokens, items, seed, settings, lengths=lengths)

    def length(self, amount: int) -> int:
        return amount

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        symbols = torch.randint(self.symbols, (rows, amount), generator=generator)
        marked = torch.randint(self.interval, (rows, amount), generator=generator) == 0
        marked[:, 0], marked[:, -1] = True, False  # there is always an answer, and a token that asks for it
        latest = torch.arange(amount).where(marked, 0).cummax(1).values  # [B, T], the index of the latest mark
        targets = symbols.gather(1, latest).masked_fill(marked, IGNORE_INDEX)
        targets[:, : amount - self.amount] = IGNORE_INDEX
        return Batch(symbols + self.symbols * marked, targets)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        return [f"s{token}" if token < self.symbols else f"[s{token - self.symbols}]" for token in to_ints(tokens)]

    def baselines(self) -> dict[str, Any]:
        shown = {
            split: torch.cat([_share_of_marks(batch, self.symbols) for batch in self.evaluation(split)])
            for split in self.splits()
        }
        rule = "One of the marked symbols so far, drawn at random: content without position."
        return answer_baselines(self.symbols, self.splits(), {"a marked symbol": (shown, rule)})


def _share_of_marks(batch: Batch, symbols: int) -> Tensor:
    """For each target, its share among the marked symbols up to there; [targets]."""
    marks = batch.tokens[:, :, None] == symbols + torch.arange(symbols)  # [B, T, symbols]
    counts = marks.cumsum(1)
    scored = batch.targets != IGNORE_INDEX
    right = counts.gather(2, batch.targets.clamp(min=0)[:, :, None])[:, :, 0]
    return (right / counts.sum(2))[scored].double()
