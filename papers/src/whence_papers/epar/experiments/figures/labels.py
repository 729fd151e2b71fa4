"""Labels and notes that several figures share."""

from __future__ import annotations

from typing import Any

from whence_papers.figure_style import SERIES_STYLES, SeriesStyle, hollow

WEIGHTS = {"random": "untrained", "random_positions": "untrained, random position vectors", "trained": "trained"}
SHORT = {"none": "no effect", "basic": "basic", "enhanced": "enhanced"}
FORMS = {"none": "no position effect", "basic": "basic", "enhanced": "enhanced"}


def form_style(weights: str, form: str) -> SeriesStyle:
    """The style of a form: filled markers for trained weights, hollow for others."""
    return SERIES_STYLES[form] if weights == "trained" else hollow(SERIES_STYLES[form])


def interval_note(spec: dict[str, Any]) -> str:
    """The note about intervals over heads."""
    return f"Bars and bands: 95 % t-intervals over {len(spec['seeds'])} heads (seeds), within the range of the measure; dots: each head."


def parameter_note(spec: dict[str, Any]) -> str:
    """EPAR's parameters and the length, with non-breaking spaces."""
    values = ", ".join(f"{name}\u00a0=\u00a0{spec[name]:g}" for name in ("alpha", "beta", "gamma"))
    return f"{values}, L\u00a0=\u00a0{spec['length']}."
