"""FIRE: a small network of the distance divided by the query's position (Li et al. 2023, arXiv 2310.04418).

    bias = f( psi(|i - j|) / psi(max(threshold, i)) ),    psi(x) = log(1 + |c| * x)

i is the query's position counted from 0, and f a network 1 -> hidden_dim -> heads with one ReLU layer. The argument of f
is between 0 and 1 at every length, so longer inputs stay in its training range. The threshold avoids stretching short
inputs.

Use it for decoders that must read longer inputs than they were trained on, where a learned shape is worth a small
network and a bias that differs from query to query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whence.position.base import LENGTHS, Position
from whence.position.hook_types import LOG_NETWORK, PairFunction
from whence.validation import require_choice, require_dim, require_number, require_table

EPS = 1e-6  # keeps the division finite when c or the threshold approaches 0 in training
MAX_FUSED_UNITS = 128  # fused kernels hold one number of each hidden unit in registers


class Fire(Position):
    """A learned function of the distance relative to the query's position.

    Args:
        heads: number of query heads.
        hidden_dim: number of hidden units of the network.
        c: scale inside the logarithm; learnable, its sign has no effect.
        threshold: smaller positions are replaced by it in the denominator; a learnable factor, initially 1, multiplies it.
        length: ``"query"`` as published: the denominator uses the query's position. ``"context"`` uses ``context - 1``
            instead, which makes the bias a function of distance alone.
        context: the number for ``length="context"``.

    >>> fire = Fire(2, threshold=4.0)
    >>> fire.normalized_distance(torch.tensor([0.0, 2.0, 8.0]), torch.tensor([9.0, 3.0, 9.0])).detach()
    tensor([0.0000, 0.5419, 1.0000])
    """

    causal_only = True

    needs_heads = True

    def __init__(
        self,
        heads: int,
        *,
        hidden_dim: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        length: str = "query",
        context: int | None = None,
    ) -> None:
        require_choice("Fire", "length", length, LENGTHS)
        super().__init__(heads=heads, length=length, context=context)
        self.hidden_dim = require_dim("Fire", "hidden_dim", hidden_dim, remedy="try hidden_dim=32")
        require_table("Fire", heads, hidden_dim)
        remedy = "pass a number above 0"
        self.threshold = float(require_number("Fire", "threshold", threshold, above=0, remedy=remedy))
        self.c = nn.Parameter(torch.tensor(float(require_number("Fire", "c", c, above=0, remedy=remedy))))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        self.network = nn.Sequential(nn.Linear(1, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, heads))

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        normalized = self.normalized_distance(distance, length).to(self.c.dtype)
        return self.network(normalized[:, None]).T

    def pair_function(self, hook: str) -> PairFunction | None:
        layers = list(self.network)
        if hook != "bias" or [type(layer) for layer in layers] != [nn.Linear, nn.ReLU, nn.Linear]:
            return None  # a layer may have been replaced, by an adapter for instance
        hidden, output = layers[0], layers[2]
        assert isinstance(hidden, nn.Linear) and isinstance(output, nn.Linear)
        heads, units = output.weight.shape
        shared = torch.cat(
            (self.c.abs()[None], (self.multiplier * self.threshold).abs()[None], hidden.weight[:, 0], hidden.bias)
        )
        numbers = torch.cat((shared.expand(heads, -1), output.weight, output.bias[:, None]), 1)

        def evaluate(read: Callable[[int], Tensor], distance: Tensor, length: Tensor) -> Tensor:
            denominator = torch.log1p(read(0) * torch.maximum(read(1), length - 1)) + EPS
            x = torch.log1p(read(0) * distance.abs()) / denominator
            total = read(2 + 3 * units)
            for unit in range(2, 2 + units):
                total = total + read(2 * units + unit) * torch.relu(read(unit) * x + read(units + unit))
            return total

        return PairFunction(numbers, evaluate, LOG_NETWORK if units <= MAX_FUSED_UNITS else None)

    def normalized_distance(self, distance: Tensor, length: Any) -> Tensor:
        """The input of the network: distances ``[n]`` relative to the position ``length - 1``."""
        threshold = (self.multiplier * self.threshold).abs().to(distance.dtype)
        # left padding has positions below 0; the maximum with the threshold keeps the denominator positive
        if isinstance(length, Tensor):
            denominator = torch.maximum(threshold, length.to(distance.dtype) - 1)
        else:
            denominator = threshold.clamp(min=length - 1)
        return self._psi(distance.abs()) / (self._psi(denominator) + EPS)

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log1p(self.c.abs() * x)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "hidden_dim", self.hidden_dim
        yield "c", self.c.abs()
        yield "threshold", (self.multiplier * self.threshold).abs()
