"""Three tasks in one: a cue tells whether the answer is the nearest symbol, the farthest one, or the marked one.

    near      a c B a d ?   ->   d
    far       a c B a d ?   ->   a
    anywhere  a c B a d ?   ->   b        (a capital denotes the mark)

Apart from the cue, the inputs of the three kinds have the same distribution: each has one mark, which can be at either end. A
model must infer the task from the cue, and then attend to near keys, far keys, or content.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from whence.lab.tasks.base import IGNORE_INDEX, Batch, require_at_least, require_choice, to_ints
from whence.lab.tasks.generated import GeneratedTask

KINDS = ("near", "anywhere", "far")
BANDS = ("any", "near", "middle", "far")


class Places(GeneratedTask):
    """Tokens: symbols, the same symbols with a mark, one cue per kind, the question mark. Answers are unmarked symbols.

    ``kind`` restricts the inputs to one of the three kinds. ``band`` restricts the mark to the quarter of the positions
    that is nearest to the question, farthest from it or in the middle. Together with ``kind="anywhere"`` this is
    retrieval from a chosen distance.
    """

    name = "places"

    def __init__(
        self, count: int = 16, symbols: int = 8, items: int = 256, seed: int = 0, kind: str = "all",
        band: str = "any", longest: int = 8,
    ) -> None:  # fmt: skip
        require_at_least(self.name, "count", count, 2)
        require_at_least(self.name, "symbols", symbols, 2)
        require_at_least(self.name, "items", items, 1)
        require_choice(self.name, "kind", kind, ("all", *KINDS))
        require_choice(self.name, "band", band, BANDS)
        self.symbols, self.answer_kind, self.band = symbols, kind, band
        self.vocab_size = 2 * symbols + len(KINDS) + 1
        settings = {
            "count": count, "symbols": symbols, "items": items, "seed": seed, "kind": kind, "band": band,
            "longest": longest,
        }  # fmt: skip
        super().__init__(count, items, seed, settings, longest)

    def length(self, amount: int) -> int:
        return amount + 2

    def markable(self, amount: int) -> range:
        """Which of ``amount`` positions can hold the mark; 0 is the farthest from the question.

        >>> [Places(band=band).markable(16) for band in BANDS]
        [range(0, 16), range(12, 16), range(6, 10), range(0, 4)]
        """
        many = amount if self.band == "any" else max(1, amount // 4)
        first = {"any": 0, "near": amount - many, "middle": (amount - many) // 2, "far": 0}[self.band]
        return range(first, first + many)

    def draw(self, rows: int, amount: int, generator: torch.Generator) -> Batch:
        kinds = range(len(KINDS)) if self.answer_kind == "all" else [KINDS.index(self.answer_kind)]
        kind = kinds[0] + torch.randint(len(kinds), (rows, 1), generator=generator)
        symbols = torch.randint(self.symbols, (rows, amount), generator=generator)
        markable = self.markable(amount)
        marked = torch.randint(markable.start, markable.stop, (rows, 1), generator=generator)
        marked_symbols = symbols.scatter_add(1, marked, torch.full((rows, 1), self.symbols))
        question = torch.full((rows, 1), self.vocab_size - 1)
        tokens = torch.cat([2 * self.symbols + kind, marked_symbols, question], dim=1)
        answers = torch.cat([torch.full_like(kind, amount - 1), marked, torch.zeros_like(kind)], dim=1)
        targets = torch.full_like(tokens, IGNORE_INDEX)
        targets[:, -1:] = symbols.gather(1, answers.gather(1, kind))
        return Batch(tokens, targets)

    def kinds(self, tokens: Tensor) -> Tensor:
        """The index into KINDS of each input ``[B, T]``, read from its cue: ``[B]``."""
        return tokens[:, 0] - 2 * self.symbols

    def marked(self, tokens: Tensor) -> Tensor:
        """Boolean mask of the marked symbols, ``[B, T]``."""
        return (tokens >= self.symbols) & (tokens < 2 * self.symbols)

    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        special = [*KINDS, "?"]
        names = [f"s{s}" for s in range(self.symbols)] + [f"S{s}" for s in range(self.symbols)] + special
        return [names[token] for token in to_ints(tokens)]
