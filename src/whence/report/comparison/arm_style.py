"""The style of an arm: one color, dash and marker on the whole page.

Seven hues are distinguishable with the common kinds of color blindness, which a test computes. More than seven arms
reuse the hues with another dash and another marker, so color alone never identifies an arm.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUM_HUES = 6  # besides the neutral one of the baseline; style.css has their values
MARKERS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class ArmStyle:
    name: str
    index: int  # identifies the arm to the script
    hue: int  # 0 is neutral
    variant: int  # of the dash and the marker

    @property
    def classes(self) -> str:
        return f"arm hue{self.hue} dash{self.variant}"

    def open_group(self) -> str:
        """An opening ``<g>`` tag; its content has the arm's color and is highlighted with the arm."""
        return f'<g class="{self.classes}" data-arm="{self.index}">'

    def marker(self, x: float, y: float, size: float, tooltip: str = "", css_class: str = "dot") -> str:
        """The arm's marker at a point."""
        shape = MARKERS[self.variant]
        title = f"<title>{html.escape(tooltip)}</title>" if tooltip else ""
        if shape == "circle":
            return f'<circle class="{css_class}" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">{title}</circle>'
        outline = {
            "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
            "triangle": ((0, -1.2), (1.1, 0.85), (-1.1, 0.85)),
            "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        }[shape]
        points = " ".join(f"{x + size * right:.1f},{y + size * down:.1f}" for right, down in outline)
        return f'<polygon class="{css_class}" points="{points}">{title}</polygon>'

    def swatch(self) -> str:
        """A piece of the line with its marker, for legends and tables."""
        line = '<line class="mean" x1="1" y1="7" x2="27" y2="7"></line>'
        return (
            f'<svg class="swatch {self.classes}" viewBox="0 0 28 14" aria-hidden="true">'
            f"{line}{self.marker(14, 7, 4)}</svg>"
        )


def assign_styles(studies: Iterable[dict[str, Any]]) -> dict[str, ArmStyle]:
    """The style of every arm by name, in order of appearance. The first baseline is neutral."""
    baselines: list[str] = []
    others: list[str] = []
    studies = list(studies)
    for study in studies:
        baseline = baseline_name(study)
        if baseline is not None and baseline not in baselines:
            baselines.append(baseline)
    for study in studies:
        for arm in study["arms"]:
            if arm["name"] not in baselines and arm["name"] not in others:
                others.append(arm["name"])
    # two neutral arms would look the same
    neutral, colored = baselines[:1], baselines[1:] + others
    styles = [ArmStyle(name, 0, 0, 0) for name in neutral]
    for index, name in enumerate(colored):
        variant = index // NUM_HUES % len(MARKERS)
        styles.append(ArmStyle(name, index + len(neutral), index % NUM_HUES + 1, variant))
    return {style.name: style for style in styles}


def baseline_name(study: dict[str, Any]) -> str | None:
    """The baseline arm: from the comparison or, without one, from the study's specification."""
    if study.get("comparison"):
        return str(study["comparison"]["baseline"])
    return (study.get("spec") or {}).get("decision", {}).get("baseline") or None


def render_legend(arms: Iterable[dict[str, Any]], styles: Mapping[str, ArmStyle]) -> str:
    """The arms of a study as toggle buttons. A pressed button highlights its arm in every figure of the study."""
    buttons = "".join(
        f'<button type="button" class="key" aria-pressed="false" data-arm="{styles[arm["name"]].index}" '
        f'title="{html.escape(arm["name"])}">{styles[arm["name"]].swatch()}'
        f"<span>{html.escape(arm['name'])}</span></button>"
        for arm in arms
    )
    return (
        f'<div class="legend" role="group" aria-label="Arms: press one to highlight it">{buttons}'
        '<button type="button" class="key all" hidden>clear highlights</button></div>'
    )
