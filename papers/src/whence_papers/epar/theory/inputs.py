"""Synthetic inputs: the source's five importance patterns, vectors and heads that carry them, and a retrieval problem.

Everything is seeded and in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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


#: pattern name -> function that draws it, before it is rescaled to 0..1
PATTERNS: dict[str, Draw] = {
    "random": _uniform,  # independent for each position
    "structured": _structured,  # one period of a sine over the sequence; deterministic
    "sparse": _sparse,  # a tenth of the positions, the rest 0
    "dense": _dense,  # all positions nearly equal
    "clustered": _clustered,  # blocks of an eighth of the sequence, each with one level
}


def make_pattern(name: str, length: int, seed: int, *, rows: int = 1) -> Tensor:
    """Importances ``[rows, length]`` of a pattern, each row rescaled to the range 0 to 1.

    A constant row cannot be rescaled and stays as it is (``clustered`` at a length with a single cluster).

    >>> make_pattern("structured", 4, seed=0)
    tensor([[0.5000, 1.0000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    if name not in PATTERNS:
        raise usage_error(
            "make_pattern(name)", repr(name), f"a pattern is one of {', '.join(PATTERNS)}", "choose one of them"
        )
    if length < 1 or rows < 1:
        raise usage_error(
            "make_pattern(...)", f"length={length}, rows={rows}", "both must be at least 1", "increase them"
        )
    importance = PATTERNS[name](rows, length, torch.Generator().manual_seed(seed))
    low, high = importance.amin(-1, keepdim=True), importance.amax(-1, keepdim=True)
    return torch.where(high > low, (importance - low) / (high - low).clamp(min=1e-300), importance)


def make_vectors(importance: Tensor, head_dim: int, seed: int) -> Tensor:
    """Vectors ``[..., L, D]`` in random directions whose norms are the importances ``[..., L]``."""
    importance = importance.to(torch.float64)
    vectors = torch.randn(
        *importance.shape, head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return importance[..., None] * torch.nn.functional.normalize(vectors, dim=-1)


def random_position_vectors(length: int, head_dim: int, seed: int) -> Tensor:
    """A random normal vector ``[length, head_dim]`` for each position, which the source adds to its inputs."""
    return torch.randn(length, head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def project_untrained(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[B, L, D]`` of x ``[B, L, D]`` under random projections with the initialization of ``nn.Linear``."""
    x = x.to(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    head_dim = x.shape[-1]
    matrices = torch.rand(2, head_dim, head_dim, dtype=torch.float64, generator=generator)
    to_queries, to_keys = (2 * matrices - 1) / head_dim**0.5
    return x @ to_queries.mT, x @ to_keys.mT


def attention_weights(
    q: Tensor,
    k: Tensor,
    position: Position | None,
    *,
    causal: bool = False,
    temperature: float = 1.0,
    q_positions: Tensor | None = None,
) -> Tensor:
    """Attention weights ``[B, H, T, L]`` of one head's q ``[B, T, D]`` and k ``[B, L, D]``, by the reference backend.

    ``q_positions`` ``[T]`` are the positions of the queries; by default the queries are the same tokens as the keys. A
    position with H heads (a grid of settings) receives the same q and k in each of them; without heads H is 1. The source
    uses bidirectional attention, so ``causal`` is off by default.
    """
    heads = 1 if position is None or position.heads is None else position.heads
    q, keys = q.to(torch.float64), k.to(torch.float64)[:, None]
    _, weights = attend(
        q[:, None].expand(-1, heads, -1, -1), keys, keys, position=position, causal=causal, temperature=temperature,
        q_positions=q_positions, k_positions=torch.arange(k.shape[1]), backend="reference", return_weights=True,
    )  # fmt: skip
    return weights


@dataclass(frozen=True)
class RetrievalProblem:
    """Queries and keys ``[B, L, D]`` of one head, and the target key of each row ``[B, L]``, -1 for none."""

    q: Tensor
    k: Tensor
    gold: Tensor


def make_retrieval_problem(
    rows: int, length: int, seed: int, *, head_dim: int = 16, reach: float = 0.5, decoys: int = 2, match: float = 3.0
) -> RetrievalProblem:
    """Find the nearest of several matching keys: a retrieval problem with a known answer, to tune EPAR's parameters on.

    The last query of each sequence matches its gold key and some decoys equally well, and every decoy is farther away. The
    distance of the gold key is uniform over 1 .. reach * L. Content cannot distinguish the gold key from decoys, only
    distance can. All other scores are standard normal; those of matching keys are ``match`` higher.
    """
    nearest = int(reach * length)
    if not nearest >= 1 or nearest + decoys >= length or decoys < 0:
        raise usage_error(
            "make_retrieval_problem(length, reach, decoys)",
            f"length={length}, reach={reach}, decoys={decoys}",
            "the gold key needs at least one position and all decoys must be farther away",
            "choose a longer sequence, a smaller reach or fewer decoys",
        )
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, rows, length, head_dim, dtype=torch.float64, generator=generator)
    query = torch.nn.functional.normalize(q[:, -1], dim=-1)
    q[:, -1] = query * head_dim**0.5  # a score, scaled by head_dim ** -0.5, is then the key's component along the query
    distance = torch.randint(1, nearest + 1, (rows,), generator=generator)
    place = length - 1 - distance
    # decoys: the first positions of a random order in which positions at or after the gold key come last
    order = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    order = order.masked_fill(torch.arange(length) >= place[:, None], 2.0).argsort(-1)[:, :decoys]
    matching = torch.cat([place[:, None], order], -1)
    lifted = torch.zeros(rows, length, dtype=torch.float64).scatter(-1, matching, match)
    gold = torch.full((rows, length), -1)
    gold[:, -1] = place
    return RetrievalProblem(q, k + lifted[..., None] * query[:, None], gold)
