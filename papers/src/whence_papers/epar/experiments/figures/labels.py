"""Words that all figures share."""

from __future__ import annotations

from typing import Any

from whence_papers.figure_style import LOOKS, Look, hollow

WEIGHTS = {"random": "untrained", "places": "untrained, random position vectors", "trained": "trained"}
SHORT = {"none": "no effect", "basic": "basic", "enhanced": "enhanced"}
FORMS = {"none": "no position effect", "basic": "basic", "enhanced": "enhanced"}


def shown(weights: str, form: str) -> Look:
    """Filled for trained weights, hollow for the others."""
    return LOOKS[form] if weights == "trained" else hollow(LOOKS[form])


def over_heads(spec: dict[str, Any]) -> str:
    """What an interval is over."""
    return f"Bars and bands: 95 % t-intervals over {len(spec['seeds'])} heads (seeds), within the range of the measure; dots: each head."


def numbers(spec: dict[str, Any]) -> str:
    """EPAR's numbers and the length, with spaces at which no line is broken."""
    said = ", ".join(f"{name}\u00a0=\u00a0{spec[name]:g}" for name in ("alpha", "beta", "gamma"))
    return f"{said}, L\u00a0=\u00a0{spec['length']}."
