"""FoPE: every plane of rotary embedding turns by a mixture of frequencies (Hua et al. 2024, arXiv 2412.17739).

    theta_c = base^(-2c/D), kept where theta_c > 2 pi / context        A frequencies are kept
    C = cos(p theta) M_cos        S = sin(p theta) M_sin               M: [A, planes], one pair of matrices per key head
    (x1, x2) -> (x1 C - x2 S, x2 C + x1 S)                             the remaining planes stay

A frequency without a full period in training is dropped. M is an identity (with a stride where A exceeds ``planes``) plus
Xavier-normal noise with a gain, 0.3 to 0.6 in the paper's models. A mixture is no rotation, so scores depend on positions and
not on distance alone; with ``gain=0`` and ``planes=A`` it is rotary embedding on the kept frequencies.

Read in the code of the paper and in vLLM's ``FourierRotaryEmbedding``. They differ:

- planes: min(A, D/4) in the paper's code, A in vLLM. ``planes`` sets the number.
- whether M learns: fixed in the paper's code; vLLM loads it from the checkpoint. ``learnable`` decides.
- the remaining planes: the text sets their frequency to 0, that is cos = 1 and sin = 0. Both codes pad sin with 1 as well, which
  doubles the scores of these planes. ``compat=True`` does that too, for weights trained so.

Use it instead of rotary in decoders that must read longer inputs than they were trained on, where absolute positions
may matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position
from whence.position.learned_rotary import spread_over_heads
from whence.validation import MAX_HEADS, require_base, require_even, require_flag, require_integer, require_number

MIN_CONTEXT = 7  # the highest frequency, 1, has a period of 2 pi


class Fope(Position):
    """Rotary embedding with mixtures of the frequencies that have a full period in training.

    Args:
        head_dim: dimension of a head, even.
        context: length of the training sequences.
        num_kv_heads: one pair of matrices for each of so many key heads; ``None`` for one pair shared by all heads.
        base: determines the lowest frequency.
        gain: gain of the noise in the matrices.
        planes: number of planes that turn; ``None`` for ``min(A, head_dim / 4)`` as in the paper's code.
        learnable: make the matrices learnable.
        compat: sin = 1 instead of 0 in the planes that do not turn, as in the published codes.

    >>> len(Fope(64, context=512).frequencies()), len(Fope(64, context=4096).frequencies())
    (16, 23)
    """

    relative = False

    def __init__(
        self,
        head_dim: int,
        *,
        context: int = 512,
        num_kv_heads: int | None = None,
        base: float = 10000.0,
        gain: float = 0.3,
        planes: int | None = None,
        learnable: bool = False,
        compat: bool = False,
    ) -> None:
        require_integer("Fope", "context", context, low=MIN_CONTEXT, remedy="pass the length of the training sequences")
        super().__init__(context=context)
        self.head_dim = require_even("Fope", "head_dim", head_dim, remedy="columns are rotated in pairs")
        if num_kv_heads is not None:
            remedy = "pass the number of key heads"
            require_integer("Fope", "num_kv_heads", num_kv_heads, high=MAX_HEADS, remedy=remedy)
        self.num_kv_heads = num_kv_heads
        self.base = require_base("Fope", base)
        self.gain = require_number("Fope", "gain", gain, low=0, remedy="use 0.3, as published")
        kept = len(self.frequencies())
        if planes is not None:
            require_integer("Fope", "planes", planes, high=head_dim // 2, remedy="leave it out")
        self.planes = max(1, min(kept, head_dim // 4)) if planes is None else planes
        if self.planes > kept:
            rule = f"context={context} keeps {kept} frequencies"
            raise usage_error("Fope(planes=...)", str(planes), rule, f"use planes={kept} or less")
        self.compat = require_flag("Fope", "compat", compat)
        for name in ("cos_mixture", "sin_mixture"):
            mixture = make_mixture(num_kv_heads or 1, kept, self.planes, self.gain)
            if require_flag("Fope", "learnable", learnable):
                self.register_parameter(name, nn.Parameter(mixture))
            else:
                self.register_buffer(name, mixture)

    def frequencies(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The frequencies that have a full period in the training context."""
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        frequencies = torch.pow(self.base, -exponent)
        assert self.context is not None
        # they decrease, so the kept ones come first; counted in Python for the sake of tracing
        kept = sum(
            self.base ** (-2 * c / self.head_dim) > 2 * math.pi / self.context for c in range(self.head_dim // 2)
        )
        return frequencies[:kept].to(dtype)

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._turn(q, q_positions, "queries"), self._turn(k, k_positions, "keys")

    def _turn(self, x: Tensor, positions: Tensor, what: str) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        angle = positions.to(dtype)[:, None, :, None] * self.frequencies(dtype).to(x.device)  # [B, 1, n, A]
        cos, sin = (
            wave @ spread_over_heads("Fope", getattr(self, name).to(dtype), what, x.shape[1])
            for wave, name in ((angle.cos(), "cos_mixture"), (angle.sin(), "sin_mixture"))
        )
        half = self.head_dim // 2
        first, second = x[..., :half].to(dtype), x[..., half:].to(dtype)
        a, b, rest_a, rest_b = (
            first[..., : self.planes], second[..., : self.planes], first[..., self.planes :], second[..., self.planes :]
        )  # fmt: skip
        if self.compat:
            rest_a, rest_b = rest_a - rest_b, rest_b + rest_a
        return torch.cat((a * cos - b * sin, rest_a, b * cos + a * sin, rest_b), -1).to(x.dtype)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "head_dim", self.head_dim
        yield "context", self.context
        if self.num_kv_heads is not None:
            yield "num_kv_heads", self.num_kv_heads
        yield "base", self.base
        yield "planes", self.planes
        if self.compat:
            yield "compat", True


def make_mixture(sets: int, kept: int, planes: int, gain: float) -> Tensor:
    """Initial matrices ``[sets, kept, planes]``: an identity with a stride, plus Xavier-normal noise.

    >>> make_mixture(1, 3, 2, 0.0).abs()
    tensor([[[1., 0.],
             [0., 0.],
             [0., 1.]]])
    """
    step = math.ceil(kept / planes)
    mixture = gain * math.sqrt(2 / (kept + planes)) * torch.randn(sets, kept, planes)
    for plane in range(planes):
        if plane * step < kept:
            mixture[:, plane * step, plane] += 1
    return mixture
