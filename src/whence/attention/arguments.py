"""The arguments of ``attend``, listed once. Everything inside ``attend``, ``explain`` and ``Attention`` takes this object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from whence.position.base import Position

SegmentIds = Tensor | tuple[Tensor, Tensor]
#: (batch, head, query position, key position) -> bool, on index tensors that broadcast to ``[B, H, T, S]``
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass
class Arguments:
    """What a call of ``attend`` receives, before validation. ``attend`` documents each field.

    Nothing changes it after it is made; the class is not frozen because that would cost two microseconds of each call.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    position: Position | None = None
    clock: Tensor | None = None
    q_input: Tensor | None = None
    causal: bool = False
    window: int | None = None
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    lengths: Tensor | None = None
    key_mask: Tensor | None = None
    segment_ids: SegmentIds | None = None
    attn_mask: Tensor | None = None
    mask_fn: MaskFunction | None = None
    scale: float | None = None
    temperature: float = 1.0
    dropout: float = 0.0
    cache: object = None  # a KVCache or None; ``prepare`` validates it
    backend: str = "auto"
    skip_blocks: bool = True
    return_weights: bool = False
    check_finite: bool = False
