"""The sum of several mechanisms: which may stand together, and how their outputs are combined."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.position.base import Position, not_a_position, require_initialized
from whence.position.hook_types import Rows


class Sum(Position):
    """Several mechanisms together, in the order written. Built by ``a + b``; sums flatten.

    Embeddings and rotations are applied one after the other, score scales multiply, biases and content terms add, sinks
    are joined (``join_sinks``). Each part has its own ``length``, so attention evaluates the parts one by one (``parts``).
    """

    def __init__(self, *positions: Position) -> None:
        for position in positions:
            if not isinstance(position, Position):
                raise not_a_position("Sum(...)", position, "subclass whence.Position")
            require_initialized(position)
        parts = tuple(part for position in positions for part in position.parts)
        if not parts:
            raise usage_error("Sum()", "nothing", "a sum has at least one part", "use NoPosition()")
        super().__init__(heads=_common_heads(parts))
        _require_compatible(parts)
        self.members = nn.ModuleList(parts)
        # a content term sees the queries as another part rotated them, and they depend on their own position
        content_is_rotated = any(
            "content_bias" in part.effects
            and part.reads_rotated
            and any("rotate" in other.effects for other in parts if other is not part)
            for part in parts
        )
        self.relative = all(part.relative for part in parts) and not content_is_rotated
        self.causal_only = any(part.causal_only for part in parts)
        self.reads_input = any(part.reads_input for part in parts)

    @property
    def effects(self) -> frozenset[str]:
        return frozenset(hook for part in self.parts for hook in part.effects)

    @property
    def parts(self) -> tuple[Position, ...]:
        return tuple(self.members)  # type: ignore[arg-type]

    @property
    def trainable(self) -> bool:
        return any(part.trainable for part in self.parts)

    def select_heads(self, start: int, end: int) -> Position:
        return Sum(*(part.select_heads(start, end) for part in self.parts))

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        for part in self.parts:
            x = part.embed(x, positions)
        return x

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        for part in self.parts:
            q, k = part.rotate(q, k, q_positions, k_positions)
        return q, k

    def score_scale(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._combine("score_scale", distance, length)

    def bias(self, distance: Tensor, length: Any) -> Tensor | None:
        return self._combine("bias", distance, length)

    def sink(self, position: Tensor, length: Any) -> Tensor | None:
        return self._combine("sink", position, length)

    def _combine(self, hook: str, places: Tensor, length: Any) -> Tensor | None:
        """The outputs of all parts, combined. A part with a fixed context uses it, the others use ``length``."""
        total: Tensor | None = None
        for part in self.parts:
            if hook in part.effects:
                out = getattr(part, hook)(places, part.context if part.length == "context" else length)
                total = out if total is None else combine_outputs(hook, total, out)
        return total

    def content_bias(self, rows: Rows) -> Tensor | None:
        return _add_terms([part.content_bias(rows) for part in self.parts if "content_bias" in part.effects])

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        return _add_terms([part.value_bias(weights, rows) for part in self.parts if "value_bias" in part.effects])

    def clock(self, x: Tensor) -> Tensor | None:
        return _add_terms([part.clock(x) for part in self.parts if "clock" in part.effects])

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)


def combine_outputs(hook: str, one: Tensor, other: Tensor, temperature: float = 1.0) -> Tensor:
    """The outputs of two parts: score scales multiplied, biases added, sinks joined."""
    if hook == "sink":
        return join_sinks(one, other, temperature)
    return one * other if hook == "score_scale" else one + other


def join_sinks(one: Tensor, other: Tensor, temperature: float = 1.0) -> Tensor:
    """The single logit that takes the share of two sinks from a softmax whose logits are divided by the temperature.

    >>> import torch
    >>> join_sinks(torch.tensor([0.0, 1.0]), torch.tensor([0.0, -float("inf")])).exp()
    tensor([2.0000, 2.7183])
    """
    # the derivative of logaddexp is NaN where both are -inf
    neither = torch.isneginf(one) & torch.isneginf(other)
    one, other = torch.where(neither, 0.0, one), torch.where(neither, 0.0, other)
    if temperature == 1:
        joined = torch.logaddexp(one, other)
    else:
        joined = torch.logaddexp(one / temperature, other / temperature) * temperature
    return torch.where(neither, -math.inf, joined)


def _add_terms(terms: list[Any]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _names(parts: tuple[Position, ...]) -> str:
    return " + ".join(type(part).__name__ for part in parts)


def _common_heads(parts: tuple[Position, ...]) -> int | None:
    counts = {part.heads: type(part).__name__ for part in parts if part.heads is not None}
    if len(counts) > 1:
        got = " and ".join(f"{name} for {heads} heads" for heads, name in counts.items())
        raise usage_error(
            _names(parts),
            got,
            "all parts of a sum must have the same number of heads",
            "build them with the same heads",
        )
    return next(iter(counts), None)


def _require_compatible(parts: tuple[Position, ...]) -> None:
    if len({id(part) for part in parts}) < len(parts):
        raise usage_error(
            _names(parts),
            "the same object twice",
            "each instance may occur once in a sum",
            "build a second instance with parameters of its own",
        )
    _require_single_width(parts)
    _require_single_rotation(parts)
    for attribute, of in (("head_dim", parts), ("value_dim", parts), ("embed_dim", _on_inputs(parts))):
        _require_common(attribute, of, parts)
    # torch.compile traces this inside attached models; it cannot follow a name that a comprehension assigns
    head_dims = [part.head_dim for part in parts if getattr(part, "head_dim", None) is not None]
    head_dim = head_dims[0] if head_dims else None
    for part in parts:
        rotary_dim = getattr(part, "rotary_dim", None) if "rotate" in part.effects else None
        if head_dim is not None and rotary_dim is not None and rotary_dim > head_dim:
            raise usage_error(
                _names(parts),
                f"rotary_dim={rotary_dim} with head_dim={head_dim}",
                "rotary_dim must not exceed head_dim",
                f"build it with rotary_dim={head_dim} or less",
            )


def _require_single_width(parts: tuple[Position, ...]) -> None:
    """Refuse parts that would see the columns of a part that widens queries and keys."""
    wide = [part for part in parts if part.widens]
    for other in parts if wide else ():
        rotates_too = other is not wide[0] and "rotate" in other.effects and other.rotates
        reads_columns = other.reads_rotated and bool(other.effects & {"content_bias", "value_bias"})
        if rotates_too or reads_columns:
            raise usage_error(
                _names(parts),
                f"{type(other).__name__} beside {type(wide[0]).__name__}",
                f"{type(wide[0]).__name__} replaces the columns of queries and keys by others",
                "add parts that act on scores or distances",
            )


def _require_single_rotation(parts: tuple[Position, ...]) -> None:
    """Refuse a rotation by regions beside another rotation, which queries and keys would get on top."""
    regions = [part for part in parts if part.rotates_by_regions]
    for other in parts if regions else ():
        if other is not regions[0] and (other.rotates_by_regions or ("rotate" in other.effects and other.rotates)):
            raise usage_error(
                _names(parts),
                f"{type(other).__name__} beside {type(regions[0]).__name__}",
                f"{type(regions[0]).__name__} rotates queries and keys itself, and they must rotate once",
                "leave one of them out",
            )


def _on_inputs(parts: tuple[Position, ...]) -> tuple[Position, ...]:
    """The parts that receive the layer input."""
    return tuple(part for part in parts if part.reads_input or part.effects & {"embed", "clock"})


def _require_common(attribute: str, of: tuple[Position, ...], parts: tuple[Position, ...]) -> None:
    sizes = {getattr(part, attribute): type(part).__name__ for part in of if getattr(part, attribute, None) is not None}
    if len(sizes) > 1:
        got = " and ".join(f"{name} with {attribute}={size}" for size, name in sizes.items())
        raise usage_error(
            _names(parts), got, f"all parts of a sum must have the same {attribute}", f"build them with one {attribute}"
        )
