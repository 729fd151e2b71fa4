"""What is asked of attention maps ``[B, L, L]`` in more than one experiment."""

from __future__ import annotations

import torch
from torch import Tensor


def row_correlation(a: Tensor) -> Tensor:
    """Pearson's correlation of the attention rows of every two positions: ``[B, L, L]``."""
    centred = a - a.mean(-1, keepdim=True)
    unit = centred / torch.linalg.vector_norm(centred, dim=-1, keepdim=True).clamp(min=1e-300)
    return unit @ unit.mT


def by_distance(square: Tensor) -> Tensor:
    """The mean ``[L]`` over sequences and over all pairs of positions at each distance."""
    mean = square.mean(0)
    both = [torch.cat([mean.diagonal(d), mean.diagonal(-d)]).mean() for d in range(mean.shape[-1])]
    return torch.stack(both)


def entropy(a: Tensor) -> Tensor:
    """The entropy of each row in nats: ``[..., L, S]`` gives ``[..., L]``."""
    return torch.special.entr(a).sum(-1)


def blocks(square: Tensor, count: int, keys: str) -> Tensor:
    """A matrix over tokens ``[L, L]`` as one over blocks of tokens: the mean over queries, the sum or mean over keys."""
    size = square.shape[-1] // count
    parts = square.unflatten(0, (count, size)).mean(1).unflatten(1, (count, size))
    return parts.sum(-1) if keys == "sum" else parts.mean(-1)
