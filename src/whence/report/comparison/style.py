"""How an arm looks: one colour, dash and marker over the whole page, so that a reader learns it once.

Seven hues stay apart under the usual colour blindnesses, which a test computes. More than seven arms repeat the hues
with another dash and another marker, never colour alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HUES = 6  # besides the neutral one of the baseline; their values are in style.css
MARKERS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Look:
    name: str
    place: int  # the number under which the script finds the arm
    hue: int  # 0 is neutral
    variant: int

    @property
    def classes(self) -> str:
        return f"arm hue{self.hue} dash{self.variant}"

    def opened(self, tag: str = "g") -> str:
        """An opening tag that carries the look: what is inside is highlighted with the arm."""
        return f'<{tag} class="{self.classes}" data-arm="{self.place}">'

    def marker(self, x: float, y: float, size: float, told: str = "", kind: str = "dot") -> str:
        """The marker at a place, with a text that appears under the pointer."""
        shape = MARKERS[self.variant]
        title = f"<title>{html.escape(told)}</title>" if told else ""
        if shape == "circle":
            return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">{title}</circle>'
        outline = {
            "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
            "triangle": ((0, -1.2), (1.1, 0.85), (-1.1, 0.85)),
            "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        }[shape]
        points = " ".join(f"{x + size * right:.1f},{y + size * down:.1f}" for right, down in outline)
        return f'<polygon class="{kind}" points="{points}">{title}</polygon>'

    def swatch(self) -> str:
        """A bit of the line with its marker, for legends and tables."""
        line = '<line class="mean" x1="1" y1="7" x2="27" y2="7"></line>'
        return (
            f'<svg class="swatch {self.classes}" viewBox="0 0 28 14" aria-hidden="true">'
            f"{line}{self.marker(14, 7, 4)}</svg>"
        )


def looks(studies: Iterable[dict[str, Any]]) -> dict[str, Look]:
    """The look of every arm by name, in order of appearance; baselines are neutral, whatever they are compared to."""
    baselines: list[str] = []
    others: list[str] = []
    studies = list(studies)
    for study in studies:
        base = baseline_of(study)
        if base is not None and base not in baselines:
            baselines.append(base)
    for study in studies:
        for arm in study["arms"]:
            if arm["name"] not in baselines and arm["name"] not in others:
                others.append(arm["name"])
    # only one arm can be neutral without being taken for another
    neutral, coloured = baselines[:1], baselines[1:] + others
    found = [Look(name, 0, 0, 0) for name in neutral]
    for index, name in enumerate(coloured):
        variant = index // HUES % len(MARKERS)
        found.append(Look(name, index + len(neutral), index % HUES + 1, variant))
    return {look.name: look for look in found}


def baseline_of(study: dict[str, Any]) -> str | None:
    """The arm the others are held against: from the comparison, or else from what the study had decided."""
    if study.get("comparison"):
        return str(study["comparison"]["baseline"])
    return (study.get("spec") or {}).get("decision", {}).get("baseline") or None


def legend(arms: Iterable[dict[str, Any]], known: Mapping[str, Look]) -> str:
    """The arms of a study as buttons: a pressed one stands out in every figure of the study."""
    buttons = "".join(
        f'<button type="button" class="key" aria-pressed="false" data-arm="{known[arm["name"]].place}" '
        f'title="{html.escape(arm["name"])}">{known[arm["name"]].swatch()}'
        f"<span>{html.escape(arm['name'])}</span></button>"
        for arm in arms
    )
    return (
        f'<div class="legend" role="group" aria-label="Arms: press one to make it stand out">{buttons}'
        '<button type="button" class="key all" hidden>show all alike</button></div>'
    )
