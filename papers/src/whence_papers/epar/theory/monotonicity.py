"""Where attention falls with distance and where it rises: the factor falls, but a negative score times less is more.

Two keys with scores s and t at distances near < far get weights in the order of s * f(near) and t * f(far). For equal
scores the far key weighs less if the score is above 0 and more if it is below: that is where Theorem 1 fails.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.attention import attend
from whence.errors import usage_error
from whence_papers.epar.theory.effect import Setting, factor
from whence_papers.epar.theory.evidence import Evidence


def weights_by_distance(scores: Tensor, setting: Setting, *, length: int = 128, temperature: float = 1.0) -> Tensor:
    """whence's attention of the last query over keys with given scores: ``[n, keys]`` gives ``[n, keys]``.

    Column d belongs to the key at distance d. Queries and keys are numbers whose product is the score.
    """
    scores = scores.to(torch.float64)
    n, keys = scores.shape
    q, k = torch.ones(n, 1, 1, 1, dtype=torch.float64), scores[:, None, :, None]
    places = torch.arange(keys - 1, -1, -1)
    _, weights = attend(
        q, k, k, position=setting.position(length), scale=1.0, temperature=temperature, causal=True,
        q_positions=torch.tensor([keys - 1]), k_positions=places, backend="reference", return_weights=True,
    )  # fmt: skip
    return weights[:, 0, 0]


def attention_monotonicity(
    setting: Setting, *, scores: Tensor | None = None, length: int = 128, temperature: float = 1.0
) -> Evidence:
    """Theorem 1 read as the source writes it: attention falls with distance, the same content at every distance.

    Every key has the same score, one row for each of ``scores`` (401 from -5 to 5 by default). The violation is the
    largest rise of the weight from one distance to the next.
    """
    tried = torch.arange(-200, 201, dtype=torch.float64) / 40 if scores is None else scores.to(torch.float64)
    weights = weights_by_distance(tried[:, None].expand(-1, length), setting, length=length, temperature=temperature)
    rises = weights.diff(dim=-1)
    allowed = 8 * torch.finfo(torch.float64).eps
    rising = rises.amax(-1) > allowed
    found = float(rises.max().clamp(min=0))
    row, near = divmod(int(rises.argmax()), length - 1)
    example = {
        "score": float(tried[row]),
        "near": near,
        "weight near": float(weights[row, near]),
        "far": near + 1,
        "weight far": float(weights[row, near + 1]),
        "weight at distance 0": float(weights[row, 0]),
        "weight at the greatest distance": float(weights[row, -1]),
    }
    return Evidence(
        "attention falls with distance",
        f"equal scores, {tried.numel()} from {float(tried.min()):g} to {float(tried.max()):g}, {length} keys; {setting}",
        rises.numel(),
        found,
        allowed,
        example if found > allowed else None,
        {
            "share of scores where it rises": float(rising.double().mean()),
            "highest score where it rises": float(tried[rising].max()) if bool(rising.any()) else float("nan"),
            "scores at or above 0 where it rises": float((rising & (tried >= 0)).sum()),
            "scores below 0 where it falls": float((~rising & (tried < 0)).sum()),
        },
    )


def monotonicity_of_random_content(
    setting: Setting, *, width: int = 16, draws: int = 1000, length: int = 64, seed: int = 0
) -> Evidence:
    """The same statement with drawn content: one random key stands at every distance, the query is random too."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, draws, width, dtype=torch.float64, generator=generator)
    scores = (q * k).sum(-1) * width**-0.5
    found = attention_monotonicity(setting, scores=scores, length=length)
    drawn = f"{draws} random queries, each with one random key of width {width} at {length} distances, seed {seed}"
    return replace(found, where=f"{drawn}; {setting}")


@dataclass(frozen=True)
class Region:
    """For two keys, the scores at which the far one gets more weight than the near one."""

    scores: Tensor  # [n]
    fails: Tensor  # [n, n] bool; rows: score of the near key, columns: score of the far key
    near: float
    far: float
    boundary: float  # the far key wins where far score > boundary * near score
    disagreements: int  # pairs of scores on whose side the computed attention and that line differ


def failing_region(setting: Setting, near: int, far: int, scores: Tensor, *, length: int = 128) -> Region:
    """The region over pairs of scores, computed by attention, and the line that bounds it by the formula."""
    if not 0 <= near < far:
        raise usage_error(
            "failing_region(near, far)", f"{near} and {far}", "0 <= near < far", "give two such distances"
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
    effect = factor(torch.tensor([near, far], dtype=torch.float64), length, setting)
    boundary = float(effect[0] / effect[1])
    gap = pairs[:, 1] - boundary * pairs[:, 0]
    sure = gap.abs() > 1e-9  # on the line itself rounding decides
    wrong = int((sure & (wins != (gap > 0))).sum())
    return Region(s, wins.reshape(n, n), float(near), float(far), boundary, wrong)
