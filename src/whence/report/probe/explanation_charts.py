"""The charts that explain a curve: attention, hidden states, channels, mask or encoding, ablation and emphasis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from whence.probe.arrays.channels import FITS, LEFT_OUT, fit_curves
from whence.report.formatting import format_number
from whence.report.probe.charts import (
    COLORS,
    PERCENT,
    STYLES,
    THOUSANDTHS,
    Chart,
    Series,
    draw_cells,
    draw_line,
    line_chart,
    scale_values,
)
from whence.report.probe.sentences import mean_over_heads

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REGIONS = {"sink": "first token", "primacy": "next tenth", "recency": "last tenth"}


ARMS = {
    "no moving": "no positional part",
    "no vector": "no positional vector",
    "shuffled": "another position’s part removed",
    "no content": "no content",
}


HEADS = 6  # drawn one by one: those with the most attention to the gold


def slot_attention(name: str, title: str, attention: dict[str, Any], content_free: Any) -> Chart:
    """Attention per token to the gold as it moves, to the other slots, and where all slots hold the same words."""
    at = [slot + 1 for slot in attention["gold_slots"]]
    all_slots = list(range(1, len(attention["profile"][0][0]) + 1))
    series = {
        "gold, mean of all heads": (at, mean_over_heads(attention["gold"])),
        "another slot, mean": (all_slots, mean_over_heads(attention["profile"])),
    }
    if content_free:
        series["all slots alike, mean"] = (all_slots, mean_over_heads(content_free))
    single = sorted((row for layer in attention["gold"] for row in layer), key=max, reverse=True)[:HEADS]

    def draw(axes: Axes) -> None:
        for index, row in enumerate(single):
            label = f"gold, the {len(single)} heads with most" if index == 0 else None
            axes.plot(at, scale_values(row, THOUSANDTHS), color=COLORS["faint"], linewidth=0.8, alpha=0.7, label=label)
        for index, (words, (x, values)) in enumerate(series.items()):
            draw_line(axes, index, x, scale_values(values, THOUSANDTHS), words)
        if any(value > 0 for _, values in series.values() for value in values):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xticks(at)
        axes.set_xlabel("slot, from the first to the last")
        axes.set_ylabel("attention per token (thousandths, log)")

    description = f"{title}: attention of the answering token to each slot"
    return line_chart(f"attention-{name}", description, draw, "slot", series, THOUSANDTHS, "thousandths per token")


def attention_by_distance(result: dict[str, Any]) -> Chart:
    """Mean attention at each distance, for three thirds of the layers, and for all with one position for all tokens."""
    far = [(near + end - 1) / 2 for near, end in result["ranges"]]
    layers, one_position = (
        [[sum(values) / len(values) for values in zip(*heads, strict=True)] for heads in result.get(arm, [])]
        for arm in ("attention", "one_position")
    )
    parts = [*thirds(layers), *([("one position for all tokens", one_position)] if one_position else [])]
    series = {name: (far, [sum(v) / len(v) for v in zip(*part, strict=True)]) for name, part in parts}

    def draw(axes: Axes) -> None:
        for index, (words, (x, values)) in enumerate(series.items()):
            draw_line(axes, index, [distance + 1 for distance in x], scale_values(values, PERCENT), words)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("tokens back from the query, plus 1 (log)")
        axes.set_ylabel("attention per token (%, log)")

    description = "Mean attention to a token by its distance from the query"
    return line_chart("distance", description, draw, "distance", series, PERCENT, "%")


def position_variance(geometry: dict[str, Any]) -> Chart:
    """The share of the variance of hidden states that position explains beyond chance, by layer."""
    keys = {"all channels": "beyond_chance", "without outlier channels": "beyond_chance_without_outliers"}
    series = {name: _by_layer([layer[key] for layer in geometry["layers"]]) for name, key in keys.items()}

    def draw(axes: Axes) -> None:
        _lines_by_layer(axes, series, PERCENT, "share beyond chance (%)")
        axes.axhline(0, color=COLORS["faint"], linewidth=0.8)

    description = "Variance of the hidden states that position explains, by layer"
    return line_chart("variance", description, draw, "layer", series, PERCENT, "%")


def vector_lengths(geometry: dict[str, Any]) -> Chart:
    """The mean length of the moving part of the positional vectors and of the content, by layer."""
    series = {name: _by_layer(geometry["vectors"][name]) for name in ("moving", "content")}
    description = "Mean length of the positional vectors and of the content, by layer"
    return line_chart(
        "vectors", description, lambda axes: _lines_by_layer(axes, series, 1, "mean length"), "layer", series, 1, ""
    )


def positional_channel(channels: dict[str, Any]) -> Chart:
    """The smoothest channel: its mean over texts without the first tenth, where sinks are, and the three fits."""
    curve = channels["curve"]
    begin, end = max(1, len(curve["values"]) // 10), len(curve["values"])

    def draw(axes: Axes) -> None:
        axes.plot(
            range(begin, end), curve["values"][begin:], color=COLORS["faint"], linewidth=0.8, label="mean over texts"
        )
        for index, fit in enumerate(FITS):
            at, values = _fit(curve["values"], fit)
            color, _, line = STYLES[index]
            axes.plot(at, values, color=COLORS[color], linestyle=line, linewidth=1.5, label=f"{fit} fit")
        axes.set_xlabel("position (tokens)")
        axes.set_ylabel(f"channel {curve['channel']} in layer {curve['layer']}")

    description = f"The mean of channel {curve['channel']} in layer {curve['layer']} along random texts"
    step = max(1, (end - begin) // 12)
    rows = [[str(at), f"{curve['values'][at]:.3g}"] for at in range(begin, end, step)]
    return Chart("channel", f"{description}.", draw, ["position", "mean over texts"], rows)


def channel_counts(channels: dict[str, Any]) -> Chart:
    """How many channels each fit finds, in order and with the tokens shuffled."""

    def draw(axes: Axes) -> None:
        for index, (key, words) in enumerate((("count", "in order"), ("by_chance", "tokens shuffled"))):
            at = [place + 0.38 * index - 0.19 for place in range(len(FITS))]
            counts = [channels[fit][key] for fit in FITS]
            bars = axes.bar(at, counts, width=0.36, color=COLORS[STYLES[index][0]], alpha=0.8, label=words)
            axes.bar_label(bars, fontsize=6.5, padding=1)
        axes.set_xticks(range(len(FITS)), FITS)
        axes.set_xlabel("fit through the channel’s mean")
        axes.set_ylabel(f"channels of {channels['hidden_size']}")

    rows = [[fit, str(channels[fit]["count"]), str(channels[fit]["by_chance"])] for fit in FITS]
    counts_text = "; ".join(f"{fit}: {count} in order, {chance} shuffled" for fit, count, chance in rows)
    return Chart(
        "fits",
        f"Channels that are monotone in position, by fit. {counts_text}.",
        draw,
        ["fit", "in order", "shuffled"],
        rows,
    )


def mask_or_encoding(result: dict[str, Any]) -> Chart:
    """The share of position in the middle layer in each arm."""
    shares = {name: PERCENT * arm["position_share"] for name, arm in result["arms"].items()}

    def draw(axes: Axes) -> None:
        bars = axes.barh(range(len(shares)), list(shares.values()), color=COLORS["hue1"], alpha=0.6)
        axes.bar_label(bars, labels=[f"{share:.1f}" for share in shares.values()], fontsize=6.5, padding=2)
        axes.set_yticks(range(len(shares)), list(shares))
        axes.invert_yaxis()
        axes.set_xlabel(f"variance due to position, layer {result['layer']} (%)")

    rows = [[name, f"{share:.1f}%"] for name, share in shares.items()]
    description = f"Variance due to position in layer {result['layer']}: " + ", ".join(
        f"{name} {cell}" for name, cell in rows
    )
    return Chart("arms", f"{description}.", draw, ["arm", "variance due to position"], rows)


def ablation(result: dict[str, Any], measure: str) -> Chart:
    """One measure by the slot of the gold, a line for each arm of the ablation."""
    label, scale = {
        "probability": ("probability of the answer (%)", PERCENT),
        "gold_attention": ("attention to the gold (thousandths)", THOUSANDTHS),
    }[measure]
    at = [slot + 1 for slot in result["gold_slots"]]
    series = {ARMS.get(name, name): (at, arm[measure]) for name, arm in result["arms"].items()}

    def draw(axes: Axes) -> None:
        for index, (words, (x, values)) in enumerate(series.items()):
            draw_line(axes, index, x, scale_values(values, scale), words)
        axes.set_xticks(at)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("slot of the gold, from the first to the last")
        axes.set_ylabel(label)

    return line_chart(
        f"ablation-{measure}", f"{label} by the slot of the gold, with parts removed", draw, "slot", series, scale, ""
    )


def slot_emphasis(parts: Mapping[str, dict[str, Any]]) -> Chart:
    """The probability of a slot's own answer before and after that slot was emphasized, by weight, by score or both."""
    first = next(iter(parts.values()))
    slots = sorted({row["slot"] for row in first["rows"]})
    before = _mean_by_slot(first, slots, "before")
    after = {
        f"its {quantity} times {part['factor']:g}": _mean_by_slot(part, slots, "after")
        for quantity, part in parts.items()
    }

    def draw(axes: Axes) -> None:
        axes.plot(range(len(slots)), before, "o", color=COLORS["raised"], markeredgecolor=COLORS["ink"], label="untouched",
                  zorder=3)  # fmt: skip
        for index, (words, values) in enumerate(after.items()):
            color, marker, line = STYLES[index]
            aside = 0.16 * (index - (len(after) - 1) / 2)
            for place, (low, high) in enumerate(zip(before, values, strict=True)):
                axes.plot(
                    [place, place + aside], [low, high], color=COLORS[color], linestyle=line, linewidth=1, zorder=1
                )
                axes.plot(place + aside, high, marker, color=COLORS[color], markersize=5, linestyle="none",
                          label=words if place == 0 else None, zorder=2)  # fmt: skip
        axes.set_xticks(
            range(len(slots)), [f"{slot + 1}{' (gold)' if slot == first['gold_slot'] else ''}" for slot in slots]
        )
        axes.set_xlim(-0.5, len(slots) - 0.5)
        top = 1.4 * axes.dataLim.y1  # room for the legend
        axes.set_ylim(0, top)
        axes.set_yticks([at for at in axes.get_yticks() if 0 <= at <= min(100, top)])
        axes.set_xlabel("emphasized slot")
        axes.set_ylabel("probability of its answer (%)")

    rows = [
        [f"slot {slot + 1}", f"{before[i]:.1f}%", *(f"{values[i]:.1f}%" for values in after.values())]
        for i, slot in enumerate(slots)
    ]
    description = "Probability of a slot’s answer before and after the slot was emphasized"
    return Chart("emphasis", f"{description}.", draw, ["", "untouched", *after], rows)


def head_grid(name: str, values: list[list[float]], title: str, layers: Sequence[int] | None = None) -> Chart:
    """A cell for each head, a row for each layer: the darker, the larger its share. ``layers`` numbers the rows."""
    rows, heads = len(values), max(map(len, values))
    numbers = list(range(rows) if layers is None else layers)

    def draw(axes: Axes) -> None:
        cells = [
            (head, row, 1, 0.03 + 0.97 * min(1.0, max(0.0, v)))
            for row, line in enumerate(values)
            for head, v in enumerate(line)
        ]
        draw_cells(axes, cells)
        axes.set_xlim(0, heads)
        axes.set_ylim(rows, 0)
        ticks = range(0, rows, 1 if rows <= 6 else 5)
        axes.set_yticks([row + 0.5 for row in ticks], [str(numbers[row]) for row in ticks])
        step = 1 if heads <= 12 else 4
        axes.set_xticks([head + 0.5 for head in range(0, heads, step)], [str(head) for head in range(0, heads, step)])
        axes.set_xlabel(f"head; {title}, from 0 (faint) to 100%")
        axes.set_ylabel("layer")

    table = [
        [f"layer {layer}", *(f"{format_number(100 * value, 1)}%" for value in line)]
        for layer, line in zip(numbers, values, strict=True)
    ]
    listed = f"layers 0 to {rows - 1}" if layers is None else f"layers {', '.join(map(str, layers))}"
    description = f"{title}, {listed} downwards, heads 0 to {heads - 1} across."
    size = (4.6, min(6.0, 0.8 + 0.13 * max(rows, 8)))
    return Chart(name, description, draw, ["", *(f"head {head}" for head in range(heads))], table, size)


def region_grids(regions: dict[str, list[list[float]]], layers: Sequence[int] | None = None) -> Chart:
    """Three grids side by side: the share of each head's attention to the first token, the beginning and the end."""
    names = [name for name in REGIONS if name in regions]
    rows, heads = len(regions[names[0]]), len(regions[names[0]][0])
    gap = max(1, heads // 6)

    def draw(axes: Axes) -> None:
        for index, name in enumerate(names):
            left = index * (heads + gap)
            draw_cells(axes, [
                (left + head, row, 1, 0.03 + 0.97 * min(1.0, max(0.0, value)))
                for row, line in enumerate(regions[name]) for head, value in enumerate(line)
            ])  # fmt: skip
        axes.set_xlim(0, len(names) * (heads + gap) - gap)
        axes.set_ylim(rows, 0)
        axes.set_xticks([i * (heads + gap) + heads / 2 for i in range(len(names))], [REGIONS[name] for name in names])
        step = 1 if rows <= 6 else 5
        numbers = list(range(rows) if layers is None else layers)
        axes.set_yticks(
            [row + 0.5 for row in range(0, rows, step)], [str(numbers[row]) for row in range(0, rows, step)]
        )
        axes.set_xlabel(f"share of the row, 0 (faint) to 100%; heads 0 to {heads - 1} of each")
        axes.set_ylabel("layer")

    return Chart("regions", "Where the attention of each head goes.", draw, [], [])


def thirds(layers: list[list[float]]) -> list[tuple[str, list[list[float]]]]:
    """The first, the middle and the last third of the layers; those that exist."""
    count = len(layers)
    cuts = [0, max(1, count // 3), max(2, 2 * count // 3), count]
    names = ("first layers", "middle layers", "last layers")
    return [(name, layers[a:b]) for name, (a, b) in zip(names, pairwise(cuts), strict=True) if layers[a:b]]


def _by_layer(values: Sequence[float]) -> tuple[list[float], Sequence[float]]:
    return [float(layer) for layer in range(len(values))], values


def _lines_by_layer(axes: Axes, series: Series, scale: float, label: str) -> None:
    for index, (words, (at, values)) in enumerate(series.items()):
        draw_line(axes, index, at, scale_values(values, scale), words)
    axes.set_xlabel("layer")
    axes.set_ylabel(label)


def _fit(values: list[float], fit: str) -> tuple[list[float], list[float]]:
    """A fit at its positions: segments run over means of neighbours; the mean of a window is at its middle."""
    begin = round(LEFT_OUT[fit] * len(values))
    low, high = min(values[begin:]), max(values[begin:])
    fitted = fit_curves(torch.tensor(values)[:, None], fit)[:, 0].tolist()
    step = (len(values) - begin) / len(fitted) if fit == "segmented" else 1
    aside = (len(values) - begin - step * len(fitted)) / 2
    at = [begin + aside + step * (index + 0.5) for index in range(len(fitted))]
    return at, [low + (high - low) * value for value in fitted]


def _mean_by_slot(part: dict[str, Any], slots: Sequence[int], key: str) -> list[float]:
    values_by_slot = [[row[key] for row in part["rows"] if row["slot"] == slot] for slot in slots]
    return [PERCENT * sum(values) / len(values) for values in values_by_slot]
