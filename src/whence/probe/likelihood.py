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
from whence.probe.probed_model import ProbedModel, pad_batch, require_probed_model
from whence.probe.tasks.task import Prompt, Span

#: tokens of an answer that are scored; after the first tokens of a random identifier a model copies the rest
MAX_SCORED_TOKENS = 8


@dataclass(frozen=True)
class Branches:
    """The tokens that all choices share, and the rest of each."""

    shared: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        return len(self.shared) + max(map(len, self.ends))

    @property
    def inputs(self) -> list[tuple[int, int]]:
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
        """For each branch the input rows that predict its tokens: the last token of the prompt, then its own."""
        rows, first = [], 1
        for end in self.ends:
            rows.append([0, *range(first, first + len(end) - 1)])
            first += len(end) - 1
        return rows


def build_branches(lm: ProbedModel, prompts: Sequence[Prompt], max_tokens: int = MAX_SCORED_TOKENS) -> list[Branches]:
    """The answer and the rivals of each prompt, tokenized together with the prompt, so that no token boundary is forced."""
    for prompt in prompts:
        if not prompt.rivals:
            raise usage_error(
                "build_branches(prompts)",
                "an answer without rivals",
                "an answer is scored against at least one rival",
                "add a rival",
            )
    choices = [_split_shared_tokens(rows, max_tokens) for rows in _tokenize(lm, prompts)]
    for one in choices:
        lm.require_context("score_choices(prompts)", one.longest)
    return choices


def _split_shared_tokens(rows: list[list[int]], max_tokens: int) -> Branches:
    first, last = min(rows), max(rows)  # in lexicographic order: what these two share, all rows between them share
    differences = (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    shared = next(differences, min(len(first), len(last)))
    if any(len(row) == shared for row in rows):
        raise usage_error(
            "build_branches(prompts)",
            "an answer that is the beginning of all others",
            "no answer may be a prefix of the others",
            "use other rivals",
        )
    return Branches(tuple(rows[0][:shared]), tuple(tuple(row[shared : shared + max_tokens]) for row in rows))


def _tokenize(lm: ProbedModel, prompts: Sequence[Prompt]) -> list[list[list[int]]]:
    """For each prompt, its tokens with the answer and with each rival.

    Tokenizing a prompt of 75 keys once for each value takes longer than the forward pass. So the whole prompt is tokenized
    once, with its answer; for the rivals only the last line is tokenized again. If the last line with the answer gives
    other tokens than the whole text (for example a tokenizer with a prefix), whole texts are tokenized.
    """
    whole = lm.all_tokens([prompt.text + prompt.answer for prompt in prompts])
    cuts = [max(0, prompt.text.rfind("\n")) for prompt in prompts]
    ends = [(prompt.answer, *prompt.rivals) for prompt in prompts]
    lines = [prompt.text[cut:] + end for prompt, cut, after in zip(prompts, cuts, ends, strict=True) for end in after]
    tokenized_lines = iter(lm.all_tokens(lines, special=False))
    token_rows = []
    for prompt, row, after in zip(prompts, whole, ends, strict=True):
        short_rows = [next(tokenized_lines) for _ in after]
        before = len(row) - len(short_rows[0])
        if before >= 0 and row[before:] == short_rows[0]:
            token_rows.append([row[:before] + line for line in short_rows])
        else:
            token_rows.append(lm.all_tokens([prompt.text + end for end in after]))
    return token_rows


class CachedPrompts:
    """Prompts in a KV cache up to their last tokens. Their choices can be scored repeatedly, with or without emphasis."""

    def __init__(self, lm: ProbedModel, choices: Sequence[Branches]) -> None:
        if not lm.supports_branching:
            raise usage_error(
                "CachedPrompts(lm)",
                f"{lm.name}, a model with windows, without explicit positions or with a Position attached",
                "answers that share a forward pass need a mask and positions",
                "use score_choices",
            )
        self.lm, self.branches = lm, list(choices)
        # padding follows the tokens, where the causal mask hides it: no other mask is needed, so attention is fastest
        cached, self.real = pad_batch(lm, [one.shared[:-1] for one in choices], left=False)
        with torch.inference_mode():
            self.cache: Any = lm.model(input_ids=cached, use_cache=True, logits_to_keep=1).past_key_values

    @torch.inference_mode()
    def scores(self, effects: Sequence[Emphasis] = ()) -> list[list[float]]:
        """For each prompt the log-likelihood of the answer, then of each rival, over their first tokens.

        Args:
            effects: empty, or one for each prompt.
        """
        model = self.lm.model
        inputs, _ = pad_batch(self.lm, [[token for token, _ in one.inputs] for one in self.branches], left=False)
        positions = self._pad_rows([[position for _, position in one.inputs] for one in self.branches], 0)
        bias = additive_mask(self._visible(), model.dtype)
        for row, effect in enumerate(effects):
            bias[row] = effect.on_bias(bias[row])
        with change_keys(effects, self.cache.layers):
            logits = model(
                input_ids=inputs,
                position_ids=positions,
                attention_mask=bias[:, None],
                past_key_values=self.cache,
                use_cache=True,
            ).logits
            self.cache.crop(-inputs.shape[1])
        return [self._totals(logits[row], one).tolist() for row, one in enumerate(self.branches)]

    @torch.inference_mode()
    def rows(self, effects: Sequence[ScaledScore] = ()) -> list[Tensor]:
        """The attention row of the last token before the answers: ``[layers, heads, tokens]`` for each prompt.

        Args:
            effects: empty, or one for each prompt; only ``ScaledScore``, because recorders do not see a bias.
        """
        from whence import hf

        last = torch.tensor([one.shared[-1:] for one in self.branches], device=self.lm.device)
        positions = torch.tensor([[len(one.shared) - 1] for one in self.branches], device=self.lm.device)
        last_row = hf.LastRow()
        with (
            change_keys(effects, self.cache.layers),
            hf.capture(self.lm.model, last_row, layers=self.lm.capture_layers),
        ):
            self.lm.model(
                input_ids=last,
                position_ids=positions,
                attention_mask=torch.cat([self.real, torch.ones_like(last)], 1),
                past_key_values=self.cache,
                use_cache=True,
            )
            self.cache.crop(-1)
        attention = last_row.stack().float()  # [layers, prompts, heads, cached + 1]
        return [torch.cat([attention[:, row, :, : len(one.shared) - 1], attention[:, row, :, -1:]], -1)
                for row, one in enumerate(self.branches)]  # fmt: skip

    def _visible(self) -> Tensor:
        """``[prompts, inputs, cached + inputs]`` bool: the whole prompt, and the earlier tokens of the same branch."""
        owners = self._pad_rows([one.owners for one in self.branches], -2)
        index = torch.arange(owners.shape[1], device=owners.device)
        in_branch = (index[:, None] >= index) & ((owners[:, :, None] == owners[:, None]) | (index == 0))
        return torch.cat([self.real.bool()[:, None].expand(-1, owners.shape[1], -1), in_branch], 2)

    def _pad_rows(self, rows: list[list[int]], filler: int) -> Tensor:
        most = max(map(len, rows))
        return torch.tensor([row + [filler] * (most - len(row)) for row in rows], device=self.lm.device)

    def _totals(self, logits: Tensor, one: Branches) -> Tensor:
        """The log-likelihood of every branch of one prompt, on the CPU; rows below 0 are padding and do not count."""
        rows, tokens = self._pad_rows(one.rows, -1), self._pad_rows([list(end) for end in one.ends], 0)
        log_probs = logits.float().log_softmax(-1)[rows.clamp(min=0), tokens]
        return torch.where(rows < 0, 0.0, log_probs).sum(-1).cpu()


def score_choices(lm: ProbedModel, prompts: Sequence[Prompt], max_tokens: int = MAX_SCORED_TOKENS) -> list[list[float]]:
    """For each prompt the log-likelihood of the answer, then of each rival, over their first tokens."""
    require_probed_model("score_choices(lm)", lm)
    choices = build_branches(lm, prompts, max_tokens)
    if not lm.supports_branching:
        return [score_separately(lm, one) for one in choices]
    return [
        scores
        for batch in batch_branches(lm, choices)
        for scores in CachedPrompts(lm, [choices[i] for i in batch]).scores()
    ]


def batch_branches(lm: ProbedModel, choices: Sequence[Branches]) -> list[range]:
    """Ranges of indices that form one batch."""
    return lm.batches([len(one.shared) + len(one.inputs) for one in choices])


@torch.inference_mode()
def last_attention_row(lm: ProbedModel, tokens: Sequence[int]) -> Tensor:
    """The attention row of the last token of a text, ``[layers, heads, tokens]``, for any model that can be captured."""
    from whence import hf

    last_row = hf.LastRow()
    with hf.capture(lm.model, last_row, layers=lm.capture_layers):
        lm.model(input_ids=torch.tensor([list(tokens)], device=lm.device), use_cache=False, logits_to_keep=1)
    return last_row.stack()[:, 0].float()


@torch.inference_mode()
def score_separately(lm: ProbedModel, choices: Branches) -> list[float]:
    """The scores of one prompt's choices with one row for each choice.

    Interventions on the model know where the prompt ends. A model with an intervention or an attached position reads
    the prompt once, into a cache that is then repeated for every choice.
    """
    from whence.hf.requests import set_prompt_ends

    with set_prompt_ends(lm.model, [len(choices.shared)]):
        if getattr(lm.model.config, "_attn_implementation", None) == "whence":
            log_probs = _read_with_cache(lm, choices).log_softmax(-1)
        else:
            tokens, real = pad_batch(lm, [[*choices.shared, *end] for end in choices.ends], left=False)
            logits = lm.model(input_ids=tokens, attention_mask=real).logits
            log_probs = logits[:, len(choices.shared) - 1 :].float().log_softmax(-1)
    return [_total(log_probs[index], range(len(end)), end) for index, end in enumerate(choices.ends)]


def _read_with_cache(lm: ProbedModel, choices: Branches) -> Tensor:
    """The logits from the last token of the prompt on, for each choice; the prompt is read once."""
    count = len(choices.ends)
    shared = torch.tensor([list(choices.shared)], device=lm.device)
    out = lm.model(input_ids=shared, use_cache=True)
    first = out.logits[:, -1:].float().expand(count, -1, -1)
    if max(map(len, choices.ends)) == 1:
        return first
    cache = out.past_key_values
    cache.batch_repeat_interleave(count)
    tokens, real = pad_batch(lm, [end[:-1] for end in choices.ends], left=False)
    mask = torch.cat([torch.ones_like(shared).expand(count, -1), real], 1)
    rest = lm.model(input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True).logits
    return torch.cat([first, rest.float()], 1)


def _total(log_probs: Tensor, rows: Any, end: tuple[int, ...]) -> float:
    return float(log_probs[list(rows), list(end)].sum())


def additive_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask: zero where a key is visible, the lowest finite number elsewhere.

    >>> additive_mask(torch.tensor([[True, False]]), torch.float32).tolist()[0][0]
    0.0
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def choice_probabilities(scores: list[float]) -> list[float]:
    """The scores as probabilities among these choices.

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
        """Change the additive mask of a prompt's answering rows, ``[rows, keys]``."""
        return bias

    def on_keys(self, keys: Tensor) -> Tensor:
        """Change the cached keys of a prompt in one layer, ``[heads, keys, head_dim]``."""
        return keys


@dataclass(frozen=True)
class ScaledWeight(Emphasis):
    """Multiply the weight of every key of the span by a number above 0, before normalization."""

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise usage_error(
                "ScaledWeight(factor=...)",
                f"{self.factor}",
                "a weight is multiplied by a number above 0",
                "pass 2, for example",
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


#: by the quantity that is multiplied
EMPHASES: dict[str, type[Emphasis]] = {"weight": ScaledWeight, "score": ScaledScore}


def emphasis_class(quantity: str) -> type[Emphasis]:
    """The class for the quantity that is multiplied."""
    if quantity not in EMPHASES:
        raise usage_error(
            "emphasis_class(quantity)",
            repr(quantity),
            f"it multiplies a {' or a '.join(EMPHASES)}",
            "pass one of them",
        )
    return EMPHASES[quantity]


@contextmanager
def change_keys(effects: Sequence[Emphasis], layers: Sequence[Any]) -> Iterator[None]:
    """Change the keys of a cache by one effect for each prompt. Restore the original tensors afterwards."""
    originals = [layer.keys for layer in layers]
    try:
        for layer in layers if effects else ():
            layer.keys = torch.stack([effect.on_keys(keys) for effect, keys in zip(effects, layer.keys, strict=True)])
        yield
    finally:
        for layer, keys in zip(layers, originals, strict=True):
            layer.keys = keys
