"""``show``: the figure of one mechanism."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import torch

from whence.errors import require_package
from whence.plotting.effects import build_plot_inputs, compute_effect
from whence.plotting.panels import add_axes, plot_attention, plot_effect, plot_oscillation, plot_sink
from whence.position.base import Position, require_position
from whence.position.rotary import Rotary
from whence.validation import require_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW_INCHES, WIDTH_INCHES, HEADER_INCHES = 3.1, 11.0, 0.62


def show(
    position: Position, *, length: int = 128, heads: int | None = None, head_dim: int | None = None, seed: int = 0
) -> Figure:
    """Plot a mechanism: its effect over distance, its effect by query and key, and an attention pattern with it.

    The module, the random state and matplotlib's settings do not change. Save the result with
    ``figure.savefig(path)``.

    Args:
        position: the mechanism, or a sum of several.
        length: number of tokens; reduced to the length of a learned table if that is shorter.
        heads: number of query heads. Default: the number the mechanism is built for, else 4.
        head_dim: head dimension. Default: the one the mechanism is built for, else 64 for rotary and 16 for others.
        seed: seed of the example content.

    >>> from whence import Alibi
    >>> show(Alibi(4), length=16).axes[0].get_ylabel()
    'added to the logit'
    """
    require_package("matplotlib", "whence.show", "plot")
    from matplotlib.figure import Figure

    require_position("show(position)", position)
    # the figure holds one number per pair of tokens
    require_integer("show", "length", length, low=8, high=4096, remedy="try length=128")
    if heads is not None:
        require_integer("show", "heads", heads, high=256, remedy="leave it out, or pass the number of query heads")
    if head_dim is not None:
        require_integer("show", "head_dim", head_dim, high=4096, remedy="leave it out, or pass the head dimension")
    require_integer("show", "seed", seed, low=0, remedy="pass a whole number, or leave it out")

    with torch.no_grad():
        inputs = build_plot_inputs(position, length, heads, head_dim, seed)
        only_sink = position.effects == {"sink"}
        rotaries = [part for part in inputs.position.parts if isinstance(part, Rotary)]
        rows = 2 + ("sink" in position.effects and not only_sink) + len(rotaries)
        height = ROW_INCHES * rows + HEADER_INCHES
        figure = Figure(figsize=(WIDTH_INCHES, height), facecolor="white")
        below_header = (0, 0, 1, 1 - HEADER_INCHES / height)
        figure.set_layout_engine("constrained", rect=below_header, h_pad=0.1, hspace=0.06, wspace=0.06)
        _add_header(figure, position, height)
        grid = iter(figure.add_gridspec(rows, 6)[row, :] for row in range(rows))
        effect = compute_effect(inputs)
        if not only_sink:
            plot_effect(add_axes(figure, next(grid), 4, 2), inputs, effect)
        if "sink" in position.effects:
            effect = plot_sink(add_axes(figure, next(grid), 2, 2, 2), inputs, effect if not only_sink else None)
        plot_attention(add_axes(figure, next(grid), 2, 2, 2), inputs, effect)
        for rotary in rotaries:
            plot_oscillation(add_axes(figure, next(grid), 3, 3), rotary, inputs.direction.shape[1])
        panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
        for number, axes in enumerate(panels):
            letter = chr(ord("a") + number)
            axes.set_title(f"{letter}  {axes.get_title(loc='left')}", loc="left", fontsize=9, fontweight="bold")
    return figure


def _add_header(figure: Figure, position: Position, height: float) -> None:
    name = " + ".join(type(part).__name__ for part in position.parts)
    line = textwrap.shorten(repr(position), 150, placeholder=" ...")
    figure.suptitle(name, x=0.012, y=1 - 0.08 / height, ha="left", va="top", fontsize=14, fontweight="bold")
    figure.text(0.012, 1 - 0.37 / height, line, ha="left", va="top", fontsize=8, family="monospace", color="0.3")
