"""Figures: which past visits a prediction points at, and what a study of next places found.

python -m whence_papers.pointer.next_location.drawing results/next-location-HASH docs/next_location.png      # a study's figure, from its records
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence import records
from whence.errors import require_package
from whence.lab.results import load_arm_records, load_study
from whence.statistics import summary
from whence_papers.pointer.next_location.exhibits import COUNTINGS, Runs, of_test, shapes
from whence_papers.pointer.next_location.predicting import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = 4  # users of one figure
LABELLED = 24  # visits with a name below the axis
DARK, LIGHT = "#1f5a96", "#d8dde3"  # apart in grey too
DASHES = ("-", "--", "-.", ":")
COUNTED: dict[str, dict[str, Any]] = {
    "all": {"color": DARK, "marker": "o"},
    "seen": {"color": "#b5651d", "marker": "D", "markerfacecolor": "white"},
}


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


def study_figure(runs: Runs, baselines: Mapping[str, Any]) -> Figure:
    """Left: Acc@1 of every arm and of the best simple rule; right: what each pointer's position learned to add."""
    figure = _figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(5, 6))
    _accuracies(left, runs, baselines)
    learned_shapes(right, runs)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure


def learned_shapes(axes: Axes, runs: Runs) -> None:
    """What each arm's position adds to the pointer's score over visits from the end, mean and every seed."""
    from matplotlib import colormaps

    shown = shapes(runs)
    arms = list(shown["lines"])
    shades = colormaps["viridis"]([0.85 * place / max(1, len(arms) - 1) for place in range(len(arms))])
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    for place, arm in enumerate(arms):
        seeds = list(shown["lines"][arm].values())
        for points in seeds:
            axes.plot(*zip(*points, strict=True), color=shades[place], linewidth=0.6, alpha=0.5)
        means = [sum(p[i][1] for p in seeds) / len(seeds) for i in range(len(seeds[0]))]
        axes.plot(
            [p[0] for p in seeds[0]], means, DASHES[place % len(DASHES)], color=shades[place], linewidth=2, label=arm
        )  # fmt: skip
    _named(axes, shown["title"], shown["x"], shown["y"])
    if arms:
        axes.legend(frameon=False, fontsize=8)


def _accuracies(axes: Axes, runs: Runs, baselines: Mapping[str, Any]) -> None:
    """An arm a row, as the source counts (dark) and where training has the answer (light): seeds, mean and interval."""
    for row, found in enumerate(runs.values()):
        for side, (counting, look) in zip((-0.16, 0.16), COUNTED.items(), strict=True):
            values = [100 * of_test(record, counting)["acc@1"] for record in found]
            short = summary(values)
            name = COUNTINGS[counting] if row == 0 else None
            axes.plot(values, [row + side] * len(values), ".", color=look["color"], markersize=4, alpha=0.5)
            if short.interval is not None:
                axes.plot(
                    [short.interval.low, short.interval.high], [row + side] * 2, color=look["color"], linewidth=1.3
                )
            axes.plot([short.mean], [row + side], linestyle="none", markersize=6, label=name, **look)
    rule = max(baselines, key=lambda name: baselines[name]["value"])
    axes.axvline(
        100 * baselines[rule]["value"], color="0.5", linestyle=":", linewidth=1.2, label=f"best simple rule: {rule}"
    )
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_ylim(len(runs) - 0.4, -0.6)
    _named(axes, "Who says best where someone goes next", "Acc@1 on the test part (%)", "")
    axes.legend(facecolor="white", edgecolor="none", framealpha=0.9, fontsize=7.5, loc="upper left")


def _named(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)


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
    require_package("matplotlib", "drawing", "plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white", layout="constrained")


def main(folder: Path, out: Path) -> None:
    """Draw a study from its records."""
    study = load_study(folder)
    found = {arm.name: load_arm_records(study, arm, folder) for arm in study.arms}
    runs = {arm: [one for one in some if one["result"]["status"] == "done"] for arm, some in found.items()}
    simple = records.read(folder / "baselines.json")["baselines"]
    figure = study_figure({arm: some for arm, some in runs.items() if some}, simple)
    with records.replace_file(out) as part:
        figure.savefig(part, dpi=130, format=out.suffix[1:].lower())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("give a study's folder and the picture to draw")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
