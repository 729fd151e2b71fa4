"""The charts of position by layer: its share in channels, the number of monotone channels, and the strongest channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whence.report.probe.charts import COLORS, PERCENT, STYLES, Chart, draw_line, line_chart, scale_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OWN = "own positions"


def share_by_layer(part: dict[str, Any]) -> Chart:
    """The share of variance that position explains: in the monotone channels, in each arm, and in all channels."""
    series = {}
    for name, arm in part["arms"].items():
        if shares := selected_share(arm):
            series[f"monotone channels, {name}"] = _by_layer(shares)
    series["all channels"] = _by_layer([layer["share"] for layer in part["arms"][OWN]["layers"]])

    def draw(axes: Axes) -> None:
        for index, (words, (at, values)) in enumerate(series.items()):
            draw_line(axes, index, at, scale_values(values, PERCENT), words)
        axes.axhline(0, color=COLORS["faint"], linewidth=0.8)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.35 * (high - low))  # room for the legend
        _label_layers(axes, "variance due to position (%)")

    description = "Share of the variance of channels that position explains beyond chance, by layer"
    return line_chart("growth-share", description, draw, "layer", series, PERCENT, "%")


def selected_share(arm: dict[str, Any]) -> list[float]:
    """The share of position in the selected channels by layer, as a mean over the halves of the texts that have any."""
    curves = [half["share"] for half in arm["selected"] if half["share"]]
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


def monotone_by_layer(part: dict[str, Any]) -> Chart:
    """The number of channels with a monotone cubic fit, in order for each arm, and in shuffled order."""
    series = {name: _by_layer([layer["monotone"] for layer in arm["layers"]]) for name, arm in part["arms"].items()}
    own = part["arms"][OWN]
    series["tokens shuffled"] = _by_layer([layer["by_chance"] for layer in own["layers"]])

    def draw(axes: Axes) -> None:
        for index, (words, (at, values)) in enumerate(series.items()):
            draw_line(axes, index, at, values, words)
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
        _label_layers(axes, f"monotone channels of {own['hidden_size']}")

    description = "Channels that are monotone in position, by layer"
    return line_chart("growth-monotone", description, draw, "layer", series, 1, "")


def strongest_channel(part: dict[str, Any]) -> Chart | None:
    """The curve of the strongest channel in several layers, in texts that did not select it; None if there is none."""
    one = part["arms"][OWN]["strongest"]
    if one is None:
        return None
    series = {f"layer {layer}": (one["positions"], values) for layer, values in one["curves"].items()}

    def draw(axes: Axes) -> None:
        for index, (words, (at, values)) in enumerate(series.items()):
            color, _, line = STYLES[index % len(STYLES)]
            axes.plot(at, values, color=COLORS[color], linestyle=line, linewidth=1.3, label=words)
        axes.set_xlabel("position (tokens)")
        axes.set_ylabel(f"channel {one['channel']}, mean over texts")

    description = f"The mean of channel {one['channel']} along random texts, in several layers"
    return line_chart("growth-curve", description, draw, "position", series, 1, "")


def _by_layer(values: Sequence[float]) -> tuple[list[float], Sequence[float]]:
    return [float(layer) for layer in range(len(values))], values


def _label_layers(axes: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("layer (0: embedding)")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
