"""What one call asks for, beside its queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """What a call fixes beside its tensors. ``first`` is the distance of a table's first entry."""

    first: int
    offset: int
    causal: bool
    window: int | None
    scale: float
    temperature: float
    dropout: float
    seed: int
    skip: bool


@dataclass(frozen=True)
class Effects:
    """A packed table and what it holds, a slope ``[H]``, a decay ``[H, 3]``, a sink ``[B, H, T]``, and which tokens belong
    together.

    ``decay`` says the factor again, as ``lowest + span * exp(-fall * distance)``, where it has that form.
    """

    table: Tensor | None
    score_scale: bool
    bias: bool
    slope: Tensor | None
    decay: Tensor | None
    sink: Tensor | None
    real: Tensor | None
    q_segment_ids: Tensor | None
    k_segment_ids: Tensor | None
