"""Torch's own fused attention, for what it already does: no score effect, or a bias small enough to be a dense mask."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.attention.layout import Layout
from whence.position.base import Position
from whence.position.grid import evaluate


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    position: Position,
    layout: Layout,
    scale: float,
    temperature: float,
    dropout: float,
) -> Tensor:
    """The output ``[B, H, T, E]``; the mask holds causality, window, padding, documents and the bias."""
    grouped = q.shape[1] != k.shape[1]
    has_bias = "bias" in position.effects
    square = layout.offset == 0 and q.shape[2] == k.shape[2]
    if not has_bias and layout.plain and layout.window is None and (not layout.causal or square):
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=layout.causal, scale=scale / temperature, enable_gqa=grouped
        )
    visible = layout.visible()[:, None]
    alone = ~visible.any(
        -1, keepdim=True
    )  # torch's kernels differ on rows that see nothing: let them see, then zero them
    mask: Tensor = visible | alone
    if has_bias:
        dtype = torch.promote_types(q.dtype, torch.float32)
        bias = evaluate(position, "bias", layout.distance().to(dtype), q.shape[1], layout.length_of)
        assert bias is not None
        mask = (bias.transpose(0, 1) / temperature).masked_fill(~mask, -torch.inf).to(q.dtype)
        mask = mask.expand(q.shape[0], q.shape[1], -1, -1)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale / temperature, enable_gqa=grouped
    )
    return out.masked_fill(alone, 0.0)
