"""The figures of experiment 4, written to ``output/adaptive/``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from whence_papers.figure_style import SeriesStyle, band, heat, label, legend_above, letters, point, save, sheet
from whence_papers.intervals import SHARE

ADAPTERS = {
    "none": "no adapter",
    "row": "per row (the source's)",
    "task": "task, on keys",
    "content": "content, on keys",
    "fused": "fusion, on keys",
}
SERIES_STYLES = {
    "none": SeriesStyle("0.55", "o", (0, (1, 1))),
    "row": SeriesStyle("black", "X", (0, (5, 1, 1, 1)), filled=False),
    "task": SeriesStyle("#08519c", "s", (0, (5, 2))),
    "content": SeriesStyle("#7fb9da", "D", (0, (3, 1))),
    "fused": SeriesStyle("#e07b1a", "^", "-"),
}
KIND_LOOKS = {
    "near": SeriesStyle("#08519c", "s", (0, (5, 2))),
    "anywhere": SeriesStyle("#e07b1a", "^", "-"),
    "far": SeriesStyle("0.45", "o", (0, (1, 1))),
}


def task_note(record: dict[str, Any]) -> str:
    spec = record["spec"]
    return (
        f"The row of the question, {spec['inputs']} test inputs of {spec['symbols_shown']} symbols; learned EPAR; "
        "the answer is the nearest, the marked (anywhere) or the farthest symbol."
    )


def interval_note(record: dict[str, Any]) -> str:
    return f"95 % t-intervals over {len(record['spec']['seeds'])} models (seeds), within the range of the measure."


Record = dict[str, Any]


def draw(record: Record, folder: Path) -> None:
    draw_analysis(record, folder / "adaptive_attention_analysis.png")
    draw_attention_weights(record, folder / "attention_weights_heatmap.png")
    draw_entropies(record, folder / "attention_entropy_distribution.png")
    draw_task_weights(record, folder / "task_weights_distribution.png")
    draw_content_importance(record, folder / "content_importance_distribution.png")
    draw_task_types(record, folder / "task_type_distribution.png")
    draw_content_types(record, folder / "content_type_distribution.png")
    draw_position_attention(record, folder / "position_attention_analysis.png")
    for number in ("alpha", "beta", "gamma"):
        draw_sensitivity(record, number, folder / f"parameter_sensitivity_{number}.png")


def draw_analysis(record: Record, path: Path) -> None:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, (right, first_key) = sheet(1, 2, 10, 3.6, width_ratios=[3, 2])
    for group, kind in enumerate([*kinds, "all"]):
        for place, adapter in enumerate(ADAPTERS):
            values = [
                one["splits"]["test"] if kind == "all" else one["by_kind"][kind]["accuracy"] for one in models[adapter]
            ]
            point(
                right,
                group + (place - 2) * 0.15,
                values,
                SERIES_STYLES[adapter],
                ADAPTERS[adapter] if group == 0 else None,
                SHARE,
            )
    right.set_xticks(range(len(kinds) + 1), [*kinds, "all three"])
    right.set_ylim(-0.05, 1.08)
    right.grid(axis="y", color="0.92", linewidth=0.6)
    label(right, "accuracy", "where the answer is", "accuracy")
    for place, adapter in enumerate(list(ADAPTERS)[1:]):
        point(
            first_key, place, [one["first_key_moved"] for one in models[adapter]], SERIES_STYLES[adapter], within=SHARE
        )
    first_key.set_xticks(range(4), ["per row", "task", "content", "fusion"])
    first_key.set_xlim(-0.5, 3.5)
    first_key.set_ylim(-0.05, 1.05)
    first_key.grid(axis="y", color="0.92", linewidth=0.6)
    label(first_key, "effect of the adapter on the first key", "adapter", "share of rows with another first key")
    letters([right, first_key])
    legend_above(figure, right, 5)
    note = (
        "b: share of rows whose largest weight moves to another key when the adapter is removed from the trained model; scaling the "
        f"logits of a row cannot move it. {task_note(record)} {interval_note(record)}"
    )
    save(figure, path, record, note)


def draw_attention_weights(record: Record, path: Path) -> None:
    from matplotlib.colors import LogNorm

    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, panels = sheet(1, len(ADAPTERS), 11.5, 2.6, sharey=True)
    squares = []
    for adapter in ADAPTERS:
        squares.append([_mean([one["attention"][kind] for one in models[adapter]]) for kind in kinds])
    keys = len(squares[0][0])
    heat(
        panels,
        squares,
        "attention weight\n(log scale)",
        cmap="cividis",
        norm=LogNorm(0.005, 1),
        extent=(-0.5, keys - 0.5, 2.5, -0.5),
    )
    for axes, name in zip(panels, ADAPTERS.values(), strict=True):
        axes.set_yticks(range(len(kinds)), kinds)
        between = [keys // 4, keys // 2, 3 * keys // 4]
        axes.set_xticks([0, *between, keys - 1], ["cue", *map(str, between), "?"], fontsize=7.5)
        label(axes, name, "key (cue, symbols, question)", "answer is" if name == ADAPTERS["none"] else "")
    letters(panels)
    note = f"Mean over heads, inputs and {len(record['spec']['seeds'])} seeds; the nearest symbol is the last. {task_note(record)}"
    save(figure, path, record, note)


def _mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def draw_entropies(record: Record, path: Path) -> None:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, panels = sheet(1, len(kinds), 10.5, 3.3, sharey=True)
    most = math.log(record["spec"]["symbols_shown"] + 2)
    for axes, kind in zip(panels, kinds, strict=True):
        axes.axhline(most, color="black", linewidth=0.9, linestyle=":", label="uniform attention")
        for place, adapter in enumerate(ADAPTERS):
            runs = [one["entropy"][kind] for one in models[adapter]]
            _spread(axes, place, [x for values in runs for x in values], SERIES_STYLES[adapter].colour)
            point(
                axes, place, [sum(values) / len(values) for values in runs], SERIES_STYLES[adapter], ADAPTERS[adapter]
            )
        axes.set_xticks(range(len(ADAPTERS)), ["none", "per row", "task", "content", "fusion"], fontsize=7.5)
        axes.set_ylim(0, most * 1.08)
        label(axes, f"answer is {kind}", "adapter", "entropy of the question's row (nats)" if kind == kinds[0] else "")
    letters(panels)
    legend_above(figure, panels[0], 6)
    note = f"Wide bars: the middle half of all inputs; thin: quantiles 0.05 to 0.95. {task_note(record)} {interval_note(record)}"
    save(figure, path, record, note)


def _spread(axes: Any, x: float, values: list[float], colour: str) -> None:
    ordered = sorted(values)
    low, lower, upper, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.05, 0.25, 0.75, 0.95))
    axes.plot([x - 0.22, x - 0.22], [low, high], color=colour, linewidth=0.9)
    axes.plot([x - 0.22, x - 0.22], [lower, upper], color=colour, linewidth=4, alpha=0.5)


def draw_position_attention(record: Record, path: Path) -> None:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, panels = sheet(1, 4, 12, 3.4, width_ratios=[1, 1, 1, 1.25])
    for axes, adapter in zip(panels[:3], ("none", "row", "fused"), strict=True):
        for kind in kinds:
            rows = [one["attention"][kind][::-1] for one in models[adapter]]
            band(axes, list(range(len(rows[0]))), rows, KIND_LOOKS[kind], f"answer is {kind}", SHARE)
        axes.set_ylim(-0.02, 1)
        label(
            axes,
            ADAPTERS[adapter],
            "distance from the question (tokens)",
            "attention weight" if adapter == "none" else "",
        )
    causes = panels[3]
    hows = list(models["fused"][0]["answered_from"])
    for group, how in enumerate(hows):
        for place, kind in enumerate(kinds):
            values = [one["answered_from"][how][kind] for one in models["fused"]]
            point(causes, group + (place - 1) * 0.22, values, KIND_LOOKS[kind], within=SHARE)
    causes.set_xticks(
        range(len(hows)), [how.replace(" to ", "\nto ").replace("as read", "as\nread") for how in hows], fontsize=7.5
    )
    causes.set_ylim(-0.05, 1.05)
    label(causes, "forced task type, fusion", "", "share answered from there")
    letters(panels)
    legend_above(figure, panels[0], 3)
    note = (
        "d: every input is assigned to one task type, regardless of its cue; only inputs whose nearest, marked and farthest symbols "
        f"differ. {task_note(record)} {interval_note(record)}"
    )
    save(figure, path, record, note)


def draw_sensitivity(record: Record, number: str, path: Path) -> None:
    models, kinds = record["results"]["models"]["fused"], record["results"]["kinds"]
    figure, (right, entropy) = sheet(1, 2, 9, 3.3)
    at = models[0]["sweeps"][number]["at"]
    for kind in kinds:
        band(right, at, [one["sweeps"][number][kind] for one in models], KIND_LOOKS[kind], f"answer is {kind}", SHARE)
    band(entropy, at, [one["sweeps"][number]["entropy"] for one in models], SERIES_STYLES["fused"])
    learned = sorted(x for one in models for x in one["numbers"][number])
    for axes, title, unit in (
        (right, "accuracy", "accuracy"),
        (entropy, "entropy", "entropy of the question's row (nats)"),
    ):
        axes.set_xscale("symlog", linthresh=0.1, linscale=0.4)
        axes.set_xlim(-0.02 if min(at) == 0 else 0.8 * min(at), 1.2 * max(at))
        axes.set_xticks(at, [f"{x:g}" for x in at])
        axes.xaxis.minorticks_off()
        axes.plot(learned, [0.02] * len(learned), linestyle="none", marker="|", color="black", markersize=9,
                  transform=axes.get_xaxis_transform(), label="learned, each head")  # fmt: skip
        label(axes, title, number, unit)
    right.set_ylim(-0.08, 1.08)
    letters([right, entropy])
    legend_above(figure, right, 4)
    note = f"Trained fusion models with {number} set to a value in both heads, the rest as learned. {task_note(record)} {interval_note(record)}"
    save(figure, path, record, note)


TASKED, CONTENTED = ("row", "task", "fused"), ("content", "fused")


def draw_task_weights(record: Record, path: Path) -> None:
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
        "Weights of the three task types in the question's row; pale bars: quantiles 0.05 to 0.95 over "
        f"inputs and seeds. The types are not part of the training signal. {task_note(record)} {interval_note(record)}"
    )
    save(figure, path, record, note)


def draw_task_types(record: Record, path: Path) -> None:
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
        _print_values(axes, square)
        axes.set_xticks(range(len(kinds)), kinds)
        axes.set_yticks(range(len(kinds)), kinds if adapter == TASKED[0] else [""] * len(kinds))
        label(axes, ADAPTERS[adapter], "heaviest task type", "answer is" if adapter == TASKED[0] else "")
    letters(panels)
    note = f"Rows sum to 1, over all inputs and {len(record['spec']['seeds'])} seeds. {task_note(record)}"
    save(figure, path, record, note)


def _print_values(axes: Any, square: list[list[float]]) -> None:
    for r, row in enumerate(square):
        for c, value in enumerate(row):
            axes.text(
                c, r, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if value > 0.55 else "black"
            )


def draw_content_importance(record: Record, path: Path) -> None:
    models, tokens = record["results"]["models"], record["results"]["tokens"]
    figure, panels = sheet(1, len(CONTENTED), 8.5, 3.3, sharey=True)
    for axes, adapter in zip(panels, CONTENTED, strict=True):
        for place, token in enumerate(tokens):
            by_model = [one["content"]["importance"][token] for one in models[adapter]]
            for shift, values in zip((-0.3, -0.26, -0.22, -0.18, -0.14), by_model, strict=False):
                axes.scatter(
                    [place + shift] * len(values),
                    values,
                    s=6,
                    color=SERIES_STYLES[adapter].colour,
                    alpha=0.5,
                    linewidths=0,
                )
            point(
                axes,
                place + 0.1,
                [sum(values) / len(values) for values in by_model],
                SERIES_STYLES[adapter],
                within=SHARE,
            )
        axes.set_xticks(range(len(tokens)), [token.replace(" ", "\n") for token in tokens])
        axes.set_ylim(-0.03, 1.03)
        label(axes, ADAPTERS[adapter], "token", "importance" if adapter == CONTENTED[0] else "")
    letters(panels)
    note = (
        f"Importance from 0 to 1, computed from the token alone; small dots: every token, one column per seed. {interval_note(record)} "
        "Only differences matter: a constant added to all keys of a row changes nothing."
    )
    save(figure, path, record, note)


def draw_content_types(record: Record, path: Path) -> None:
    models, tokens = record["results"]["models"], record["results"]["tokens"]
    figure, panels = sheet(1, len(CONTENTED), 9, 3.2, sharey=True)
    types = models["content"][0]["content"]["types"]
    styles = [SeriesStyle("0.6", "o", ":"), SeriesStyle("#08519c", "s", "--"), SeriesStyle("#e07b1a", "^", "-")]
    for axes, adapter in zip(panels, CONTENTED, strict=True):
        for group, token in enumerate(tokens):
            for place, kind in enumerate(types):
                values = [one["content"]["sorted"][token][place] for one in models[adapter]]
                point(axes, group + (place - 1) * 0.22, values, styles[place], kind if group == 0 else None, SHARE)
        axes.set_xticks(range(len(tokens)), [token.replace(" ", "\n") for token in tokens])
        axes.set_ylim(-0.05, 1.05)
        axes.grid(axis="y", color="0.92", linewidth=0.6)
        label(axes, ADAPTERS[adapter], "token", "mean weight of the content type" if adapter == CONTENTED[0] else "")
    letters(panels)
    legend_above(figure, panels[0], 3)
    levels = ", ".join(f"{name} {level:g}" for name, level in types.items())
    note = f"Each token's weights over the content types sum to 1; importance: {levels}. {interval_note(record)}"
    save(figure, path, record, note)
