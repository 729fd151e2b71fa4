"""The figures of the survey's measurements, from the records of claims.

python -m whence_papers.survey.figures growth docs/growth.png
python -m whence_papers.survey.figures trough docs/trough.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence import records
from whence.errors import require_package
from whence.report.probe import growth_charts
from whence.report.probe.figures import Panel, draw_panels
from whence_papers import FOLDER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECORDS = {"growth": "survey-dimension-growth", "trough": "survey-rotary-trough"}
DARK, LIGHT = "#1f5a96", "#b5651d"  # distinguishable in grayscale


def growth_figure(figures: dict[str, Any]) -> Figure:
    """Position in the channels of each measured model by layer: its share, the monotone channels, the strongest channel."""
    panels = []
    for name, part in figures["measured"].items():
        texts = f"{part['texts']} random texts of {part['tokens']} tokens"
        charts = {
            "variance due to position": growth_charts.share_by_layer(part),
            "monotone channels": growth_charts.monotone_by_layer(part),
            "the strongest channel": growth_charts.strongest_channel(part),
        }
        panels += [Panel(f"{name}: {title}", chart, texts) for title, chart in charts.items() if chart is not None]
    return draw_panels("Position in hidden states, layer by layer", panels, columns=3, with_letters=True)


def trough_figure(figures: dict[str, Any]) -> Figure:
    """The oscillation of rotary position, and the score and the answer of a fact at every distance."""
    require_package("matplotlib", "drawing", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), facecolor="white", layout="constrained")
    every = figure.subplots(3, 1, sharex=True)
    distances = list(range(*figures["distances"]))
    rows = (
        ("score of two equal vectors, by the model's angles", figures["wave"], ""),
        ("logarithm of attention to the answer", figures["curves"]["score"], "score"),
        ("log-probability of the answer", figures["curves"]["answer"], "answer"),
    )
    for axes, (title, values, name) in zip(every, rows, strict=True):
        axes.plot(distances, values, color=LIGHT if not name else DARK, linewidth=1.3)
        if name:
            low, high = (figures[f"{name}_correlation_{end}"] for end in ("low", "high"))
            title += f"; correlation {figures[f'{name}_correlation']:.2f} ({low:.2f} to {high:.2f}) without trends"
        axes.set_title(title, loc="left", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    every[-1].set_xlabel("distance of the answer from the last token (tokens)", fontsize=9)
    return figure


def main(name: str, out: Path) -> None:
    """Draw a figure from the committed record."""
    record = records.read(FOLDER / "claims" / "records" / f"{RECORDS[name]}.json")
    figure = {"growth": growth_figure, "trough": trough_figure}[name](record["figures"])
    with records.replace_file(out) as part:
        figure.savefig(part, dpi=130, format=out.suffix[1:].lower())


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in RECORDS:
        sys.exit("usage: python -m whence_papers.survey.figures growth|trough IMAGE")
    main(sys.argv[1], Path(sys.argv[2]))
