"""How fast a measure changes with each of EPAR's numbers, by autograd."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence_papers.epar.theory.effect import NUMBERS, Setting
from whence_papers.epar.theory.evidence import Evidence
from whence_papers.epar.theory.measures import Measure


@dataclass(frozen=True)
class Sensitivity:
    """A measure at a setting and its derivative by each number; all tensors have the measure's shape."""

    setting: Setting
    value: Tensor
    slopes: dict[str, Tensor]

    @property
    def elasticities(self) -> dict[str, Tensor]:
        """By how many per cent the measure changes when a number changes by one per cent."""
        return {name: slope * getattr(self.setting, name) / self.value for name, slope in self.slopes.items()}


def sensitivity(measure: Measure, setting: Setting) -> Sensitivity:
    """The derivatives of a measure by the numbers of a setting.

    >>> from whence_papers.epar.theory.measures import factor_at
    >>> found = sensitivity(factor_at(torch.tensor([0.0, 10.0]), length=10), Setting())
    >>> found.slopes["alpha"], found.slopes["gamma"]
    (tensor([1.0000, 0.7893], dtype=torch.float64), tensor([ 0.0000, -0.2809], dtype=torch.float64))
    """
    numbers = setting.numbers()
    value = measure(numbers[None])[0].detach()
    jacobian = torch.autograd.functional.jacobian(lambda x: measure(x[None])[0], numbers)
    assert isinstance(jacobian, Tensor)
    return Sensitivity(setting, value, dict(zip(NUMBERS[setting.form], jacobian.unbind(-1), strict=True)))


def agrees_with_differences(measure: Measure, setting: Setting, step: float = 1e-5) -> Evidence:
    """The slopes by autograd are those of central differences, as a share of the largest (or of 1)."""
    found = sensitivity(measure, setting)
    numbers = setting.numbers()
    worst, where, count = 0.0, "", 0
    for column, name in enumerate(NUMBERS[setting.form]):
        moved = torch.zeros_like(numbers)
        moved[column] = step
        both = measure(torch.stack([numbers + moved, numbers - moved])).detach()
        central = (both[0] - both[1]) / (2 * step)
        apart = float((central - found.slopes[name]).abs().max()) / max(1.0, float(central.abs().max()))
        count += central.numel()
        if apart >= worst:
            worst, where = apart, name
    allowed = 1e-7
    return Evidence(
        "autograd and central differences give the same slopes",
        f"steps of {step:g} around {setting}",
        count,
        worst,
        allowed,
        {f"difference by {where}": worst} if worst > allowed else None,
        {f"largest slope by {name}": float(slope.abs().max()) for name, slope in found.slopes.items()},
    )
