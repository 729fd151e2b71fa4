"""Figures: which past visits a prediction points at, and what the pointers of a study learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whence.errors import missing_extra
from whence.mobility.exhibits import shapes
from whence.mobility.predicting import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = 4  # users of one figure
LABELLED = 24  # visits with a name below the axis
DARK, LIGHT = "#1f5a96", "#d8dde3"  # apart in grey too
DASHES = ("-", "--", "-.", ":")


def pointed(predictions: Sequence[Prediction]) -> Figure:
    """For each user, left: the weight of each past visit; right: the next places. At most four users are drawn."""
    figure = _figure(11, 3.4 * len(predictions[:DRAWN]))
    axes = figure.subplots(len(predictions[:DRAWN]), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), one in zip(axes, predictions, strict=False):
        _history(left, one)
        names = [name for name, _ in reversed(one.places)]
        shares = [100 * share for _, share in reversed(one.places)]
        right.barh(range(len(names)), shares, color=DARK)
        right.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=8)
        right.bar_label(right.containers[0], fmt="%.1f", fontsize=8, padding=2)
        right.set_xlim(0, max(100.0, max(shares)))
        right.set_xlabel("probability (%)", fontsize=8)
        right.set_title(f"next; {100 * one.generating:.0f} % of it generated", loc="left", fontsize=9)
        for panel in (left, right):
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
    return figure


def learned_shapes(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """What each arm's position adds to the pointer's score over visits from the end, from the records of a study."""
    shown = shapes(runs)
    figure = _figure(7.5, 4.2)
    axes = figure.subplots()
    from matplotlib import colormaps

    arms = list(shown["lines"])
    shades = colormaps["viridis"]([0.85 * place / max(1, len(arms) - 1) for place in range(len(arms))])
    for place, arm in enumerate(arms):
        seeds = list(shown["lines"][arm].values())
        for points in seeds:
            axes.plot(*zip(*points, strict=True), color=shades[place], linewidth=0.6, alpha=0.5)
        means = [sum(p[i][1] for p in seeds) / len(seeds) for i in range(len(seeds[0]))]
        axes.plot(
            [p[0] for p in seeds[0]], means, DASHES[place % len(DASHES)], color=shades[place], linewidth=2, label=arm
        )  # fmt: skip
    axes.set_xlabel(shown["x"], fontsize=9)
    axes.set_ylabel(shown["y"], fontsize=9)
    axes.set_title(shown["title"], loc="left", fontsize=10, fontweight="bold")
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    if arms:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _history(axes: Axes, one: Prediction) -> None:
    visits = one.history
    weights = [100 * weight for weight in one.weights or [0.0] * len(visits)]
    best = one.places[0][0]
    axes.bar(
        range(len(visits)), weights, edgecolor=DARK, linewidth=0.6,
        color=[DARK if visit.place == best else LIGHT for visit in visits],
    )  # fmt: skip
    step = max(1, -(-len(visits) // LABELLED))
    shown = range((len(visits) - 1) % step, len(visits), step)  # the last visit always has its name
    axes.set_xticks(shown, [_short(visits[at].place, 10) for at in shown], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("weight of the pointer (%)", fontsize=8)
    axes.set_xlabel(f"visits of the last days, oldest first; dark: at {_short(best)}", fontsize=8)
    title = f"{one.user}: where it points" if one.weights is not None else f"{one.user}: this model has no pointer"
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold")


def _short(name: str, letters: int = 22) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("drawing", "plot", "matplotlib") from error
    return Figure(figsize=(width, height), facecolor="white", layout="constrained")
