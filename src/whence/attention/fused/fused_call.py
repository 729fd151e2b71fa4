"""The arguments of one fused call in groups, and their flat form for the operator's schema.

A torch operator takes flat arguments. ``FusedCall.flatten`` and ``FusedCall.unflatten`` convert between the two forms;
the order of the flat arguments is written down in this module only. Nothing changes a group after it is made; the classes
are not frozen because that would cost a microsecond for every three fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class ScoreEffects:
    """What acts on the scores.

    ``table`` is packed (see ``packing.pack_tables``), with a column for the score scale, the bias or both; its first
    entry belongs to ``first_distance``. ``slope`` ``[H]`` is a bias of ``slope * distance``. ``decay`` ``[H, 3]`` holds
    floor, span and rate where the score scale has the form ``floor + span * exp(-rate * distance)``; it repeats the
    table. ``sink`` ``[B, H, T]`` is one more logit per query. ``k_clock`` ``[B, H, S]`` and ``q_clock`` ``[B, H, T]`` are the
    running sums of a clock in float64; without ``q_clock``, query i has that of key i.

    ``content_table`` ``[B, H, T, n]`` holds a score term of each query at the distances from ``content_first``, beyond which the term
    is that of the nearest end if ``content_clipped``, else 0. With ``value_entries`` above 0, the operator also returns the sums of
    each query's weights by distance, ``[B, H, T, value_entries]`` from ``value_first``. With ``q_places`` ``[B, T]`` and ``k_places``
    ``[B, S]``, the content table is ``[H, n]`` and a difference of places selects the entry. A content table ``[B, H, T + S]`` has a slope
    of each query and each key, whose sum is multiplied with the distance. See ``row_tables``.

    ``num_knots`` of at least 0: score scale or bias is a function of the table times a scale of the query, with its numbers
    in ``EffectGradients.parameters``; see ``scaled_distance_kernels``.
    """

    table: Tensor | None
    has_score_scale: bool
    has_bias: bool
    first_distance: int
    num_knots: int
    slope: Tensor | None
    decay: Tensor | None
    sink: Tensor | None
    q_clock: Tensor | None
    k_clock: Tensor | None
    content_table: Tensor | None = None
    content_first: int = 0
    content_clipped: bool = False
    value_entries: int = 0
    value_first: int = 0
    value_clipped: bool = False
    q_places: Tensor | None = None
    k_places: Tensor | None = None


@dataclass
class EffectGradients:
    """How the gradients of the score effects are computed.

    Dense gradients of table columns, or gradients of a few ``parameters`` ``[H, N]`` from packed ``derivatives``:
    tables of the derivative of the score scale by the first parameters, then of the bias by the next. ``has_amplitude``
    says that the last parameter multiplies the whole score scale; it has no derivative table.
    """

    dense_score_scale: bool
    dense_bias: bool
    parameters: Tensor | None
    derivatives: Tensor | None
    num_scale_derivatives: int
    num_bias_derivatives: int
    has_amplitude: bool


@dataclass
class Mask:
    """Which keys a query attends to. ``q_offset`` is the position of the first query minus that of the first key.

    ``key_mask`` ``[B, S]`` is False for padding; ``q_segment_ids`` ``[B or 1, T]`` and ``k_segment_ids`` ``[B or 1,
    S]`` must be equal. ``skip_blocks`` allows skipping blocks of keys that cannot change the result.
    """

    q_offset: int
    causal: bool
    window: int | None
    key_mask: Tensor | None
    q_segment_ids: Tensor | None
    k_segment_ids: Tensor | None
    skip_blocks: bool


@dataclass
class Softmax:
    """``seed`` is a scalar tensor on the device for dropout, so that compiled and captured graphs draw a new one in every call."""

    scale: float
    temperature: float
    dropout: float
    seed: Tensor | None


@dataclass
class FusedCall:
    """q ``[B, H, T, D]``, k ``[B, G, S, D]``, v ``[B, G, S, E]`` and everything else one call needs."""

    q: Tensor
    k: Tensor
    v: Tensor
    effects: ScoreEffects
    gradients: EffectGradients
    mask: Mask
    softmax: Softmax

    @property
    def has_factors(self) -> bool:
        """Whether rows have factors because their logits may be far from 0; see ``tile_ops.store_log_sum_exp``."""
        exact = self.q.dtype == torch.float32 or not self.mask.causal  # else a row's own key has a bias of 0
        return self.effects.has_bias or (self.effects.k_clock is not None and exact)

    def flatten(self) -> tuple[Any, ...]:
        """The arguments in the order of ``SCHEMA``."""
        e, g, m, s = self.effects, self.gradients, self.mask, self.softmax
        return (
            self.q, self.k, self.v, e.table, e.slope, e.sink, g.parameters, e.q_clock, e.k_clock, e.content_table,
            g.derivatives, e.decay, m.key_mask, m.q_segment_ids, m.k_segment_ids, e.q_places, e.k_places,
            s.seed,
            e.has_score_scale, e.has_bias, e.first_distance, e.num_knots,
            e.content_first, e.content_clipped, e.value_entries, e.value_first, e.value_clipped,
            g.dense_score_scale, g.dense_bias, g.num_scale_derivatives, g.num_bias_derivatives, g.has_amplitude,
            m.q_offset, m.causal, m.window, m.skip_blocks,
            s.scale, s.temperature, s.dropout,
        )  # fmt: skip

    @classmethod
    def unflatten(cls, arguments: tuple[Any, ...]) -> FusedCall:
        """The inverse of ``flatten``."""
        (
            q, k, v, table, slope, sink, parameters, q_clock, k_clock, content_table,
            derivatives, decay, key_mask, q_segment_ids, k_segment_ids, q_places, k_places,
            seed,
            has_score_scale, has_bias, first_distance, num_knots,
            content_first, content_clipped, value_entries, value_first, value_clipped,
            dense_score_scale, dense_bias, num_scale_derivatives, num_bias_derivatives, has_amplitude,
            q_offset, causal, window, skip_blocks,
            scale, temperature, dropout,
        ) = arguments  # fmt: skip
        return cls(
            q,
            k,
            v,
            ScoreEffects(
                table, has_score_scale, has_bias, first_distance, num_knots, slope, decay, sink, q_clock, k_clock,
                content_table, content_first, content_clipped, value_entries, value_first, value_clipped, q_places,
                k_places,
            ),
            EffectGradients(
                dense_score_scale, dense_bias, parameters, derivatives, num_scale_derivatives, num_bias_derivatives,
                has_amplitude,
            ),
            Mask(q_offset, causal, window, key_mask, q_segment_ids, k_segment_ids, skip_blocks),
            Softmax(scale, temperature, dropout, seed),
        )  # fmt: skip


#: types and names of the flat arguments, in order
SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? table, Tensor? slope, Tensor? sink, Tensor? parameters, "
    "Tensor? q_clock, Tensor? k_clock, Tensor? content_table, "
    "Tensor? derivatives, Tensor? decay, Tensor? key_mask, Tensor? q_segment_ids, Tensor? k_segment_ids, "
    "Tensor? q_places, Tensor? k_places, Tensor? seed, "
    "bool has_score_scale, bool has_bias, SymInt first_distance, int num_knots, "
    "int content_first, bool content_clipped, int value_entries, int value_first, bool value_clipped, "
    "bool dense_score_scale, bool dense_bias, int num_scale_derivatives, int num_bias_derivatives, bool has_amplitude, "
    "SymInt q_offset, bool causal, SymInt? window, bool skip_blocks, "
    "float scale, float temperature, float dropout"
)
NUM_TENSORS = 18  # flat arguments up to the seed; the others are not tensors
NUM_DIFFERENTIABLE = 10  # q, k, v, then table, slope, sink, parameters, the two clocks and the content table
EFFECT_INPUTS = slice(3, NUM_DIFFERENTIABLE)
NUM_ARGUMENTS = SCHEMA.count(",") + 1
