"""The panels of the picture of a probe's explanations, each drawn from its record onto axes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from whence.probe.arrays.channels import FITS, LEFT_OUT, fit_curves
from whence.report.probe.charts import over_heads, thirds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: colour, marker and line: each tells curves apart without the others, and the colours differ in lightness too
LOOKS = (
    ("#08306b", "o", "-"),
    ("#d95f0e", "s", "--"),
    ("#4292c6", "^", "-."),
    ("#525252", "D", ":"),
    ("#dd9fc3", "v", "-"),
)
PALE, DARK = "#9ecae1", "#08306b"
REGIONS = {"sink": "first token", "primacy": "next tenth", "recency": "last tenth"}
ARMS = {
    "no moving": "without what moves of them",
    "no vector": "without them",
    "shuffled": "without another place’s",
    "no content": "without content",
}
HEADS = 6  # that are drawn one by one: those that give the gold most


def gold_by_head(axes: Axes, attention: dict[str, Any], free: Any) -> None:
    """The heads that look at the gold most, each as a thin line, and the mean over all."""
    at = [place + 1 for place in attention["gold_slots"]]
    chosen = sorted((row for layer in attention["gold"] for row in layer), key=max, reverse=True)[:HEADS]
    for number, row in enumerate(chosen):
        label = f"the {len(chosen)} heads that look most" if number == 0 else None
        axes.plot(at, _thousandths(row), color="0.6", linewidth=0.9, label=label)
    _line(axes, 0, at, _thousandths(over_heads(attention["gold"])), "gold, mean of all heads")
    slots = list(range(1, len(attention["profile"][0][0]) + 1))
    _line(axes, 1, slots, _thousandths(over_heads(attention["profile"])), "another slot, mean")
    if free:
        _line(axes, 3, slots, _thousandths(over_heads(free)), "all slots alike, mean")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(at)
    axes.set_xlabel("slot, from the first to the last")
    axes.set_ylabel("attention a token (thousandths, log)")


def regions(axes: Axes, regions: dict[str, list[list[float]]], chosen: Sequence[int] | None = None) -> None:
    """Three grids side by side, a row for each layer and a column for each head: the darker, the larger the share.

    ``chosen`` numbers the layers, where not all were looked at.
    """
    names = [name for name in REGIONS if name in regions]
    layers, heads = len(regions[names[0]]), len(regions[names[0]][0])
    gap = max(1, heads // 6)
    empty = [float("nan")] * gap
    rows = [
        [value for number, name in enumerate(names) for value in ([*empty] if number else []) + regions[name][layer]]
        for layer in range(layers)
    ]
    image = axes.imshow([[100 * v for v in row] for row in rows], cmap="Greys", vmin=0, vmax=100, aspect="auto",
                        interpolation="nearest")  # fmt: skip
    axes.set_xticks([number * (heads + gap) + (heads - 1) / 2 for number in range(len(names))],
                    [f"{REGIONS[name]}" for name in names])  # fmt: skip
    axes.set_xlabel(f"heads 0 to {heads - 1} of each; share that goes to")
    axes.set_ylabel("layer")
    if chosen is not None:
        axes.set_yticks(range(layers), [str(number) for number in chosen])
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label("of the row (%)", fontsize=7)
    bar.ax.tick_params(labelsize=6.5)


def by_distance(axes: Axes, found: dict[str, Any]) -> None:
    far = [(near + end - 1) / 2 for near, end in found["ranges"]]
    layers, alone = (
        [[sum(values) / len(values) for values in zip(*heads, strict=True)] for heads in found.get(arm, [])]
        for arm in ("attention", "one_position")
    )
    parts = [*thirds(layers), *([("all layers, one position for all tokens", alone)] if alone else [])]
    for number, (name, part) in enumerate(parts):
        means = [100 * sum(values) / len(values) for values in zip(*part, strict=True)]
        _line(axes, number, [distance + 1 for distance in far], means, name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens back from the query, plus 1 (log)")
    axes.set_ylabel("attention a token (%, log)")


def variance(axes: Axes, found: dict[str, Any]) -> None:
    for number, (key, name) in enumerate(
        (("beyond_chance", "all channels"), ("beyond_chance_without_outliers", "without outlier channels"))
    ):
        shares = [100 * layer[key] for layer in found["layers"]]
        _line(axes, number, list(range(len(shares))), shares, name)
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel("layer")
    axes.set_ylabel("share beyond chance (%)")


def channel(axes: Axes, found: dict[str, Any]) -> None:
    """Its mean over texts, without the first tenth, where sinks would press all others onto the axis, and the fits."""
    curve = found["curve"]
    begin, end = max(1, len(curve["values"]) // 10), len(curve["values"])
    axes.plot(range(begin, end), curve["values"][begin:], color="0.72", linewidth=0.8, label="mean over texts")
    for number, fit in enumerate(FITS):
        at, values = _fit(curve["values"], fit)
        colour, _, line = LOOKS[number]
        axes.plot(at, values, color=colour, linestyle=line, linewidth=1.5, label=f"{fit} fit")
    axes.set_xlabel("position (tokens)")
    axes.set_ylabel(f"channel {curve['channel']} in layer {curve['layer']}")


def _fit(values: list[float], fit: str) -> tuple[list[float], list[float]]:
    """A fit where it stands: segments run over means of neighbours, and the mean of a window stands in its middle."""
    begin = round(LEFT_OUT[fit] * len(values))
    low, high = min(values[begin:]), max(values[begin:])
    made = fit_curves(torch.tensor(values)[:, None], fit)[:, 0].tolist()
    step = (len(values) - begin) / len(made) if fit == "segmented" else 1
    aside = (len(values) - begin - step * len(made)) / 2
    return [begin + aside + step * (at + 0.5) for at in range(len(made))], [
        low + (high - low) * value for value in made
    ]


def fits(axes: Axes, found: dict[str, Any]) -> None:
    for number, (key, name, colour) in enumerate((("count", "in order", DARK), ("by_chance", "tokens shuffled", PALE))):
        at = [place + 0.38 * number - 0.19 for place in range(len(FITS))]
        counts = [found[fit][key] for fit in FITS]
        drawn = axes.bar(at, counts, width=0.36, color=colour, edgecolor="0.2", linewidth=0.6, label=name)
        axes.bar_label(drawn, fontsize=6.5, padding=1)
    axes.set_xticks(range(len(FITS)), FITS)
    axes.set_xlabel("fit through the channel’s mean")
    axes.set_ylabel(f"channels of {found['hidden_size']}")


def arms(axes: Axes, found: dict[str, Any]) -> None:
    names = list(found["arms"])
    shares = [100 * found["arms"][name]["position_share"] for name in names]
    drawn = axes.barh(range(len(names)), shares, color=PALE, edgecolor="0.2", linewidth=0.6)
    axes.bar_label(drawn, labels=[f"{share:.1f}" for share in shares], fontsize=6.5, padding=2)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"variance due to position, layer {found['layer']} (%)")


def ablated(axes: Axes, found: dict[str, Any]) -> None:
    at = [place + 1 for place in found["gold_slots"]]
    for number, (name, arm) in enumerate(found["arms"].items()):
        _line(axes, number, at, [100 * share for share in arm["probability"]], ARMS.get(name, name))
    axes.set_xticks(at)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("slot of the gold, from the first to the last")
    axes.set_ylabel("probability of the answer (%)")


def followed(axes: Axes, found: Mapping[str, dict[str, Any]]) -> None:
    """The probability of a slot's own answer before and after that slot was emphasised, in one way or in both."""
    first = next(iter(found.values()))
    slots = sorted({row["slot"] for row in first["rows"]})
    before = _by_slot(first, slots, "before")
    axes.plot(range(len(slots)), before, "o", color="white", markeredgecolor="0.2", label="untouched", zorder=3)
    for number, (what, part) in enumerate(found.items()):
        colour, marker, line = LOOKS[number]
        aside = 0.16 * (number - (len(found) - 1) / 2)
        for place, (low, high) in enumerate(zip(before, _by_slot(part, slots, "after"), strict=True)):
            label = f"its {what} times {part['factor']:g}" if place == 0 else None
            axes.plot([place, place + aside], [low, high], color=colour, linestyle=line, linewidth=1, zorder=1)
            axes.plot(place + aside, high, marker, color=colour, markersize=5, linestyle="none", label=label, zorder=2)
    axes.set_xticks(
        range(len(slots)), [f"{slot + 1}{' (gold)' if slot == first['gold_slot'] else ''}" for slot in slots]
    )
    axes.set_xlim(-0.5, len(slots) - 0.5)
    room = 1.4 * axes.dataLim.y1  # for the names above
    axes.set_ylim(0, room)
    axes.set_yticks([at for at in axes.get_yticks() if 0 <= at <= min(100, room)])
    axes.set_xlabel("slot that is emphasised")
    axes.set_ylabel("probability of its answer (%)")


def _by_slot(found: dict[str, Any], slots: list[int], key: str) -> list[float]:
    return [100 * _mean([row[key] for row in found["rows"] if row["slot"] == slot]) for slot in slots]


def _line(axes: Axes, number: int, at: list[Any], values: list[float], name: str) -> None:
    colour, marker, line = LOOKS[number % len(LOOKS)]
    axes.plot(at, values, color=colour, marker=marker, linestyle=line, markersize=3, linewidth=1.3, label=name)


def _thousandths(values: list[float]) -> list[float]:
    return [1000 * value for value in values]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
