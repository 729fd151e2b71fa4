"""PoPE: content sets magnitudes, position sets phases (Gopalakrishnan et al. 2025, arXiv 2509.10534).

    score_ij = sum over columns c of softplus(q_ic) * softplus(k_jc) * cos((i - j) * theta_c - delta_c)
    theta_c = base^(-c/D), c = 0..D-1               delta_c: learned, clamped to [-2 pi, 0]

In rotary embedding two columns are one pair and the angle between q and k adds to the positional angle. Here each column is a
magnitude of at least 0, so content cannot shift the distance that a column prefers; delta can.

A cosine of a difference is a product of two vectors of 2D columns, ``[m cos, m sin]``: ``rotate`` doubles the width of q and k
and every backend computes the score as usual. Scale and cache keep D columns. Formula and settings were checked
against a reading of the paper (equations 3 to 6 of its third version) and x-transformers' code (``PolarEmbedding``), which the test
compares; the authors' own code (``agopal42/pope``) was not at hand. The paper starts delta at 0, better for longer inputs, or uniform
in [-2 pi, 0], slightly better at the trained length: ``phase``. x-transformers has one delta per query head; here it belongs to key
heads, because a key is rotated once for all queries that share it. Normalizations of q and k come before the
softplus.

Use it instead of rotary where content and position should not mix: which tokens match and how far away they are is
learned apart. It doubles the width of queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.position.base import Position
from whence.position.learned_rotary import spread_over_heads
from whence.validation import MAX_HEADS, require_base, require_choice, require_dim, require_integer, require_table


class Pope(Position):
    """Softplus magnitudes with a cosine of distance in every column.

    Args:
        head_dim: dimension of a head.
        num_kv_heads: one set of phases for each of so many key heads; ``None`` for one set shared by all heads.
        base: determines the lowest frequency.
        phase: initial phases: ``"zero"``, or ``"uniform"`` between -2 pi and 0.

    >>> q = torch.zeros(1, 1, 1, 1)
    >>> q, k = Pope(1).rotate(q, q, torch.tensor([[1]]), torch.tensor([[0]]))
    >>> q.shape[-1], q @ k.mT  # (log 2)^2 cos(1)
    (2, tensor([[[[0.2596]]]], grad_fn=<UnsafeViewBackward0>))
    """

    widens = True

    def __init__(
        self, head_dim: int, *, num_kv_heads: int | None = None, base: float = 10000.0, phase: str = "zero"
    ) -> None:
        super().__init__()
        remedy = "pass the dimension of a query head"
        self.head_dim = require_dim("Pope", "head_dim", head_dim, remedy=remedy)
        if num_kv_heads is not None:
            remedy = "pass the number of key heads"
            require_integer("Pope", "num_kv_heads", num_kv_heads, high=MAX_HEADS, remedy=remedy)
        self.num_kv_heads = num_kv_heads
        self.base = require_base("Pope", base)
        self.phase = require_choice("Pope", "phase", phase, ("zero", "uniform"))
        shape = require_table("Pope", num_kv_heads or 1, head_dim)
        delta = torch.zeros(shape) if phase == "zero" else torch.empty(shape).uniform_(-2 * math.pi, 0)
        self.delta = nn.Parameter(delta)

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        exponent = torch.arange(self.head_dim, dtype=dtype, device=q.device) / self.head_dim
        frequencies = torch.pow(self.base, -exponent)
        delta = self.delta.to(dtype).clamp(-2 * math.pi, 0)[:, None, :]
        delta = spread_over_heads("Pope", delta, "keys", k.shape[1])
        q_angle = q_positions.to(dtype)[:, None, :, None] * frequencies
        k_angle = k_positions.to(dtype)[:, None, :, None] * frequencies + delta
        return _from_polar(q, q_angle), _from_polar(k, k_angle)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        if self.num_kv_heads is not None:
            yield "num_kv_heads", self.num_kv_heads
        yield "base", self.base


def _from_polar(x: Tensor, angle: Tensor) -> Tensor:
    """Columns of magnitude softplus(x): ``[..., D]`` as ``[..., 2D]``, all cosines and then all sines."""
    magnitude = F.softplus(x.to(angle.dtype))
    return torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), -1).to(x.dtype)
