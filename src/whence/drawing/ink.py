"""How things are drawn: panels, lines, maps and labels that read in grey and to the colour-blind."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.position.base import Position

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def header(figure: Figure, position: Position, height: float) -> None:
    name = " + ".join(type(part).__name__ for part in position.parts)
    line = textwrap.shorten(repr(position), 150, placeholder=" ...")
    figure.suptitle(name, x=0.012, y=1 - 0.08 / height, ha="left", va="top", fontsize=14, fontweight="bold")
    figure.text(0.012, 1 - 0.37 / height, line, ha="left", va="top", fontsize=8, family="monospace", color="0.3")


def panels_of(figure: Figure, row: Any, *widths: int) -> list[Axes]:
    inside, panels, start = row.subgridspec(1, 6), [], 0
    for width in widths:
        axes = figure.add_subplot(inside[0, start : start + width])
        axes.tick_params(which="both", labelsize=8, length=3)
        axes.spines[["top", "right"]].set_visible(False)
        panels.append(axes)
        start += width
    return panels


def label(axes: Axes, title: str, x: str, y: str, note: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_title(note, loc="right", fontsize=7, color="0.35", style="italic")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)


def lines(axes: Axes, x: Tensor, by_head: Tensor, shared: bool, legend: bool = True) -> None:
    """One line a head, dark to light; one for all where they agree. The legend stands beside the data."""
    from matplotlib import colormaps

    rows = by_head[:1] if shared else by_head
    shades = colormaps["viridis"]([0.85 * head / max(1, len(rows) - 1) for head in range(len(rows))])
    named = {round(n * (len(rows) - 1) / 7) for n in range(8)}  # a legend of more than eight tells no one anything
    for head, row in enumerate(rows):
        name = ("every head" if shared else f"head {head}") if head in named else None
        axes.plot(x, row, color=shades[head], linewidth=1.4, label=name)
    known = rows[rows.isfinite()]
    if axes.get_yscale() == "linear" and float(known.max() - known.min()) < 1e-9:
        axes.set_ylim(float(known[0]) - 1, float(known[0]) + 1)  # flat: keep rounding from looking like a shape
    if legend:
        legend_beside(axes)


def legend_beside(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=7, frameon=False, handlelength=2.2)


def heat_map(axes: list[Axes], values: list[Tensor], label: str, **colours: Any) -> None:
    """Queries down, keys across, light grey where a query does not see a key; one colour bar for all."""
    for panel, shown in zip(axes, values, strict=True):
        panel.set_facecolor("0.9")
        image = panel.imshow(shown.numpy(), interpolation="nearest", **colours)
    bar = axes[0].figure.colorbar(image, ax=axes, shrink=0.86, pad=0.015, aspect=24)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(which="both", labelsize=7, length=2)
    bar.outline.set_visible(False)


def colours_for(values: Tensor) -> dict[str, Any]:
    """A map centred at zero for numbers of both signs, else one from dark to light."""
    known = values[values.isfinite()]
    low, high = float(known.min()), float(known.max())
    size = max(-low, high)
    if high - low < 1e-9:
        return {"cmap": "PuOr", "vmin": low - 1, "vmax": high + 1}
    if low < -0.05 * size and high > 0.05 * size:
        return {"cmap": "PuOr", "vmin": -size, "vmax": size}
    return {"cmap": "viridis", "vmin": low, "vmax": high}
