"""``PromptWatcher``: the tokens of the prompts, for interventions that run forward passes of their own before the answer.

A hook sees the input of every forward pass. It collects the tokens of a prompt that is read in several passes, and keeps
them with the cache. Before the pass that reads the last token of the prompts it calls a function with all their tokens.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.expanded_rows import COPIES
from whence.hf.integrations import unwrap_peft
from whence.hf.masks import MaskInfo
from whence.hf.requests import current_request, prompt_end_positions

STATE = "_whence_prompts"  # the attribute of a cache with the state of watchers

#: from the tokens of each prompt, without padding, to a result that holds for their whole answers
Measure = Callable[[list[list[int]]], Any]


class PromptWatcher:
    """Calls a function once for the prompts of a batch, and keeps its result with their cache.

    Args:
        subject: the intervention, for errors.
        model: a causal language model of transformers.
        measure: called with the tokens of each prompt, once for a prompt with several rows, as in beam search. Its result
            is reused for the same prompts in passes without a cache, unless it is empty.

    ``measure`` may call the model. Those passes are not watched.
    """

    def __init__(self, subject: str, model: Any, measure: Measure) -> None:
        self.subject, self.model, self.measure = subject, unwrap_peft(model), measure
        self.state: dict[str, Any] = {}  # of the forward pass in progress
        self._measuring = False
        self._key = uuid.uuid4().hex  # a cache may be copied, so its state is not stored under an object
        self._last: tuple[Any, Any] | None = None  # the last prompts without a cache, and their result

    @property
    def result(self) -> Any:
        """What ``measure`` returned for the prompts of the forward pass in progress; None before their last token."""
        return self.state.get("result")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the forward passes of the model inside the block."""
        before = self.model.register_forward_pre_hook(self._before, with_kwargs=True)
        after = self.model.register_forward_hook(self._after, with_kwargs=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._measuring:
            return
        if COPIES in self.model.__dict__:
            raise usage_error(
                self.subject,
                "a model with several rows for each sequence, as of Attention Buckets",
                "it measures one row for each prompt",
                "apply one of them",
            )
        tokens = kwargs.get("input_ids", args[0] if args else None)
        cache = kwargs.get("past_key_values")
        cached = 0 if cache is None else int(cache.get_seq_length())
        states = {} if cache is None else cache.__dict__.setdefault(STATE, {})
        if cached == 0:
            states.pop(self._key, None)  # the cache was reset
        self.state = states.setdefault(self._key, {})
        if "result" in self.state:
            return
        if not isinstance(tokens, Tensor):
            raise usage_error(
                self.subject, "a call without input_ids", "it reads the prompt's tokens", "pass input_ids"
            )
        known = self.state.get("tokens")
        if cached != (0 if known is None else known.shape[1]):
            raise usage_error(
                self.subject,
                "a cache that was filled before the intervention was applied",
                "it reads the whole prompt",
                "apply the intervention before the first forward pass",
            )
        real = _real_tokens(kwargs.get("attention_mask"), tokens)
        if known is not None:
            tokens, real = torch.cat((known, tokens), 1), torch.cat((self.state["real"], real), 1)
        self.state |= {"tokens": tokens, "real": real}
        ends = prompt_end_positions(
            current_request(self.model), len(tokens), real.long().argmax(1, keepdim=True), tokens.device
        )
        ends = real.sum(1) if ends is None else ends[:, 0]
        reached = real.sum(1) >= ends
        if not bool(reached.any()):
            return
        if not bool(reached.all()):
            raise usage_error(
                self.subject,
                "prompts that end in different forward passes",
                "all prompts of a batch must be complete before the first answer",
                "pad the prompts on the left, or read them in one forward pass",
            )
        rows = [row[keep][:end].tolist() for row, keep, end in zip(tokens, real, ends.tolist(), strict=True)]
        current = current_request(self.model)
        prompts = (rows[:: current.repeats(len(rows))], current.documents)
        if cache is None and self._last is not None and self._last[0] == prompts:
            self.state["result"] = self._last[1]  # without a cache every step of an answer reads the same prompt
            return
        self.state["result"] = result = self._measure(prompts[0])
        self._last = (prompts, result) if result else None

    def _after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Keep the state with a cache that the model itself made, and end the pass."""
        if self._measuring:
            return
        state, self.state = self.state, {}
        if kwargs.get("past_key_values") is not None:
            return
        outputs: Sequence[Any] = output if isinstance(output, tuple) else (getattr(output, "past_key_values", None),)
        for cache in outputs:
            if hasattr(cache, "get_seq_length"):
                cache.__dict__.setdefault(STATE, {})[self._key] = state

    def _measure(self, rows: list[list[int]]) -> Any:
        self._measuring = True
        try:
            with torch.no_grad():
                return self.measure(rows)
        finally:
            self._measuring = False


def _real_tokens(mask: Any, tokens: Tensor) -> Tensor:
    """Which tokens of the input are not padding, ``[B, T]``, from the attention mask in any form that a model gets."""
    if isinstance(mask, dict):  # generate builds one for each kind of layer
        mask = next(iter(mask.values()))
    info = getattr(mask, "mask_info", None)
    if isinstance(info, MaskInfo):
        query_mask = info.query_mask()
        return torch.ones_like(tokens, dtype=torch.bool) if query_mask is None else query_mask
    if mask is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    return mask[:, -tokens.shape[1] :].bool()
