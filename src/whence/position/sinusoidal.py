"""Sinusoidal positions added to the input (Vaswani et al. 2017, arXiv 1706.03762).

Column pair i of position p is ``sin(p * base^(-2i/embed_dim))`` and ``cos(p * base^(-2i/embed_dim))``, with frequencies that
decrease from pair to pair. Shifting p by a fixed amount rotates each pair by a fixed angle.

Use it to reproduce the original transformer, or where positions must be added to the input without parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.base import Position
from whence.validation import require_base, require_choice, require_dim, require_number

LAYOUTS = ("interleaved", "concatenated")


def sinusoid(positions: Tensor, embed_dim: int, base: float = 10000.0, layout: str = "interleaved") -> Tensor:
    """Sines and cosines of positions of any shape: ``[..., embed_dim]``, in float64 for float64 positions, else in float32.

    Args:
        positions: integers or floating-point numbers.
        embed_dim: number of columns; if odd, the last cosine is left out.
        base: the longest wavelength is about ``2 * pi * base``.
        layout: ``"interleaved"`` (sin, cos, sin, cos, ...) or ``"concatenated"`` (all sines, then all cosines).

    >>> sinusoid(torch.tensor([0, 1]), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    require_choice("sinusoid", "layout", layout, LAYOUTS)
    # half precision cannot distinguish neighboring positions beyond a few hundred
    dtype = torch.promote_types(positions.dtype, torch.float32)
    exponent = torch.arange(0, embed_dim, 2, dtype=dtype, device=positions.device) / embed_dim
    angle = positions.to(dtype)[..., None] * torch.pow(base, -exponent)
    if layout == "concatenated":
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., :embed_dim]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :embed_dim]


class Sinusoidal(Position):
    """Adds fixed sines and cosines of the position to the input.

    Args:
        embed_dim: dimension of the input.
        base: determines the longest wavelength; 10000 as published.
        scale: factor of the sines and cosines.

    >>> Sinusoidal(4).embed(torch.zeros(1, 2, 4), torch.tensor([[0, 1]]))
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    relative = False

    def __init__(self, embed_dim: int, *, base: float = 10000.0, scale: float = 1.0) -> None:
        super().__init__()
        self.embed_dim = require_dim("Sinusoidal", "embed_dim", embed_dim, remedy="pass the dimension of the input")
        self.base = require_base("Sinusoidal", base)
        self.scale = require_number("Sinusoidal", "scale", scale, remedy="use 1, as published")

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if x.shape[-1] != self.embed_dim:
            raise usage_error(
                f"Sinusoidal({self.embed_dim})",
                f"an input of dimension {x.shape[-1]}",
                "embed_dim must match the input",
                f"build it with embed_dim={x.shape[-1]}",
            )
        positions = positions.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        return (x + self.scale * sinusoid(positions, self.embed_dim, self.base)).to(x.dtype)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "embed_dim", self.embed_dim
        yield "base", self.base
        yield "scale", self.scale
