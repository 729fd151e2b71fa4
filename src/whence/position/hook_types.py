"""What the hooks of a ``Position`` receive and return: rows of queries, derivatives, and functions of a pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from whence.errors import usage_error

#: forms of a ``PairFunction``: floor, span and rate of ``floor + span * exp(-rate * |distance| / length)``; and c, threshold,
#: weights and biases of the hidden units, which are the same for all heads, output weights and output bias of ``Fire``
DECAY, LOG_NETWORK = "decay", "log network"


@dataclass(frozen=True)
class Rows:
    """Some query rows and the keys that some of them can see: the argument of ``content_bias`` and ``value_bias``.

    Some of these keys may be hidden. Keys that causality or the window hides from all rows may be left out.

    B batch, G key heads, H query heads, T query rows, S keys, D head dimension, E value dimension. The batch axis of
    positions is B, or 1 when all sequences of the batch have the same positions.

    Args:
        q: ``[B, H, T, D]``, after rotation, before the scale.
        k: ``[B, H, S, D]``, after rotation; grouped key heads are repeated.
        scores: ``[B, H, T, S]``, ``scale * q.k``.
        q_positions: ``[B or 1, T]``.
        k_positions: ``[B or 1, S]``.
        visible: ``[B or 1, H or 1, T, S]``, bool: whether the query sees the key.
        scale: the factor of ``q.k`` in ``scores``.
        projected_q: ``[B, H, T, D]``, before rotation; None if no part of the position rotated q. ``unrotated_q`` is right in both cases, but
            a Hugging Face model that rotates itself passes rotated queries and keys.
        projected_k: ``[B, G, S, D]``, before rotation; None if no part of the position rotated k. ``unrotated_k`` as ``unrotated_q``.
        values: ``[B, G, S, E]``; ``v`` repeats grouped heads.
        q_input: ``[B, T, embed_dim]``, the layer input of the query rows, for a mechanism with ``reads_input = True``.

    Properties: ``distance`` ``[B or 1, T, S]`` in the dtype of the positions, which are whole numbers unless fractions are passed; compute
    with ``distance.to(scores.dtype)`` and look up a table with ``distance.long()``. ``unrotated_q`` ``[B, H, T, D]``, ``unrotated_k`` ``[B, H, S, D]``, and ``v``
    ``[B, H, S, E]``.
    """

    q: Tensor
    k: Tensor
    scores: Tensor
    q_positions: Tensor
    k_positions: Tensor
    visible: Tensor
    scale: float
    projected_q: Tensor | None = None
    projected_k: Tensor | None = None
    values: Tensor | None = None
    q_input: Tensor | None = None

    @property
    def distance(self) -> Tensor:
        """Query position minus key position, ``[B or 1, T, S]``, in the dtype of the positions."""
        return self.q_positions[:, :, None] - self.k_positions[:, None, :]

    @property
    def unrotated_q(self) -> Tensor:
        """The queries before any part of the position rotated them, ``[B, H, T, D]``."""
        return self.q if self.projected_q is None else self.projected_q

    @property
    def unrotated_k(self) -> Tensor:
        """The keys before any part of the position rotated them, ``[B, H, S, D]``; grouped key heads are repeated."""
        return self.k if self.projected_k is None else self._repeat_groups(self.projected_k)

    @property
    def v(self) -> Tensor:
        """The values, ``[B, H, S, E]``; grouped heads are repeated."""
        if self.values is None:
            raise usage_error("Rows.v", "no values", "Rows was built without them", "pass values=v to Rows")
        return self._repeat_groups(self.values)

    def _repeat_groups(self, x: Tensor) -> Tensor:
        heads, groups = self.q.shape[1], x.shape[1]
        return x if groups == heads else x.repeat_interleave(heads // groups, 1)


@dataclass(frozen=True)
class ParameterGradient:
    """The derivative of ``score_scale`` or ``bias`` with respect to one learnable value."""

    value: Tensor  # scalar, or [heads, 1]; computed from parameters
    hook: str  # "score_scale" or "bias"
    derivative: Tensor | None  # at each distance, [n] or [heads, n]
    # derivative=None: the value multiplies the whole score_scale and is never 0


@dataclass(frozen=True)
class HookGradients:
    """The outputs of ``score_scale`` and ``bias`` with their derivatives; see ``Position.parameter_gradients``."""

    score_scale: Tensor | None
    bias: Tensor | None
    gradients: tuple[ParameterGradient, ...]


@dataclass(frozen=True)
class PairFunction:
    """``score_scale`` or ``bias`` of one query and one key, from a few numbers of the head; see ``Position.pair_function``."""

    numbers: Tensor  # [heads or 1, n]
    #: (read, distance, length) -> the value, where ``read(i)`` is number i of the head, and all are scalars or of one shape
    evaluate: Callable[[Callable[[int], Tensor], Tensor, Tensor], Tensor]
    form: str | None = None  # DECAY or LOG_NETWORK, if the numbers are those of this form: fused kernels evaluate it
