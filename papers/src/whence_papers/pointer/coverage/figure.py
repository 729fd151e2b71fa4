"""Figure of the effect of coverage on words and on attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.figure_style import SeriesStyle, label, legend, letters, point, save, sheet
from whence_papers.intervals import SHARE

SERIES_STYLES = {"without coverage": SeriesStyle("0.45", "o", "-"), "with coverage": SeriesStyle("#08519c", "s", "-")}
PANELS = {
    "repeated_words": ("repeated words", "share of the words (%)"),
    "coverage_loss": ("repeated attention", "coverage loss (of 1)"),
    "copied": ("names at the right position", "share of the names (%)"),
}


def draw(record: dict[str, Any], folder: Path) -> None:
    arms, spec = record["results"]["arms"], record["spec"]
    lengths = {
        "trained": f"up to {spec['max_names']} names,\nas trained",
        "longer": f"up to {spec['max_names_longer']} names",
    }
    figure, panels = sheet(1, len(PANELS), 9, 3.2)
    for axes, (measure, (title, unit)) in zip(panels, PANELS.items(), strict=True):
        factor = 100.0 if "%" in unit else 1.0
        within = (factor * SHARE[0], factor * SHARE[1])
        for place, length in enumerate(lengths):
            for side, (arm, style) in zip((-0.12, 0.12), SERIES_STYLES.items(), strict=True):
                values = [factor * value for value in arms[arm][f"{measure}, {length}"]]
                point(axes, place + side, values, style, None if place else arm, within)
        axes.set_xticks(range(len(lengths)), list(lengths.values()))
        axes.set_xlim(-0.5, len(lengths) - 0.5)
        axes.set_ylim(-0.04 * axes.get_ylim()[1], None)  # marks at 0 stay whole
        label(axes, title, "summaries", unit)
    legend(panels[1], loc="lower left")
    letters(panels)
    note = (
        f"Models with {spec['hidden_size']} units on generated texts, {spec['steps']} steps without coverage and {spec['extra_steps']} "
        f"more with or without it; {spec['num_test_texts']} texts of each length, greedy search. Marks: mean "
        f"of {len(spec['seeds'])} seeds with its 95 % interval; dots: seeds."
    )
    save(figure, folder / "coverage.png", record, note)
