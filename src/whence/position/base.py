"""The ``Position`` interface: how position changes attention. ``Sum`` combines several mechanisms.

A mechanism is a subclass of ``Position``. It overrides the hooks it needs:

=================================  ====================================  ===============================
hook                               returns                               used by
=================================  ====================================  ===============================
``embed(x, positions)``            like x                                sinusoidal, learned
``rotate(q, k, q_pos, k_pos)``     like q and k; wider if ``widens``     rotary, PoPE, log-n temperature
``score_scale(distance, length)``  ``[n]`` or ``[heads, n]``, factors    EPAR
``bias(distance, length)``         ``[n]`` or ``[heads, n]``, terms      ALiBi, T5, power prior, ...
``content_bias(rows)``             score terms ``[B, H, T, S]``          DAPE, GRAPE-A
``content_bias_table(q, ...)``     the same as a table of distances      Shaw, QueryTable
``coordinate_bias_table(dtype)``   the same as a table of coordinates    SwinBias
``gated_bias_table(q, ...)``       the same as a table of gated counts   CoPE
``value_bias(weights, rows)``      output terms ``[B, H, T, E]``         your own
``value_bias_table()``             the same as a table of distances      Shaw
``sink(position, length)``         ``[n]`` or ``[heads, n]``, logits     StableMask, Sink
``clock(x)``                       ``[B, heads, T]``, steps              ForgetGate, DataDependentAlibi
=================================  ====================================  ===============================

The logit of query i and key j is ``(scale * q_i.k_j + content_bias) * score_scale + bias + C_i - C_j``, divided by the
temperature. C is the running sum of the clock's steps, so ``C_i - C_j`` adds up the steps of the tokens after j up to i.
The sink is one more logit in each row's softmax; it has no value vector. The sinks of a sum are joined: each takes its own
share of the row.

``distance`` is a 1-D float tensor of n signed distances, query position minus key position. Hooks receive every
distance inside the causal or window range, padded positions included, so they must return finite values there.
``length`` is None for a mechanism without a length, a number, or a tensor like ``distance`` where the length differs
between queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from whence.errors import WhenceError, usage_error
from whence.position.coordinate_table import CoordinateTable, require_coordinate_table
from whence.position.distance_table import DistanceTable, require_distance_table
from whence.position.gated_count import count_gates, interpolate, require_gated_table
from whence.position.head_network import HeadNetwork
from whence.position.hook_types import HookGradients, PairFunction, Rows
from whence.position.hooks import HOOKS, TABLE_HOOKS, name_of_replaced, override_hooks, require_no_misspelled_hook
from whence.position.parameter import format_setting
from whence.position.relative_keys import RelativeKeys
from whence.validation import format_value, require_choice, require_heads, require_integer

if TYPE_CHECKING:
    from whence.position.sum import Sum

LENGTHS = ("context", "query", "sequence")


#: attributes that the constructor sets
SETTINGS = ("heads", "length", "context")


class Position(nn.Module):
    """How position changes attention. Subclass it, override hooks, and run ``whence.check`` on an instance.

    Args:
        heads: number of query heads that the parameters have; ``None`` when they are shared by all heads.
        length: for a mechanism that divides by a length: ``"context"`` (the fixed number ``context``), ``"query"``
            (the query's position + 1, exact with a cache) or ``"sequence"`` (the current number of tokens, which
            changes with every decoded token and therefore cannot be used with a cache).
        context: the fixed length for ``length="context"``.
    """

    #: scores depend on differences of positions only: shifting all positions by the same amount changes nothing
    relative: bool = True
    #: defined only for keys at or before the query
    causal_only: bool = False
    #: has parameters or constants for each head, so ``heads`` is required
    needs_heads: bool = False
    #: its content term replaces the scores by those of queries and keys that it rotates itself, as ``RegionRotary`` does
    rotates_by_regions: bool = False
    #: the bias decreases without bound as distance grows, so kernels may skip blocks of far keys where they can prove
    #: that the weights vanish. Performance hint; does not change results.
    decays: bool = False
    #: ``rotate`` rotates queries and keys, so that a model must not rotate them as well; False where it only scales them
    rotates: bool = True
    #: ``rotate`` returns q and k with another number of columns than it receives, the same for both
    widens: bool = False
    #: ``content_bias`` and ``value_bias`` read ``rows.q`` or ``rows.k``, as other parts rotated them. False where they read
    #: ``rows.scores``, ``rows.unrotated_q`` and ``rows.unrotated_k`` instead
    reads_rotated: bool = True
    #: ``content_bias`` and ``value_bias`` read ``rows.q_input``. A layer passes it, and a call of ``attend`` passes ``q_input=x``
    reads_input: bool = False
    #: the remedy of the error where a hook returned NaN or infinity; empty for the usual one
    non_finite_remedy: ClassVar[str] = ""
    #: parameters, buffers and modules of ``rotate``, ``content_bias`` and ``value_bias`` with one entry for each head, and
    #: their head axis, for ``select_heads``
    head_axes: ClassVar[Mapping[str, int]] = {}
    #: parameters of the constructor with the default None that a model fills in when the mechanism is built from text;
    #: see whence.position.expression
    model_arguments: ClassVar[tuple[str, ...]] = ()
    #: constructor arguments, instead of the defaults, for attention without a causal mask, when built from text
    noncausal_arguments: ClassVar[Mapping[str, Any]] = {}
    _overridden: frozenset[str] = frozenset()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._overridden = override_hooks(cls, Position)

    def __init__(self, *, heads: int | None = None, length: str | None = None, context: int | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        if not self._overridden and type(self).effects is Position.effects:
            require_no_misspelled_hook(type(self), Position)
        if heads is not None or self.needs_heads:
            require_heads(name, heads)  # type: ignore[arg-type]
        if length is not None:
            require_choice(name, "length", length, LENGTHS)
        if context is not None or length == "context":
            remedy = "pass context=4096, or choose length='query'"
            require_integer(name, "context", context, remedy=remedy)  # type: ignore[arg-type]
        if length == "query":
            self.relative = False  # the same distance has another effect at another position
        self.heads = heads
        self.length = length
        self.context = context

    def __setattr__(self, name: str, value: Any) -> None:
        if name in HOOKS or name in TABLE_HOOKS:
            # hooks are looked up on the class, so an instance attribute of that name would have no effect
            raise usage_error(
                f"{type(self).__name__}.{name} = ...",
                format_value(value),
                f"{name} is a hook, and an instance cannot replace a hook of its class",
                f"write a subclass with a method {name}, or give the attribute another name",
            )
        if isinstance(value, nn.Module | nn.Parameter) and (hasattr(Position, name) or name in SETTINGS):
            raise usage_error(
                f"{type(self).__name__}.{name} = ...",
                f"a {type(value).__name__}",
                f"{name} is an attribute of every Position",
                f"give the attribute another name, such as own_{name}",
            )
        if isinstance(value, nn.Module | nn.Parameter) and "_parameters" not in self.__dict__:
            require_initialized(self)  # torch's own error does not name the class
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """The state that copies and files get: without the launch plans of the ``triton`` backend."""
        return {name: value for name, value in self.__dict__.items() if name != "_eager_plans"}

    # --- hooks: without an override they have no effect -----------------------------------------------------------------

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the layer input x ``[B, T, embed_dim]`` at positions ``[B or 1, T]``, which may be negative for padded tokens."""
        return x

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Change q ``[B, H, T, D]`` and k ``[B, G, S, D]`` at positions ``[B or 1, T]`` and ``[B or 1, S]``."""
        return q, k

    def score_scale(self, distance: Tensor, length: Any) -> Tensor | None:
        """The factor of the score at each distance: ``[n]`` or ``[heads, n]``."""
        return None

    def bias(self, distance: Tensor, length: Any) -> Tensor | None:
        """The term added to the score at each distance: ``[n]`` or ``[heads, n]``."""
        return None

    def content_bias(self, rows: Rows) -> Tensor | None:
        """The term added to the score before ``score_scale`` where it depends on q or k: ``[B, H, T, S]``."""
        inputs: tuple[Any, ...] = (rows.q_input,) if self.reads_input else ()
        table = self._table("content_bias_table")(rows.q, rows.unrotated_q, rows.scale, *inputs)
        name = type(self).__name__
        if table is not None:
            require_distance_table(name, "content_bias_table", table, (*rows.q.shape[:3], -1))
            return table.gather(rows.distance).to(rows.scores.dtype)
        gated = self._table("gated_bias_table")(rows.q, rows.unrotated_q, rows.scale)
        if gated is not None:
            require_gated_table(name, gated, rows.q.shape)
            return interpolate(gated, count_gates(rows, gated.shape[-1] - 1)).to(rows.scores.dtype)
        coordinates = self._table("coordinate_bias_table")(rows.scores.dtype)
        if coordinates is None:
            return None
        require_coordinate_table(name, coordinates, rows.scores.shape[1])
        return coordinates.gather(rows.q_positions, rows.k_positions).to(rows.scores.dtype).expand_as(rows.scores)

    def content_bias_table(self, q: Tensor, unrotated_q: Tensor, scale: float) -> DistanceTable | None:
        """``content_bias`` of a mechanism where each query has one number per distance: ``[B, H, T, n]``.

        ``q`` and ``unrotated_q`` ``[B, H, T, D]`` are the queries after and before rotation, in at least float32. Write this hook
        instead of ``content_bias``: every backend evaluates it, and the fused kernels read the table.
        A mechanism with ``reads_input`` takes the layer input of the queries ``[B, T, embed_dim]`` as a fourth argument.
        """
        return None

    def coordinate_bias_table(self, dtype: torch.dtype) -> CoordinateTable | None:
        """``content_bias`` of a mechanism with a number for each difference of coordinates on a grid: ``[heads or 1, n]``.

        Write this hook instead of ``content_bias``, as for ``content_bias_table``.
        """
        return None

    def gated_bias_table(self, q: Tensor, unrotated_q: Tensor, scale: float) -> Tensor | None:
        """``content_bias`` of a mechanism that counts keys by gates: ``[B, H, T, n]``, a query's terms at the counts 0 to n - 1.

        The gate of a query and a key is the sigmoid of their score. The count at a key is the sum of the gates from this key to
        the latest visible one, and n - 1 at most; the term is interpolated between the two nearest counts. ``q`` and ``unrotated_q``
        are those of ``content_bias_table``. Write this hook instead of ``content_bias``.
        """
        return None

    def value_bias(self, weights: Tensor, rows: Rows) -> Tensor | None:
        """The term added to the output, from the attention weights ``[B, H, T, S]``: ``[B, H, T, E]``."""
        table = self._table("value_bias_table")()
        if table is None:
            return None
        require_distance_table(type(self).__name__, "value_bias_table", table, (weights.shape[1], -1, -1))
        wide = torch.promote_types(weights.dtype, table.values.dtype)
        return (table.sum_weights(weights.to(wide), rows.distance) @ table.values.to(wide)).to(weights.dtype)

    def _table(self, name: str) -> Callable[..., Any]:
        """A hook that returns a table, or that of a base where a subclass calls ``super().content_bias(rows)``."""
        return getattr(self, name_of_replaced(name), None) or getattr(self, name)

    def value_bias_table(self) -> DistanceTable | None:
        """``value_bias`` of a mechanism that adds a vector per distance to the values: ``[n, E]`` or ``[heads or 1, n, E]``."""
        return None

    def sink(self, position: Tensor, length: Any) -> Tensor | None:
        """One extra logit per query row, without a value vector, at n query positions: ``[n]`` or ``[heads, n]``."""
        return None

    def clock(self, x: Tensor) -> Tensor | None:
        """The step of the clock at each token of the layer input x ``[B, T, embed_dim]``: ``[B, heads, T]``, at least float32.

        Attention adds ``C_i - C_j`` to the score of query i and key j, where C is the running sum of the steps of the
        real tokens of a segment in the order of their positions. A step depends on its own token alone; a cache stores it
        beside the key.
        """
        return None

    # --- optional, for faster kernels; ``whence.check`` compares them with the hooks -------------------------------------

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients | None:
        """``score_scale`` and ``bias`` with their derivatives with respect to each learnable value, if those are few.

        With them a kernel accumulates the gradients of the values in registers. Without them it computes the gradient
        of the whole table and autograd continues from there, which is equally exact. Only ``ParameterGradient.value``
        needs to record gradients; a parameter that no value depends on gets none.
        """
        return None

    def bias_slope(self) -> Tensor | None:
        """The slope, a scalar or ``[heads, 1]``, if ``bias = slope * distance`` for all distances of at least 0."""
        return None

    def score_scale_decay(self, length: Any) -> tuple[Tensor, Tensor, Tensor] | None:
        """``(floor, span, decay)``, each a scalar or ``[heads, 1]`` and decay at least 0, if
        ``score_scale = floor + span * exp(-decay * distance)`` for all distances of at least 0."""
        return None

    def pair_function(self, hook: str) -> PairFunction | None:
        """``score_scale`` or ``bias`` in elementwise operations, if it is a closed form of few numbers per head.

        With ``length="query"`` the effect of a distance differs between queries, so there is no table of distances. A kernel
        evaluates such a function for each pair instead: ``triton`` one that has a ``form``, ``flex`` any that does not
        learn. Without it, the call runs on ``blockwise``.
        """
        return None

    def relative_keys(self, distance: Tensor) -> RelativeKeys | None:
        """``content_bias`` as ``scale * (u . k_j + (q_i + v) . W r_d)``: the vectors at n distances d. Define it only for this form.

        q and k are those after rotation. Where positions are consecutive, the fused kernels read the products of blocks of queries
        with the vectors of all distances. ``content_bias`` serves any positions.
        """
        return None

    def distance_slopes(self, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """``content_bias`` as ``distance * (a_i + b_j)``: the slopes a ``[B, H, T]`` of queries and b ``[B, H, S]`` of keys; None for
        slopes of 0. Define it only for this form.

        ``q`` ``[B, H, T, D]`` and ``k`` ``[B, H, S, D]`` are those after rotation, or before it if ``reads_rotated`` is False.
        """
        return None

    def head_network(self) -> HeadNetwork | None:
        """``content_bias`` as a network of two layers over the scores of all heads at one pair, and over a bias of distance; see
        ``HeadNetwork``. Define it only for this form. The fused kernels evaluate it; ``content_bias`` serves any positions.
        """
        return None

    # --- read by the rest of whence -----------------------------------------------------------------------------------

    @property
    def effects(self) -> frozenset[str]:
        """The names of the hooks that this mechanism overrides."""
        return self._overridden

    @property
    def parts(self) -> tuple[Position, ...]:
        """The terms of a sum; the mechanism itself when it is not a sum."""
        return (self,)

    @property
    def trainable(self) -> bool:
        """Whether any parameter requires a gradient."""
        return any(p.requires_grad for p in self.parameters())

    def at_input(self) -> tuple[Position, ...]:
        """The parts that change a model's input (``embed``)."""
        return tuple(p for p in self.parts if "embed" in p.effects)

    def select_heads(self, start: int, end: int) -> Position:
        """The mechanism for query heads ``start`` to ``end - 1``, for tensor parallelism.

        It shares the parameters of the whole, so the gradients of all selections add up to the gradient of the whole; see
        ``whence.position.head_slice``. A mechanism that is the same for every head is its own selection.
        """
        from whence.position.head_slice import select_heads_of_part  # which imports Position

        return select_heads_of_part(self, start, end)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        """Names and values in ``repr``: by default all parameters and buffers whose name has no leading underscore."""
        tensors = (*self.named_parameters(), *self.named_buffers())
        yield from ((name, tensor) for name, tensor in tensors if not name.startswith("_"))

    def __add__(self, other: object) -> Sum:
        if not isinstance(other, Position):
            raise not_a_position(f"{type(self).__name__} + ...", other, "subclass whence.Position")
        from whence.position.sum import Sum  # a sum is itself a Position

        return Sum(self, other)

    def __radd__(self, other: object) -> Sum:
        remedy = "subclass whence.Position, or write whence.Sum(*positions) instead of sum(positions)"
        raise not_a_position(f"... + {type(self).__name__}", other, remedy)

    def __repr__(self) -> str:
        if not is_initialized(self):
            return f"{type(self).__name__}(super().__init__() was not called)"
        items = [f"{name}={format_setting(value)}" for name, value in self.repr_items()]
        if self.heads is not None:
            items.insert(0, f"heads={self.heads}")
        if self.length is not None:
            items.append(f"length={self.length!r}" + (f", context={self.context}" if self.length == "context" else ""))
        if self.trainable:
            items.append("learnable")
        return f"{type(self).__name__}({', '.join(items)})"


def not_a_position(subject: str, other: object, remedy: str) -> WhenceError:
    """The error for a term of a sum that is no Position."""
    return usage_error(subject, type(other).__name__, "only a Position can be added to a Position", remedy)


def require_position(subject: str, position: object) -> Position:
    """The object itself, if it is an initialized Position; the error names what was passed instead.

    >>> require_position("attend(position=...)", Position)
    Traceback (most recent call last):
    whence.errors.WhenceError: attend(position=...) got the class Position, but position must be an instance of whence.Position; call the class: Position(...).
    """
    if isinstance(position, Position):
        require_initialized(position)
        return position
    got, remedy = format_value(position), "pass an instance, such as whence.Rotary()"
    if isinstance(position, type):
        got = f"the class {position.__name__}"
        heads = "heads=..." if issubclass(position, Position) and position.needs_heads else "..."
        remedy = f"call the class: {position.__name__}({heads})" if issubclass(position, Position) else remedy
    elif callable(position):
        got, remedy = (
            f"the function {getattr(position, '__name__', got)}",
            "wrap a score_mod with whence.from_score_mod(fn)",
        )
    raise usage_error(subject, got, "position must be an instance of whence.Position", remedy)


def is_built_in(position: Position) -> bool:
    """Whether every part is one of the library's mechanisms."""
    return all(type(part).__module__.startswith("whence.position.") for part in position.parts)


def is_initialized(part: Position) -> bool:
    return "_parameters" in part.__dict__ and "heads" in part.__dict__


def require_initialized(part: Position) -> None:
    """Raise for a mechanism whose constructor did not call ``Position.__init__``."""
    if not is_initialized(part):
        name = type(part).__name__
        raise usage_error(
            f"{name}.__init__",
            "no call of Position.__init__",
            "it must come before parameters and modules are assigned",
            f"begin {name}.__init__ with super().__init__()",
        )
