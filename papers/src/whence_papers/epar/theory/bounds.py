"""Whether an optimum is one, or only where the search was told to stop: the slope that is left where it lies on a bound."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from whence_papers.epar.theory.effect import NUMBERS
from whence_papers.epar.theory.evidence import Evidence
from whence_papers.epar.theory.measures import Measure
from whence_papers.epar.theory.tuning import AT_BOUND, BOUNDS, Best


def optimum_is_inside(
    measure: Measure, best: Best, *, bounds: Mapping[str, tuple[float, float]] = BOUNDS, allowed: float = 1e-6
) -> Evidence:
    """Nothing better lies beyond the bounds that a search had.

    The violation is by how much the measure would still fall on the way across a bound that a number ended on: its slope
    there times the width of the bounds, as a share of the spread that was seen. A number inside its bounds adds nothing;
    one that ends on a bound where the measure is level has its optimum there by chance. ``numbers`` has, for each number,
    its room to the nearest bound as a share of their width, and the slope toward that bound.
    """
    names = NUMBERS[best.setting.form]
    at = best.setting.numbers().requires_grad_()
    (slopes,) = torch.autograd.grad(measure(at[None])[0], at)
    seen: dict[str, float] = {}
    falls: dict[str, float] = {}
    for name, x, slope in zip(names, at.tolist(), slopes.tolist(), strict=True):
        low, high = bounds[name]
        below, above = (x - low) / (high - low), (high - x) / (high - low)
        outward = -slope if below < above else slope
        seen |= {f"room of {name}": min(below, above), f"slope of {name} toward its bound": outward}
        if min(below, above) < AT_BOUND:
            falls[name] = max(0.0, -outward) * (high - low) / max(best.spread, 1e-300)
    worst = max(falls, key=lambda name: falls[name], default="")
    found = falls.get(worst, 0.0)
    example = (
        {worst: getattr(best.setting, worst), "falls beyond by, of the spread": found} if found > allowed else None
    )
    return Evidence(
        "the optimum lies inside the bounds of the search",
        f"{', '.join(f'{name} from {bounds[name][0]:g} to {bounds[name][1]:g}' for name in names)}; {best.setting}",
        len(names),
        found,
        allowed,
        example,
        seen,
    )
