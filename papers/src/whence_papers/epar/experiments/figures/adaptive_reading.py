"""The pictures of experiment 4 that show what adapters read: task weights, content types and importance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.adaptive_words import ADAPTERS, KIND_LOOKS, LOOKS, asked, over_models
from whence_papers.figure_style import Look, heat, label, legend_above, letters, point, save, sheet
from whence_papers.intervals import SHARE

Record = dict[str, Any]
TASKED, CONTENTED = ("row", "task", "fused"), ("content", "fused")


def task_weights(record: Record, path: Path) -> None:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, panels = sheet(1, len(TASKED), 10.5, 3.3, sharey=True)
    for axes, adapter in zip(panels, TASKED, strict=True):
        for group, kind in enumerate(kinds):
            for place, name in enumerate(kinds):
                weights = [[row[place] for row in one["task_weights"][kind]] for one in models[adapter]]
                every = sorted(x for row in weights for x in row)
                x = group + (place - 1) * 0.24
                low, high = every[round(0.05 * (len(every) - 1))], every[round(0.95 * (len(every) - 1))]
                axes.plot([x - 0.07, x - 0.07], [low, high], color=KIND_LOOKS[name].colour, linewidth=3, alpha=0.4)
                point(
                    axes,
                    x,
                    [sum(row) / len(row) for row in weights],
                    KIND_LOOKS[name],
                    f"type {name}" if group == 0 else None,
                    SHARE,
                )
        axes.set_xticks(range(len(kinds)), kinds)
        axes.set_ylim(-0.05, 1.08)
        axes.grid(axis="y", color="0.92", linewidth=0.6)
        label(axes, ADAPTERS[adapter], "where the answer is", "task weight" if adapter == TASKED[0] else "")
    letters(panels)
    legend_above(figure, panels[0], 3)
    note = (
        "Weights of the three task types as a model gives them to the row it is asked in; pale bars: quantiles 0.05 to 0.95 over "
        f"inputs and seeds. Nothing tells a model which type an input is of. {asked(record)} {over_models(record)}"
    )
    save(figure, path, record, note)


def task_types(record: Record, path: Path) -> None:
    results = record["results"]
    models, kinds = results["models"], results["kinds"]
    figure, panels = sheet(1, 1 + len(TASKED), 11, 3.0, width_ratios=[0.8, 1, 1, 1])
    mixture = panels[0]
    mixture.bar(
        range(len(kinds)), [results["mixture"][kind] for kind in kinds], color="0.75", edgecolor="0.3", width=0.6
    )
    mixture.set_xticks(range(len(kinds)), kinds)
    mixture.set_ylim(0, 0.5)
    label(mixture, "the inputs", "where the answer is", "share of inputs")
    squares = []
    for adapter in TASKED:
        rows = []
        for kind in kinds:
            heaviest = [row.index(max(row)) for one in models[adapter] for row in one["task_weights"][kind]]
            rows.append([heaviest.count(n) / len(heaviest) for n in range(len(kinds))])
        squares.append(rows)
    heat(panels[1:], squares, "share of inputs", cmap="Blues", vmin=0, vmax=1)
    for axes, adapter, square in zip(panels[1:], TASKED, squares, strict=True):
        _written(axes, square)
        axes.set_xticks(range(len(kinds)), kinds)
        axes.set_yticks(range(len(kinds)), kinds if adapter == TASKED[0] else [""] * len(kinds))
        label(axes, ADAPTERS[adapter], "heaviest task type", "answer is" if adapter == TASKED[0] else "")
    letters(panels)
    note = f"Rows sum to 1, over all inputs and {len(record['spec']['seeds'])} seeds. {asked(record)}"
    save(figure, path, record, note)


def _written(axes: Any, square: list[list[float]]) -> None:
    for r, row in enumerate(square):
        for c, value in enumerate(row):
            axes.text(
                c, r, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if value > 0.55 else "black"
            )


def content_importance(record: Record, path: Path) -> None:
    models, tokens = record["results"]["models"], record["results"]["tokens"]
    figure, panels = sheet(1, len(CONTENTED), 8.5, 3.3, sharey=True)
    for axes, adapter in zip(panels, CONTENTED, strict=True):
        for place, token in enumerate(tokens):
            by_model = [one["content"]["importance"][token] for one in models[adapter]]
            for shift, values in zip((-0.3, -0.26, -0.22, -0.18, -0.14), by_model, strict=False):
                axes.scatter(
                    [place + shift] * len(values), values, s=6, color=LOOKS[adapter].colour, alpha=0.5, linewidths=0
                )
            point(axes, place + 0.1, [sum(values) / len(values) for values in by_model], LOOKS[adapter], within=SHARE)
        axes.set_xticks(range(len(tokens)), [token.replace(" ", "\n") for token in tokens])
        axes.set_ylim(-0.03, 1.03)
        label(axes, ADAPTERS[adapter], "token", "importance read" if adapter == CONTENTED[0] else "")
    letters(panels)
    note = (
        f"Importance from 0 to 1 as a model reads it from the token alone; small dots: every token, a column a seed. {over_models(record)} "
        "Only differences matter: a constant added to all keys of a row changes nothing."
    )
    save(figure, path, record, note)


def content_types(record: Record, path: Path) -> None:
    models, tokens = record["results"]["models"], record["results"]["tokens"]
    figure, panels = sheet(1, len(CONTENTED), 9, 3.2, sharey=True)
    types = models["content"][0]["content"]["types"]
    looks = [Look("0.6", "o", ":"), Look("#08519c", "s", "--"), Look("#e07b1a", "^", "-")]
    for axes, adapter in zip(panels, CONTENTED, strict=True):
        for group, token in enumerate(tokens):
            for place, kind in enumerate(types):
                values = [one["content"]["sorted"][token][place] for one in models[adapter]]
                point(axes, group + (place - 1) * 0.22, values, looks[place], kind if group == 0 else None, SHARE)
        axes.set_xticks(range(len(tokens)), [token.replace(" ", "\n") for token in tokens])
        axes.set_ylim(-0.05, 1.05)
        axes.grid(axis="y", color="0.92", linewidth=0.6)
        label(axes, ADAPTERS[adapter], "token", "mean weight of the content type" if adapter == CONTENTED[0] else "")
    letters(panels)
    legend_above(figure, panels[0], 3)
    levels = ", ".join(f"{name} {level:g}" for name, level in types.items())
    note = f"Each token's weights over the content types sum to 1; importance: {levels}. {over_models(record)}"
    save(figure, path, record, note)
