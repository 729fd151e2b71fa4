"""Measures as functions of EPAR's parameters, their sensitivity, and the parameters that minimize them.

A ``Measure`` maps parameters ``[n, 2 or 3]`` to ``[n, ...]`` and is differentiable. The source names a theorem of optimal
parameters and does not state it, so an optimum here always belongs to a stated objective. It is searched for in two ways
that must agree: a grid needs no gradient and cannot be misled by one; the gradient is exact where the grid is coarse.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.benefit import position_value
from whence_papers.epar.theory.inputs import attention_weights
from whence_papers.epar.theory.position_effect import PARAMETERS, Setting, StatementCheck, build_epar

Measure = Callable[[Tensor], Tensor]


def factor_at(distance: Tensor, length: int, form: str = "enhanced") -> Measure:
    """The factor at distances ``[d]``: ``[n, d]``."""
    return lambda numbers: build_epar(numbers, length, form).score_scale(distance.to(torch.float64), length)


def profile_error(distance: Tensor, target: Tensor, length: int, form: str = "enhanced") -> Measure:
    """The mean squared difference between the factor at distances ``[d]`` and a target profile ``[d]``: ``[n]``."""
    target = target.to(torch.float64)
    return lambda numbers: (factor_at(distance, length, form)(numbers) - target).square().mean(-1)


def position_values(
    q: Tensor, k: Tensor, importance: Tensor, *, form: str = "enhanced", causal: bool = False, temperature: float = 1.0
) -> Measure:
    """V(i) of one head's q and k ``[B, L, D]`` for importances ``[B, L]``, with the sequence length as L: ``[n, B, L]``."""

    def measure(numbers: Tensor) -> Tensor:
        weights = _weights(q, k, numbers, form, causal, temperature)
        return position_value(weights, importance[:, None]).transpose(0, 1)

    return measure


def entropy(q: Tensor, k: Tensor, *, form: str = "enhanced", causal: bool = False, temperature: float = 1.0) -> Measure:
    """The mean entropy of the attention rows in nats: ``[n]``."""

    def measure(numbers: Tensor) -> Tensor:
        weights = _weights(q, k, numbers, form, causal, temperature)
        return torch.special.entr(weights).sum(-1).mean((0, 2))

    return measure


def gold_nll(
    q: Tensor, k: Tensor, gold: Tensor, *, form: str = "enhanced", causal: bool = True, temperature: float = 1.0
) -> Measure:
    """The mean negative log weight that each row of q ``[B, L, D]`` assigns to its gold key ``[B, L]``: ``[n]``.

    -1 marks a row without a gold key.
    """
    has_gold = gold >= 0
    ahead = causal & (gold > torch.arange(gold.shape[-1]))
    if gold.shape != q.shape[:2] or not bool(has_gold.any()) or bool(ahead.any()) or int(gold.max()) >= k.shape[1]:
        raise usage_error(
            "gold_nll(q, k, gold)",
            f"gold of shape {tuple(gold.shape)} for q {tuple(q.shape)}",
            "gold [B, L] names a visible key for at least one row",
            "use -1 for rows without a gold key",
        )

    rows = has_gold.any(0).nonzero()[:, 0]  # the other rows are not computed
    q, gold, has_gold = q[:, rows], gold[:, rows], has_gold[:, rows]

    def measure(numbers: Tensor) -> Tensor:
        position = build_epar(numbers, k.shape[1], form)
        weights = attention_weights(q, k, position, causal=causal, temperature=temperature, q_positions=rows)
        index = gold.clamp(min=0)[:, None, :, None].expand(-1, weights.shape[1], -1, -1)
        logs = weights.gather(-1, index)[..., 0].clamp(min=torch.finfo(weights.dtype).tiny).log()
        return -(logs * has_gold[:, None]).sum((0, 2)) / has_gold.sum()

    return measure


def _weights(q: Tensor, k: Tensor, numbers: Tensor, form: str, causal: bool, temperature: float) -> Tensor:
    """The attention weights for each row of parameters: ``[B, n, L, L]``."""
    position = build_epar(numbers, q.shape[1], form)
    return attention_weights(q, k, position, causal=causal, temperature=temperature)


@dataclass(frozen=True)
class Sensitivity:
    """A measure at a setting and its derivative with respect to each parameter; all tensors have the measure's shape."""

    setting: Setting
    value: Tensor
    slopes: dict[str, Tensor]

    @property
    def elasticities(self) -> dict[str, Tensor]:
        """The change of the measure in per cent when a parameter changes by one per cent."""
        return {name: slope * getattr(self.setting, name) / self.value for name, slope in self.slopes.items()}


def sensitivity(measure: Measure, setting: Setting) -> Sensitivity:
    """The derivatives of a measure with respect to the parameters of a setting.

    >>> from whence_papers.epar.theory.parameters import factor_at
    >>> result = sensitivity(factor_at(torch.tensor([0.0, 10.0]), length=10), Setting())
    >>> result.slopes["alpha"], result.slopes["gamma"]
    (tensor([1.0000, 0.7893], dtype=torch.float64), tensor([ 0.0000, -0.2809], dtype=torch.float64))
    """
    numbers = setting.to_tensor()
    value = measure(numbers[None])[0].detach()
    jacobian = torch.autograd.functional.jacobian(lambda x: measure(x[None])[0], numbers)
    assert isinstance(jacobian, Tensor)
    return Sensitivity(setting, value, dict(zip(PARAMETERS[setting.form], jacobian.unbind(-1), strict=True)))


def gradients_match_differences(measure: Measure, setting: Setting, step: float = 1e-5) -> StatementCheck:
    """The gradients by autograd equal central differences, relative to the largest one (or to 1)."""
    gradient = sensitivity(measure, setting)
    numbers = setting.to_tensor()
    worst, where, count = 0.0, "", 0
    for column, name in enumerate(PARAMETERS[setting.form]):
        offset = torch.zeros_like(numbers)
        offset[column] = step
        both = measure(torch.stack([numbers + offset, numbers - offset])).detach()
        central = (both[0] - both[1]) / (2 * step)
        difference = float((central - gradient.slopes[name]).abs().max()) / max(1.0, float(central.abs().max()))
        count += central.numel()
        if difference >= worst:
            worst, where = difference, name
    allowed = 1e-7
    return StatementCheck(
        "autograd and central differences give the same slopes",
        f"steps of {step:g} around {setting}",
        count,
        worst,
        allowed,
        {f"difference by {where}": worst} if worst > allowed else None,
        {f"largest slope by {name}": float(slope.abs().max()) for name, slope in gradient.slopes.items()},
    )


#: default search ranges
BOUNDS: dict[str, tuple[float, float]] = {"alpha": (0.1, 4.0), "beta": (0.01, 8.0), "gamma": (0.01, 8.0)}
AT_BOUND = 1e-3  # of the width of its bounds: a parameter this close to a bound counts as on it
AT_ONCE = 64  # settings evaluated together, as heads of one attention


@dataclass(frozen=True)
class Optimum:
    """The best setting of a search, the measure there, and the cost of the search."""

    setting: Setting
    loss: float
    evaluations: int
    spread: float  # highest minus lowest measure of the search: the scale for differences
    at_bounds: tuple[str, ...]  # parameters that ended on a bound; better ones may lie beyond


def minimize_by_grid(
    measure: Measure,
    form: str = "enhanced",
    *,
    bounds: Mapping[str, tuple[float, float]] = BOUNDS,
    points: int = 7,
    rounds: int = 24,
    shrink: float = 0.7,
) -> Optimum:
    """Minimize a measure by a grid search that is repeated around its best point.

    The grid shrinks by ``shrink`` each round, except along a parameter whose best value is at the edge of the grid: better
    values may lie beyond, and a grid that shrank there would get stuck on the side of a narrow valley.
    """
    names, low, high = _limits(form, bounds)
    if points < 3 or rounds < 1 or not 0 < shrink < 1:
        raise usage_error(
            "minimize_by_grid(...)",
            f"points={points}, rounds={rounds}, shrink={shrink}",
            "points >= 3, rounds >= 1 and 0 < shrink < 1",
            "choose points, rounds and shrink in these ranges",
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
    setting, ends = _setting(best, names, form), _at_bounds(best, names, low, high)
    return Optimum(setting, lowest, evaluations, highest - lowest, ends)


def minimize_by_gradient(
    measure: Measure,
    form: str = "enhanced",
    *,
    bounds: Mapping[str, tuple[float, float]] = BOUNDS,
    starts: int = 8,
    steps: int = 100,
    seed: int = 0,
) -> Optimum:
    """Minimize a measure by L-BFGS from several random starts. A sigmoid keeps every step inside the bounds."""
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
    setting, ends = _setting(best, names, form), _at_bounds(best, names, low, high)
    return Optimum(setting, lowest, evaluations, highest - lowest, ends)


def grid_and_gradient_agree(by_grid: Optimum, by_gradient: Optimum, allowed: float = 1e-6) -> StatementCheck:
    """Both searches reach the same minimum. The violation is their difference relative to the spread of the grid search.

    ``numbers`` holds the parameters of both. They may differ where the measure hardly depends on them.
    """
    difference = abs(by_grid.loss - by_gradient.loss) / max(by_grid.spread, 1e-300)
    grid, gradient = by_grid.setting.to_tensor(), by_gradient.setting.to_tensor()
    names = PARAMETERS[by_grid.setting.form]
    numbers = {f"{name} by grid": float(x) for name, x in zip(names, grid, strict=True)}
    numbers |= {f"{name} by gradient": float(x) for name, x in zip(names, gradient, strict=True)}
    numbers |= {"least by grid": by_grid.loss, "least by gradient": by_gradient.loss}
    return StatementCheck(
        "grid and gradient find the same optimum",
        f"{by_grid.evaluations} settings on grids, {by_gradient.evaluations} gradient evaluations",
        1,
        difference,
        allowed,
        numbers if difference > allowed else None,
        numbers | {"largest difference of a number": float((grid - gradient).abs().max())},
    )


def _limits(form: str, bounds: Mapping[str, tuple[float, float]]) -> tuple[tuple[str, ...], Tensor, Tensor]:
    names = PARAMETERS.get(form)
    if names is None or not all(name in bounds and 0 <= bounds[name][0] < bounds[name][1] for name in names):
        raise usage_error(
            "minimize_by_...(form, bounds)",
            f"{form!r} with {dict(bounds)}",
            "form is 'basic' or 'enhanced' and each of its parameters has bounds 0 <= low < high",
            "pass such bounds",
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


def optimum_is_inside(
    measure: Measure, best: Optimum, *, bounds: Mapping[str, tuple[float, float]] = BOUNDS, allowed: float = 1e-6
) -> StatementCheck:
    """The optimum is not an artifact of the search bounds.

    The violation estimates how much the measure would still decrease across a bound that a parameter ended on: its slope
    there times the width of the bounds, relative to the spread of the search. A parameter inside its bounds contributes
    nothing; one on a bound where the measure is flat has its optimum there by chance. ``numbers`` holds, for each parameter,
    the distance to the nearest bound as a share of their width, and the slope toward that bound.
    """
    names = PARAMETERS[best.setting.form]
    at = best.setting.to_tensor().requires_grad_()
    (slopes,) = torch.autograd.grad(measure(at[None])[0], at)
    numbers: dict[str, float] = {}
    falls: dict[str, float] = {}
    for name, x, slope in zip(names, at.tolist(), slopes.tolist(), strict=True):
        low, high = bounds[name]
        below, above = (x - low) / (high - low), (high - x) / (high - low)
        outward = -slope if below < above else slope
        numbers |= {f"room of {name}": min(below, above), f"slope of {name} toward its bound": outward}
        if min(below, above) < AT_BOUND:
            falls[name] = max(0.0, -outward) * (high - low) / max(best.spread, 1e-300)
    worst = max(falls, key=lambda name: falls[name], default="")
    fall = falls.get(worst, 0.0)
    example = {worst: getattr(best.setting, worst), "falls beyond by, of the spread": fall} if fall > allowed else None
    return StatementCheck(
        "the optimum lies inside the bounds of the search",
        f"{', '.join(f'{name} from {bounds[name][0]:g} to {bounds[name][1]:g}' for name in names)}; {best.setting}",
        len(names),
        fall,
        allowed,
        example,
        numbers,
    )
