"""The specification: dense attention in plain operations. Fast backends are compared with it and never import it.

logit   = ((scale * q.k + content_bias) * score_scale + bias + C_i - C_j + attn_mask) / temperature    for visible keys
weights = softmax over the visible keys and the sink, if there is one; a row without visible keys is zero
out     = weights @ v + value_bias
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whence.attention.backends import Backend, register_backend
from whence.attention.call import Call, Request, build_rows
from whence.position.evaluate import evaluate, evaluate_content_bias, evaluate_value_bias
from whence.position.hook_types import Rows


class Reference(Backend):
    """Dense attention for every mechanism, device and dtype."""

    name = "reference"
    effects = frozenset({"score_scale", "bias", "content_bias", "value_bias", "sink", "clock"})
    returns_weights = True
    takes_masks = True
    takes_dropout = True
    takes_grouped_heads = True
    memory = "quadratic in length"
    devices = "CPU, GPU"
    dtypes = "fp64, fp32, fp16, bf16"
    gradients = "q, k, v and every parameter, of any order"
    tracing = "compile, export, ONNX"
    purpose = "the specification, dense; inspection and export"

    def priority(self, request: Request) -> int:
        return 10

    def reason(self, request: Request) -> str:
        if request.return_weights:
            return "return_weights=True needs the dense computation, which forms the weights"
        return "no faster backend supports this call"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output ``[B, H, T, E]`` and the weights ``[B, H, T, S]`` (before dropout), in at least float32."""
        logits, rows = compute_logits(call)
        alone = torch.isneginf(logits).all(-1, keepdim=True)  # a row without visible keys
        weights = torch.softmax(logits.masked_fill(alone, 0.0), -1).masked_fill(alone, 0.0)
        if "sink" in call.position.effects:
            weights = weights[..., :-1]

        dropped = torch.nn.functional.dropout(weights, call.dropout) if call.dropout > 0 else weights
        out = dropped @ call.v.to(rows.q.dtype).repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)
        more = evaluate_value_bias(call.position, dropped, rows, tuple(out.shape))
        return (out if more is None else out + more), weights if call.return_weights else None


class Logits(NamedTuple):
    """What the softmax turns into weights, and the rows they belong to."""

    logits: Tensor  # [B, H, T, S], or S + 1 with the sink last; -inf where a key is not visible
    rows: Rows


def compute_logits(call: Call) -> Logits:
    """The logits of all queries and keys, in at least float32."""
    position, layout, temperature = call.position, call.layout, call.temperature
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    heads, group = call.q.shape[1], call.q.shape[1] // call.k.shape[1]
    q, k = call.q.to(dtype), call.k.to(dtype).repeat_interleave(group, 1)

    visible = layout.visible()
    distance = layout.hook_distances(dtype)
    scores = call.scale * (q @ k.transpose(-1, -2))
    rows = build_rows(call, q, k, scores, visible)

    term = evaluate_content_bias(position, rows)
    logits = scores if term is None else scores + term
    score_scale = evaluate(position, "score_scale", distance, heads, layout.length_of)
    if score_scale is not None:
        logits = logits * score_scale.transpose(0, 1)
    bias = evaluate(position, "bias", distance, heads, layout.length_of)
    if bias is not None:
        logits = logits + bias.transpose(0, 1)
    if call.clock is not None:
        logits = logits + call.clock.bias(dtype)
    mask = layout.additive_mask(dtype)
    if mask is not None:
        logits = logits + mask
    logits = (logits / temperature).masked_fill(~visible, -torch.inf)

    places = layout.q_positions.to(dtype)[..., None]
    sink = evaluate(position, "sink", places, heads, layout.length_of, temperature=temperature)
    if sink is not None:
        extra = (sink / temperature).transpose(0, 1).expand(q.shape[0], heads, -1, -1)
        logits = torch.cat([logits, extra], -1)
    return Logits(logits, rows)


register_backend(Reference())
