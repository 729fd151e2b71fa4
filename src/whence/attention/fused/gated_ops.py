"""Fused attention with score terms by gated counts (``Position.gated_bias_table``) as torch operators with gradients.

As for ``ops``, the kernels are imported when an operator first runs, and the operators are registered directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.attention.fused.fused_call import EffectGradients, FusedCall, Mask, ScoreEffects, Softmax
from whence.attention.fused.ops import (
    DEVICES,
    FusedBackward,
    copy_into,
    device_of,
    library,
    operator_facts,
    restore_inputs,
    run_below_autograd,
)
from whence.attention.fused.packing import align, empty_output, lse_shape
from whence.shapes import require_one_device

if TYPE_CHECKING:
    from whence.attention.fused.device_call import DeviceCall

SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor table, Tensor? key_mask, Tensor? q_segment_ids, Tensor? k_segment_ids, "
    "SymInt q_offset, bool causal, SymInt? window, float scale, float temperature"
)
NUM_TENSORS = 7
NUM_ARGUMENTS = SCHEMA.count(",") + 1

library.define(f"gated_attention({SCHEMA}) -> (Tensor, Tensor, Tensor)")
library.define(
    f"gated_attention_backward(Tensor grad_out, Tensor out, Tensor lse, Tensor clamped, {SCHEMA})"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


def gated_attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor, mask: Mask, softmax: Softmax) -> Tensor:
    """The output ``[B, H, T, E]``; ``table`` ``[B, H, T, n]`` holds each query's terms at the counts 0 to n - 1, in float32."""
    return torch.ops.whence.gated_attention.default(
        q, k, v, table, mask.key_mask, mask.q_segment_ids, mask.k_segment_ids, mask.q_offset, mask.causal, mask.window,
        softmax.scale, softmax.temperature,
    )[0]  # fmt: skip


def _describe(arguments: tuple[Any, ...]) -> tuple[FusedCall, DeviceCall]:
    """The call, and the same on the device, without the table."""
    q, k, v, _, key_mask, q_segment_ids, k_segment_ids, q_offset, causal, window, scale, temperature = arguments
    call = FusedCall(
        q, k, v,
        ScoreEffects(None, False, False, 0, -1, None, None, None, None, None),
        EffectGradients(False, False, None, None, 0, 0, False),
        Mask(q_offset, causal, window, key_mask, q_segment_ids, k_segment_ids, False),
        Softmax(scale, temperature, 0.0, None),
    )  # fmt: skip
    return call, operator_facts.describe(call, call.flatten())


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the base-2 log-sum-exp, and for each query the number of keys that have the last count."""
    from whence.attention.fused import gated_launch

    with device_of(arguments[0]):
        call, on_device = _describe(arguments)
        out, lse, clamped = gated_launch.forward(on_device, arguments[3].contiguous())
    if on_device.q is not call.q or on_device.v is not call.v:
        out = copy_into(empty_output(call.q, call.v), out)
    return out, lse, clamped


def _backward(grad_out: Tensor, out: Tensor, lse: Tensor, clamped: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and the table."""
    from whence.attention.fused import gated_launch

    with device_of(arguments[0]):
        call, on_device = _describe(arguments)
        table = arguments[3].contiguous()
        dq, dk, dv, d_table = gated_launch.backward(on_device, table, align(grad_out), align(out), lse, clamped)
    return *restore_inputs((dq, dk, dv), on_device, call), d_table


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device(q, k, v, *others[: NUM_TENSORS - 3])
    lse = q.new_empty(lse_shape(q, False), dtype=torch.float32)
    return empty_output(q, v), lse, torch.empty_like(lse, dtype=torch.int32)


def _backward_shapes(
    grad_out: Tensor, out: Tensor, lse: Tensor, clamped: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return *(torch.empty_like(x) for x in (q, k, v)), table.new_empty(table.shape)


def _compute(arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return run_below_autograd(torch.ops.whence.gated_attention.default, _forward, arguments, NUM_TENSORS)


class GatedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, lse, clamped = _compute(arguments)
        ctx.settings = arguments[NUM_TENSORS:]
        ctx.save_for_backward(*arguments[:NUM_TENSORS], out, lse, clamped)
        ctx.mark_non_differentiable(lse, clamped)
        ctx.set_materialize_grads(False)
        return out, lse, clamped

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * NUM_ARGUMENTS
        saved = ctx.saved_tensors  # read once: activation checkpointing allows a single unpacking
        arguments, results = (*saved[:NUM_TENSORS], *ctx.settings), saved[NUM_TENSORS:]
        gradients = torch.ops.whence.gated_attention_backward.default(grad_out, *results, *arguments)
        return (*gradients, *(None,) * (NUM_ARGUMENTS - len(gradients)))


class GatedBackward(FusedBackward):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        operator = torch.ops.whence.gated_attention_backward.default
        return run_below_autograd(operator, _backward, arguments, NUM_TENSORS + 4)


def _with_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in arguments[:NUM_TENSORS]):
        return GatedForward.apply(*arguments)
    return _compute(arguments)


def _without_second_derivative(*arguments: Any) -> tuple[Tensor, ...]:
    return GatedBackward.apply(*arguments)


for _device in DEVICES:
    library.impl("gated_attention", _forward, _device.upper())
    library.impl("gated_attention_backward", _backward, _device.upper())
library.impl("gated_attention", _with_gradients, "Autograd")
library.impl("gated_attention_backward", _without_second_derivative, "Autograd")
torch.library.register_fake("whence::gated_attention", _forward_shapes, lib=library)
torch.library.register_fake("whence::gated_attention_backward", _backward_shapes, lib=library)
