"""Rotary position as the survey writes it: what depends on the distance alone, which angles, which waves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.position import Rotary


def _turned(x: Tensor, position: int) -> Tensor:
    """One vector turned by ``whence.Rotary`` for a position."""
    at = torch.tensor([[position]])
    turned, _ = Rotary().rotate(x[None, None, None], x[None, None, None], at, at)
    return turned[0, 0, 0]


def relative_scores(embed_dim: int, shift: int, seed: int) -> dict[str, Any]:
    """How much a score changes when both positions move on: turned, and by the printed product without conjugate."""
    drawn = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(embed_dim, dtype=torch.float64, generator=drawn) for _ in range(2))
    turned = [float(_turned(q, i) @ _turned(k, j)) for i, j in ((9, 2), (9 + shift, 2 + shift))]
    angles = torch.tensor(10000.0, dtype=torch.float64) ** (
        -torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    )
    pairs = [torch.view_as_complex(x.reshape(-1, 2).contiguous()) for x in (q, k)]

    def product(i: int, j: int, conjugate: bool) -> float:
        first, second = (x * torch.exp(1j * place * angles) for x, place in zip(pairs, (i, j), strict=True))
        return float(((first.conj() if conjugate else first) * second).sum().real)

    return {
        "change_of_score": abs(turned[1] - turned[0]),
        "change_as_printed": abs(product(9 + shift, 2 + shift, False) - product(9, 2, False)),
        "change_with_conjugate": abs(product(9 + shift, 2 + shift, True) - product(9, 2, True)),
    }


def first_angle(embed_dim: int, base: float) -> dict[str, Any]:
    """The angle of the first pair for one step: by the printed formula, whose index begins at 1, and as published."""
    x = torch.zeros(embed_dim, dtype=torch.float64)
    x[0] = 1.0
    turned = _turned(x, 1)
    own = float(torch.acos(turned[0].clamp(-1, 1)))
    return {"printed": base ** (-2 / embed_dim), "own": own, "difference": abs(own - base ** (-2 / embed_dim))}


def waves(embed_dim: int, longest: int) -> dict[str, Any]:
    """The score of two equal vectors by distance: how often it rises, and its mean over near and far distances."""
    distance = torch.arange(longest, dtype=torch.float64)
    angles = 10000.0 ** (-torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim)
    curve = torch.cos(distance[:, None] * angles).mean(1)
    tenth = longest // 10
    return {
        "rises": int((curve.diff() > 0).sum()),
        "largest_beyond_zero": float(curve[1:].max()),
        "near_minus_far": float(curve[:tenth].mean() - curve[-tenth:].mean()),
    }


def scaled_positions(embed_dim: int, ratio: float, seed: int) -> dict[str, Any]:
    """Positions over a ratio beside angles over it: a score then depends on the distance over the ratio."""
    drawn = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(embed_dim // 2, dtype=torch.complex128, generator=drawn) for _ in range(2))
    angles = 10000.0 ** (-torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim)

    def score(distance: float, turn: Tensor) -> float:
        return float((q.conj() * k * torch.exp(-1j * distance * turn)).sum().real)

    apart = [abs(score(d / ratio, angles) - score(float(d), angles / ratio)) for d in range(64)]
    return {"largest_difference": max(apart)}


COMPUTATIONS = (relative_scores, first_angle, waves, scaled_positions)
