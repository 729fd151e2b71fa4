"""The figure of named attention profiles, from the committed record alone.

    python tools/profile_figure.py benchmarks/records/smollm2_profiles.json docs/discover-smollm2.png

Left: the family of every head. Right: the best explained head of the most frequent families, with its formula.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt

from whence import records

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c")
PANELS = 4


def draw(record: dict[str, Any]) -> plt.Figure:
    """The families of all heads, and the curves of a few."""
    families = list(record["families"])
    shown = families[: len(COLOURS) - 1]
    figure = plt.figure(figsize=(11, 6.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.0, 1.55))
    axis = left.subplots()
    layers = 1 + max(one["layer"] for one in record["heads"])
    grid = np.zeros((layers, record["num_heads"]))
    for one in record["heads"]:
        grid[one["layer"], one["head"]] = shown.index(one["name"]) if one["name"] in shown else len(COLOURS) - 1
    colours = matplotlib.colors.ListedColormap(COLOURS)
    axis.pcolormesh(grid, cmap=colours, vmin=-0.5, vmax=len(COLOURS) - 0.5, edgecolors="white", linewidth=1)
    axis.set(xlabel="head", ylabel="layer", xticks=np.arange(record["num_heads"]) + 0.5,
             xticklabels=range(record["num_heads"]), yticks=np.arange(0, layers, 5) + 0.5, yticklabels=range(0, layers, 5))  # fmt: skip
    names = [f"{name} ({record['families'][name]})" for name in shown]
    others = sum(record["families"][name] for name in families[len(shown) :])
    names += [f"other families ({others})"] if others else []
    marks = [matplotlib.patches.Patch(color=COLOURS[n]) for n in (*range(len(shown)), len(COLOURS) - 1)[: len(names)]]
    left.legend(marks, names, loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    distances, fine = np.array(record["distances"]), np.array(record["fine"])
    axes = right.subplots(2, 2).ravel()
    for name, panel in zip(families[:PANELS], axes, strict=False):
        own = [number for number, one in enumerate(record["heads"]) if one["name"] == name]
        number = max(own, key=lambda n: record["heads"][n]["explained"] * (record["heads"][n]["range"] > 1))
        one = record["heads"][number]
        mean, error = np.array(record["mean"][number]), np.array(record["standard_error"][number])
        panel.fill_between(1 + distances, mean - 2 * error, mean + 2 * error, color="0.8", linewidth=0)
        panel.plot(1 + distances, mean, color="0.2", linewidth=1.6)
        panel.plot(1 + fine, one["fitted"], color=COLOURS[0], linewidth=1.6, linestyle="--")
        panel.set_xscale("log", base=2)
        panel.set_title(f"layer {one['layer']}, head {one['head']}: {name}", fontsize=9)
        panel.set(xlabel="1 + distance", ylabel="log weight")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    for panel in axes[len(families) :]:
        panel.remove()
    right.suptitle("Black: mean of the texts with two standard errors. Dashed: formula.", fontsize=9)
    return figure


def save_figure(draw: Callable[[dict[str, Any]], plt.Figure]) -> None:
    """Draw the record of the first argument and write the picture of the second."""
    source, target = map(Path, sys.argv[1:3])
    draw(records.read(source)).savefig(target, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    save_figure(draw)
