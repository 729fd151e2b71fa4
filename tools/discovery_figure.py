"""The figure of a discovery: the curves of each kind of head with its formula, from the committed record alone.

    python tools/discovery_figure.py benchmarks/records/discover-gpu/discovered-topics-e7492cc5c869/discovery.json docs/discover-gpu.png

A panel shows all heads of a kind in grey, each the mean over seeds, the head with the largest range in black with two standard
errors, and its formula dashed.
"""

from __future__ import annotations

import textwrap
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt

from profile_figure import save_figure

COLUMNS = 3


def draw(record: dict[str, Any]) -> plt.Figure:
    """One panel for each kind of head."""
    ((hook, curves),) = record["hooks"].items()
    kinds = curves["kinds"]
    rows = -(-len(kinds) // COLUMNS)
    figure, axes = plt.subplots(
        rows, COLUMNS, figsize=(11, 3.1 * rows), layout="constrained", squeeze=False, sharex=True
    )
    distances = np.array(curves["distances"])
    mean, error = np.array(curves["mean"]), np.array(curves["standard_error"])
    for kind, panel in zip(kinds, axes.ravel(), strict=False):
        best = kind["strongest"]
        for head in kind["heads"]:
            panel.plot(1 + distances, mean[head], color="0.75", linewidth=1)
        low, high = mean[best] - 2 * error[best], mean[best] + 2 * error[best]
        panel.fill_between(1 + distances, low, high, color="0.6", alpha=0.4, linewidth=0)
        panel.plot(1 + distances, mean[best], color="0.1", linewidth=1.8, label="learned")
        fitted, values = np.array(kind["fitted"]["distances"]), np.array(kind["fitted"]["values"])
        panel.plot(1 + fitted, values[kind["heads"].index(best)], "--", color="#0072b2", linewidth=1.8, label="formula")
        panel.set_xscale("log", base=2)
        count = f"{len(kind['heads'])} head{'s' if len(kind['heads']) > 1 else ''}"
        formula = "\n".join(textwrap.wrap(kind["formula"], 54))
        panel.set_title(f"{kind['name'].capitalize()}, {count}\n{formula}", fontsize=8, loc="left")
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    for panel in axes.ravel()[len(kinds) :]:
        panel.remove()
    for panel in axes[:, 0]:
        panel.set_ylabel(hook)
    for panel in axes[-1]:
        panel.set_xlabel("1 + distance (tokens)")
    axes[0, 0].legend(frameon=False, fontsize=8.5)
    return figure


if __name__ == "__main__":
    save_figure(draw)
