"""The figure of the trained heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.labels import over_heads
from whence_papers.figure_style import LOOKS, band, label, legend, letters, point, save, sheet


def draw(record: dict[str, Any], folder: Path) -> None:
    heads, spec = record["results"]["heads"], record["spec"]
    figure, (curves, numbers) = sheet(1, 2, 9, 3.2, width_ratios=[3, 2])
    names = {
        "none": "no position effect",
        "basic": "basic",
        "enhanced": "enhanced",
        "learned": "enhanced, numbers learn",
    }
    for form, name in names.items():
        errors = [head["errors"] for head in heads[form]]
        band(curves, [10 * step + 5 for step in range(len(errors[0]))], errors, LOOKS[form], name)
    curves.set_yscale("log")
    label(curves, "error while training", "step", "error / error of an output of zeros")
    legend(curves, loc="lower left")
    for place, name in enumerate(("alpha", "beta", "gamma")):
        point(numbers, place, [head[name] for head in heads["learned"]], LOOKS["learned"])
        numbers.plot([place - 0.25, place + 0.25], [spec[name]] * 2, color="black", linewidth=1.2)
    numbers.set_xticks(range(3), ["alpha", "beta", "gamma"])
    numbers.set_xlim(-0.6, 2.6)
    numbers.set_ylim(0, None)
    label(numbers, "where learned numbers end", "EPAR's number", "value")
    letters([curves, numbers])
    note = (
        f"One head of width {spec['head_dim']} gathers payloads of important tokens near each position, L = {spec['length']}; "
        f"lines in b: the source's numbers, from which learning starts. {over_heads(spec)}"
    )
    save(figure, folder / "training.png", record, note)
