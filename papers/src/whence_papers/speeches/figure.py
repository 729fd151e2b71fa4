"""Two figures of the speeches as printed: scores over time beside the source's tables, and attention maps at every s."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from whence.records import RecordReader
from whence_papers.figure_style import SeriesStyle, heat, label, legend_above, letters, save, sheet
from whence_papers.speeches.panels import FACTORS, read_running, read_train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

Runs = Sequence[Mapping[str, Any]]
STYLES = {
    "sinusoidal": SeriesStyle("black", "o", "-"),
    "ALiBi, published slopes times 1.1": SeriesStyle("0.55", "x", (0, (1, 1))),
    "ALiBi, s = 0.5": SeriesStyle("#6baed6", "s", (0, (5, 2))),
    "ALiBi, s = 1.0": SeriesStyle("#1b7837", "D", (0, (3, 2))),
    "ALiBi, s = 1.1": SeriesStyle("#e07b1a", "^", "-"),
    "ALiBi, s = 2.0": SeriesStyle("#762a83", "v", (0, (5, 1, 1, 1))),
}
WAYS = {
    "training, running mean": SeriesStyle("#e07b1a", "^", (0, (5, 2))),
    "training, evaluation mode": SeriesStyle("#a63603", "s", "-"),
    "test": SeriesStyle("black", "o", "-"),
    "obama": SeriesStyle("black", "o", "-"),
    "hbush": SeriesStyle("#08519c", "D", (0, (3, 2))),
    "wbush": SeriesStyle("#6baed6", "v", (0, (1, 1))),
}
#: Tables 1 and 2 of the source, part 3: accuracy in percent, one run of each
PUBLISHED_EPOCHS = (5, 10, 20, 30, 50, 70, 90, 100)
PUBLISHED_TRAINING = {
    "sinusoidal": (44.79, 49.76, 56.79, 65.82, 75.62, 80.69, 85.76, 86.71),
    "ALiBi, s = 1.1": (45.17, 51.10, 60.56, 69.17, 82.46, 88.58, 93.12, 93.79),
}
PUBLISHED_TEST = {
    "sinusoidal": (33.33, 47.87, 55.33, 67.07, 74.80, 78.80, 86.00, 85.20),
    "ALiBi, s = 1.1": (39.47, 50.13, 60.27, 67.73, 80.67, 85.20, 86.67, 87.60),
}


def read_study(results: Path, name: str) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The runs of a study by arm, in the order of the study, and the observations of each arm ({} if none are stored)."""
    reader = RecordReader()
    folders = [reader.folder(folder) for folder in reader.find_folders(results, "study.json")]
    (study,) = (one for one in folders if one.read("study.json")["spec"]["name"] == name)
    runs = [study.read(one) for one in study.names() if "-seed" in one and ".failure" not in one]
    arms = {arm["name"]: [run for run in runs if run["arm"] == arm["name"]] for arm in runs[0]["spec"]["arms"]}
    seen = study.read("observations.json")["arms"] if "observations.json" in study.names() else {}
    return arms, seen


def draw_training(results: Path, path: Path) -> None:
    """Draw training and test scores of all three parts over time, from their records."""
    figure, panels = sheet(2, 3, 12, 7)
    arms, seen = read_study(results, "speeches-printed-alibi")
    columns: list[tuple[str, Callable[[Mapping[str, Any]], float], Mapping[str, tuple[float, ...]]]] = [
        ("part 3: training, running mean with dropout", read_running, PUBLISHED_TRAINING),
        ("part 3: training, evaluation mode", read_train, PUBLISHED_TRAINING),
        ("part 3: test", lambda row: row["splits"]["test"]["value"], PUBLISHED_TEST),
    ]
    for axes, (title, read, published) in zip(panels, columns, strict=False):
        for arm, runs in arms.items():
            epochs, values = _mean_curve(runs, read, runs[0]["spec"]["budget"]["epochs"])
            axes.plot(epochs, [100 * value for value in values], **STYLES[arm].line(), label=arm)
        for arm, points in published.items():
            name = f"source: {'sinusoidal' if arm == 'sinusoidal' else 'ALiBi'}, one run"
            axes.plot(PUBLISHED_EPOCHS, points, linestyle="none", **STYLES[arm].points(4.5), label=name)
        label(axes, title, "epochs", "accuracy (%)")
        axes.set_ylim(30, 102)
    for axes, name, metric in (
        (panels[3], "speeches-printed-encoder", "accuracy"),
        (panels[4], "speeches-printed-decoder", "perplexity"),
    ):
        _draw_both_ways(axes, read_study(results, name)[0]["sinusoidal"], metric)
    for arm, observed in seen.items():
        mass = observed["mass"]
        panels[5].plot(mass["distance"], [mean(column) for column in zip(*mass["by_layer"], strict=True)],
                       **STYLES[arm].line())  # fmt: skip
    panels[5].set_yscale("log")
    panels[5].set_ylim(1e-5, 1)
    label(panels[5], "part 3: attention by distance", "distance (tokens)", "mean weight, all layers")
    legend_above(figure, panels[0], 4)
    letters(panels)
    note = (
        "Lines: mean of five seeds; marks in a to c: the tables of the source, which has one run of each arm, names s = 1.1, and does not say how "
        "training accuracy was measured. Running mean: over the training batches since the last evaluation, with dropout. Evaluation mode: the "
        "weights of that step, without dropout. f: one seed, test sentences, padding included."
    )
    save(figure, path, {"quick": False}, note)


def draw_maps(results: Path, path: Path) -> None:
    """Draw the attention maps of the sentences that the source draws, for every arm of part 3."""
    arms, seen = read_study(results, "speeches-printed-alibi")
    arms = {arm: arms[arm] for arm in STYLES if arm in seen}  # in the order of s
    examples = [seen[arm]["examples"] for arm in arms]
    rows, seeds = len(examples[0]), sorted({observed["seed"] for observed in seen.values()})
    figure, panels = sheet(rows, len(arms), 15, 2.75 * rows)
    maps = [decode_map(own[row]) for row in range(rows) for own in examples]
    heat(panels, [one**0.5 for one in maps], "square root of the weight", vmin=0, vmax=1, cmap="magma_r")
    for number, axes in enumerate(panels):
        row, column = divmod(number, len(arms))
        words = [_short(word) for word in examples[column][row]["tokens"] if word != "<pad>"]
        axes.set_aspect("equal")
        axes.set_yticks(range(len(words)) if column == 0 else [], words if column == 0 else [], fontsize=4.5)
        axes.set_xticks(range(len(words)) if row == rows - 1 else [], words if row == rows - 1 else [], fontsize=4.5)
        axes.tick_params(axis="x", rotation=90)
        axes.tick_params(length=1.5, pad=1)
        for draw in (axes.axhline, axes.axvline):
            draw(len(words) - 0.5, color="0.5", linewidth=0.7, linestyle=(0, (2, 2)))
        if row == 0:
            axes.set_title(list(arms)[column].replace(", published", ",\npublished"), fontsize=9)
    note = (
        f"Speeches, part 3 as printed: last layer, mean of its heads, seed {', '.join(map(str, seeds))}. Rows are queries, columns are keys, in the order of the words. "
        "Beyond the dashed lines is padding, which the source does not mask. One color scale for all maps."
    )
    save(figure, path, {"quick": False}, note)


def decode_map(example: Mapping[str, Any]) -> NDArray[Any]:
    """The attention weights of an observed example: last layer, mean of its heads, ``[queries, keys]``."""
    import numpy as np

    size = len(example["tokens"])
    heads = [np.frombuffer(base64.b64decode(head), np.uint8).reshape(size, size) for head in example["maps"][-1]]
    return np.mean(heads, 0) / 255


def _mean_curve(
    runs: Runs, read: Callable[[Mapping[str, Any]], float], length: float | None
) -> tuple[list[float], list[float]]:
    """Epochs (steps if ``length`` is None) and the mean score over seeds at each evaluation of finished runs."""
    evaluations = [run["result"]["evaluations"] for run in runs if run["result"]["status"] == "done"]
    steps = [row["step"] for row in evaluations[0]]
    places = [step * length / steps[-1] if length else step for step in steps]
    return places, [mean(read(row) for row in rows) for rows in zip(*evaluations, strict=True)]


def _draw_both_ways(axes: Axes, runs: Runs, metric: str) -> None:
    budget = runs[0]["spec"]["budget"]
    tests = [split for split in runs[0]["result"]["evaluations"][-1]["splits"] if split in WAYS]
    readers: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "training, running mean": read_running,
        "training, evaluation mode": read_train,
        **{split: lambda row, split=split: row["splits"][split]["value"] for split in tests},  # type: ignore[misc]
    }
    for name, read in readers.items():
        places, values = _mean_curve(runs, read, budget["epochs"])
        shown = name if name.startswith("training") or name == "test" else f"test, {name}"
        style = WAYS[name]
        axes.plot(places, [FACTORS[metric] * value for value in values], **style.line() | style.points(3), label=shown)
    if metric == "perplexity":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    part = "1: accuracy" if metric == "accuracy" else "2: perplexity"
    unit = "accuracy (%)" if metric == "accuracy" else metric
    label(axes, f"part {part}, both ways", "epochs" if budget["epochs"] else "steps", unit)
    axes.legend(fontsize=7.5, frameon=False, loc="lower right" if metric == "accuracy" else "lower left")


def _short(word: str) -> str:
    return word if len(word) < 14 else f"{word[:12]}."
