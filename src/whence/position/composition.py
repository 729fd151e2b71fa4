"""Composition with ``+``: embeddings and rotations chain, factors multiply, biases and content terms add."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whence.errors import refusal
from whence.position.base import Position, Rows, require_built


class Sum(Position):
    """Several mechanisms acting together, in the order written. Built by ``a + b``; sums flatten.

    Each part keeps its own ``length``; the attention code therefore evaluates the parts one by one (``parts``).
    """

    def __init__(self, *positions: Position) -> None:
        for position in positions:
            if not isinstance(position, Position):
                raise refusal(
                    "Sum(...)",
                    type(position).__name__,
                    "only a Position adds to a Position",
                    "subclass whence.Position",
                )
            require_built(position)
        parts = tuple(part for position in positions for part in position.parts)
        if not parts:
            raise refusal("Sum()", "nothing", "a sum has at least one part", "use NoPosition()")
        super().__init__(heads=_one_head_count(parts))
        _refuse_impossible(parts)
        self.members = nn.ModuleList(parts)
        self.relative = all(part.relative for part in parts)
        self.causal_only = any(part.causal_only for part in parts)

    @property
    def effects(self) -> frozenset[str]:
        return frozenset(hook for part in self.parts for hook in part.effects)

    @property
    def parts(self) -> tuple[Position, ...]:
        return tuple(self.members)  # type: ignore[arg-type]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        for part in self.parts:
            x = part.embed(x, positions)
        return x

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        for part in self.parts:
            q, k = part.rotate(q, k, q_positions, k_positions)
        return q, k

    def factor(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._together("factor", distance, length)

    def bias(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._together("bias", distance, length)

    def sink(self, position: Tensor, length: Any) -> Tensor | None:
        return self._together("sink", position, length)

    def _together(self, hook: str, places: Tensor, length: Any) -> Tensor | None:
        """Factors multiplied, biases added; a part with a fixed context keeps it, the others get ``length``."""
        total: Tensor | None = None
        for part in self.parts:
            if hook in part.effects:
                out = getattr(part, hook)(places, part.context if part.length == "context" else length)
                total = out if total is None else total * out if hook == "factor" else total + out
        return total

    def content(self, rows: Rows) -> Tensor | None:
        return _total([part.content(rows) for part in self.parts if "content" in part.effects])

    def values(self, weights: Tensor, rows: Rows) -> Tensor | None:
        return _total([part.values(weights, rows) for part in self.parts if "values" in part.effects])

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)


def _total(terms: list[Any]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _names(parts: tuple[Position, ...]) -> str:
    return " + ".join(type(part).__name__ for part in parts)


def _one_head_count(parts: tuple[Position, ...]) -> int | None:
    counts = {part.heads: type(part).__name__ for part in parts if part.heads is not None}
    if len(counts) > 1:
        got = " and ".join(f"{name} for {heads} heads" for heads, name in counts.items())
        raise refusal(
            _names(parts),
            got,
            "parts that act in one attention have one number of heads",
            "build them with the same heads",
        )
    return next(iter(counts), None)


def _refuse_impossible(parts: tuple[Position, ...]) -> None:
    if len({id(part) for part in parts}) < len(parts):
        raise refusal(
            _names(parts),
            "the same object twice",
            "a part takes part once",
            "build a second one with parameters of its own",
        )
    sinks = [part for part in parts if "sink" in part.effects]
    if len(sinks) > 1:
        raise refusal(
            _names(parts),
            f"{len(sinks)} parts with a sink",
            "a row has one extra logit",
            "keep one of " + " and ".join(type(part).__name__ for part in sinks),
        )
    for attribute, of in (("head_width", parts), ("value_width", parts), ("width", _at_input(parts))):
        _require_one_width(attribute, of, parts)
    # torch.compile traces this inside attached models; it cannot follow a name that a comprehension assigns
    head_widths = [part.head_width for part in parts if getattr(part, "head_width", None) is not None]
    head_width = head_widths[0] if head_widths else None
    for part in parts:
        turning = getattr(part, "width", None) if "rotate" in part.effects else None
        if head_width is not None and turning is not None and turning > head_width:
            raise refusal(
                _names(parts),
                f"a rotation of {turning} columns for heads of width {head_width}",
                "a rotation turns columns that are there",
                f"build it with width={head_width} or less",
            )


def _at_input(parts: tuple[Position, ...]) -> tuple[Position, ...]:
    return tuple(part for part in parts if "embed" in part.effects)


def _require_one_width(attribute: str, of: tuple[Position, ...], parts: tuple[Position, ...]) -> None:
    widths = {
        getattr(part, attribute): type(part).__name__ for part in of if getattr(part, attribute, None) is not None
    }
    if len(widths) > 1:
        got = " and ".join(f"{name} for width {width}" for width, name in widths.items())
        seen = {"head_width": "queries", "value_width": "values", "width": "input"}[attribute]
        raise refusal(_names(parts), got, f"all parts see the same {seen}", f"build them with the same {attribute}")
