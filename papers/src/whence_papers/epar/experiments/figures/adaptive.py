"""The pictures of experiment 4: ``output/adaptive/``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures import adaptive_reading
from whence_papers.epar.experiments.figures.adaptive_words import ADAPTERS, KIND_LOOKS, LOOKS, asked, over_models
from whence_papers.figure_style import band, heat, label, legend_above, letters, point, save, sheet
from whence_papers.intervals import SHARE

Record = dict[str, Any]


def draw(record: Record, folder: Path) -> None:
    analysis(record, folder / "adaptive_attention_analysis.png")
    attention_weights(record, folder / "attention_weights_heatmap.png")
    entropies(record, folder / "attention_entropy_distribution.png")
    adaptive_reading.task_weights(record, folder / "task_weights_distribution.png")
    adaptive_reading.content_importance(record, folder / "content_importance_distribution.png")
    adaptive_reading.task_types(record, folder / "task_type_distribution.png")
    adaptive_reading.content_types(record, folder / "content_type_distribution.png")
    position_attention(record, folder / "position_attention_analysis.png")
    for number in ("alpha", "beta", "gamma"):
        sensitivity(record, number, folder / f"parameter_sensitivity_{number}.png")


def analysis(record: Record, path: Path) -> None:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, (right, moved) = sheet(1, 2, 10, 3.6, width_ratios=[3, 2])
    for group, kind in enumerate([*kinds, "all"]):
        for place, adapter in enumerate(ADAPTERS):
            values = [
                one["splits"]["test"] if kind == "all" else one["by_kind"][kind]["accuracy"] for one in models[adapter]
            ]
            point(
                right,
                group + (place - 2) * 0.15,
                values,
                LOOKS[adapter],
                ADAPTERS[adapter] if group == 0 else None,
                SHARE,
            )
    right.set_xticks(range(len(kinds) + 1), [*kinds, "all three"])
    right.set_ylim(-0.05, 1.08)
    right.grid(axis="y", color="0.92", linewidth=0.6)
    label(right, "accuracy", "where the answer is", "share answered rightly")
    for place, adapter in enumerate(list(ADAPTERS)[1:]):
        point(moved, place, [one["first_key_moved"] for one in models[adapter]], LOOKS[adapter], within=SHARE)
    moved.set_xticks(range(4), ["per row", "task", "content", "fusion"])
    moved.set_xlim(-0.5, 3.5)
    moved.set_ylim(-0.05, 1.05)
    moved.grid(axis="y", color="0.92", linewidth=0.6)
    label(moved, "what the adapter can change", "adapter", "share of rows with another first key")
    letters([right, moved])
    legend_above(figure, right, 5)
    note = (
        "b: the adapter is taken out of the trained model, and rows in which another key then comes first are counted; a row's "
        f"logits times one number cannot change it. {asked(record)} {over_models(record)}"
    )
    save(figure, path, record, note)


def attention_weights(record: Record, path: Path) -> None:
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
    note = f"Mean over heads, inputs and {len(record['spec']['seeds'])} seeds; the nearest symbol is the last. {asked(record)}"
    save(figure, path, record, note)


def _mean(rows: list[list[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def entropies(record: Record, path: Path) -> None:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    figure, panels = sheet(1, len(kinds), 10.5, 3.3, sharey=True)
    most = math.log(record["spec"]["symbols_shown"] + 2)
    for axes, kind in zip(panels, kinds, strict=True):
        axes.axhline(most, color="black", linewidth=0.9, linestyle=":", label="uniform attention")
        for place, adapter in enumerate(ADAPTERS):
            runs = [one["entropy"][kind] for one in models[adapter]]
            _spread(axes, place, [x for values in runs for x in values], LOOKS[adapter].colour)
            point(axes, place, [sum(values) / len(values) for values in runs], LOOKS[adapter], ADAPTERS[adapter])
        axes.set_xticks(range(len(ADAPTERS)), ["none", "per row", "task", "content", "fusion"], fontsize=7.5)
        axes.set_ylim(0, most * 1.08)
        label(axes, f"answer is {kind}", "adapter", "entropy of the asked row (nats)" if kind == kinds[0] else "")
    letters(panels)
    legend_above(figure, panels[0], 6)
    note = (
        f"Wide bars: the middle half of all inputs; thin: quantiles 0.05 to 0.95. {asked(record)} {over_models(record)}"
    )
    save(figure, path, record, note)


def _spread(axes: Any, x: float, values: list[float], colour: str) -> None:
    ordered = sorted(values)
    low, lower, upper, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.05, 0.25, 0.75, 0.95))
    axes.plot([x - 0.22, x - 0.22], [low, high], color=colour, linewidth=0.9)
    axes.plot([x - 0.22, x - 0.22], [lower, upper], color=colour, linewidth=4, alpha=0.5)


def position_attention(record: Record, path: Path) -> None:
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
    label(causes, "task type set by hand, fusion", "", "share answered from there")
    letters(panels)
    legend_above(figure, panels[0], 3)
    note = (
        "d: every input is taken for one task type, whatever its cue; only inputs whose nearest, marked and farthest symbols differ "
        f"count. {asked(record)} {over_models(record)}"
    )
    save(figure, path, record, note)


def sensitivity(record: Record, number: str, path: Path) -> None:
    models, kinds = record["results"]["models"]["fused"], record["results"]["kinds"]
    figure, (right, entropy) = sheet(1, 2, 9, 3.3)
    at = models[0]["sweeps"][number]["at"]
    for kind in kinds:
        band(right, at, [one["sweeps"][number][kind] for one in models], KIND_LOOKS[kind], f"answer is {kind}", SHARE)
    band(entropy, at, [one["sweeps"][number]["entropy"] for one in models], LOOKS["fused"])
    learned = sorted(x for one in models for x in one["numbers"][number])
    for axes, title, unit in (
        (right, "accuracy", "share answered rightly"),
        (entropy, "entropy", "entropy of the asked row (nats)"),
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
    note = f"Trained fusion models with {number} set to a value in both heads, the rest as learned. {asked(record)} {over_models(record)}"
    save(figure, path, record, note)
