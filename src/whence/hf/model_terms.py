"""What a pretrained model adds to the scores of its attention itself, softcap and sinks, combined with a layer's Position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence import torch_modes
from whence.position.base import Position
from whence.position.hook_types import Rows
from whence.position.sum import Sum

COMBINED = "_whence_combined"  # of an attention module: the layer's Position combined with these terms


class Softcap(Position):
    """The model's own softcap: scores limited to ``-cap .. cap`` by a tanh, before any scale or bias (Gemma 2)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def content_bias(self, rows: Rows) -> Tensor:
        return self.cap * torch.tanh(rows.scores / self.cap) - rows.scores


class ModelSinks(Position):
    """The model's own sink logit per head: it takes probability and contributes no value (gpt-oss)."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__(heads=logits.shape[0])
        self.logits = logits

    def sink(self, position: Tensor, length: Any) -> Tensor:
        return self.logits[:, None].expand(-1, position.shape[0])


def combine_with_model_terms(position: Position, softcap: float | None, sinks: Tensor | None) -> Position:
    """A Position combined with the model's softcap and sinks. ``Sum`` raises for parts that cannot act together."""
    terms: list[Position] = []
    if softcap is not None:
        terms.append(Softcap(softcap))
    if sinks is not None:
        terms.append(ModelSinks(sinks))
    return Sum(*terms, position) if terms else position


def combined_position(
    module: nn.Module, layer_position: Position, softcap: float | None, sinks: Tensor | None
) -> Position:
    """The combined Position of a layer, built once, because a compiler cannot trace the construction of a module."""
    if softcap is None and sinks is None:
        return layer_position
    built = module.__dict__.get(COMBINED)
    if built is not None and built[0] is layer_position and built[1] == softcap and built[2] is sinks:
        return built[3]
    position = combine_with_model_terms(layer_position, softcap, sinks)
    if not torch_modes.is_tracing():
        module.__dict__[COMBINED] = (layer_position, softcap, sinks, position)
    return position
