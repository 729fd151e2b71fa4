"""``show``: the figure of a mechanism, put together from its panels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from whence.drawing.ink import header, panels_of
from whence.drawing.oscillation import draw_oscillation
from whence.drawing.panels import draw_effect, draw_pattern, draw_sink
from whence.drawing.stage import effect_of, set_stage
from whence.errors import require_package, usage_error
from whence.position.base import Position
from whence.position.rotary import Rotary
from whence.validation import require_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW_INCHES, WIDTH_INCHES, HEADER_INCHES = 3.1, 11.0, 0.62


def show(
    position: Position, *, length: int = 128, heads: int | None = None, head_dim: int | None = None, seed: int = 0
) -> Figure:
    """Draw a mechanism: its effect over distance and over queries and keys, and fixed content with and without it.

    The module, the random state and matplotlib's settings stay as they are. Save it with ``figure.savefig(path)``.

    Args:
        position: the mechanism, or a sum of several.
        length: tokens drawn; fewer where a learned table ends before.
        heads: query heads; by default those the mechanism is made for, else 4.
        head_dim: width of a head; by default what the mechanism is made for, else 64 for rotary and 16 for others.
        seed: of the content.

    >>> from whence import Alibi
    >>> show(Alibi(4), length=16).axes[0].get_ylabel()
    'added to the logit'
    """
    require_package("matplotlib", "whence.show", "plot")
    from matplotlib.figure import Figure

    if not isinstance(position, Position):
        got = type(position).__name__
        raise usage_error("show(position)", got, "position is a whence.Position", "subclass whence.Position")
    # a picture holds a number for each pair of tokens
    require_integer("show", "length", length, low=8, high=4096, remedy="try length=128")
    if heads is not None:
        require_integer("show", "heads", heads, high=256, remedy="leave it out, or give the number of query heads")
    if head_dim is not None:
        require_integer("show", "head_dim", head_dim, high=4096, remedy="leave it out, or give the width of a head")
    require_integer("show", "seed", seed, low=0, remedy="give a whole number, or leave it out")

    with torch.no_grad():
        stage = set_stage(position, length, heads, head_dim, seed)
        only_sink = position.effects == {"sink"}
        rotaries = [part for part in stage.position.parts if isinstance(part, Rotary)]
        rows = 2 + ("sink" in position.effects and not only_sink) + len(rotaries)
        height = ROW_INCHES * rows + HEADER_INCHES
        figure = Figure(figsize=(WIDTH_INCHES, height), facecolor="white")
        below = (0, 0, 1, 1 - HEADER_INCHES / height)
        figure.set_layout_engine("constrained", rect=below, hspace=0.06, wspace=0.06)
        header(figure, position, height)
        grid = iter(figure.add_gridspec(rows, 6)[row, :] for row in range(rows))
        effect = effect_of(stage)
        if not only_sink:
            draw_effect(panels_of(figure, next(grid), 4, 2), stage, effect)
        if "sink" in position.effects:
            effect = draw_sink(panels_of(figure, next(grid), 2, 2, 2), stage, effect if not only_sink else None)
        draw_pattern(panels_of(figure, next(grid), 2, 2, 2), stage, effect)
        for rotary in rotaries:
            draw_oscillation(panels_of(figure, next(grid), 3, 3), rotary, stage.direction.shape[1])
        panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
        for number, axes in enumerate(panels):
            axes.set_title(
                f"{chr(ord('a') + number)}  {axes.get_title(loc='left')}", loc="left", fontsize=9, fontweight="bold"
            )
    return figure
