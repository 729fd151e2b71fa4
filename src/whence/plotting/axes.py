"""Axes of the figures: lines per head, heatmaps and labels, readable in grayscale and with color blindness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def add_axes(figure: Figure, row: Any, *widths: int) -> list[Axes]:
    """One axes per width, side by side in a row of the grid; widths are in sixths of the row."""
    columns, added, start = row.subgridspec(1, 6), [], 0
    for width in widths:
        axes = figure.add_subplot(columns[0, start : start + width])
        axes.tick_params(which="both", labelsize=8, length=3)
        axes.spines[["top", "right"]].set_visible(False)
        added.append(axes)
        start += width
    return added


def label_axes(axes: Axes, title: str, x: str, y: str, note: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_title(note, loc="right", fontsize=7, color="0.35", style="italic")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)


def plot_heads(axes: Axes, x: Tensor, y: Tensor, shared: bool, legend: bool = True) -> None:
    """One line per head of ``y`` ``[H, n]``, from dark to light; a single line if all heads are the same."""
    from matplotlib import colormaps

    rows = y[:1] if shared else y
    colors = colormaps["viridis"]([0.85 * head / max(1, len(rows) - 1) for head in range(len(rows))])
    labeled = {round(n * (len(rows) - 1) / 7) for n in range(8)}  # the legend names at most eight heads
    for head, row in enumerate(rows):
        name = ("every head" if shared else f"head {head}") if head in labeled else None
        axes.plot(x, row, color=colors[head], linewidth=1.4, label=name)
    finite = rows[rows.isfinite()]
    if axes.get_yscale() == "linear" and float(finite.max() - finite.min()) < 1e-9:
        axes.set_ylim(float(finite[0]) - 1, float(finite[0]) + 1)  # a flat line: do not magnify rounding errors
    if legend:
        add_legend(axes)


def add_legend(axes: Axes) -> None:
    """The legend, to the right of the data."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=7, frameon=False, handlelength=2.2)


def plot_heatmaps(axes: list[Axes], values: list[Tensor], label: str, **options: Any) -> None:
    """Queries down, keys across, light gray where a query does not see a key; one color bar for all axes.

    ``options`` go to ``imshow``.
    """
    for one, matrix in zip(axes, values, strict=True):
        one.set_facecolor("0.9")
        image = one.imshow(matrix.numpy(), interpolation="nearest", **options)
    bar = axes[0].figure.colorbar(image, ax=axes, shrink=0.86, pad=0.015, aspect=24)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(which="both", labelsize=7, length=2)
    bar.outline.set_visible(False)


def choose_colormap(values: Tensor) -> dict[str, Any]:
    """Options for ``imshow``: a diverging colormap centered at zero if both signs occur, else a sequential one."""
    finite = values[values.isfinite()]
    low, high = float(finite.min()), float(finite.max())
    limit = max(-low, high)
    if high - low < 1e-9:
        return {"cmap": "PuOr", "vmin": low - 1, "vmax": high + 1}
    if low < -0.05 * limit and high > 0.05 * limit:
        return {"cmap": "PuOr", "vmin": -limit, "vmax": limit}
    return {"cmap": "viridis", "vmin": low, "vmax": high}
