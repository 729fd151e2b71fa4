"""How much of the score is kept at a distance, and what the source's figures about it imply for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.effect import Setting, factor
from whence_papers.epar.theory.evidence import Evidence


def retention(share: Tensor, setting: Setting) -> Tensor:
    """The factor at a distance over the factor at 0; ``share`` is |i - j| / L, of any shape.

    >>> retention(torch.tensor([0.5, 1.0]), Setting()), retention(torch.tensor([1.0]), Setting().basic())
    (tensor([0.8688, 0.7893], dtype=torch.float64), tensor([0.3679], dtype=torch.float64))
    """
    return factor(share, 1, setting) / setting.alpha


@dataclass(frozen=True)
class Retained:
    """Both forms with the same numbers, side by side at each distance (in shares of L)."""

    share: Tensor
    basic: Tensor
    enhanced: Tensor

    @property
    def gain(self) -> Tensor:
        """How many times as much the enhanced form keeps."""
        return self.enhanced / self.basic


def compare_retention(share: Tensor, setting: Setting) -> Retained:
    """Retention of the basic and the enhanced form at any distances."""
    share = share.to(torch.float64)
    return Retained(share, retention(share, setting.basic()), retention(share, setting.enhanced()))


def beta_that_keeps(kept: float, share: float = 1.0) -> float:
    """The beta at which the basic form keeps a part of the score at a distance.

    >>> round(beta_that_keeps(0.028), 2)
    3.58
    """
    if not 0 < kept <= 1 or not share > 0:
        raise usage_error(
            "beta_that_keeps(kept, share)",
            f"{kept} at {share}",
            "the basic form keeps more than 0 and at most 1, at a distance above 0",
            "give numbers in that range",
        )
    return -math.log(kept) / share


def gamma_that_keeps(kept: float, decay: float) -> float:
    """The gamma at which the enhanced form keeps a part of the score where the basic form keeps ``decay``.

    >>> round(gamma_that_keeps(0.78, 0.028), 4)
    0.2926
    """
    if not 0 <= decay < kept <= 1:
        raise usage_error(
            "gamma_that_keeps(kept, decay)",
            f"{kept} with {decay}",
            "the enhanced form keeps more than the basic form and at most 1",
            "give 0 <= decay < kept <= 1",
        )
    return (1 - kept) / (kept - decay)


def retention_figures_agree(basic_far: float, gain_far: float, gain_medium: float, allowed: float = 0.05) -> Evidence:
    """Whether three claimed figures can come from one beta and one gamma.

    What the basic form keeps at the greatest distance gives beta, the gain there gives gamma, and both give the gain at
    half of it, which is held against the claimed one. ``allowed`` is for the figures' own rounding.
    """
    beta = beta_that_keeps(basic_far)
    gamma = gamma_that_keeps(basic_far * gain_far, basic_far)
    medium = float(compare_retention(torch.tensor(0.5), Setting(beta=beta, gamma=gamma)).gain)
    off = abs(medium - gain_medium)
    example = {"beta": beta, "gamma": gamma, "gain at L/2": medium, "claimed gain at L/2": gain_medium}
    return Evidence(
        "one beta and one gamma give all three retention figures",
        f"basic keeps {basic_far:g} at L, gain {gain_far:g} at L and {gain_medium:g} at L/2",
        1,
        off,
        allowed,
        example if off > allowed else None,
        example,
    )


def enhanced_keeps_more(setting: Setting, reach: float = 1.0, points: int = 1001) -> Evidence:
    """The enhanced form keeps at least what the basic form with the same beta keeps, at every distance up to reach * L."""
    share = torch.linspace(0, reach, points, dtype=torch.float64)
    both = compare_retention(share, setting)
    short = (both.basic - both.enhanced).clamp(min=0)
    worst = int(short.argmax())
    found, allowed = float(short.max()), 4 * torch.finfo(torch.float64).eps
    return Evidence(
        "the enhanced form keeps at least as much as the basic form",
        f"|i - j| / L from 0 to {reach:g} in {points} points; {setting}",
        points,
        found,
        allowed,
        None if found <= allowed else {"share": float(share[worst]), "short by": found},
        {
            "gain at L/2": float(compare_retention(torch.tensor(0.5), setting).gain),
            "gain at L": float(compare_retention(torch.tensor(1.0), setting).gain),
            "basic at L": float(compare_retention(torch.tensor(1.0), setting).basic),
            "enhanced at L": float(compare_retention(torch.tensor(1.0), setting).enhanced),
        },
    )
