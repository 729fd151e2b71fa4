"""Biases that are linear in distance, such as ALiBi: a slope per head, or a table of distances where that is faster."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention.call import Call
from whence.attention.content_tables import CONTENT
from whence.attention.fused import tile_configs
from whence.attention.layout import Layout
from whence.position.base import Position


def slope_per_head(position: Position, layout: Layout, heads: int) -> Tensor | None:
    """``[H]``, if the only score effect is a bias of slope * distance and no distance is negative; else None.

    The kernels add the slope along queries and along keys separately, which costs float32 its last two digits.
    """
    active = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if len(active) != 1 or "score_scale" in active[0].effects or not layout.causal:
        return None
    slope = active[0].bias_slope()
    return None if slope is None else slope.float().reshape(-1).expand(heads)


def slope_for_kernels(call: Call, *, skips_blocks: bool) -> Tensor | None:
    """``slope_per_head`` of a call, where the kernels take it and a table is not faster; see ``is_faster_as_table``."""
    position, layout = call.position, call.layout
    # float32 would lose digits, and sums of weights need the whole logits of a tile
    if call.q.dtype == torch.float32 or "value_bias" in position.effects:
        return None
    slope = slope_per_head(position, layout, call.q.shape[1])
    if slope is None:
        return None
    others = position.effects & ({"sink", "clock"} | CONTENT)
    fits = layout.plain and layout.offset == 0 and not others and not skips_blocks and _sums_by_parameter(position)
    table = fits and is_faster_as_table(
        call.q, call.k, call.v, causal=layout.causal, window=layout.window, dropout=call.dropout, scale=call.scale
    )
    return None if table else slope


def _sums_by_parameter(position: Position) -> bool:
    """Whether kernels sum the gradient of a table by parameter, as they do for a slope, and not by distance."""
    part = next(part for part in position.parts if "bias" in part.effects)
    return not part.trainable or type(part).parameter_gradients is not Position.parameter_gradients


def is_faster_as_table(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int | None, dropout: float, scale: float
) -> bool:
    """Whether the warp-specialised kernels, which take tables alone, are faster than those that take slopes, for whole sequences
    without padding and segments.

    With 64 dimensions only where heads share keys: there the other kernel of dk and dv is slow. The rules are those of
    ``gluon_launch.covers``, which imports triton.
    """
    batch, heads, q_len, head_dim = q.shape
    if not causal or window is not None or dropout or scale <= 0:
        return False
    if q.dtype == torch.float32 or q_len != k.shape[2] or v.shape[3] != head_dim:
        return False
    if head_dim != 128 and (head_dim != 64 or k.shape[1] == heads):
        return False
    # the device first: a compiled call guards the lengths that decide
    return has_specialized_kernels(q.device) and batch * heads * q_len * q_len > tile_configs.FEW_PAIRS


def has_specialized_kernels(device: torch.device) -> bool:
    from whence.attention.fused import gluon_launch  # imports triton

    return gluon_launch.is_available(device)


# see backend.gpu_limits
has_specialized_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
