"""The rows of the figure: a mechanism's effect, a sink, an attention pattern with it, and rotary's oscillation.

Colors are readable in grayscale and with color blindness.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.plotting.effects import Effect, PlotInputs, compute_attention, compute_sink, compute_weight_ratio
from whence.position.rotary import Rotary, oscillation
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Scaling, Yarn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAT_LOGIT_RANGE = 0.3  # a logit that moves less than this changes a weight by less than about a third
MIN_WEIGHT = 1e-3  # smaller attention weights are drawn as this one
MAX_DISTANCE = 4096  # of the oscillation
LINE_STYLES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)))


def plot_effect(panels: list[Axes], inputs: PlotInputs, effect: Effect) -> None:
    """The effect over distance for one query, and by query and key for one head."""
    query = inputs.length - 1 if inputs.causal else inputs.length // 2
    # near to far: keys in reverse order, starting at the query
    distance, curves = query - torch.arange(inputs.length).flip(0), effect.values[:, query].flip(-1)
    if not inputs.causal:
        panels[0].axvline(0, color="0.8", linewidth=0.8)
    plot_heads(panels[0], distance, curves, effect.shared)
    which_query = "" if inputs.by_distance else f", for the query at {query}"
    x = "distance to the key" + ("" if inputs.causal else ", negative for later keys") + f" (tokens){which_query}"
    label_axes(panels[0], "effect over distance", x, effect.label, _learnable_note(inputs, curves))
    values = effect.values[effect.median_head]
    plot_heatmaps(panels[1:], [values], effect.label.replace("\n", " "), **choose_colormap(values))
    title = f"effect by query and key, {_head_name(effect, effect.median_head)}"
    label_axes(panels[1], title, "key (token)", "query (token)")


def _learnable_note(inputs: PlotInputs, curves: Tensor) -> str:
    """A note that the curve can change with training, or that the mechanism has no effect on logits."""
    if inputs.position.effects <= {"value_bias"}:
        return "acts on values only" if inputs.position.effects else "no effect"
    if not _has_parameters(inputs, sink=False):
        return ""
    finite = curves[curves.isfinite()]
    flat = "score_scale" not in inputs.position.effects and float(finite.max() - finite.min()) < FLAT_LOGIT_RANGE
    return "learnable; nearly flat as initialized" if flat else "learnable; current values"


def _has_parameters(inputs: PlotInputs, sink: bool) -> bool:
    """Whether the sink, or everything but the sink, has parameters."""
    parts = [part for part in inputs.position.parts if (part.effects == {"sink"}) == sink]
    return any(True for part in parts for _ in part.parameters())


def _head_name(effect: Effect, head: int) -> str:
    return "every head" if effect.shared else f"head {head}"


def plot_sink(panels: list[Axes], inputs: PlotInputs, effect: Effect | None) -> Effect:
    """The sink's logit, its share of attention, and the share it leaves to the keys.

    Returns the effect whose head the attention pattern shows: ``effect``, or the sink's own if that is ``None``.
    """
    sink = compute_sink(inputs)
    sink_effect, query = sink.key_share, torch.arange(inputs.length)
    note = "learnable; current values" if _has_parameters(inputs, sink=True) else ""
    plot_heads(panels[0], query, sink.logit, sink_effect.shared, legend=False)
    label_axes(panels[0], "logit of the sink", "query (token)", "extra logit in the row", note)
    plot_heads(panels[1], query, sink.share, sink_effect.shared)
    panels[1].set_ylim(0, max(0.05, 1.08 * float(sink.share.max())))
    label_axes(panels[1], "its share if all scores are 0", "query (token)", "share of attention")
    head = sink_effect.median_head if effect is None or sink_effect.shared else effect.median_head
    plot_heatmaps(panels[2:], [sink_effect.values[head]], sink_effect.label, cmap="viridis", vmin=0, vmax=1)
    label_axes(panels[2], f"share of the keys, {_head_name(sink_effect, head)}", "key (token)", "query (token)")
    return sink_effect if effect is None else effect


def plot_attention(panels: list[Axes], inputs: PlotInputs, effect: Effect) -> None:
    """Attention weights over the example content without and with the mechanism, and their ratio by distance."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    head = effect.median_head
    without, weights = compute_attention(inputs)
    later_keys = torch.ones(inputs.length, inputs.length, dtype=torch.bool).triu(1)
    maps = [weight.masked_fill(later_keys, torch.nan).clamp(min=MIN_WEIGHT) for weight in (without, weights[head])]
    # log scale: early queries have few keys and large weights, and would hide the later rows
    plot_heatmaps(panels[:2], maps, "attention weight", cmap="cividis", norm=LogNorm(MIN_WEIGHT, 1))
    label_axes(panels[0], "attention, no position", "key (token)", "query (token)")
    label_axes(panels[1], f"with position, {_head_name(Effect(weights, ''), head)}", "key (token)", "query (token)")

    ratio = compute_weight_ratio(without, weights)
    distance = torch.arange(ratio.shape[1])
    low, high = min(0.95, float(ratio.amin())), max(1.05, float(ratio.amax()))
    if low * 20 < high:
        panels[2].set_yscale("log")
        panels[2].set_ylim(max(1e-4, 0.6 * low), 1.6 * high)
        panels[2].yaxis.set_major_locator(LogLocator(subs=(1, 3) if high < 1000 * low else (1,)))
        panels[2].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panels[2].yaxis.set_minor_formatter(NullFormatter())
    panels[2].axhline(1, color="black", linewidth=1, linestyle="--", label="no position")
    plot_heads(panels[2], distance, ratio, bool(torch.allclose(ratio, ratio[:1], rtol=1e-9, atol=1e-12)))
    if panels[2].get_yscale() == "linear":
        panels[2].set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    label_axes(panels[2], "mean change by distance", "distance to the key (tokens)", "weight with / without position")


def plot_oscillation(panels: list[Axes], rotary: Rotary, head_dim: int) -> None:
    """The score of two equal vectors over distance under this rotary embedding, other bases and other scalings."""
    from matplotlib import colormaps

    distances = torch.arange(1, MAX_DISTANCE + 1, dtype=torch.float64)
    centers = torch.logspace(0, math.log2(MAX_DISTANCE) - 0.2, 160, base=2.0, dtype=torch.float64).round().unique()

    def smooth(rotary: Rotary) -> Tensor:
        """The mean over distances within 10 %; beyond a hundred tokens single distances look like noise."""
        near = ((distances - centers[:, None]).abs() <= 0.1 * centers[:, None] + 0.5).double()
        return near @ oscillation(rotary, distances, head_dim) / near.sum(1)

    def with_scaling(scaling: Scaling) -> Rotary:
        context = MAX_DISTANCE if scaling.needs_length else None
        return Rotary(base=rotary.base, rotary_dim=rotary.rotary_dim, scaling=scaling, context=context)

    pairs, original = rotary.resolve_rotary_dim(head_dim) // 2, MAX_DISTANCE // 4
    long_factors = tuple(
        4.0 ** (pair / max(1, pairs - 1)) for pair in range(pairs)
    )  # LongRoPE searches for its factors
    bases = {f"base $10^{n}$": Rotary(base=10.0**n, rotary_dim=rotary.rotary_dim) for n in (4, 5, 6)}
    scalings = {"linear": with_scaling(Linear(4.0))}
    if pairs > 1:  # dynamic NTK needs two frequencies
        scalings["dynamic NTK"] = with_scaling(DynamicNtk(4.0, original))
    scalings["YaRN"] = with_scaling(Yarn(4.0, original))
    scalings["Llama 3"] = with_scaling(Llama3(4.0, original=original))
    scalings["LongRoPE"] = with_scaling(LongRope((1.0,) * pairs, long_factors, original, 4.0))

    for panel, others, title in (
        (panels[0], bases, f"rotary oscillation by base, head_dim={head_dim}"),
        (panels[1], scalings, f"by scaling, from {original} to {MAX_DISTANCE} tokens"),
    ):
        panel.set_xscale("log", base=2)
        panel.axhline(0, color="0.8", linewidth=0.8)
        exact = oscillation(rotary, distances, head_dim)
        panel.plot(distances, exact, color="0.78", linewidth=0.6, label="this one,\neach distance")
        panel.plot(centers, smooth(rotary), color="black", linewidth=2.4, label="this one")
        colors = colormaps["viridis"]([0.15 + 0.7 * n / (len(others) - 1) for n in range(len(others))])
        for color, style, (name, other) in zip(colors, LINE_STYLES, others.items(), strict=False):
            panel.plot(centers, smooth(other), color=color, linestyle=style, linewidth=1.3, label=name)
        add_legend(panel)
        label_axes(panel, title, "distance (tokens)", "mean cosine, times\nany attention factor")


# --- axes: lines per head, heatmaps and labels ------------------------------------------------------------------------------
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
