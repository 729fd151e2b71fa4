"""Two ways to emphasise a slot, for the rows that answer and in every layer and head: its weight times a number, or its score.

A weight is what softmax makes of a score, before the row is brought back to a sum of one: the weight times t is the score
plus log t, and attention to the slot rises for any t above 1. The score is the product of query and key over the root of
their width. It may lie below zero, and times 2 it then lies lower: attention falls. A survey of the subject speaks of
"doubling the score" and does not say which of the two is meant.
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
from whence.probe.tasks.prompts import Span


@dataclass(frozen=True)
class Emphasis(ABC):
    """What is done to the keys of one span while answers are scored; the prompt itself was read without it."""

    span: Span
    times: float

    def on_bias(self, bias: Tensor) -> Tensor:
        """What is added to the scores of a prompt's answering rows, ``[rows, keys]``."""
        return bias

    def on_keys(self, keys: Tensor) -> Tensor:
        """A prompt's cached keys in one layer, ``[heads, keys, width]``."""
        return keys


@dataclass(frozen=True)
class WeightTimes(Emphasis):
    """The weight of every key of the span times a number above 0, before rows are brought back to a sum of one."""

    def __post_init__(self) -> None:
        if not self.times > 0:
            raise usage_error(
                "WeightTimes", f"times={self.times}", "a weight is multiplied by a number above 0", "try 2"
            )

    def on_bias(self, bias: Tensor) -> Tensor:
        changed = bias.clone()
        changed[:, self.span[0] : self.span[1]] += math.log(self.times)
        return changed


@dataclass(frozen=True)
class ScoreTimes(Emphasis):
    """The score of every key of the span times any number: the keys are, and scores are linear in them."""

    def on_keys(self, keys: Tensor) -> Tensor:
        changed = keys.clone()
        changed[:, self.span[0] : self.span[1]] *= self.times
        return changed


#: by what is multiplied
EMPHASES: dict[str, type[Emphasis]] = {"weight": WeightTimes, "score": ScoreTimes}


def emphasis(multiplied: str) -> type[Emphasis]:
    """One of the two, by what it multiplies."""
    if multiplied not in EMPHASES:
        raise usage_error(
            "emphasis", repr(multiplied), f"it multiplies a {' or a '.join(EMPHASES)}", "take one of them"
        )
    return EMPHASES[multiplied]


@contextmanager
def keys_under(effects: Sequence[Emphasis], layers: Sequence[Any]) -> Iterator[None]:
    """A cache's keys as some effects change them, one for each prompt; those that were read come back, not what undoing
    would make."""
    read = [layer.keys for layer in layers]
    try:
        for layer in layers if effects else ():
            layer.keys = torch.stack([effect.on_keys(own) for effect, own in zip(effects, layer.keys, strict=True)])
        yield
    finally:
        for layer, keys in zip(layers, read, strict=True):
            layer.keys = keys
