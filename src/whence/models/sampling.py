"""How a next token is chosen from a row of scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.errors import usage_error


def choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token ``[B]`` from scores ``[B, V]``: the best at temperature 0, else drawn, among the ``top_k`` best if given.

    >>> choose(torch.tensor([[0.0, 2.0, 1.0]]), 0.0, None, None)
    tensor([1])
    """
    if temperature == 0:
        return logits.argmax(-1)
    # in float64 and with the best score taken out, no temperature is too low
    best = logits.double().topk(logits.shape[-1] if top_k is None else top_k, dim=-1)
    shares = ((best.values - best.values[:, :1]) / temperature).softmax(-1)
    drawn = torch.multinomial(shares, 1, generator=generator)
    return best.indices.gather(1, drawn)[:, 0]


def require_choice(steps: int, temperature: float, top_k: int | None, stop: int | None, vocab_size: int) -> None:
    """Refuse what no choice can be made by."""
    if not _whole(steps, 0):
        raise usage_error(
            "generate(steps=...)", repr(steps), "steps is a whole number of at least 0", "give a number of tokens"
        )
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not (math.isfinite(temperature) and temperature >= 0):
        raise usage_error(
            "generate(temperature=...)",
            repr(temperature),
            "temperature is a finite number of at least 0",
            "use 0 for the best token each time",
        )
    if top_k is not None and not _whole(top_k, 1, vocab_size):
        raise usage_error(
            "generate(top_k=...)",
            repr(top_k),
            f"top_k is a whole number from 1 to the {vocab_size} tokens there are",
            "leave it out to draw from all",
        )
    if stop is not None and not _whole(stop, 0, vocab_size - 1):
        raise usage_error(
            "generate(stop=...)",
            repr(stop),
            f"stop is a token, 0 to {vocab_size - 1}",
            "leave it out to generate every step",
        )


def _whole(value: object, low: int, high: int | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)
