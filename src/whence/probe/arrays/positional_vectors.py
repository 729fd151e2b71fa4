"""Decomposed positional vectors (Dong et al. 2024, arXiv 2405.18009): what hidden states have in common at a position.

All functions take states ``[samples, layers, tokens, width]`` of texts of one length, all with or all without a first
token of their own, and no padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error

#: the first tokens are sinks, and stay as they are when positional vectors are replaced
KEPT = 4


@dataclass(frozen=True)
class PositionalVectors:
    """h = vector + content, and vector = base + moving."""

    vector: Tensor  # p [layers, tokens, width]: the mean over samples
    base: Tensor  # u [layers, 1, width]: its mean over tokens
    moving: Tensor  # m = p - u
    content: Tensor  # cs [samples, layers, tokens, width]


def positional_vectors(states: Tensor) -> PositionalVectors:
    if states.dim() != 4 or states.shape[0] < 2:
        raise usage_error(
            "positional_vectors",
            f"shape {tuple(states.shape)}",
            "it takes [samples, layers, tokens, width] with two or more samples",
            "stack several texts of one length",
        )
    vector = states.double().mean(0)
    base = vector.mean(1, keepdim=True)
    return PositionalVectors(vector, base, vector - base, states.double() - vector)


def without(states: Tensor, found: PositionalVectors, part: str) -> Tensor:
    """The states with one part taken out: ``vector``, ``moving`` or ``content``."""
    taken = {"vector": found.vector, "moving": found.moving, "content": found.content}
    if part not in taken:
        raise usage_error("without", repr(part), f"the parts are {', '.join(taken)}", "take one of them")
    return states.double() - taken[part]


def replaced(states: Tensor, vector: Tensor, ratio: float = 1.0, strength: float = 1.0, kept: int = KEPT) -> Tensor:
    """The states of one layer, ``[..., tokens, width]``, with stretched positional vectors in place of their own.

    A token at t gets ``strength`` times the vector of t / ratio, so that a text of ratio times the length runs through
    the positions that were trained. ``ratio=1, strength=1`` changes nothing.
    """
    if not ratio > 0:
        raise usage_error("replaced", f"ratio={ratio}", "positions are stretched by a number above 0", "try 2")
    tokens = states.shape[-2]
    at = (torch.arange(tokens, dtype=torch.float64, device=vector.device) / ratio).clamp(max=vector.shape[0] - 1)
    low = at.floor().long()
    high = (low + 1).clamp(max=vector.shape[0] - 1)
    part = (at - low)[:, None]
    vector = vector.double()
    stretched = vector[low] * (1 - part) + vector[high] * part
    changed = states.double() - vector[:tokens] + strength * stretched
    changed[..., :kept, :] = states[..., :kept, :].double()
    return changed


def nearest_inside(vector: Tensor, window: int) -> Tensor:
    """For each position beyond a window, the largest cosine to any position inside, ``[tokens - window]``, of one layer."""
    unit = torch.nn.functional.normalize(vector.double(), dim=-1)
    if not 0 < window < len(unit):
        raise usage_error("nearest_inside", f"window {window}", f"there are {len(unit)} positions", "take fewer")
    return (unit[window:] @ unit[:window].T).amax(-1)
