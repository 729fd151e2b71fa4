"""How the values of experiment 2 are read from its record."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def by_head(record: Record, weights: str, form: str, pattern: str, measure: str) -> list[float]:
    """A head's mean over its runs, for every head; ``consistency`` is the mean of its two parts."""
    return [sum(runs) / len(runs) for runs in runs_of(record, weights, form, pattern, measure)]


def runs_of(record: Record, weights: str, form: str, pattern: str, measure: str) -> list[list[float]]:
    """``[head][run]``."""
    cell = record["results"]["values"][weights][form][pattern]
    if measure != "consistency":
        return list(cell[measure])
    pairs = zip(cell["value_part"], cell["place_part"], strict=True)
    return [[(a + b) / 2 for a, b in zip(value, place, strict=True)] for value, place in pairs]


def patterns(record: Record) -> list[str]:
    return list(record["results"]["values"]["random"]["basic"])
