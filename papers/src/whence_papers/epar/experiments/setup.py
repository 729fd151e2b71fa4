"""What the EPAR experiments share: sizes and seeds, tokens whose norm is their importance, and a task with a known answer.

The task: each position should gather the payloads of important positions near it, with the weights

    wanted(i, j)  =  softmax over j of  (sharpness * I_j  -  |i - j| / reach)

so the attention that solves it, its position value and its position of maximum benefit are known, and a head that is
trained on it can be held against them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory import PATTERNS, Setting, pattern

#: what the attention's scores are multiplied by; "none" is the control
FORMS = ("none", "basic", "enhanced")
#: "random": a head as it starts; "places": the same with random position vectors added, as the source has it; "trained"
WEIGHTS = ("random", "places", "trained")


@dataclass(frozen=True)
class Setup:
    """Sizes, seeds and EPAR's numbers. The quick one is for trying the path, not for reading numbers."""

    length: int = 128
    width: int = 16
    runs: int = 100  # sequences of each pattern, shared out among the heads
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)  # one head each
    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.5
    reach: float = 0.25  # of the wanted attention, as a share of the length
    sharpness: float = 6.0
    common: float = 0.6  # of a token's vector along the direction that all tokens share

    def __post_init__(self) -> None:
        if self.runs % len(self.seeds):
            got = f"runs={self.runs} for {len(self.seeds)} seeds"
            raise usage_error("Setup(runs, seeds)", got, "every head has as many runs", "give a multiple")

    @property
    def runs_a_head(self) -> int:
        return self.runs // len(self.seeds)

    def with_number(self, name: str, value: float) -> Self:
        """The same with another alpha, beta or gamma."""
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed)

    def setting(self, form: str) -> Setting | None:
        """EPAR's numbers for one of FORMS; None for the control."""
        return None if form == "none" else Setting(self.alpha, self.beta, self.gamma, form)


QUICK: dict[str, Any] = {"length": 32, "runs": 6, "seeds": (42, 43)}


def tokens(importance: Tensor, setup: Setup, seed: int) -> Tensor:
    """Vectors ``[..., L, width]`` with the importances ``[..., L]`` as norms.

    A part of each points along one direction that all share: without it no linear map could see a norm. The rest has a
    random direction.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*importance.shape, setup.width - 1, generator=generator, dtype=torch.float64)
    own = (1 - setup.common**2) ** 0.5 * torch.nn.functional.normalize(drawn, dim=-1)
    shared = torch.full((*importance.shape, 1), setup.common, dtype=torch.float64)
    return importance[..., None] * torch.cat([shared, own], -1)


def wanted(importance: Tensor, setup: Setup) -> Tensor:
    """The attention ``[..., L, L]`` that solves the task."""
    places = torch.arange(setup.length, dtype=torch.float64)
    distance = (places[:, None] - places).abs()
    return torch.softmax(setup.sharpness * importance[..., None, :] - distance / (setup.reach * setup.length), -1)


def sequences(name: str, setup: Setup, head: int) -> tuple[Tensor, Tensor]:
    """The importances ``[runs a head, L]`` and tokens of one pattern that the head of that number meets."""
    seed = 1_000_000 + 100 * head + list(PATTERNS).index(name)  # far from the seeds that training draws from
    importance = pattern(name, setup.length, seed, rows=setup.runs_a_head)
    return importance, tokens(importance, setup, seed)


def rounded(value: Any, digits: int = 5) -> Any:
    """Tensors and nested lists of numbers as lists, cut to a number of significant digits."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}")
