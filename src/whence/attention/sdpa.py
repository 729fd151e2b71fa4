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
    if not has_bias and needs_no_mask(layout):
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
        bias = evaluate(position, "bias", layout.measured(dtype), q.shape[1], layout.length_of)
        assert bias is not None
        logits = (bias.transpose(0, 1) / temperature).masked_fill(~mask, -torch.inf)
        # a row's constant changes no weight, and around zero a narrow dtype keeps what matters
        top = logits.detach().amax(-1, keepdim=True)
        mask = (logits - top.masked_fill(torch.isinf(top), 0.0)).to(q.dtype)
        mask = mask.expand(q.shape[0], q.shape[1], -1, -1)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale / temperature, enable_gqa=grouped
    )
    return out.masked_fill(alone, 0.0)


def needs_no_mask(layout: Layout) -> bool:
    """Whether torch's kernel can do without a mask: everything is seen, or plain causality from the first token on."""
    square = layout.offset == 0 and layout.q_positions.shape[1] == layout.k_positions.shape[1]
    return layout.plain and layout.window is None and (not layout.causal or square)
