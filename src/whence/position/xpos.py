"""xPos: rotary with a decay of each pair over distance (Sun et al. 2022, arXiv 2212.10554).

    zeta_c = (2c / D + gamma) / (1 + gamma)                                            pair c of a head of dimension D
    score  = sum over pairs of zeta_c^(distance / scale_base) * (rotated pair of q) . (rotated pair of k)

Queries are multiplied by ``zeta^((i - m) / scale_base)`` and keys by ``zeta^(-(j - m) / scale_base)``; m cancels in the
score. The authors' code (torchscale) decides: gamma 0.4, scale_base 512, adjacent columns as pairs. There m is half of the
current length, so it moves with every decoded token, which is wrong where rotated keys are cached. Here m is a fixed number,
``center``. One of the two factors overflows float16 about 4500 positions from it, float32 and bfloat16 about 36 000; half of
the longest length is the best choice.

Use it instead of rotary where far keys should count less in every pair of columns. Its factors overflow far from
``center``, so it suits a known longest length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.base import Position
from whence.position.rotary import rotate_pairs
from whence.validation import require_base, require_choice, require_number


class XPos(Position):
    """Rotates queries and keys; the score of each pair of columns decays with distance, faster for higher frequencies.

    Args:
        base: determines the lowest frequency.
        layout: ``"interleaved"`` as published, or ``"half"``: which columns form a pair.
        gamma: the decay of the highest frequency is ``gamma / (1 + gamma)`` over ``scale_base`` positions.
        scale_base: number of positions over which a pair is multiplied by its zeta.
        center: the position m. It does not change the score, only the range of the factors.

    >>> q = torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]])
    >>> q, k = XPos().rotate(q, q, torch.tensor([[512]]), torch.tensor([[0]]))
    >>> round(float(q.norm() * k.norm()), 4)  # 0.4 / 1.4
    0.2857
    """

    non_finite_remedy: ClassVar[str] = (
        "the factors overflow far from the position center, in float16 from about 4500 positions on: pass XPos(center=...) with half of the "
        "longest length, or use bfloat16 or float32"
    )
    causal_only = True  # keys after the query would gain weight with distance

    def __init__(
        self,
        *,
        base: float = 10000.0,
        layout: str = "interleaved",
        gamma: float = 0.4,
        scale_base: float = 512.0,
        center: float = 0.0,
    ) -> None:
        super().__init__()
        self.base = require_base("XPos", base)
        self.layout = require_choice("XPos", "layout", layout, ("half", "interleaved"))
        self.gamma = require_number("XPos", "gamma", gamma, above=0, remedy="use 0.4, as published")
        self.scale_base = require_number("XPos", "scale_base", scale_base, low=1, remedy="use 512, as published")
        self.center = require_number("XPos", "center", center, remedy="pass half of the longest length")

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        head_dim, dtype = q.shape[-1], torch.promote_types(q.dtype, torch.float32)
        if head_dim % 2:
            raise usage_error("XPos", f"head_dim {head_dim}", "columns are rotated in pairs", "use an even head_dim")
        share = torch.arange(0, head_dim, 2, dtype=dtype, device=q.device) / head_dim
        frequencies, log_zeta = torch.pow(self.base, -share), torch.log((share + self.gamma) / (1 + self.gamma))
        q_positions, k_positions = q_positions.to(dtype), k_positions.to(dtype)
        rotated = []
        for x, positions, sign in ((q, q_positions, 1), (k, k_positions, -1)):
            steps = sign * (positions - self.center) / self.scale_base
            factor = torch.exp(steps[:, None, :, None] * log_zeta)
            rotated.append(rotate_pairs(x, positions, frequencies, self.layout, factor))
        return rotated[0], rotated[1]

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "base", self.base
        yield "layout", self.layout
        yield "gamma", self.gamma
        yield "scale_base", self.scale_base
        yield "center", self.center
