"""What reports that judge items, such as those of benchmarks and cures, say about a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whence.report.formatting import NO_VALUE
from whence.statistics.further_seeds import MOST_SEEDS


def describe_equivalence(margin: float) -> str:
    """Both conditions of "equivalent" (``whence.statistics.compare_items``), as a sentence.

    >>> describe_equivalence(2.0).partition(", and ")[0]
    'Equivalent: it lies within ±2 points'
    """
    return (
        f"Equivalent: it lies within ±{margin:g} points, and so does a wider interval that allows for items that were not seen "
        "(Gaffke's bound)."
    )


def describe_further_items(judged: Mapping[str, Any]) -> str:
    """The further items that would probably decide an undecided verdict.

    >>> contrast = {"seeds_needed": 40, "interval": {"low": -1.0, "high": 3.0}}
    >>> describe_further_items({"verdict": "undecided", "contrast": contrast})
    'about 40'
    """
    contrast = judged["contrast"]
    if judged["verdict"] != "undecided":
        return NO_VALUE
    if contrast["seeds_needed"] is not None:
        return f"about {contrast['seeds_needed']}"
    return f"more than {MOST_SEEDS}" if contrast["interval"] is not None else NO_VALUE
