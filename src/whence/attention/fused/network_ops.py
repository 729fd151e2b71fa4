"""Fused attention with a network over heads (``Position.head_network``) as torch operators with gradients.

As for ``ops``, the kernels are imported when an operator first runs, and the operators are registered directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

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
from whence.attention.fused.packing import align, empty_output, next_power_of_two
from whence.shapes import require_one_device

if TYPE_CHECKING:
    from whence.attention.fused.device_call import DeviceCall
    from whence.attention.fused.network_launch import Network

SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor first, Tensor last, Tensor of_hidden, Tensor of_logits, Tensor? key_mask, "
    "Tensor? q_segment_ids, Tensor? k_segment_ids, SymInt q_offset, bool causal, SymInt? window, float scale, "
    "float temperature, SymInt first_distance, float negative_slope"
)
NUM_DIFFERENTIABLE, NUM_TENSORS = 7, 10
NUM_ARGUMENTS = SCHEMA.count(",") + 1

library.define(f"network_attention({SCHEMA}) -> (Tensor, Tensor, Tensor)")
library.define(
    f"network_attention_backward(Tensor grad_out, Tensor out, Tensor top, Tensor total, {SCHEMA}, bool learns)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def network_attention(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, last: Tensor, tables: tuple[Tensor, Tensor], first_distance: int,
    negative_slope: float, mask: Mask, softmax: Softmax,
) -> Tensor:  # fmt: skip
    """The output ``[B, H, T, E]``.

    ``first`` ``[hidden, H]`` reads the scores and ``last`` ``[H, hidden]`` follows; ``tables`` are those of
    ``HeadNetwork.tables`` at consecutive distances from ``first_distance``.
    """
    hidden, heads = (max(16, next_power_of_two(n)) for n in first.shape)
    network = (
        _pad(first.float().T, heads, hidden), _pad(last.float().T, hidden, heads),
        _pad(tables[0], None, hidden), _pad(tables[1], None, heads),
    )  # fmt: skip
    return torch.ops.whence.network_attention.default(
        q, k, v, *network, mask.key_mask, mask.q_segment_ids, mask.k_segment_ids, mask.q_offset, mask.causal, mask.window,
        softmax.scale, softmax.temperature, first_distance, negative_slope,
    )[0]  # fmt: skip


def _pad(x: Tensor, rows: int | None, columns: int) -> Tensor:
    """A matrix with zeros up to a size, contiguous. Autograd leaves the padding out of its gradient."""
    return pad(x, (0, columns - x.shape[1], 0, 0 if rows is None else rows - x.shape[0])).contiguous()


def _describe(arguments: tuple[Any, ...]) -> tuple[FusedCall, DeviceCall, Network]:
    """The call, the same on the device, and the network."""
    from whence.attention.fused.network_launch import Network

    q, k, v, first, last, of_hidden, of_logits, key_mask, q_segment_ids, k_segment_ids, *numbers = arguments
    q_offset, causal, window, scale, temperature, first_distance, negative_slope = numbers
    layers, tables = (first.contiguous(), last.contiguous()), (of_hidden.contiguous(), of_logits.contiguous())
    call = FusedCall(
        q, k, v,
        ScoreEffects(None, False, False, 0, -1, None, None, None, None, None),
        EffectGradients(False, False, None, None, 0, 0, False),
        Mask(q_offset, causal, window, key_mask, q_segment_ids, k_segment_ids, False),
        Softmax(scale, temperature, 0.0, None),
    )  # fmt: skip
    on_device = operator_facts.describe(call, call.flatten())
    return call, on_device, Network(*layers, *tables, first_distance, negative_slope)


def _split_batch(arguments: tuple[Any, ...]) -> list[tuple[slice, tuple[Any, ...]]]:
    """Sequences that are computed together, so that a block of rows has enough of them; and their arguments."""
    from whence.attention.fused.network_launch import MAX_SCORES, MIN_ROWS

    q, k = arguments[:2]
    batch = q.shape[0]
    together = max(1, MAX_SCORES // max(1, q.shape[1] * k.shape[2] * MIN_ROWS))
    parts = []
    for start in range(0, max(1, batch), together):
        rows = slice(start, min(batch, start + together))
        tensors = (*(x[rows] for x in arguments[:3]), *arguments[3:NUM_DIFFERENTIABLE])
        masks = (x if x is None or x.shape[0] != batch else x[rows] for x in arguments[NUM_DIFFERENTIABLE:NUM_TENSORS])
        parts.append((rows, (*tensors, *masks, *arguments[NUM_TENSORS:])))
    return parts


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and for each row its largest base-2 logit and the sum of the exponentials."""
    from whence.attention.fused import network_launch

    with device_of(arguments[0]):
        results = []
        for _, part in _split_batch(arguments):
            call, on_device, network = _describe(part)
            out, top, total = network_launch.forward(on_device, network)
            if on_device.q is not call.q or on_device.v is not call.v:
                out = copy_into(empty_output(call.q, call.v), out)
            results.append((out, top, total))
        if len(results) == 1:
            return results[0]
        whole = _forward_shapes(*arguments)
        for x, parts in zip(whole, zip(*results, strict=True), strict=True):
            torch.cat(parts, out=x) if x.is_contiguous() else x.copy_(torch.cat(parts))
    return whole


def _backward(grad_out: Tensor, out: Tensor, top: Tensor, total: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, the layers and the tables; those of layers and tables are empty if they do not learn."""
    from whence.attention.fused import network_launch

    *arguments, learns = rest
    results = []
    with device_of(arguments[0]):
        for rows, part in _split_batch(tuple(arguments)):
            call, on_device, network = _describe(part)
            statistics = (top, total)
            if rows.stop - rows.start < top.shape[0]:  # a slice may begin where Triton would compile another kernel
                statistics = (top[rows].clone(), total[rows].clone())
            of_rows = (align(grad_out[rows]), align(out[rows]), *statistics)
            dq, dk, dv, *sums = network_launch.backward(on_device, network, *of_rows, learns)
            results.append((*restore_inputs((dq, dk, dv), on_device, call), *sums))
    if len(results) == 1:
        return results[0]
    columns = [*zip(*results, strict=True)]
    joined = (torch.empty_like(x).copy_(torch.cat(d)) for x, d in zip(arguments[:3], columns, strict=False))
    return *joined, *(torch.stack(x).sum(0) for x in columns[3:])


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device(q, k, v, *others[: NUM_TENSORS - 3])
    top = q.new_empty(q.shape[:3], dtype=torch.float32)
    return empty_output(q, v), top, torch.empty_like(top)


def _backward_shapes(
    grad_out: Tensor, out: Tensor, top: Tensor, total: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    network, learns = rest[: NUM_DIFFERENTIABLE - 3], rest[-1]
    return *(torch.empty_like(x) for x in (q, k, v)), *(x.new_empty(x.shape if learns else 0) for x in network)


def _compute(arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return run_below_autograd(torch.ops.whence.network_attention.default, _forward, arguments, NUM_TENSORS)


class NetworkForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, top, total = _compute(arguments)
        ctx.settings = arguments[NUM_TENSORS:]
        ctx.save_for_backward(*arguments[:NUM_TENSORS], out, top, total)
        ctx.learns = any(ctx.needs_input_grad[3:NUM_DIFFERENTIABLE])
        ctx.mark_non_differentiable(top, total)
        ctx.set_materialize_grads(False)
        return out, top, total

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * NUM_ARGUMENTS
        saved = ctx.saved_tensors  # read once: activation checkpointing allows a single unpacking
        arguments, results = (*saved[:NUM_TENSORS], *ctx.settings), saved[NUM_TENSORS:]
        dq, dk, dv, *others = torch.ops.whence.network_attention_backward.default(
            grad_out, *results, *arguments, ctx.learns
        )
        others = others if ctx.learns else [None] * len(others)
        return (dq, dk, dv, *others, *(None,) * (NUM_ARGUMENTS - NUM_DIFFERENTIABLE))


class NetworkBackward(FusedBackward):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        operator = torch.ops.whence.network_attention_backward.default
        return run_below_autograd(operator, _backward, arguments, NUM_TENSORS + 4)


def _with_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in arguments[:NUM_TENSORS]):
        return NetworkForward.apply(*arguments)
    return _compute(arguments)


def _without_second_derivative(*arguments: Any) -> tuple[Tensor, ...]:
    return NetworkBackward.apply(*arguments)


for _device in DEVICES:
    library.impl("network_attention", _forward, _device.upper())
    library.impl("network_attention_backward", _backward, _device.upper())
library.impl("network_attention", _with_gradients, "Autograd")
library.impl("network_attention_backward", _without_second_derivative, "Autograd")
torch.library.register_fake("whence::network_attention", _forward_shapes, lib=library)
torch.library.register_fake("whence::network_attention_backward", _backward_shapes, lib=library)
