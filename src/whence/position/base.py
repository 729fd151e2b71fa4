"""The waist: a mechanism says what position does to attention, and only that.

A mechanism is a ``Position``. It overrides the hooks it needs and leaves the rest alone:

=================================  ====================================  =========================
hook                               answer                                used by
=================================  ====================================  =========================
``embed(x, positions)``            like x                                sinusoidal, learned
``rotate(q, k, q_pos, k_pos)``     like q and k                          rotary
``factor(distance, length)``       ``[n]`` or ``[heads, n]``, times       EPAR
``bias(distance, length)``         ``[n]`` or ``[heads, n]``, plus        ALiBi, T5, power prior, ...
``content(rows)``                  scores ``[B, H, T, S]``, plus          Shaw, Transformer-XL, CoPE
``values(weights, rows)``          outputs ``[B, H, T, E]``, plus         Shaw
``sink(position, length)``         ``[n]`` or ``[heads, n]``, a logit     StableMask, sinks
=================================  ====================================  =========================

The logit of query i and key j is ``(scale * q_i.k_j + content) * factor + bias``; the temperature divides it, and the
sink is one more logit in the row's normaliser that carries no value.

``distance`` is a 1-D float tensor of n signed distances, query position minus key position; distances that causality or
the window hides are never asked about, those that padding hides are, so an answer must be finite everywhere else. ``length`` is ``None`` for
a mechanism that names no length, a number, or a tensor like ``distance`` where it differs from query to query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from whence.errors import WhenceError, usage_error
from whence.validation import require_choice, require_heads, require_integer, shown

if TYPE_CHECKING:
    from whence.position.composition import Sum

HOOKS = ("embed", "rotate", "score_scale", "bias", "content_bias", "value_bias", "sink")
LENGTHS = ("context", "query", "sequence")


@dataclass(frozen=True)
class Rows:
    """Some query rows against all keys: what a ``content_bias`` or ``values`` hook may look at.

    B batch, H query heads, T query rows, S keys, D key width. Positions have a batch axis of B, or of 1 when all
    sequences of the batch share them.
    """

    q: Tensor  # [B, H, T, D], after rotation, before the scale
    k: Tensor  # [B, H, S, D], after rotation; grouped key heads are repeated
    scores: Tensor  # [B, H, T, S], scale * q.k
    q_positions: Tensor  # [B or 1, T]
    k_positions: Tensor  # [B or 1, S]
    visible: Tensor  # [B or 1, 1, T, S], bool
    scale: float

    @property
    def distance(self) -> Tensor:
        """Query position minus key position, ``[B or 1, T, S]``."""
        return self.q_positions[:, :, None] - self.k_positions[:, None, :]


@dataclass(frozen=True)
class ParameterGradient:
    """How fast a factor or bias changes with one of the numbers that shape it."""

    number: Tensor  # one number, or one a head (``[heads, 1]``), that learns
    hook: str  # "score_scale" or "bias"
    table: Tensor | None  # the derivative at each distance, ``[n]`` or ``[heads, n]``
    # None instead of a table: the number multiplies the whole factor and is never 0


@dataclass(frozen=True)
class HookGradients:
    """The answers of ``score_scale`` and ``bias`` together with their derivatives; see ``Position.parameter_gradients``."""

    score_scale: Tensor | None
    bias: Tensor | None
    each: tuple[ParameterGradient, ...]


class Position(nn.Module):
    """How position shapes attention. Subclass it, override hooks, and ``whence.check`` the result.

    Args:
        heads: the number of query heads the parameters are made for; ``None`` when they fit any number.
        length: for a mechanism that divides by a length: ``"context"`` (the fixed number ``context``), ``"query"``
            (the query's position + 1, exact with a cache) or ``"sequence"`` (the number of tokens there are, which
            changes with every decoded token and is therefore refused together with a cache).
        context: the fixed length for ``length="context"``.
    """

    #: scores depend on differences of positions only: moving all positions by the same amount changes nothing
    relative: bool = True
    #: defined only for keys at or before the query
    causal_only: bool = False
    #: has parameters or constants for each head, so the number of heads must be given
    needs_heads: bool = False
    #: the bias falls without end as distance grows, so far keys come to weigh nothing and kernels may leave them out
    #: (where they can prove it); a promise about speed, never about the result
    decays: bool = False
    #: parameters of the constructor with the default None that a model fills in when the mechanism is built from text;
    #: see whence.position.expression
    model_arguments: ClassVar[tuple[str, ...]] = ()
    #: constructor arguments, instead of the defaults, for attention without a causal mask, when built from text
    noncausal_arguments: ClassVar[Mapping[str, Any]] = {}
    _overridden: frozenset[str] = frozenset()

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls._overridden = frozenset(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Position, hook))
        if {
            "score_scale",
            "bias",
        } & cls.__dict__.keys():  # what a parent supplies for its own hooks is not true of new ones
            for supplied in ("parameter_gradients", "bias_slope", "score_scale_decay"):
                if supplied not in cls.__dict__:
                    setattr(cls, supplied, getattr(Position, supplied))

    def __init__(self, *, heads: int | None = None, length: str | None = None, context: int | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        if heads is not None or self.needs_heads:
            require_heads(name, heads)  # type: ignore[arg-type]
        if length is not None:
            require_choice(name, "length", length, LENGTHS)
        if context is not None or length == "context":
            remedy = "pass context=4096, or choose length='query'"
            require_integer(name, "context", context, remedy=remedy)  # type: ignore[arg-type]
        if length == "query":
            self.relative = False  # the same distance weighs differently at another place
        self.heads = heads
        self.length = length
        self.context = context

    def __setattr__(self, name: str, value: Any) -> None:
        if name in HOOKS:
            # hooks are looked up on the class, so a function, parameter or module of that name would have no effect
            raise usage_error(
                f"{type(self).__name__}.{name} = ...",
                shown(value),
                f"{name} is a hook, and an instance cannot replace a hook of its class",
                f"write a subclass with a method {name}, or give the attribute another name",
            )
        super().__setattr__(name, value)

    # --- hooks: each is "no effect" until a mechanism overrides it -------------------------------------------------
    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the layer input x ``[B, T, W]`` at positions ``[B or 1, T]``."""
        return x

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Change q ``[B, H, T, D]`` and k ``[B, G, S, D]`` at positions ``[B or 1, T]`` and ``[B or 1, S]``."""
        return q, k

    def score_scale(self, distance: Tensor, length: Any) -> Tensor | None:
        """What multiplies the score at each distance: ``[n]`` or ``[heads, n]``."""
        return None

    def bias(self, distance: Tensor, length: Any) -> Tensor | None:
        """What is added to the score at each distance: ``[n]`` or ``[heads, n]``."""
        return None

    def content_bias(self, rows: Rows) -> Tensor | None:
        """What is added to the score before the factor, where it depends on q or k: ``[B, H, T, S]``."""
        return None

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        """What is added to the output, given the weights ``[B, H, T, S]``: ``[B, H, T, E]``."""
        return None

    def sink(self, position: Tensor, length: Any) -> Tensor | None:
        """One extra logit per query row, with no value, at n query positions: ``[n]`` or ``[heads, n]``."""
        return None

    # --- optional: what makes a fused kernel faster; ``whence.check`` holds them against the hooks -------------------

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients | None:
        """``score_scale`` and ``bias`` once more, and their derivatives by each number that learns, where those are few.

        With them a kernel sums up the numbers' gradients in registers; without, it forms the gradient of the whole
        table and autograd goes on from there, which is as exact. Only the numbers need record gradients, and a
        parameter that no number comes from gets none.
        """
        return None

    def bias_slope(self) -> Tensor | None:
        """The number, or ``[heads, 1]``, that times the distance is all of the bias for distances of at least 0."""
        return None

    def score_scale_decay(self, length: Any) -> tuple[Tensor, Tensor, Tensor] | None:
        """Floor, span and fall, each a number or ``[heads, 1]`` and fall at least 0, where
        ``floor + span * exp(-fall * distance)`` is all of the factor for distances of at least 0."""
        return None

    # --- what the rest of whence asks ------------------------------------------------------------------------------
    @property
    def effects(self) -> frozenset[str]:
        """The names of the hooks that this mechanism overrides."""
        return self._overridden

    @property
    def parts(self) -> tuple[Position, ...]:
        """The mechanisms this one is composed of; itself when it is not a composition."""
        return (self,)

    @property
    def trainable(self) -> bool:
        """Whether any parameter asks for a gradient."""
        return any(p.requires_grad for p in self.parameters())

    def at_input(self) -> tuple[Position, ...]:
        """The parts that act on a model's input (``embed``)."""
        return tuple(p for p in self.parts if "embed" in p.effects)

    def settings(self) -> Iterator[tuple[str, object]]:
        """What ``repr`` shows: by default every parameter and buffer whose name does not begin with an underscore."""
        tensors = (*self.named_parameters(), *self.named_buffers())
        yield from ((name, tensor) for name, tensor in tensors if not name.startswith("_"))

    def __add__(self, other: object) -> Sum:
        from whence.position.composition import Sum  # here, since Sum is itself a Position

        if not isinstance(other, Position):
            raise usage_error(
                f"{type(self).__name__} + ...",
                type(other).__name__,
                "only a Position adds to a Position",
                "subclass whence.Position",
            )
        return Sum(self, other)

    def __radd__(self, other: object) -> Sum:
        raise usage_error(
            f"... + {type(self).__name__}",
            type(other).__name__,
            "only a Position adds to a Position",
            "subclass whence.Position, or write whence.Sum(*positions) instead of sum(positions)",
        )

    def __repr__(self) -> str:
        shown = [f"{name}={render(value)}" for name, value in self.settings()]
        if self.heads is not None:
            shown.insert(0, f"heads={self.heads}")
        if self.length is not None:
            shown.append(f"length={self.length!r}" + (f", context={self.context}" if self.length == "context" else ""))
        if self.trainable:
            shown.append("learnable")
        return f"{type(self).__name__}({', '.join(shown)})"


def require_built(part: Position) -> None:
    """Refuse a mechanism whose own constructor did not run that of Position."""
    if "_parameters" not in part.__dict__ or "heads" not in part.__dict__:
        name = type(part).__name__
        raise usage_error(
            name, "no attribute heads", "Position.__init__ sets it", f"call super().__init__() in {name}.__init__"
        )


def render(value: object) -> str:
    """A short text for a setting: numbers plainly, small tensors whole, large ones by their shape.

    >>> import torch
    >>> render(0.5), render(torch.tensor([[0.5], [0.25]])), render(torch.ones(8)), render(torch.randn(3, 64))
    ('0.5', '[0.5, 0.25]', '[1] * 8', '<3 x 64>')
    """
    if not isinstance(value, Tensor):
        return f"{value:.6g}" if isinstance(value, float) else repr(value)
    if value.numel() == 1:
        return f"{value.item():.6g}"
    first = value.flatten()[0]
    if bool((value == first).all()):
        return f"[{first.item():.6g}] * {value.numel()}"
    if value.numel() <= 16:
        return "[" + ", ".join(f"{v:.6g}" for v in value.detach().flatten().tolist()) + "]"
    return "<" + " x ".join(str(n) for n in value.shape) + ">"


__all__ = [
    "HOOKS",
    "LENGTHS",
    "HookGradients",
    "ParameterGradient",
    "Position",
    "Rows",
    "WhenceError",
    "render",
    "require_built",
]
