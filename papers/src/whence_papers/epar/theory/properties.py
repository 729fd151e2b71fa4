"""The source's Theorem 1 and its bound: is the factor continuous, differentiable and decreasing, and is attention?

Each function checks its statement on a fine grid and returns the evidence. The factor decreases with distance, but the
attention weight need not: two keys with scores s and t at distances near < far get weights in the order of s * f(near)
and t * f(far). With equal scores the far key gets less weight if the score is positive, and more if it is negative. That is
where Theorem 1 fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.attention import attend
from whence.errors import usage_error
from whence_papers.epar.theory.inputs import attention_weights
from whence_papers.epar.theory.position_effect import Setting, StatementCheck, score_scale

ROUNDING = 8 * torch.finfo(torch.float64).eps


def make_grid(length: int, reach: float = 2.0, side: int = 2000) -> Tensor:
    """Signed distances from -reach * L to reach * L: 0 and ``side`` points on either side of it."""
    return torch.arange(-side, side + 1, dtype=torch.float64) / side * (reach * length)


def continuity(setting: Setting, length: int = 128) -> StatementCheck:
    """The factor is Lipschitz in the distance, with its slope at 0 as the constant, and therefore continuous, also at 0.

    Each grid point is compared with points several step sizes away. The violation is the amount by which a change exceeds
    the constant times the step.
    """
    constant = setting.steepness / length
    distances = make_grid(length)
    steps = torch.logspace(0, -9, 10, dtype=torch.float64)
    values, shifted = score_scale(distances, length, setting), score_scale(distances + steps[:, None], length, setting)
    change = (shifted - values).abs()
    beyond = (change - constant * steps[:, None]).clamp(min=0)
    violation, allowed = float(beyond.max()), ROUNDING * setting.alpha
    row, column = divmod(int(beyond.argmax()), distances.numel())
    return StatementCheck(
        "the factor is continuous in the distance",
        f"signed distances to 2 L in {distances.numel()} points, steps from 1 to 1e-9; L = {length}, {setting}",
        beyond.numel(),
        violation,
        allowed,
        None if violation <= allowed else {"distance": float(distances[column]), "step": float(steps[row])},
        {"Lipschitz constant": constant, "largest change at step 1e-9": float(change[-1].max())},
    )


def slope(distance: Tensor, length: int, setting: Setting) -> Tensor:
    """The derivative of the factor with respect to the signed distance, by autograd. At 0 it is neither one-sided derivative."""
    at = distance.detach().to(torch.float64).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(score_scale(at, length, setting).sum(), at)
    return gradient


def differentiability(setting: Setting, length: int = 128) -> StatementCheck:
    """The statement that the factor is differentiable at every signed distance. It fails at 0, where there is a kink.

    Forward and backward differences are compared at every grid point. Where they differ by more than curvature explains,
    there is no derivative. ``numbers`` holds both slopes at 0 and the jump between them by the formula.
    """
    distances, step = make_grid(length), 1e-4 * length  # a tenth of the grid spacing
    values = score_scale(distances, length, setting)
    right = (score_scale(distances + step, length, setting) - values) / step
    left = (values - score_scale(distances - step, length, setting)) / step
    curvature = setting.steepness * setting.beta / length**2
    jumps = (right - left).abs()
    allowed = curvature * step * 1.01 + ROUNDING * setting.alpha / step
    elsewhere = jumps[distances != 0]
    at_zero = int((distances == 0).nonzero()[0, 0])
    inner = distances[distances != 0]
    by_autograd = slope(inner, length, setting)
    central = ((right + left) / 2)[distances != 0]
    violation = float(jumps.max())
    return StatementCheck(
        "the factor is differentiable in the signed distance",
        f"signed distances to 2 L in {distances.numel()} points, one-sided steps of {step:g}; L = {length}, {setting}",
        distances.numel(),
        violation,
        allowed,
        None
        if violation <= allowed
        else {"distance": float(distances[int(jumps.argmax())]), "jump of the slope": violation},
        {
            "slope right of 0": float(right[at_zero]),
            "slope left of 0": float(left[at_zero]),
            "jump by the formula": 2 * setting.steepness / length,
            "largest jump away from 0": float(elsewhere.max()),
            "autograd against differences away from 0": float((by_autograd - central).abs().max()),
        },
    )


def factor_monotonicity(setting: Setting, length: int = 128) -> StatementCheck:
    """The factor does not increase with |i - j|."""
    distances = make_grid(length)
    distances = distances[distances >= 0]
    change = score_scale(distances, length, setting).diff()
    violation, allowed = float(change.max().clamp(min=0)), ROUNDING * setting.alpha
    worst = int(change.argmax())
    return StatementCheck(
        "the factor falls with distance",
        f"distances 0 to 2 L in {distances.numel()} points; L = {length}, {setting}",
        change.numel(),
        violation,
        allowed,
        None if violation <= allowed else {"distance": float(distances[worst]), "rise": violation},
        {"smallest fall between neighbours": -float(change.max()), "largest": -float(change.min())},
    )


def bound(setting: Setting, length: int = 128) -> StatementCheck:
    """The factor is never below its floor: alpha / (1 + gamma) for the enhanced form, 0 for the basic one.

    Distances reach far beyond L, where the factor equals the floor up to rounding. Within L it is still above the floor.
    """
    inside = torch.linspace(0, length, 1001, dtype=torch.float64)
    beyond = torch.logspace(0, 6, 601, dtype=torch.float64) * length
    values = score_scale(torch.cat([inside, beyond]), length, setting)
    below = (setting.floor - values).clamp(min=0)
    violation, allowed = float(below.max()), ROUNDING * setting.alpha
    return StatementCheck(
        "the factor is at least alpha / (1 + gamma)" if setting.form == "enhanced" else "the factor is at least 0",
        f"distances 0 to 1e6 L in {values.numel()} points; L = {length}, {setting}",
        values.numel(),
        violation,
        allowed,
        None if violation <= allowed else {"short by": violation},
        {
            "floor": setting.floor,
            "least up to L": float(values[: inside.numel()].min()),
            "least anywhere": float(values.min()),
        },
    )


def attention_bound(setting: Setting, length: int = 128) -> StatementCheck:
    """The statement that every attention weight is at least the floor of the factor, as the source words it. It fails.

    All scores are equal and positive. The weights of a row sum to 1, so most of them are below any such floor.
    """
    one = torch.ones(1, length, 1, dtype=torch.float64)
    row = attention_weights(one, one, setting.position(length), causal=True)[0, 0, -1]
    short = setting.floor - float(row.min())
    return StatementCheck(
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


def weights_by_distance(scores: Tensor, setting: Setting, *, length: int = 128, temperature: float = 1.0) -> Tensor:
    """Attention weights of the last query over keys with given scores: ``[n, keys]`` gives ``[n, keys]``.

    Column d belongs to the key at distance d. Queries and keys are scalars whose product is the score.
    """
    scores = scores.to(torch.float64)
    n, keys = scores.shape
    q, k = torch.ones(n, 1, 1, 1, dtype=torch.float64), scores[:, None, :, None]
    k_positions = torch.arange(keys - 1, -1, -1)
    _, weights = attend(
        q, k, k, position=setting.position(length), scale=1.0, temperature=temperature, causal=True,
        q_positions=torch.tensor([keys - 1]), k_positions=k_positions, backend="reference", return_weights=True,
    )  # fmt: skip
    return weights[:, 0, 0]


def attention_monotonicity(
    setting: Setting, *, scores: Tensor | None = None, length: int = 128, temperature: float = 1.0
) -> StatementCheck:
    """Theorem 1 as the source states it: attention decreases with distance, for the same content at every distance.

    All keys of a row have the same score, one row for each of ``scores`` (by default 401 scores from -5 to 5). The violation
    is the largest increase of the weight from one distance to the next.
    """
    scores = torch.arange(-200, 201, dtype=torch.float64) / 40 if scores is None else scores.to(torch.float64)
    weights = weights_by_distance(scores[:, None].expand(-1, length), setting, length=length, temperature=temperature)
    rises = weights.diff(dim=-1)
    allowed = 8 * torch.finfo(torch.float64).eps
    rising = rises.amax(-1) > allowed
    violation = float(rises.max().clamp(min=0))
    row, near = divmod(int(rises.argmax()), length - 1)
    example = {
        "score": float(scores[row]),
        "near": near,
        "weight near": float(weights[row, near]),
        "far": near + 1,
        "weight far": float(weights[row, near + 1]),
        "weight at distance 0": float(weights[row, 0]),
        "weight at the greatest distance": float(weights[row, -1]),
    }
    return StatementCheck(
        "attention falls with distance",
        f"equal scores, {scores.numel()} from {float(scores.min()):g} to {float(scores.max()):g}, {length} keys; {setting}",
        rises.numel(),
        violation,
        allowed,
        example if violation > allowed else None,
        {
            "share of scores where it rises": float(rising.double().mean()),
            "highest score where it rises": float(scores[rising].max()) if bool(rising.any()) else float("nan"),
            "scores at or above 0 where it rises": float((rising & (scores >= 0)).sum()),
            "scores below 0 where it falls": float((~rising & (scores < 0)).sum()),
        },
    )


def monotonicity_of_random_content(
    setting: Setting, *, head_dim: int = 16, draws: int = 1000, length: int = 64, seed: int = 0
) -> StatementCheck:
    """The same statement for random content: one random query, and one random key that is repeated at every distance."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, draws, head_dim, dtype=torch.float64, generator=generator)
    scores = (q * k).sum(-1) * head_dim**-0.5
    evidence = attention_monotonicity(setting, scores=scores, length=length)
    inputs = f"{draws} random queries, each with one random key of width {head_dim} at {length} distances, seed {seed}"
    return replace(evidence, where=f"{inputs}; {setting}")


@dataclass(frozen=True)
class ReversalRegion:
    """For two keys, the pairs of scores at which the far key gets more weight than the near one."""

    scores: Tensor  # [n]
    fails: Tensor  # [n, n] bool; rows: score of the near key, columns: score of the far key
    near: float
    far: float
    boundary: float  # the far key wins where far score > boundary * near score
    disagreements: int  # pairs of scores for which the computed attention contradicts that line


def reversal_region(setting: Setting, near: int, far: int, scores: Tensor, *, length: int = 128) -> ReversalRegion:
    """The region of score pairs where the far key wins, computed by attention, and its boundary by the formula."""
    if not 0 <= near < far:
        raise usage_error(
            "reversal_region(near, far)",
            f"{near} and {far}",
            "the distances are 0 <= near < far",
            "swap or change them",
        )
    s = scores.to(torch.float64)
    n = s.numel()
    pairs = torch.stack([s.repeat_interleave(n), s.repeat(n)], -1)  # near score, far score
    q, k = torch.ones(n * n, 1, 1, 1, dtype=torch.float64), pairs[:, None, :, None]
    _, weights = attend(
        q, k, k, position=setting.position(length), scale=1.0, causal=True, q_positions=torch.tensor([far]),
        k_positions=torch.tensor([far - near, 0]), backend="reference", return_weights=True,
    )  # fmt: skip
    wins = weights[:, 0, 0, 1] > weights[:, 0, 0, 0]
    effect = score_scale(torch.tensor([near, far], dtype=torch.float64), length, setting)
    boundary = float(effect[0] / effect[1])
    gap = pairs[:, 1] - boundary * pairs[:, 0]
    sure = gap.abs() > 1e-9  # on the line itself rounding decides
    wrong = int((sure & (wins != (gap > 0))).sum())
    return ReversalRegion(s, wins.reshape(n, n), float(near), float(far), boundary, wrong)
