"""The specification: dense attention, read from top to bottom. Fast backends are held against it and never import it.

logit   = ((scale * q.k + content) * factor + bias) / temperature    for visible keys
weights = softmax over visible keys and the sink, if there is one; a row that sees nothing is zero
out     = weights @ v + values
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whence.attention.layout import Layout
from whence.position.base import Position, Rows
from whence.position.evaluate import evaluate, evaluate_content_bias, evaluate_value_bias


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
    found = logits_of(q, k, position=position, layout=layout, scale=scale, temperature=temperature)
    logits, rows = found.logits, found.rows
    alone = torch.isneginf(logits).all(-1, keepdim=True)  # a row that sees nothing
    weights = torch.softmax(logits.masked_fill(alone, 0.0), -1).masked_fill(alone, 0.0)
    if "sink" in position.effects:
        weights = weights[..., :-1]

    kept = torch.nn.functional.dropout(weights, dropout) if dropout > 0 else weights
    out = kept @ v.to(rows.q.dtype).repeat_interleave(q.shape[1] // k.shape[1], 1)
    more = evaluate_value_bias(position, kept, rows, tuple(out.shape))
    return (out if more is None else out + more), weights


class Logits(NamedTuple):
    """What a softmax turns into weights, and the rows they belong to."""

    logits: Tensor  # [B, H, T, S], or S + 1 with a sink in the last place; -inf where a key is not seen
    rows: Rows


def logits_of(q: Tensor, k: Tensor, *, position: Position, layout: Layout, scale: float, temperature: float) -> Logits:
    """The logits of all queries and keys, in at least float32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    q, k = q.to(dtype), k.to(dtype).repeat_interleave(group, 1)

    visible = layout.visible()[:, None]
    distance = layout.measured(dtype)
    scores = scale * (q @ k.transpose(-1, -2))
    rows = Rows(q, k, scores, layout.q_positions, layout.k_positions, visible, scale)

    term = evaluate_content_bias(position, rows)
    logits = scores if term is None else scores + term
    score_scale = evaluate(position, "score_scale", distance, heads, layout.length_of)
    if score_scale is not None:
        logits = logits * score_scale.transpose(0, 1)
    bias = evaluate(position, "bias", distance, heads, layout.length_of)
    if bias is not None:
        logits = logits + bias.transpose(0, 1)
    logits = (logits / temperature).masked_fill(~visible, -torch.inf)

    sink = evaluate(position, "sink", layout.q_positions.to(dtype)[..., None], heads, layout.length_of)
    if sink is not None:
        extra = (sink / temperature).transpose(0, 1).expand(q.shape[0], heads, -1, -1)
        logits = torch.cat([logits, extra], -1)
    return Logits(logits, rows)
