"""Rotary position embedding (RoPE): queries and keys are rotated by their position (Su et al. 2021, arXiv 2104.09864).

Columns form pairs. Pair i at position p is rotated by the angle ``p * base^(-2i/rotary_dim)``. The dot product of two
rotated vectors depends only on the difference of their positions, and rotation preserves their norms.

Two layouts pair the columns differently, with r = rotary_dim: ``"interleaved"`` (0, 1), (2, 3), ... as published and in
GPT-J; ``"half"`` (0, r/2), (1, r/2 + 1), ... as in GPT-NeoX and Llama. Weights trained with one do not work with the other.

Use it as the default of decoders: it needs no parameters, and most pretrained models have it. Beyond the trained length
it needs a scaling (``whence.position.rotary_scaling``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence import torch_modes
from whence.errors import usage_error
from whence.position.base import LENGTHS, Position
from whence.position.rotary_scaling import Scaling
from whence.validation import format_value, require_base, require_choice, require_even, require_integer

# A compiler would fuse the few cosines of a sequence into the rotation of every column of every head, and recompute them
# there. An opaque operator prevents that.
library = torch.library.Library("whence", "FRAGMENT")
library.define("cos_sin(Tensor angle) -> (Tensor, Tensor)")
library.impl("cos_sin", lambda angle: (angle.cos(), angle.sin()), "CompositeExplicitAutograd")
torch.library.register_fake(
    "whence::cos_sin", lambda angle: (torch.empty_like(angle), torch.empty_like(angle)), lib=library
)


class Rotary(Position):
    """Rotates queries and keys by angles proportional to their positions.

    Args:
        base: determines the lowest frequency.
        layout: ``"half"`` or ``"interleaved"``: which columns form a pair.
        rotary_dim: number of leading columns that are rotated; ``None`` for the whole head.
        scaling: a ``Scaling`` of ``whence.position.rotary_scaling``, or ``None`` for unscaled frequencies.
        length: only for ``DynamicNtk`` and ``LongRope``: ``"context"``, or ``"sequence"``, each sequence's largest
            position + 1, so that the frequencies depend on the length of the sequence.
        context: the fixed length of ``length="context"``.

    >>> q = torch.tensor([[[[1.0, 0.0]]]])
    >>> Rotary().rotate(q, q, torch.tensor([[0]]), torch.tensor([[1]]))[1]
    tensor([[[[0.5403, 0.8415]]]])
    """

    def __init__(
        self,
        *,
        base: float = 10000.0,
        layout: str = "half",
        rotary_dim: int | None = None,
        scaling: Scaling | None = None,
        length: str | None = None,
        context: int | None = None,
    ) -> None:
        super().__init__(length=_length(scaling, length, context), context=context)
        require_choice("Rotary", "layout", layout, ("half", "interleaved"))
        if rotary_dim is not None:
            require_even(
                "Rotary", "rotary_dim", rotary_dim, remedy="columns are rotated in pairs, so pass an even number"
            )
        if self.length == "sequence":
            self.relative = False  # shifting all positions changes the largest one, and with it the frequencies
        self.base = require_base("Rotary", base)
        self.layout = layout
        self.rotary_dim = rotary_dim
        self.scaling = scaling

    @property
    def attention_factor(self) -> float:
        """The factor of cos and sin; scores are multiplied by its square."""
        return 1.0 if self.scaling is None else self.scaling.attention_scaling

    def resolve_rotary_dim(self, head_dim: int) -> int:
        """The number of rotated columns of a head."""
        rotary_dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if rotary_dim % 2:
            raise usage_error(
                "Rotary", f"head_dim {rotary_dim}", "columns are rotated in pairs", "pass an even rotary_dim"
            )
        if rotary_dim > head_dim:
            got = f"head_dim {head_dim}"
            raise usage_error(
                f"Rotary(rotary_dim={rotary_dim})",
                got,
                "rotary_dim must not exceed head_dim",
                "lower rotary_dim, or leave it out",
            )
        return rotary_dim

    def frequencies(self, rotary_dim: int, length: Any, *, dtype: torch.dtype, device: Any = None) -> Tensor:
        """Angle per position of each pair: ``[rotary_dim/2]``, or ``[B, rotary_dim/2]`` for lengths ``[B, 1]``."""
        exponent = torch.arange(0, rotary_dim, 2, dtype=dtype, device=device) / rotary_dim
        if self.scaling is None:
            return torch.pow(self.base, -exponent)
        return self.scaling.frequencies(exponent, self.base, length)

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        q_positions, k_positions = q_positions.to(dtype), k_positions.to(dtype)
        length: Any = self.context
        if self.length == "sequence":
            length = 1 + torch.maximum(q_positions.amax(-1, keepdim=True), k_positions.amax(-1, keepdim=True))
        frequencies = self.frequencies(self.resolve_rotary_dim(q.shape[-1]), length, dtype=dtype, device=q.device)
        frequencies = frequencies.reshape(-1, 1, 1, frequencies.shape[-1])  # the axes of q: batch, head, row, pair
        return (
            rotate_pairs(q, q_positions, frequencies, self.layout, self.attention_factor),
            rotate_pairs(k, k_positions, frequencies, self.layout, self.attention_factor),
        )

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "base", self.base
        yield "layout", self.layout
        if self.rotary_dim is not None:
            yield "rotary_dim", self.rotary_dim
        if self.scaling is not None:
            yield "scaling", self.scaling


def rotate_pairs(
    x: Tensor, positions: Tensor, frequencies: Tensor, layout: str, factor: float | Tensor = 1.0
) -> Tensor:
    """Rotate each pair of x ``[B, H, n, D]`` by position ``[B or 1, n]`` times frequency, and multiply it by ``factor``.

    ``frequencies`` and a tensor ``factor`` end in the pairs and broadcast with the axes batch, head and row. Columns beyond
    the pairs stay.
    """
    return rotate_by_angle(x, positions[:, None, :, None] * frequencies, layout, factor)


def rotate_by_angle(x: Tensor, angle: Tensor, layout: str, factor: float | Tensor = 1.0) -> Tensor:
    """Rotate each pair of x ``[B, H, n, D]`` by an angle, which ends in the pairs and broadcasts with the other axes."""
    rotary_dim = 2 * angle.shape[-1]
    if torch.compiler.is_compiling() and not torch_modes.is_exporting() and not angle.requires_grad:
        cos, sin = torch.ops.whence.cos_sin.default(angle)
    else:
        cos, sin = angle.cos(), angle.sin()
    cos, sin = cos * factor, sin * factor
    if layout == "half":
        first, second = x[..., : rotary_dim // 2], x[..., rotary_dim // 2 : rotary_dim]
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    else:
        first, second = x[..., 0:rotary_dim:2], x[..., 1:rotary_dim:2]
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    rotated = rotated.to(x.dtype)
    return rotated if rotary_dim == x.shape[-1] else torch.cat((rotated, x[..., rotary_dim:]), dim=-1)


def _length(scaling: Scaling | None, length: str | None, context: int | None) -> str | None:
    name = "None" if scaling is None else type(scaling).__name__
    if scaling is not None and not isinstance(scaling, Scaling):
        raise usage_error(
            "Rotary(scaling=...)", name, "scaling must be a Scaling", "take one from whence.position.rotary_scaling"
        )
    if scaling is None or not scaling.needs_length:
        if length is not None or context is not None:
            got = f"length={format_value(length)}, context={format_value(context)}"
            raise usage_error(
                f"Rotary(scaling={name})", got, "only DynamicNtk and LongRope use a length", "leave both out"
            )
        return None
    if length is not None:
        require_choice("Rotary", "length", length, LENGTHS)
    if length == "query":
        rule = "a key is rotated once for all queries, so its angle cannot depend on the query's length"
        raise usage_error(
            f"Rotary(scaling={name})", "length='query'", rule, "choose length='context' or length='sequence'"
        )
    if length in (None, "context"):
        remedy = "pass context=32768, or choose length='sequence'"
        require_integer("Rotary", "context", context, remedy=remedy)  # type: ignore[arg-type]
    return length or "context"


def oscillation(rotary: Rotary, distance: Tensor, head_dim: int) -> Tensor:
    """The score of two vectors of ones at each distance, relative to the unrotated vectors: like ``distance``.

    It is the mean of ``cos(distance * frequency)`` times the attention factor squared; unrotated columns count as 1.
    With ``length="sequence"`` the length is the largest ``|distance|`` + 1.

    >>> oscillation(Rotary(), torch.tensor([0.0, 1.0, 2.0]), 64)
    tensor([1.0000, 0.9662, 0.8845])
    """
    rotary_dim = rotary.resolve_rotary_dim(head_dim)
    distance = distance.to(torch.promote_types(distance.dtype, torch.float32))
    length: Any = rotary.context
    if rotary.length == "sequence":
        length = (distance.abs().amax() + 1).reshape(1, 1)
    frequencies = rotary.frequencies(rotary_dim, length, dtype=distance.dtype, device=distance.device).reshape(-1)
    rotated = rotary.attention_factor**2 * torch.cos(distance[..., None] * frequencies).mean(-1)
    return (rotated * rotary_dim + (head_dim - rotary_dim)) / head_dim
