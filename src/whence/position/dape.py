"""DAPE: a small network over heads adapts a bias to the scores (Zheng et al. 2024, arXiv 2405.14722).

    logit_ij = z_ij + b_ij + f([z_ij; b_ij])        z_ij, b_ij: the scores and biases of all H heads at one pair
    f: 2H -> hidden_dim -> H                        LeakyReLU(0.01) between two linear layers

b is the bias of ALiBi, KERPLE or FIRE. ``base="none"`` has no b: f maps H scores to H terms, for use beside a rotation. The
formula, the sizes and the initialization are those of the authors' code (``chuanyang-Zheng/DAPE``, ``DAPE.py``).

Heads meet before the softmax, so no kernel that handles one head at a time computes it. The ``triton`` backend has kernels for
the network (``head_network``): at a pair, what it gets from a bias of distance is a table. Over FIRE, whose bias depends on the
query's position too, ``blockwise`` computes it. The second version (arXiv 2410.04798)
replaces the linear layers by convolutions along the keys. It is not here: the term of a pair then depends on the next key, which
a query does not see, and the published code gives other values in decoding than in one pass.

Use it to adapt a bias to the content, where its network over all heads is affordable: it runs for every pair of query
and key.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import usage_error
from whence.position.alibi import Alibi
from whence.position.base import Position
from whence.position.evaluate import evaluate
from whence.position.fire import Fire
from whence.position.head_network import HeadNetwork
from whence.position.hook_types import Rows
from whence.position.kerple import Kerple
from whence.validation import require_choice, require_dim, require_table

BASES = {"alibi": Alibi, "kerple": Kerple, "fire": Fire, "none": None}
NEGATIVE_SLOPE = 0.01


class Dape(Position):
    """A bias, plus a term that a network computes from the scores and biases of all heads.

    Args:
        heads: number of query heads.
        base: ``"alibi"``, ``"kerple"`` or ``"fire"``: the bias, with its default arguments; ``"none"`` for scores alone.
        hidden_dim: hidden units of the network.

    >>> Dape(2, base="alibi")
    Dape(heads=2, base='alibi', hidden_dim=32, learnable)
    """

    needs_heads = True
    reads_rotated = False

    def __init__(self, heads: int, *, base: str = "kerple", hidden_dim: int = 32) -> None:
        super().__init__(heads=heads)
        self.base = require_choice("Dape", "base", base, tuple(BASES))
        self.hidden_dim = require_dim("Dape", "hidden_dim", hidden_dim, remedy="use 32, as published")
        require_table("Dape", 2 * heads, hidden_dim)
        kind = BASES[base]
        self.base_bias: Position | None = None if kind is None else kind(heads)
        self.network = nn.Sequential(
            nn.Linear(heads if kind is None else 2 * heads, hidden_dim),
            nn.LeakyReLU(NEGATIVE_SLOPE),
            nn.Linear(hidden_dim, heads),
        )
        if self.base_bias is not None:
            self.causal_only, self.relative = self.base_bias.causal_only, self.base_bias.relative

    def content_bias(self, rows: Rows) -> Tensor:
        heads, dtype = rows.scores.shape[1], rows.scores.dtype
        if heads != self.heads:
            rule, remedy = "the network has one input for each query head", f"build it with heads={heads}"
            raise usage_error(f"Dape({self.heads})", f"scores of {heads} heads", rule, remedy)
        bias = self._evaluate_base(rows)
        inputs = rows.scores if bias is None else torch.cat([rows.scores, bias.expand_as(rows.scores)], 1)
        term = self._apply_network(inputs.movedim(1, -1).to(dtype)).movedim(-1, 1)
        return term if bias is None else term + bias

    def head_network(self) -> HeadNetwork:
        first, last = self._layers()
        return HeadNetwork(first.weight, last.weight, first.bias, last.bias, NEGATIVE_SLOPE, self.base_bias)

    def _evaluate_base(self, rows: Rows) -> Tensor | None:
        """The bias of the base mechanism, ``[B or 1, H, T, S]``."""
        if self.base_bias is None:
            return None
        distance = rows.distance.to(rows.scores.dtype)
        if self.causal_only:  # later keys are hidden, and the base is not defined for them
            distance = distance.clamp(min=0)
        length = (rows.q_positions[:, :, None] + 1).clamp(min=1)  # of Fire, which divides by the query's position
        bias = evaluate(self.base_bias, "bias", distance, rows.scores.shape[1], lambda part: part.length and length)
        assert bias is not None
        return bias.movedim(0, 1)

    def _apply_network(self, x: Tensor) -> Tensor:
        first, last = self._layers()
        hidden = F.leaky_relu(F.linear(x, first.weight.to(x.dtype), first.bias.to(x.dtype)), NEGATIVE_SLOPE)
        return F.linear(hidden, last.weight.to(x.dtype), last.bias.to(x.dtype))

    def _layers(self) -> tuple[nn.Linear, nn.Linear]:
        first, last = self.network[0], self.network[2]
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        return first, last

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "base", self.base
        yield "hidden_dim", self.hidden_dim
