"""Which answer a model finds likelier: the right one, or one of its rivals. The prompt is read once.

The prompt goes into the cache up to its last token. That token and every answer follow in one more forward: each answer
is a branch that sees the prompt and itself and no other branch, with positions that go on from the prompt. The numbers
are those that a separate forward for each answer would give. Models with windows, or without explicit positions, get a
row for each answer instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.bias.subject import Subject, batch_of
from whence.bias.tasks.prompts import Prompt, Span
from whence.errors import refusal

#: tokens of an answer that are scored: what follows them in a random identifier is copied once it has begun
SCORED = 8

#: changes what is added to the scores of the answering rows, ``[rows, keys]``
Effect = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Branches:
    """The beginning that all answers share, and how each goes on."""

    shared: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        return len(self.shared) + max(map(len, self.ends))

    @property
    def fed(self) -> list[tuple[int, int]]:
        """(token, position) of what follows the cached part; the last token of a branch predicts nothing that counts."""
        last = len(self.shared) - 1
        after = [(token, last + 1 + place) for end in self.ends for place, token in enumerate(end[:-1])]
        return [(self.shared[-1], last), *after]

    @property
    def rows(self) -> list[list[int]]:
        """For each branch the fed rows that predict its tokens: the last token of the prompt, then its own."""
        found, at = [], 1
        for end in self.ends:
            found.append([0, *range(at, at + len(end) - 1)])
            at += len(end) - 1
        return found

    def visible(self) -> Tensor:
        """``[fed, cached + fed]`` bool: the whole prompt, and the past of one's own branch."""
        cached, total = len(self.shared) - 1, len(self.fed)
        owner = torch.full((total,), -1)
        for number, rows in enumerate(self.rows):
            owner[rows[1:]] = number
        here = torch.arange(total)
        own = (here[:, None] >= here) & ((owner[:, None] == owner) | (here == 0))
        return torch.cat([torch.ones(total, cached, dtype=torch.bool), own], 1)


def branches(subject: Subject, prompt: Prompt, scored: int = SCORED) -> Branches:
    """The answer and its rivals after the prompt, tokenised as whole texts so that no boundary is invented."""
    if not prompt.rivals:
        raise refusal("contest", "an answer without rivals", "it is held against at least one", "add a rival")
    rows = [subject.tokens(prompt.text + end) for end in (prompt.answer, *prompt.rivals)]
    shared = 0
    while all(len(row) > shared for row in rows) and len({row[shared] for row in rows}) == 1:
        shared += 1
    if any(len(row) == shared for row in rows):
        raise refusal(
            "contest", "an answer with which all others begin", "each differs from the others", "take other rivals"
        )
    made = Branches(tuple(rows[0][:shared]), tuple(tuple(row[shared : shared + scored]) for row in rows))
    subject.require_room("contest", made.longest)
    return made


class Reading:
    """A prompt that was read up to its last token, ready to be asked, as often and with as many effects as one likes."""

    def __init__(self, subject: Subject, made: Branches) -> None:
        if not subject.takes_branches:
            raise refusal(
                "Reading",
                f"{subject.name}, a model with windows, without explicit positions or with a Position attached",
                "answers that share a forward need a mask and positions of their own",
                "use contest",
            )
        self.subject, self.branches = subject, made
        cached = torch.tensor([made.shared[:-1]], device=subject.device)
        with torch.inference_mode():
            self.cache: Any = subject.model(input_ids=cached, use_cache=True, logits_to_keep=1).past_key_values

    @torch.inference_mode()
    def scores(self, effect: Effect | None = None) -> list[float]:
        """The log-likelihood of the answer, then of each rival, over their first tokens."""
        model, device, made = self.subject.model, self.subject.device, self.branches
        bias = additive(made.visible(), model.dtype)
        if effect is not None:
            bias = effect(bias)
        fed = made.fed
        logits = model(
            input_ids=torch.tensor([[token for token, _ in fed]], device=device),
            position_ids=torch.tensor([[position for _, position in fed]], device=device),
            attention_mask=bias[None, None].to(device),
            past_key_values=self.cache,
            use_cache=True,
        ).logits[0]
        self.cache.crop(-len(fed))
        known = logits.float().log_softmax(-1)
        return [_total(known, rows, end) for rows, end in zip(made.rows, made.ends, strict=True)]

    @torch.inference_mode()
    def row(self) -> Tensor:
        """Where the last token before the answers looks: ``[layers, heads, tokens]``."""
        from whence import hf

        last = torch.tensor([self.branches.shared[-1:]], device=self.subject.device)
        seen = hf.LastRow()
        with hf.capture(self.subject.model, seen):
            self.subject.model(input_ids=last, past_key_values=self.cache, use_cache=True)
        self.cache.crop(-1)
        return seen.stacked()[:, 0].float()


def contest(subject: Subject, prompt: Prompt, scored: int = SCORED) -> list[float]:
    """The log-likelihood of the answer, then of each rival, over their first tokens."""
    made = branches(subject, prompt, scored)
    return Reading(subject, made).scores() if subject.takes_branches else row_by_row(subject, made)


@torch.inference_mode()
def row_of(subject: Subject, tokens: Sequence[int]) -> Tensor:
    """Where the last token of a text looks, ``[layers, heads, tokens]``, for any model that can be watched."""
    from whence import hf

    seen = hf.LastRow()
    with hf.capture(subject.model, seen):
        subject.model(input_ids=torch.tensor([list(tokens)], device=subject.device), use_cache=False, logits_to_keep=1)
    return seen.stacked()[:, 0].float()


@torch.inference_mode()
def row_by_row(subject: Subject, made: Branches) -> list[float]:
    """The same, with the whole prompt read again for each answer."""
    tokens, real = batch_of(subject, [[*made.shared, *end] for end in made.ends], left=False)
    known = subject.model(input_ids=tokens, attention_mask=real).logits.float().log_softmax(-1)
    first = len(made.shared) - 1
    return [_total(known[index], range(first, first + len(end)), end) for index, end in enumerate(made.ends)]


def _total(known: Tensor, rows: Any, end: tuple[int, ...]) -> float:
    return float(known[list(rows), list(end)].sum())


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a key is seen, the lowest number elsewhere.

    >>> additive(torch.tensor([[True, False]]), torch.float32).tolist()[0][0]
    0.0
    """
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def emphasis(span: Span, times: float) -> Effect:
    """Multiply what the answering rows pay to some keys, before each row is brought back to a sum of one."""
    if not times > 0:
        raise refusal("emphasis", f"times={times}", "attention is multiplied by a number above 0", "try 2")

    def effect(bias: Tensor) -> Tensor:
        changed = bias.clone()
        changed[:, span[0] : span[1]] += torch.tensor(times).log().to(bias.dtype)
        return changed

    return effect


def shares(scores: list[float]) -> list[float]:
    """The scores as probabilities among these answers alone.

    >>> [round(share, 3) for share in shares([0.0, 0.0, -50.0])]
    [0.5, 0.5, 0.0]
    """
    return torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
