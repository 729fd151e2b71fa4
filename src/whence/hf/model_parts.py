"""What a model itself does to its scores, as parts that join a Position: so that one computation knows of both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.position.base import Position, Rows
from whence.position.composition import Sum


class Softcap(Position):
    """Scores held within ``-cap .. cap`` by a tangent, before a factor or bias acts on them (as in Gemma 2)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def content_bias(self, rows: Rows) -> Tensor:
        return self.cap * torch.tanh(rows.scores / self.cap) - rows.scores


class ModelSinks(Position):
    """The model's own logit a head that takes weight and gives nothing (as in gpt-oss)."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__(heads=logits.shape[0])
        self.logits = logits

    def sink(self, position: Tensor, length: Any) -> Tensor:
        return self.logits[:, None].expand(-1, position.shape[0])


def joined(position: Position, softcap: float | None, sinks: Tensor | None) -> Position:
    """A position together with what the model brings; what cannot act together is refused by the sum."""
    own: list[Position] = []
    if softcap is not None:
        own.append(Softcap(softcap))
    if sinks is not None:
        own.append(ModelSinks(sinks))
    return Sum(*own, position) if own else position
