"""The model's own rotary positions, taken away from chosen layers: cosine 1 and sine 0 turn nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

GIVEN = "position_embeddings"  # how transformers hands cosines and sines to an attention module


class Unturned:
    """A hook before an attention module that hands it a rotation by nothing."""

    def __call__(
        self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not is_rotation(named.get(GIVEN)):
            return None
        cos, sin = named[GIVEN]
        return given, {**named, GIVEN: (torch.ones_like(cos), torch.zeros_like(sin))}


class Rotations:
    """A hook before attention modules that notes which of them turn their queries and keys."""

    def __init__(self) -> None:
        self.turning: set[int] = set()

    def __call__(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if is_rotation(named.get(GIVEN)):
            self.turning.add(id(module))


def is_rotation(given: object) -> bool:
    """Whether it is a pair of cosines and sines."""
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(x, Tensor) for x in given)
