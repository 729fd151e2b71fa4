"""The figure of the training of the heads, written to ``output/heads/``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.labels import interval_note
from whence_papers.figure_style import SERIES_STYLES, band, label, legend, letters, point, save, sheet


def draw(record: dict[str, Any], folder: Path) -> None:
    heads, spec = record["results"]["heads"], record["spec"]
    figure, (curves, learned) = sheet(1, 2, 9, 3.2, width_ratios=[3, 2])
    names = {
        "none": "no position effect",
        "basic": "basic",
        "enhanced": "enhanced",
        "learned": "enhanced, learnable",
    }
    for form, name in names.items():
        errors = [head["errors"] for head in heads[form]]
        band(curves, [10 * step + 5 for step in range(len(errors[0]))], errors, SERIES_STYLES[form], name)
    curves.set_yscale("log")
    label(curves, "error while training", "step", "error relative to an output of zeros")
    legend(curves, loc="lower left")
    for place, name in enumerate(("alpha", "beta", "gamma")):
        point(learned, place, [head[name] for head in heads["learned"]], SERIES_STYLES["learned"])
        learned.plot([place - 0.25, place + 0.25], [spec[name]] * 2, color="black", linewidth=1.2)
    learned.set_xticks(range(3), ["alpha", "beta", "gamma"])
    learned.set_xlim(-0.6, 2.6)
    learned.set_ylim(0, None)
    label(learned, "learned parameters", "EPAR's parameter", "value")
    letters([curves, learned])
    note = (
        f"One head of dimension {spec['head_dim']} gathers payloads of important tokens near each position, L = {spec['length']}; "
        f"lines in b: the source's parameters, which are the initial values. {interval_note(spec)}"
    )
    save(figure, folder / "training.png", record, note)
