"""The style of the experiments' figures: one color, marker and dash per form, intervals over heads, a note below.

Colors differ in lightness as well as hue, and markers and dashes differ too, so that figures are readable in grayscale and by
color-blind readers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import require_package
from whence.records import replace_file
from whence_papers.intervals import ANYWHERE, Range, mean_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SeriesStyle:
    colour: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]
    filled: bool = True

    def points(self, size: float = 5.0) -> dict[str, Any]:
        face = self.colour if self.filled else "white"
        return {
            "color": self.colour, "marker": self.marker, "markersize": size, "markerfacecolor": face,
            "markeredgecolor": self.colour, "markeredgewidth": 1.2,
        }  # fmt: skip

    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dash, "linewidth": 1.5}


NONE, BASIC, ENHANCED = "0.55", "#08519c", "#e07b1a"
SERIES_STYLES = {
    "none": SeriesStyle(NONE, "o", (0, (1, 1))),
    "basic": SeriesStyle(BASIC, "s", (0, (5, 2))),
    "enhanced": SeriesStyle(ENHANCED, "^", "-"),
    "learned": SeriesStyle("#1b7837", "D", (0, (5, 1, 1, 1))),
}
TRUTH = SeriesStyle("black", "*", (0, (3, 2)))


def hollow(style: SeriesStyle) -> SeriesStyle:
    """The same style with hollow markers, for untrained weights."""
    return SeriesStyle(style.colour, style.marker, style.dash, filled=False)


def sheet(rows: int, columns: int, width: float = 9.0, height: float = 3.2, **kwargs: Any) -> tuple[Figure, list[Axes]]:
    """A figure and the list of its axes, row by row."""
    require_package("matplotlib", "drawing an experiment", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", dpi=160, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **kwargs).flatten())
    for axes in panels:
        axes.tick_params(which="both", labelsize=8, length=3)
        if axes.name == "rectilinear":
            axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
    axes.set_xlabel(x, fontsize=8.5)
    axes.set_ylabel(y, fontsize=8.5)


def letters(panels: Sequence[Axes]) -> None:
    for number, axes in enumerate(panels):
        axes.set_title(
            f"{chr(ord('a') + number)}  {axes.get_title(loc='left')}", loc="left", fontsize=9, fontweight="bold"
        )


def legend(axes: Axes, **kwargs: Any) -> None:
    axes.legend(**({"loc": "upper right", "fontsize": 7.5, "frameon": False, "handlelength": 2.6} | kwargs))


def legend_above(figure: Figure, panels: Axes, columns: int) -> None:
    """One legend for all panels, above them."""
    handles, names = panels.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=columns, fontsize=8, frameon=False, handlelength=2.6)


def point(
    axes: Axes, x: float, values: Sequence[float], style: SeriesStyle, name: str | None = None, within: Range = ANYWHERE
) -> None:
    """Plot the mean over heads with its interval, clipped to the range of the measure, and each head as a faint dot."""
    mean, low, high = mean_and_interval(values, within)
    axes.plot([x] * len(values), values, linestyle="none", marker=".", markersize=4, color=style.colour, alpha=0.4,
              markeredgewidth=0, zorder=2)  # fmt: skip
    axes.plot([x, x], [low, high], color=style.colour, linewidth=1.3, marker="_", markersize=5, zorder=2)
    axes.plot([x], [mean], linestyle="none", label=name, zorder=3, **style.points())


def band(
    axes: Axes,
    x: Sequence[float],
    by_head: Sequence[Sequence[float]],
    style: SeriesStyle,
    name: str | None = None,
    within: Range = ANYWHERE,
) -> None:
    """Plot the mean curve over heads ``[head][x]`` and its interval as a band; with markers if there are few points."""
    ends = [mean_and_interval(column, within) for column in zip(*by_head, strict=True)]
    points = style.points(4) if len(x) < 20 else {}
    axes.plot(x, [mean for mean, _, _ in ends], **style.line() | points, label=name, zorder=3)
    axes.fill_between(
        x, [low for _, low, _ in ends], [high for _, _, high in ends], color=style.colour, alpha=0.18, linewidth=0
    )


def heat(axes: Sequence[Axes], squares: Sequence[Any], name: str, extent: Any = None, **colours: Any) -> None:
    """Draw heat maps with one shared color bar; row 0 is at the top."""
    for panel, square in zip(axes, squares, strict=True):
        image = panel.imshow(square, interpolation="nearest", extent=extent, aspect="auto", **colours)
        panel.spines[["top", "right"]].set_visible(True)
    bar = axes[0].figure.colorbar(image, ax=list(axes), shrink=0.9, pad=0.015, aspect=26)
    bar.set_label(name, fontsize=8.5)
    bar.ax.tick_params(which="both", labelsize=7.5, length=2)
    bar.outline.set_visible(False)


def save(figure: Figure, path: Path, record: dict[str, Any], note: str) -> None:
    """Write a figure atomically, with an explanatory note below that also marks a quick run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    quick = "QUICK RUN: the numbers are not meaningful. " if record["quick"] else ""
    if record["quick"]:
        figure.set_dpi(80)
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(quick + note, int(width * 17))
    room = (0.12 + 0.135 * len(lines)) / height
    figure.set_layout_engine("constrained", rect=(0, room, 1, 1 - room), hspace=0.06, wspace=0.04)
    figure.text(0.012, 0.05 / height, "\n".join(lines), fontsize=7, color="0.3", va="bottom", linespacing=1.25)
    with replace_file(path) as part:
        FigureCanvasAgg(figure).print_png(str(part))  # figure.savefig would run the layout twice
