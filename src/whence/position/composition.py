"""Composition with ``+``: embeddings and rotations chain, factors multiply, biases and content terms add."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position, Rows, require_built


class Sum(Position):
    """Several mechanisms acting together, in the order written. Built by ``a + b``; sums flatten.

    Each part keeps its own ``length``; the attention code therefore evaluates the parts one by one (``parts``).
    """

    def __init__(self, *positions: Position) -> None:
        for position in positions:
            if not isinstance(position, Position):
                raise usage_error(
                    "Sum(...)",
                    type(position).__name__,
                    "only a Position adds to a Position",
                    "subclass whence.Position",
                )
            require_built(position)
        parts = tuple(part for position in positions for part in position.parts)
        if not parts:
            raise usage_error("Sum()", "nothing", "a sum has at least one part", "use NoPosition()")
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

    def score_scale(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._together("score_scale", distance, length)

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
                total = out if total is None else total * out if hook == "score_scale" else total + out
        return total

    def content_bias(self, rows: Rows) -> Tensor | None:
        return _total([part.content_bias(rows) for part in self.parts if "content_bias" in part.effects])

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        return _total([part.value_bias(weights, rows) for part in self.parts if "value_bias" in part.effects])

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
        raise usage_error(
            _names(parts),
            got,
            "parts that act in one attention have one number of heads",
            "build them with the same heads",
        )
    return next(iter(counts), None)


def _refuse_impossible(parts: tuple[Position, ...]) -> None:
    if len({id(part) for part in parts}) < len(parts):
        raise usage_error(
            _names(parts),
            "the same object twice",
            "a part takes part once",
            "build a second one with parameters of its own",
        )
    sinks = [part for part in parts if "sink" in part.effects]
    if len(sinks) > 1:
        raise usage_error(
            _names(parts),
            f"{len(sinks)} parts with a sink",
            "a row has one extra logit",
            "keep one of " + " and ".join(type(part).__name__ for part in sinks),
        )
    for attribute, of in (("head_dim", parts), ("value_dim", parts), ("embed_dim", _at_input(parts))):
        _require_one_width(attribute, of, parts)
    # torch.compile traces this inside attached models; it cannot follow a name that a comprehension assigns
    head_dims = [part.head_dim for part in parts if getattr(part, "head_dim", None) is not None]
    head_dim = head_dims[0] if head_dims else None
    for part in parts:
        turning = getattr(part, "rotary_dim", None) if "rotate" in part.effects else None
        if head_dim is not None and turning is not None and turning > head_dim:
            raise usage_error(
                _names(parts),
                f"a rotation of {turning} columns for heads of width {head_dim}",
                "a rotation turns columns that are there",
                f"build it with rotary_dim={head_dim} or less",
            )


def _at_input(parts: tuple[Position, ...]) -> tuple[Position, ...]:
    return tuple(part for part in parts if "embed" in part.effects)


def _require_one_width(attribute: str, of: tuple[Position, ...], parts: tuple[Position, ...]) -> None:
    widths = {
        getattr(part, attribute): type(part).__name__ for part in of if getattr(part, attribute, None) is not None
    }
    if len(widths) > 1:
        got = " and ".join(f"{name} for width {width}" for width, name in widths.items())
        seen = {"head_dim": "queries", "value_dim": "values", "embed_dim": "input"}[attribute]
        raise usage_error(_names(parts), got, f"all parts see the same {seen}", f"build them with the same {attribute}")
