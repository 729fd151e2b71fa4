"""Rotary's oscillation over distance, and how bases and scalings move it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.drawing.ink import label, legend_beside
from whence.position.rotary import Rotary, oscillation
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Scaling, Yarn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 4096  # the farthest distance drawn
DASHES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)))


def draw_oscillation(panels: list[Axes], rotary: Rotary, head_dim: int) -> None:
    """How far the score of equal vectors survives the turning, and how the base and a scaling move that."""
    every = torch.arange(1, LONGEST + 1, dtype=torch.float64)
    places = torch.logspace(0, math.log2(LONGEST) - 0.2, 160, base=2.0, dtype=torch.float64).round().unique()

    def trend(rotary: Rotary) -> Tensor:
        """The mean over distances within a tenth; beyond a hundred tokens single ones are noise to the eye."""
        near = ((every - places[:, None]).abs() <= 0.1 * places[:, None] + 0.5).double()
        return near @ oscillation(rotary, every, head_dim) / near.sum(1)

    def scaled(scaling: Scaling) -> Rotary:
        context = LONGEST if scaling.needs_length else None
        return Rotary(base=rotary.base, rotary_dim=rotary.rotary_dim, scaling=scaling, context=context)

    pairs, original = rotary.resolve_rotary_dim(head_dim) // 2, LONGEST // 4
    growing = tuple(4.0 ** (pair / max(1, pairs - 1)) for pair in range(pairs))  # LongRoPE's own are searched
    bases = {f"base $10^{n}$": Rotary(base=10.0**n, rotary_dim=rotary.rotary_dim) for n in (4, 5, 6)}
    scalings = {"linear": scaled(Linear(4.0))}
    if pairs > 1:  # it needs two frequencies
        scalings["dynamic NTK"] = scaled(DynamicNtk(4.0, original))
    scalings["YaRN"] = scaled(Yarn(4.0, original))
    scalings["Llama 3"] = scaled(Llama3(4.0, original=original))
    scalings["LongRoPE"] = scaled(LongRope((1.0,) * pairs, growing, original, 4.0))
    from matplotlib import colormaps

    for panel, others, title in (
        (panels[0], bases, f"rotary's oscillation, head width {head_dim}, by base"),
        (panels[1], scalings, f"and by scaling, from {original} to {LONGEST} tokens"),
    ):
        panel.set_xscale("log", base=2)
        panel.axhline(0, color="0.8", linewidth=0.8)
        panel.plot(
            every, oscillation(rotary, every, head_dim), color="0.78", linewidth=0.6, label="this one,\neach distance"
        )
        panel.plot(places, trend(rotary), color="black", linewidth=2.4, label="this one")
        shades = colormaps["viridis"]([0.15 + 0.7 * n / (len(others) - 1) for n in range(len(others))])
        for shade, dash, (name, other) in zip(shades, DASHES, others.items(), strict=False):
            panel.plot(places, trend(other), color=shade, linestyle=dash, linewidth=1.3, label=name)
        legend_beside(panel)
        label(panel, title, "distance (tokens)", "mean cosine, times\nany attention factor")
