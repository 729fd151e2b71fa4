"""A penalty linear in distance: its sign, its scale, what it learns, and the sinusoids it is compared with."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from whence.position import Alibi
from whence.position.sinusoidal import sinusoid


def mean_distance(slope: float, length: int) -> float:
    """How far away the weight of the last query lies on average, among equal keys with a bias of -slope * distance."""
    distance = torch.arange(length, dtype=torch.float64)
    return float(torch.softmax(-slope * distance, 0) @ distance)


def slope_signs(slope: float, length: int) -> dict[str, Any]:
    """The mean distance of the weight without a bias, and with the same slope above and below zero."""
    none, positive, negative = (mean_distance(s, length) for s in (0.0, slope, -slope))
    return {
        "mean_distance_without": none,
        "mean_distance_positive": positive,
        "mean_distance_negative": negative,
        "negative_minus_without": negative - none,
    }


def scales(factors: list[float], heads: int, length: int) -> dict[str, Any]:
    """The mean distance of every head's weight at each scale, and how often a larger scale reaches farther."""
    found = []
    for factor in factors:
        own = Alibi(heads, scale=factor).double()
        distance = torch.arange(length, dtype=torch.float64)
        found.append((torch.softmax(own.bias(distance, None), -1) @ distance).mean().item())
    ordered = [found[place] for place in sorted(range(len(factors)), key=factors.__getitem__)]
    return {
        "farther_at_larger_scale": sum(b >= a for a, b in pairwise(ordered)),
        **{f"mean_distance_at_{factor:g}": one for factor, one in zip(factors, found, strict=True)},
    }


def learned_slopes(heads: int) -> dict[str, Any]:
    """How many numbers ALiBi as published learns, and how far its bias is from linear."""
    own = Alibi(heads)
    bias = own.bias(torch.arange(64.0), None)
    return {
        "learned_numbers": sum(p.numel() for p in own.parameters()),
        "bend": float(bias.diff(dim=-1).diff(dim=-1).abs().max()),
    }


def sinusoids(embed_dim: int, length: int) -> dict[str, Any]:
    """The printed formula, number by number, beside ``whence.Sinusoidal``."""
    own = sinusoid(torch.arange(length, dtype=torch.float64), embed_dim)
    off = 0.0
    for place in range(length):
        for pair in range(embed_dim // 2):
            angle = place / 10000 ** (2 * pair / embed_dim)
            for column, printed in ((2 * pair, math.sin(angle)), (2 * pair + 1, math.cos(angle))):
                off = max(off, abs(float(own[place, column]) - printed))
    return {"largest_difference": off}


COMPUTATIONS = (slope_signs, scales, learned_slopes, sinusoids)
