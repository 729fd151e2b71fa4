"""Rotary with learnable frequencies (Zhang et al. 2025, arXiv 2512.07805, as the commuting form of multiplicative GRAPE).

    frequency = exp(log_frequency / 16)         log_frequency starts at 16 ln(base^(-2i/head_dim)), which is RoPE

The authors' code decides: frequencies stay above 0, the 16 makes a step of an optimizer sixteen times as small in the
logarithm of the frequency, and one set serves all heads unless asked otherwise. Their code rotates in the opposite
direction, which gives the same scores. It normalizes queries and keys after the rotation with a learned weight per column,
so that scores are no longer a function of distance; here nothing follows the rotation.

A key is rotated once for all the query heads that share it, so separate frequencies belong to key heads.

Use it instead of rotary to let training choose the frequencies, for example where the useful distances are known to be
short or long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.rotary import Rotary, rotate_pairs
from whence.validation import MAX_HEADS, require_even, require_integer

STEP_DIVISOR = 16.0


class LearnedRotary(Rotary):
    """Rotates queries and keys with learnable frequencies, which start as those of ``Rotary``.

    Args:
        head_dim: dimension of a head, even.
        num_kv_heads: one set of frequencies for each of so many key heads; ``None`` for one set shared by all heads.
        base: determines the lowest initial frequency.
        layout: ``"half"`` or ``"interleaved"``: which columns form a pair.

    >>> LearnedRotary(4).frequencies(4).detach()
    tensor([1.0000, 0.0100])
    """

    def __init__(
        self, head_dim: int, *, num_kv_heads: int | None = None, base: float = 10000.0, layout: str = "half"
    ) -> None:
        super().__init__(base=base, layout=layout)
        self.head_dim = require_even("LearnedRotary", "head_dim", head_dim, remedy="columns are rotated in pairs")
        if num_kv_heads is not None:
            require_integer(
                "LearnedRotary", "num_kv_heads", num_kv_heads, high=MAX_HEADS, remedy="pass the number of key heads"
            )
        self.num_kv_heads = num_kv_heads
        initial = -STEP_DIVISOR * math.log(self.base) * torch.arange(0, head_dim, 2) / head_dim
        self.log_frequency = nn.Parameter(initial if num_kv_heads is None else initial.repeat(num_kv_heads, 1))

    def frequencies(
        self,
        rotary_dim: int,
        length: Any = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: Any = None,
    ) -> Tensor:
        """Angles per position of each pair: ``[head_dim/2]`` or ``[num_kv_heads, head_dim/2]``."""
        return torch.exp(self.log_frequency.to(dtype) / STEP_DIVISOR)

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        frequencies = self.frequencies(self.head_dim, dtype=dtype).reshape(-1, 1, self.head_dim // 2)
        return (
            rotate_pairs(q, q_positions.to(dtype), self._by_head(frequencies, "queries", q), self.layout),
            rotate_pairs(k, k_positions.to(dtype), self._by_head(frequencies, "keys", k), self.layout),
        )

    def _by_head(self, frequencies: Tensor, what: str, x: Tensor) -> Tensor:
        """The frequencies of each head of x, with the axes head, row and pair."""
        return spread_over_heads("LearnedRotary", frequencies, what, x.shape[1])

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        if self.num_kv_heads is not None:
            yield "num_kv_heads", self.num_kv_heads
        yield "base", self.base
        yield "layout", self.layout


def spread_over_heads(owner: str, values: Tensor, what: str, heads: int) -> Tensor:
    """``values`` of each key head ``[sets, ...]`` as ``[heads, ...]``; one set stays as it is.

    >>> spread_over_heads("Pope", torch.tensor([[1.0], [2.0]]), "queries", 4).flatten()
    tensor([1., 1., 2., 2.])
    """
    sets = values.shape[0]
    if heads % sets:
        raise usage_error(
            f"{owner}(num_kv_heads={sets})",
            f"{what} with {heads} heads",
            "each key head serves the same number of heads",
            "pass the number of key heads, or leave num_kv_heads out",
        )
    return values if sets == 1 else values.repeat_interleave(heads // sets, 0)
