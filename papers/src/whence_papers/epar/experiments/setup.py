"""What the EPAR experiments share: sizes and seeds, tokens whose norm is their importance, and a task with a known answer.

The task: each position gathers the payloads of important positions near it, with the weights

    target(i, j)  =  softmax over j of  (sharpness * I_j  -  |i - j| / reach)

The attention that solves it is therefore known, and so are its position value and its position of maximum benefit. A trained
head can be compared with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory import PATTERNS, Setting, make_pattern

#: the factor on the scores; "none" is the control
FORMS = ("none", "basic", "enhanced")
#: "random": untrained heads; "random_positions": the same with random position vectors added to the input, as in the source; "trained"
WEIGHTS = ("random", "random_positions", "trained")


@dataclass(frozen=True)
class Setup:
    """Sizes, seeds and EPAR's parameters."""

    length: int = 128
    head_dim: int = 16
    runs: int = 100  # sequences of each pattern, divided among the heads
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)  # one head each
    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.5
    reach: float = 0.25  # of the target attention, as a share of the length
    sharpness: float = 6.0
    common: float = 0.6  # share of a token's vector along the direction common to all tokens

    def __post_init__(self) -> None:
        if self.runs % len(self.seeds):
            got = f"runs={self.runs} for {len(self.seeds)} seeds"
            raise usage_error(
                "Setup(runs, seeds)",
                got,
                "all heads need the same number of runs",
                "make runs a multiple of the number of seeds",
            )

    @property
    def runs_a_head(self) -> int:
        return self.runs // len(self.seeds)

    def with_number(self, name: str, value: float) -> Self:
        """A copy with another alpha, beta or gamma."""
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed)

    def setting(self, form: str) -> Setting | None:
        """EPAR's parameters for one of FORMS; None for the control."""
        return None if form == "none" else Setting(self.alpha, self.beta, self.gamma, form)


QUICK: dict[str, Any] = {"length": 32, "runs": 6, "seeds": (42, 43)}


def make_tokens(importance: Tensor, setup: Setup, seed: int) -> Tensor:
    """Vectors ``[..., L, width]`` whose norms are the importances ``[..., L]``.

    A part of each vector points along one common direction; without it no linear map could read the norm. The rest has a
    random direction.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(*importance.shape, setup.head_dim - 1, generator=generator, dtype=torch.float64)
    own = (1 - setup.common**2) ** 0.5 * torch.nn.functional.normalize(noise, dim=-1)
    shared = torch.full((*importance.shape, 1), setup.common, dtype=torch.float64)
    return importance[..., None] * torch.cat([shared, own], -1)


def target_attention(importance: Tensor, setup: Setup) -> Tensor:
    """The attention ``[..., L, L]`` that solves the task."""
    places = torch.arange(setup.length, dtype=torch.float64)
    distance = (places[:, None] - places).abs()
    return torch.softmax(setup.sharpness * importance[..., None, :] - distance / (setup.reach * setup.length), -1)


def make_sequences(name: str, setup: Setup, head: int) -> tuple[Tensor, Tensor]:
    """The importances ``[runs per head, L]`` and tokens of one pattern for the head with a given index."""
    seed = 1_000_000 + 100 * head + list(PATTERNS).index(name)  # disjoint from the seeds of training
    importance = make_pattern(name, setup.length, seed, rows=setup.runs_a_head)
    return importance, make_tokens(importance, setup, seed)


def round_values(value: Any, digits: int = 5) -> Any:
    """Convert tensors and nested lists to lists of floats with a number of significant digits."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [round_values(one, digits) for one in value]
    return float(f"{value:.{digits}g}")


def correlate_rows(a: Tensor) -> Tensor:
    """Pearson's correlation of the attention rows of every two positions: ``[B, L, L]``."""
    centred = a - a.mean(-1, keepdim=True)
    unit = centred / torch.linalg.vector_norm(centred, dim=-1, keepdim=True).clamp(min=1e-300)
    return unit @ unit.mT


def mean_by_distance(square: Tensor) -> Tensor:
    """The mean ``[L]`` over sequences and over all pairs of positions at each distance."""
    mean = square.mean(0)
    both = [torch.cat([mean.diagonal(d), mean.diagonal(-d)]).mean() for d in range(mean.shape[-1])]
    return torch.stack(both)


def entropy(a: Tensor) -> Tensor:
    """The entropy of each row in nats: ``[..., L, S]`` gives ``[..., L]``."""
    return torch.special.entr(a).sum(-1)


def average_blocks(square: Tensor, count: int, keys: str) -> Tensor:
    """Reduce a matrix over tokens ``[L, L]`` to blocks of tokens: the mean over queries, the sum or mean over keys."""
    size = square.shape[-1] // count
    parts = square.unflatten(0, (count, size)).mean(1).unflatten(1, (count, size))
    return parts.sum(-1) if keys == "sum" else parts.mean(-1)
