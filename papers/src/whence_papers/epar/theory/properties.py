"""What the source's Theorem 1 says of the factor: continuous, differentiable, falling; and the bound of its enhanced form.

Each function tries its statement on a fine grid of distances and returns what it found. ``monotonicity`` has the part of
the theorem that speaks of the attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence_papers.epar.theory.effect import Setting, factor
from whence_papers.epar.theory.evidence import Evidence
from whence_papers.epar.theory.patterns import attention_weights

ROUNDING = 8 * torch.finfo(torch.float64).eps


def grid(length: int, reach: float = 2.0, side: int = 2000) -> Tensor:
    """Signed distances from -reach * L to reach * L, ``side`` of them on either side of 0 and 0 itself."""
    return torch.arange(-side, side + 1, dtype=torch.float64) / side * (reach * length)


def continuity(setting: Setting, length: int = 128) -> Evidence:
    """The factor is Lipschitz in the distance with the constant it has at 0, hence continuous, at 0 too.

    Steps across every point of the grid are taken at several sizes; the violation is by how much a change exceeds the
    constant times the step.
    """
    constant = setting.steepness / length
    where = grid(length)
    steps = torch.logspace(0, -9, 10, dtype=torch.float64)
    here, there = factor(where, length, setting), factor(where + steps[:, None], length, setting)
    change = (there - here).abs()
    beyond = (change - constant * steps[:, None]).clamp(min=0)
    found, allowed = float(beyond.max()), ROUNDING * setting.alpha
    row, column = divmod(int(beyond.argmax()), where.numel())
    return Evidence(
        "the factor is continuous in the distance",
        f"signed distances to 2 L in {where.numel()} points, steps from 1 to 1e-9; L = {length}, {setting}",
        beyond.numel(),
        found,
        allowed,
        None if found <= allowed else {"distance": float(where[column]), "step": float(steps[row])},
        {"Lipschitz constant": constant, "largest change at step 1e-9": float(change[-1].max())},
    )


def slope(distance: Tensor, length: int, setting: Setting) -> Tensor:
    """The derivative of the factor by the signed distance, by autograd; at 0 it is neither of the two one-sided ones."""
    at = distance.detach().to(torch.float64).clone().requires_grad_()
    (found,) = torch.autograd.grad(factor(at, length, setting).sum(), at)
    return found


def differentiability(setting: Setting, length: int = 128) -> Evidence:
    """The factor has a derivative at every signed distance. It has one everywhere but at 0, where there is a kink.

    Forward and backward differences are compared at every point of the grid; where they differ by more than they can by
    curvature, there is no derivative. ``numbers`` has both slopes at 0 and the jump between them by the formula.
    """
    where, step = grid(length), 1e-4 * length  # a tenth of the way between two points
    here = factor(where, length, setting)
    right = (factor(where + step, length, setting) - here) / step
    left = (here - factor(where - step, length, setting)) / step
    curvature = setting.steepness * setting.beta / length**2
    apart = (right - left).abs()
    allowed = curvature * step * 1.01 + ROUNDING * setting.alpha / step
    elsewhere = apart[where != 0]
    at_zero = int((where == 0).nonzero()[0, 0])
    inner = where[where != 0]
    by_autograd = slope(inner, length, setting)
    central = ((right + left) / 2)[where != 0]
    found = float(apart.max())
    return Evidence(
        "the factor is differentiable in the signed distance",
        f"signed distances to 2 L in {where.numel()} points, one-sided steps of {step:g}; L = {length}, {setting}",
        where.numel(),
        found,
        allowed,
        None if found <= allowed else {"distance": float(where[int(apart.argmax())]), "jump of the slope": found},
        {
            "slope right of 0": float(right[at_zero]),
            "slope left of 0": float(left[at_zero]),
            "jump by the formula": 2 * setting.steepness / length,
            "largest jump away from 0": float(elsewhere.max()),
            "autograd against differences away from 0": float((by_autograd - central).abs().max()),
        },
    )


def factor_monotonicity(setting: Setting, length: int = 128) -> Evidence:
    """The factor does not rise as |i - j| grows."""
    where = grid(length)
    where = where[where >= 0]
    change = factor(where, length, setting).diff()
    found, allowed = float(change.max().clamp(min=0)), ROUNDING * setting.alpha
    worst = int(change.argmax())
    return Evidence(
        "the factor falls with distance",
        f"distances 0 to 2 L in {where.numel()} points; L = {length}, {setting}",
        change.numel(),
        found,
        allowed,
        None if found <= allowed else {"distance": float(where[worst]), "rise": found},
        {"smallest fall between neighbours": -float(change.max()), "largest": -float(change.min())},
    )


def bound(setting: Setting, length: int = 128) -> Evidence:
    """The factor never falls under its floor, alpha / (1 + gamma) for the enhanced form and 0 for the basic one.

    Distances go far beyond L, where the floor is reached to rounding; inside L the least value is still above it.
    """
    inside = torch.linspace(0, length, 1001, dtype=torch.float64)
    beyond = torch.logspace(0, 6, 601, dtype=torch.float64) * length
    values = factor(torch.cat([inside, beyond]), length, setting)
    below = (setting.floor - values).clamp(min=0)
    found, allowed = float(below.max()), ROUNDING * setting.alpha
    return Evidence(
        "the factor is at least alpha / (1 + gamma)" if setting.form == "enhanced" else "the factor is at least 0",
        f"distances 0 to 1e6 L in {values.numel()} points; L = {length}, {setting}",
        values.numel(),
        found,
        allowed,
        None if found <= allowed else {"short by": found},
        {
            "floor": setting.floor,
            "least up to L": float(values[: inside.numel()].min()),
            "least anywhere": float(values.min()),
        },
    )


def bound_of_the_attention(setting: Setting, length: int = 128) -> Evidence:
    """The floor of the factor read as a floor of the attention weight, which the source's words do. It is none.

    All scores are equal and above 0; a row's weights sum to 1, so most of them are under any such floor.
    """
    one = torch.ones(1, length, 1, dtype=torch.float64)
    row = attention_weights(one, one, setting.position(length), causal=True)[0, 0, -1]
    short = setting.floor - float(row.min())
    return Evidence(
        "every attention weight is at least the floor of the factor",
        f"{length} keys with score 1 before one query; {setting}",
        length,
        max(short, 0.0),
        0.0,
        {"distance": float(length - 1 - int(row.argmin())), "weight": float(row.min())} if short > 0 else None,
        {
            "floor": setting.floor,
            "least weight": float(row.min()),
            "keys under the floor": float((row < setting.floor).sum()),
        },
    )
