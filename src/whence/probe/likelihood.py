"""The log-likelihood of the answer and its rivals after a prompt. Each prompt is read once; several form a batch.

The prompt goes into the cache up to its last token. That token and every answer follow in one more forward pass: each
answer is a branch that attends to the prompt and to itself, with positions that continue the prompt. The numbers equal
those of a separate forward pass for each answer. Models with windows, or without explicit positions, get one row for
each answer instead.

A slot can be emphasized for the answering rows, in every layer and head, by multiplying its weights or its scores.

The weight is exp(score) before normalization: the weight times t is the score plus log t, and attention to the slot rises
for any t > 1. The score is q k / sqrt(head_dim). A negative score times 2 is lower, so attention falls. The literature
speaks of "doubling the score" and does not say which of the two is meant.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe.probed_model import ProbedModel, pad_batch
from whence.probe.tasks.task import Prompt, Span

#: tokens of an answer that are scored: what follows them in a random identifier is copied once it has begun
SCORED = 8


@dataclass(frozen=True)
class Branches:
    """The tokens that all choices share, and the rest of each."""

    shared: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        return len(self.shared) + max(map(len, self.ends))

    @property
    def fed(self) -> list[tuple[int, int]]:
        """(token, position) of everything after the cached part. The last token of a branch predicts nothing that is scored."""
        last = len(self.shared) - 1
        after = [(token, last + 1 + place) for end in self.ends for place, token in enumerate(end[:-1])]
        return [(self.shared[-1], last), *after]

    @property
    def owners(self) -> list[int]:
        """The branch of each token after the cache; -1 for the last token of the prompt, which all branches share."""
        return [-1, *(number for number, end in enumerate(self.ends) for _ in end[:-1])]

    @property
    def rows(self) -> list[list[int]]:
        """For each branch the fed rows that predict its tokens: the last token of the prompt, then its own."""
        found, at = [], 1
        for end in self.ends:
            found.append([0, *range(at, at + len(end) - 1)])
            at += len(end) - 1
        return found


def build_branches(lm: ProbedModel, prompts: Sequence[Prompt], scored: int = SCORED) -> list[Branches]:
    """The answer and the rivals of each prompt, tokenized together with the prompt, so that no token boundary is forced."""
    for prompt in prompts:
        if not prompt.rivals:
            raise usage_error("contest", "an answer without rivals", "it is held against at least one", "add a rival")
    choices = [_split_shared_tokens(rows, scored) for rows in _tokenize(lm, prompts)]
    for one in choices:
        lm.require_context("contest", one.longest)
    return choices


def _split_shared_tokens(rows: list[list[int]], scored: int) -> Branches:
    shared = 0
    while all(len(row) > shared for row in rows) and len({row[shared] for row in rows}) == 1:
        shared += 1
    if any(len(row) == shared for row in rows):
        raise usage_error(
            "contest", "an answer with which all others begin", "each differs from the others", "take other rivals"
        )
    return Branches(tuple(rows[0][:shared]), tuple(tuple(row[shared : shared + scored]) for row in rows))


def _tokenize(lm: ProbedModel, prompts: Sequence[Prompt]) -> list[list[list[int]]]:
    """For each prompt the tokens of it with its answer and with each rival.

    To read a prompt of 75 keys again for each of its values takes longer than the model does. So the prompt is read once,
    with its answer, and from the last line on with each of the others. Where the answer alone shows that this gives
    other tokens (a tokenizer that puts something before every text, say), whole texts are read after all.
    """
    whole = lm.all_tokens([prompt.text + prompt.answer for prompt in prompts])
    cuts = [max(0, prompt.text.rfind("\n")) for prompt in prompts]
    ends = [(prompt.answer, *prompt.rivals) for prompt in prompts]
    lines = [prompt.text[cut:] + end for prompt, cut, after in zip(prompts, cuts, ends, strict=True) for end in after]
    short = iter(lm.all_tokens(lines, special=False))
    found = []
    for prompt, row, after in zip(prompts, whole, ends, strict=True):
        own = [next(short) for _ in after]
        before = len(row) - len(own[0])
        if before >= 0 and row[before:] == own[0]:
            found.append([row[:before] + line for line in own])
        else:
            found.append(lm.all_tokens([prompt.text + end for end in after]))
    return found


class CachedPrompts:
    """Prompts in a KV cache up to their last tokens. Their choices can be scored repeatedly, with or without emphasis."""

    def __init__(self, lm: ProbedModel, choices: Sequence[Branches]) -> None:
        if not lm.supports_branching:
            raise usage_error(
                "Reading",
                f"{lm.name}, a model with windows, without explicit positions or with a Position attached",
                "answers that share a forward need a mask and positions of their own",
                "use contest",
            )
        self.lm, self.branches = lm, list(choices)
        # what fills up a row stands behind its tokens, where causality hides it: no mask, and so the fastest attention
        cached, self.real = pad_batch(lm, [one.shared[:-1] for one in choices], left=False)
        with torch.inference_mode():
            self.cache: Any = lm.model(input_ids=cached, use_cache=True, logits_to_keep=1).past_key_values

    @torch.inference_mode()
    def scores(self, effects: Sequence[Emphasis] = ()) -> list[list[float]]:
        """For each prompt the log-likelihood of the answer, then of each rival, over their first tokens.

        Args:
            effects: nothing, or one for each prompt.
        """
        model = self.lm.model
        fed, _ = pad_batch(self.lm, [[token for token, _ in one.fed] for one in self.branches], left=False)
        positions = self._filled([[position for _, position in one.fed] for one in self.branches], 0)
        bias = additive_mask(self._visible(), model.dtype)
        for row, effect in enumerate(effects):
            bias[row] = effect.on_bias(bias[row])
        with change_keys(effects, self.cache.layers):
            logits = model(
                input_ids=fed,
                position_ids=positions,
                attention_mask=bias[:, None],
                past_key_values=self.cache,
                use_cache=True,
            ).logits
            self.cache.crop(-fed.shape[1])
        return [self._totals(logits[row], one).tolist() for row, one in enumerate(self.branches)]

    @torch.inference_mode()
    def rows(self, effects: Sequence[ScaledScore] = ()) -> list[Tensor]:
        """The attention row of the last token before the answers: ``[layers, heads, tokens]`` for each prompt.

        Args:
            effects: nothing, or one for each prompt; only ``ScaledScore``, because recorders do not see a bias.
        """
        from whence import hf

        last = torch.tensor([one.shared[-1:] for one in self.branches], device=self.lm.device)
        at = torch.tensor([[len(one.shared) - 1] for one in self.branches], device=self.lm.device)
        seen = hf.LastRow()
        with (
            change_keys(effects, self.cache.layers),
            hf.capture(self.lm.model, seen, layers=self.lm.capture_layers),
        ):
            self.lm.model(
                input_ids=last,
                position_ids=at,
                attention_mask=torch.cat([self.real, torch.ones_like(last)], 1),
                past_key_values=self.cache,
                use_cache=True,
            )
            self.cache.crop(-1)
        every = seen.stack().float()  # [layers, prompts, heads, cached + 1]
        return [torch.cat([every[:, row, :, : len(one.shared) - 1], every[:, row, :, -1:]], -1)
                for row, one in enumerate(self.branches)]  # fmt: skip

    def _visible(self) -> Tensor:
        """``[prompts, fed, cached + fed]`` bool: the whole prompt, and the past of one's own branch."""
        owner = self._filled([one.owners for one in self.branches], -2)
        here = torch.arange(owner.shape[1], device=owner.device)
        own = (here[:, None] >= here) & ((owner[:, :, None] == owner[:, None]) | (here == 0))
        return torch.cat([self.real.bool()[:, None].expand(-1, owner.shape[1], -1), own], 2)

    def _filled(self, rows: list[list[int]], filler: int) -> Tensor:
        most = max(map(len, rows))
        return torch.tensor([row + [filler] * (most - len(row)) for row in rows], device=self.lm.device)

    def _totals(self, logits: Tensor, one: Branches) -> Tensor:
        """One prompt's sums, on the CPU: rows and tokens of every branch, filled up with a row that does not count."""
        rows, tokens = self._filled(one.rows, -1), self._filled([list(end) for end in one.ends], 0)
        known = logits.float().log_softmax(-1)[rows.clamp(min=0), tokens]
        return torch.where(rows < 0, 0.0, known).sum(-1).cpu()


def score_choices(lm: ProbedModel, prompts: Sequence[Prompt], scored: int = SCORED) -> list[list[float]]:
    """For each prompt the log-likelihood of the answer, then of each rival, over their first tokens."""
    choices = build_branches(lm, prompts, scored)
    if not lm.supports_branching:
        return [score_separately(lm, one) for one in choices]
    return [
        scores
        for some in batch_branches(lm, choices)
        for scores in CachedPrompts(lm, [choices[i] for i in some]).scores()
    ]


def batch_branches(lm: ProbedModel, choices: Sequence[Branches]) -> list[range]:
    """Ranges of indices that form one batch."""
    return lm.batches([len(one.shared) + len(one.fed) for one in choices])


@torch.inference_mode()
def last_attention_row(lm: ProbedModel, tokens: Sequence[int]) -> Tensor:
    """The attention row of the last token of a text, ``[layers, heads, tokens]``, for any model that can be captured."""
    from whence import hf

    seen = hf.LastRow()
    with hf.capture(lm.model, seen, layers=lm.capture_layers):
        lm.model(input_ids=torch.tensor([list(tokens)], device=lm.device), use_cache=False, logits_to_keep=1)
    return seen.stack()[:, 0].float()


@torch.inference_mode()
def score_separately(lm: ProbedModel, choices: Branches) -> list[float]:
    """The scores of one prompt's choices with one row for each choice."""
    tokens, real = pad_batch(lm, [[*choices.shared, *end] for end in choices.ends], left=False)
    known = lm.model(input_ids=tokens, attention_mask=real).logits.float().log_softmax(-1)
    first = len(choices.shared) - 1
    return [_total(known[index], range(first, first + len(end)), end) for index, end in enumerate(choices.ends)]


def _total(known: Tensor, rows: Any, end: tuple[int, ...]) -> float:
    return float(known[list(rows), list(end)].sum())


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask: zero where a key is visible, the lowest finite number elsewhere.

    >>> additive_mask(torch.tensor([[True, False]]), torch.float32).tolist()[0][0]
    0.0
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def choice_probabilities(scores: list[float]) -> list[float]:
    """The scores as probabilities among these answers alone.

    >>> [round(share, 3) for share in choice_probabilities([0.0, 0.0, -50.0])]
    [0.5, 0.5, 0.0]
    """
    return torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()


@dataclass(frozen=True)
class Emphasis(ABC):
    """A change to the keys of one span while answers are scored. The prompt itself is read without it."""

    span: Span
    factor: float

    def on_bias(self, bias: Tensor) -> Tensor:
        """What is added to the scores of a prompt's answering rows, ``[rows, keys]``."""
        return bias

    def on_keys(self, keys: Tensor) -> Tensor:
        """A prompt's cached keys in one layer, ``[heads, keys, width]``."""
        return keys


@dataclass(frozen=True)
class ScaledWeight(Emphasis):
    """Multiply the weight of every key of the span by a number above 0, before normalization."""

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise usage_error(
                "WeightTimes", f"factor={self.factor}", "a weight is multiplied by a number above 0", "try 2"
            )

    def on_bias(self, bias: Tensor) -> Tensor:
        changed = bias.clone()
        changed[:, self.span[0] : self.span[1]] += math.log(self.factor)
        return changed


@dataclass(frozen=True)
class ScaledScore(Emphasis):
    """Multiply the score of every key of the span by any number, through its key."""

    def on_keys(self, keys: Tensor) -> Tensor:
        changed = keys.clone()
        changed[:, self.span[0] : self.span[1]] *= self.factor
        return changed


#: by what is multiplied
EMPHASES: dict[str, type[Emphasis]] = {"weight": ScaledWeight, "score": ScaledScore}


def emphasis_class(multiplied: str) -> type[Emphasis]:
    """One of the two, by what it multiplies."""
    if multiplied not in EMPHASES:
        raise usage_error(
            "emphasis", repr(multiplied), f"it multiplies a {' or a '.join(EMPHASES)}", "take one of them"
        )
    return EMPHASES[multiplied]


@contextmanager
def change_keys(effects: Sequence[Emphasis], layers: Sequence[Any]) -> Iterator[None]:
    """Change the keys of a cache by one effect for each prompt; afterwards the original tensors are back."""
    read = [layer.keys for layer in layers]
    try:
        for layer in layers if effects else ():
            layer.keys = torch.stack([effect.on_keys(own) for effect, own in zip(effects, layer.keys, strict=True)])
        yield
    finally:
        for layer, keys in zip(layers, read, strict=True):
            layer.keys = keys
