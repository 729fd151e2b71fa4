"""The best numbers for a stated measure, found two ways that must agree: by gradient and by grid.

The source names a theorem of optimal parameters and does not state it; what can be had is the optimum for an objective
one writes down. A grid needs no slope and cannot be led astray by one; the gradient is exact where the grid is coarse.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.effect import NUMBERS, Setting
from whence_papers.epar.theory.evidence import Evidence
from whence_papers.epar.theory.measures import Measure

#: where the numbers are looked for unless said otherwise
BOUNDS: dict[str, tuple[float, float]] = {"alpha": (0.1, 4.0), "beta": (0.01, 8.0), "gamma": (0.01, 8.0)}
AT_BOUND = 1e-3  # of the width of its bounds: a number nearer than that to one of them ended there
AT_ONCE = 64  # settings evaluated together: attention with that many heads


@dataclass(frozen=True)
class Best:
    """The best setting that was found, what the measure is there, and what it took."""

    setting: Setting
    loss: float
    evaluations: int
    spread: float  # the highest measure seen minus the least: what a difference is large or small against
    at_bounds: tuple[str, ...]  # numbers that ended on a bound: there may be better ones beyond


def best_by_grid(
    measure: Measure,
    form: str = "enhanced",
    *,
    bounds: Mapping[str, tuple[float, float]] = BOUNDS,
    points: int = 7,
    rounds: int = 24,
    shrink: float = 0.7,
) -> Best:
    """The least measure on a grid that is laid anew around its best point, ``shrink`` times as wide or just as wide.

    It stays as wide along a number whose best was at the grid's edge: better ones may lie beyond, and a grid that shrank
    all the same would be left on the side of a narrow valley.
    """
    names, low, high = _limits(form, bounds)
    if points < 3 or rounds < 1 or not 0 < shrink < 1:
        raise usage_error(
            "best_by_grid(...)",
            f"points={points}, rounds={rounds}, shrink={shrink}",
            "a grid has 3 points a side or more, a round or more, and shrinks by a number between 0 and 1",
            "give such numbers",
        )
    centre, half, evaluations = (low + high) / 2, (high - low) / 2, 0
    best, lowest, highest = centre, float("inf"), float("-inf")
    for _ in range(rounds):
        axes = [
            torch.linspace(float(c - h), float(c + h), points, dtype=torch.float64).clamp(float(a), float(b))
            for c, h, a, b in zip(centre, half, low, high, strict=True)
        ]
        grid = torch.tensor(list(itertools.product(*(axis.tolist() for axis in axes))), dtype=torch.float64)
        losses = _evaluate(measure, grid)
        evaluations += len(grid)
        highest = max(highest, float(losses.max()))
        at_edge = torch.zeros_like(centre, dtype=torch.bool)
        if float(losses.min()) < lowest:
            best, lowest = grid[int(losses.argmin())], float(losses.min())
            at_edge = (best - centre).abs() >= half * (1 - 1e-9)
        centre, half = best, torch.where(at_edge, half, half * shrink)
    found, ends = _setting(best, names, form), _at_bounds(best, names, low, high)
    return Best(found, lowest, evaluations, highest - lowest, ends)


def best_by_gradient(
    measure: Measure,
    form: str = "enhanced",
    *,
    bounds: Mapping[str, tuple[float, float]] = BOUNDS,
    starts: int = 8,
    steps: int = 100,
    seed: int = 0,
) -> Best:
    """The least measure by L-BFGS from several random starts, inside the bounds at every step (a sigmoid maps to them)."""
    names, low, high = _limits(form, bounds)
    generator = torch.Generator().manual_seed(seed)
    inside = 0.05 + 0.9 * torch.rand(starts, len(names), dtype=torch.float64, generator=generator)
    best, lowest, highest, evaluations = low, float("inf"), float("-inf"), 0
    for start in torch.logit(inside):
        free = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [free], max_iter=steps, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
        )

        def closure(free: Tensor = free, optimizer: torch.optim.Optimizer = optimizer) -> float:
            nonlocal evaluations, highest
            evaluations += 1
            optimizer.zero_grad()
            loss = measure((low + (high - low) * torch.sigmoid(free))[None])[0]
            loss.backward()
            highest = max(highest, float(loss.detach()))
            return float(loss.detach())

        optimizer.step(closure)
        numbers = (low + (high - low) * torch.sigmoid(free)).detach()
        loss = float(_evaluate(measure, numbers[None])[0])
        if loss < lowest:
            best, lowest = numbers, loss
    found, ends = _setting(best, names, form), _at_bounds(best, names, low, high)
    return Best(found, lowest, evaluations, highest - lowest, ends)


def two_ways_agree(by_grid: Best, by_gradient: Best, allowed: float = 1e-6) -> Evidence:
    """Both searches end at the same least value; the violation is their difference as a share of the grid's spread.

    The numbers themselves are reported: where the measure hardly depends on one of them, they may differ.
    """
    apart = abs(by_grid.loss - by_gradient.loss) / max(by_grid.spread, 1e-300)
    grid, gradient = by_grid.setting.numbers(), by_gradient.setting.numbers()
    names = NUMBERS[by_grid.setting.form]
    numbers = {f"{name} by grid": float(x) for name, x in zip(names, grid, strict=True)}
    numbers |= {f"{name} by gradient": float(x) for name, x in zip(names, gradient, strict=True)}
    numbers |= {"least by grid": by_grid.loss, "least by gradient": by_gradient.loss}
    return Evidence(
        "grid and gradient find the same optimum",
        f"{by_grid.evaluations} settings on grids, {by_gradient.evaluations} gradient evaluations",
        1,
        apart,
        allowed,
        numbers if apart > allowed else None,
        numbers | {"largest difference of a number": float((grid - gradient).abs().max())},
    )


def _limits(form: str, bounds: Mapping[str, tuple[float, float]]) -> tuple[tuple[str, ...], Tensor, Tensor]:
    names = NUMBERS.get(form)
    if names is None or not all(name in bounds and 0 <= bounds[name][0] < bounds[name][1] for name in names):
        raise usage_error(
            "best_by_...(form, bounds)",
            f"{form!r} with {dict(bounds)}",
            "form is 'basic' or 'enhanced', and each of its numbers has bounds 0 <= low < high",
            "give them",
        )
    both = torch.tensor([bounds[name] for name in names], dtype=torch.float64)
    return names, both[:, 0], both[:, 1]


def _evaluate(measure: Measure, numbers: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([measure(some) for some in numbers.split(AT_ONCE)])


def _setting(numbers: Tensor, names: tuple[str, ...], form: str) -> Setting:
    return Setting(form=form, **dict(zip(names, numbers.tolist(), strict=True)))


def _at_bounds(numbers: Tensor, names: tuple[str, ...], low: Tensor, high: Tensor) -> tuple[str, ...]:
    close = torch.minimum(numbers - low, high - numbers) < AT_BOUND * (high - low)
    return tuple(name for name, there in zip(names, close.tolist(), strict=True) if there)
