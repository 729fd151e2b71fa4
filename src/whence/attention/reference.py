"""The specification: dense attention, read from top to bottom. Fast backends are held against it and never import it.

logit   = ((scale * q.k + content) * factor + bias) / temperature    for visible keys
weights = softmax over visible keys and the sink, if there is one; a row that sees nothing is zero
out     = weights @ v + values
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention.layout import Layout
from whence.position.base import Position, Rows
from whence.position.grid import content, evaluate, values


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
) -> tuple[Tensor, Tensor]:
    """The output ``[B, H, T, E]`` and the weights ``[B, H, T, S]`` (before dropout), in at least float32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    q, k, v = (x.to(dtype) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    visible = layout.visible()[:, None]
    distance = layout.measured(dtype)
    scores = scale * (q @ k.transpose(-1, -2))
    rows = Rows(q, k, scores, layout.q_positions, layout.k_positions, visible, scale)

    term = content(position, rows)
    logits = scores if term is None else scores + term
    factor = evaluate(position, "factor", distance, heads, layout.length_of)
    if factor is not None:
        logits = logits * factor.transpose(0, 1)
    bias = evaluate(position, "bias", distance, heads, layout.length_of)
    if bias is not None:
        logits = logits + bias.transpose(0, 1)
    logits = (logits / temperature).masked_fill(~visible, -torch.inf)

    sink = evaluate(position, "sink", layout.q_positions.to(dtype)[..., None], heads, layout.length_of)
    if sink is not None:
        extra = (sink / temperature).transpose(0, 1).expand(q.shape[0], heads, -1, -1)
        logits = torch.cat([logits, extra], -1)
    alone = torch.isneginf(logits).all(-1, keepdim=True)  # a row that sees nothing
    weights = torch.softmax(logits.masked_fill(alone, 0.0), -1).masked_fill(alone, 0.0)
    if sink is not None:
        weights = weights[..., :-1]

    kept = torch.nn.functional.dropout(weights, dropout) if dropout > 0 else weights
    out = kept @ v
    more = values(position, kept, rows, tuple(out.shape))
    return (out if more is None else out + more), weights
