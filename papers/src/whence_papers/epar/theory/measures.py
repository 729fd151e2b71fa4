"""What can be asked of a setting, as functions of its numbers: ``[n, 2 or 3]`` in, ``[n, ...]`` out, differentiable.

``tuning`` looks for the numbers that make a measure least, ``sensitivity`` for how fast it changes with each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.epar.theory.benefit import position_value
from whence_papers.epar.theory.effect import epar
from whence_papers.epar.theory.patterns import attention_weights

Measure = Callable[[Tensor], Tensor]


def factor_at(distance: Tensor, length: int, form: str = "enhanced") -> Measure:
    """The factor at distances ``[d]``: ``[n, d]``."""
    return lambda numbers: epar(numbers, length, form).score_scale(distance.to(torch.float64), length)


def profile_error(distance: Tensor, target: Tensor, length: int, form: str = "enhanced") -> Measure:
    """The mean squared difference between the factor at distances ``[d]`` and a wanted profile ``[d]``: ``[n]``."""
    wanted = target.to(torch.float64)
    return lambda numbers: (factor_at(distance, length, form)(numbers) - wanted).square().mean(-1)


def position_values(
    q: Tensor, k: Tensor, importance: Tensor, *, form: str = "enhanced", causal: bool = False, temperature: float = 1.0
) -> Measure:
    """V(i) of one head's q and k ``[B, L, D]`` under importances ``[B, L]``, with the L of the sequence: ``[n, B, L]``."""

    def measure(numbers: Tensor) -> Tensor:
        weights = _weights(q, k, numbers, form, causal, temperature)
        return position_value(weights, importance[:, None]).transpose(0, 1)

    return measure


def entropy(q: Tensor, k: Tensor, *, form: str = "enhanced", causal: bool = False, temperature: float = 1.0) -> Measure:
    """The mean entropy of a row's attention in nats: ``[n]``."""

    def measure(numbers: Tensor) -> Tensor:
        weights = _weights(q, k, numbers, form, causal, temperature)
        return torch.special.entr(weights).sum(-1).mean((0, 2))

    return measure


def gold_surprise(
    q: Tensor, k: Tensor, gold: Tensor, *, form: str = "enhanced", causal: bool = True, temperature: float = 1.0
) -> Measure:
    """The mean of -log of the weight that each row of q ``[B, L, D]`` gives its gold key ``[B, L]``: ``[n]``.

    A row without a gold key has -1 there.
    """
    asked = gold >= 0
    ahead = causal & (gold > torch.arange(gold.shape[-1]))
    if gold.shape != q.shape[:2] or not bool(asked.any()) or bool(ahead.any()) or int(gold.max()) >= k.shape[1]:
        raise usage_error(
            "gold_surprise(q, k, gold)",
            f"gold of shape {tuple(gold.shape)} for q {tuple(q.shape)}",
            "gold [B, L] names a key that its row can see, or -1, and some row has one",
            "give such keys",
        )

    rows = asked.any(0).nonzero()[:, 0]  # the others need no attention
    q, gold, asked = q[:, rows], gold[:, rows], asked[:, rows]

    def measure(numbers: Tensor) -> Tensor:
        position = epar(numbers, k.shape[1], form)
        weights = attention_weights(q, k, position, causal=causal, temperature=temperature, places=rows)
        index = gold.clamp(min=0)[:, None, :, None].expand(-1, weights.shape[1], -1, -1)
        logs = weights.gather(-1, index)[..., 0].clamp(min=torch.finfo(weights.dtype).tiny).log()
        return -(logs * asked[:, None]).sum((0, 2)) / asked.sum()

    return measure


def _weights(q: Tensor, k: Tensor, numbers: Tensor, form: str, causal: bool, temperature: float) -> Tensor:
    """Attention under each row of numbers: ``[B, n, L, L]``."""
    position = epar(numbers, q.shape[1], form)
    return attention_weights(q, k, position, causal=causal, temperature=temperature)
