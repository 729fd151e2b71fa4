"""The five information patterns of the source, and vectors and heads that carry them. All in double precision, seeded."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from whence.attention import attend
from whence.errors import usage_error
from whence.position.base import Position

Draw = Callable[[int, int, torch.Generator], Tensor]


def _uniform(rows: int, length: int, generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(rows, length, generator=generator, dtype=torch.float64)


def _structured(rows: int, length: int, generator: torch.Generator) -> Tensor:
    turn = torch.arange(length, dtype=torch.float64) * (2 * math.pi / length)
    return (0.5 + 0.5 * torch.sin(turn)).repeat(rows, 1)


def _sparse(rows: int, length: int, generator: torch.Generator) -> Tensor:
    many = max(1, length // 10)
    order = torch.rand(rows, length, generator=generator, dtype=torch.float64).argsort(-1)
    levels = _uniform(rows, many, generator, 0.2, 1.0)
    return torch.zeros(rows, length, dtype=torch.float64).scatter(-1, order[:, :many], levels)


def _dense(rows: int, length: int, generator: torch.Generator) -> Tensor:
    return _uniform(rows, length, generator, 0.7, 1.0)


def _clustered(rows: int, length: int, generator: torch.Generator) -> Tensor:
    size = max(1, length // 8)
    levels = _uniform(rows, -(-length // size), generator, 0.4, 1.0)
    return levels.repeat_interleave(size, -1)[:, :length]


#: name of a pattern, how it is drawn before it is stretched to 0..1
PATTERNS: dict[str, Draw] = {
    "random": _uniform,  # each position on its own
    "structured": _structured,  # one wave over the sequence; nothing random about it
    "sparse": _sparse,  # a tenth of the positions, the rest 0
    "dense": _dense,  # all of them nearly equal
    "clustered": _clustered,  # blocks of an eighth of the sequence, one level each
}


def pattern(name: str, length: int, seed: int, *, rows: int = 1) -> Tensor:
    """Importances ``[rows, length]`` of a pattern, each row stretched to reach from 0 to 1.

    A row that is constant has no spread to stretch and is left as it is (clusters at a length that has only one).

    >>> pattern("structured", 4, seed=0)
    tensor([[0.5000, 1.0000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    if name not in PATTERNS:
        raise usage_error(
            "pattern(name)", repr(name), f"a pattern is one of {', '.join(PATTERNS)}", "choose one of them"
        )
    if length < 1 or rows < 1:
        raise usage_error("pattern(...)", f"length={length}, rows={rows}", "both are at least 1", "give larger ones")
    drawn = PATTERNS[name](rows, length, torch.Generator().manual_seed(seed))
    low, high = drawn.amin(-1, keepdim=True), drawn.amax(-1, keepdim=True)
    return torch.where(high > low, (drawn - low) / (high - low).clamp(min=1e-300), drawn)


def vectors(importance: Tensor, width: int, seed: int) -> Tensor:
    """Vectors ``[..., L, width]`` in random directions whose norms are the importances ``[..., L]``."""
    importance = importance.to(torch.float64)
    drawn = torch.randn(*importance.shape, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return importance[..., None] * torch.nn.functional.normalize(drawn, dim=-1)


def random_places(length: int, width: int, seed: int) -> Tensor:
    """A random normal vector ``[length, width]`` for each position, which the source adds to its inputs."""
    return torch.randn(length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def untrained_head(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[B, L, W]`` of x ``[B, L, W]`` under random projections, as torch's linear layers start."""
    x = x.to(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    width = x.shape[-1]
    drawn = torch.rand(2, width, width, dtype=torch.float64, generator=generator)
    to_queries, to_keys = (2 * drawn - 1) / width**0.5
    return x @ to_queries.mT, x @ to_keys.mT


def attention_weights(
    q: Tensor,
    k: Tensor,
    position: Position | None,
    *,
    causal: bool = False,
    temperature: float = 1.0,
    places: Tensor | None = None,
) -> Tensor:
    """whence's own attention weights ``[B, H, T, L]`` of one head's q ``[B, T, D]`` and k ``[B, L, D]``, from the reference.

    Queries stand at ``places`` ``[T]``; by default they are the same tokens as the keys.

    A position with H heads (a grid of settings) sees the same q and k in each of them; without heads H is 1. The source
    looks both ways, so causality is off unless asked for.
    """
    heads = 1 if position is None or position.heads is None else position.heads
    q, keys = q.to(torch.float64), k.to(torch.float64)[:, None]
    _, weights = attend(
        q[:, None].expand(-1, heads, -1, -1), keys, keys, position=position, causal=causal, temperature=temperature,
        q_positions=places, k_positions=torch.arange(k.shape[1]), backend="reference", return_weights=True,
    )  # fmt: skip
    return weights
