"""Evaluate a mechanism's distance functions on any grid of distances, part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from whence import shapes
from whence.position.base import Position, Rows

#: given a part, the length its hooks receive: None, a number, or a tensor that broadcasts to the grid
LengthOf = Callable[[Position], Any]


def evaluate(position: Position, hook: str, places: Tensor, heads: int, length_of: LengthOf) -> Tensor | None:
    """A ``factor``, ``bias`` or ``sink`` of all parts together, as ``[heads or 1, *places.shape]`` in the dtype of places.

    ``None`` when no part has the hook. Factors multiply, biases add; a sum holds one sink at most.
    """
    total: Tensor | None = None
    flat = places.reshape(-1)
    for part in position.parts:
        if hook not in part.effects:
            continue
        length = length_of(part)
        if isinstance(length, Tensor):
            length = length.expand(places.shape).reshape(-1).to(places.dtype)
        out = shapes.per_head(type(part).__name__, hook, getattr(part, hook)(flat, length), heads, flat.shape[0])
        out = out.to(places.dtype).reshape(out.shape[0], *places.shape)
        if total is None:
            total = out
        else:
            total = total * out if hook == "factor" else total + out
    return total


def content(position: Position, rows: Rows) -> Tensor | None:
    """The content terms of all parts together, like the scores; None when no part has one."""
    total: Tensor | None = None
    for part in position.parts:
        if "content" in part.effects:
            term = shapes.like(type(part).__name__, "content", part.content(rows), tuple(rows.scores.shape))
            total = term if total is None else total + term
    return total


def values(position: Position, weights: Tensor, rows: Rows, wanted: tuple[int, ...]) -> Tensor | None:
    """The value terms of all parts together, of the wanted shape; None when no part has one."""
    total: Tensor | None = None
    for part in position.parts:
        if "values" in part.effects:
            term = shapes.like(type(part).__name__, "values", part.values(weights, rows), wanted)
            total = term if total is None else total + term
    return total


def needs_query_length(position: Position) -> bool:
    """Whether the same distance can weigh differently for two queries."""
    return any(part.length == "query" and part.effects & {"factor", "bias"} for part in position.parts)


def table(position: Position, hook: str, distance: Tensor, heads: int, sequence: int) -> Tensor | None:
    """A factor or bias at 1-D distances as ``[heads or 1, n]``, where no length differs per query."""

    def length_of(part: Position) -> Any:
        return part.context if part.length == "context" else sequence if part.length == "sequence" else None

    return evaluate(position, hook, distance, heads, length_of)
