"""Fused attention as torch operators with gradients. The kernels are imported when an operator first runs.

The operators are registered directly and not through ``torch.library.custom_op``: its wrappers cost as much host time
per call as a short sequence costs on the device. A compiled graph calls them with tensors and numbers alone, so what they
work out once per signature is kept by their registration and not by a position; see ``OperatorFacts``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from whence.attention.fused.fused_call import (
    EFFECT_INPUTS,
    NUM_ARGUMENTS,
    NUM_DIFFERENTIABLE,
    NUM_TENSORS,
    SCHEMA,
    FusedCall,
)
from whence.attention.fused.packing import (
    AMPLITUDE_SLOT,
    NUM_SLOTS,
    SLOPE_SLOT,
    align,
    base_2_factor,
    empty_output,
    lse_shape,
)
from whence.shapes import require_one_device

if TYPE_CHECKING:
    from whence.attention.fused.descriptors import Descriptors
    from whence.attention.fused.device_call import CallFacts, DeviceCall

DEVICES = ("cpu", "cuda")
MAX_SIGNATURES = 256  # with more, lengths vary so much that a signature is seldom found again

library = torch.library.Library("whence", "FRAGMENT")
library.define(f"fused_attention({SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)")
# needed: whether gradients of table, slope, sink, parameters, the clocks at queries and keys and the content table are needed
library.define(
    "fused_attention_backward(Tensor grad_out, Tensor? grad_sums, Tensor out, Tensor lse, Tensor max_distance, "
    f"Tensor weight_sums, {SCHEMA}, bool[] needed)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def fused_attention(call: FusedCall) -> tuple[Tensor, Tensor]:
    """The output ``[B, H, T, E]``, and the sums of the weights by distance (empty: none)."""
    out, _, _, weight_sums = torch.ops.whence.fused_attention.default(*call.flatten())
    return out, weight_sums


# --- on the device -------------------------------------------------------------------------------------------------


class OperatorFacts:
    """Sizes and launches of the operator's calls by signature: everything that Triton compiles for. No tensor is kept."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], CallFacts] = {}
        self._descriptors: dict[tuple[Any, ...], Descriptors] = {}

    def descriptors(self, device: torch.device, build: Callable[..., Any]) -> Descriptors:
        """The one bounded store of TMA descriptors of a device, for the operator and all plans."""
        from whence.attention.fused.descriptors import Descriptors

        if (device, build) not in self._descriptors:
            self._descriptors[device, build] = Descriptors(device, build)
        return self._descriptors[device, build]

    def describe(self, call: FusedCall, arguments: tuple[Any, ...], unread: Tensor | None = None) -> DeviceCall:
        """The call on the device; ``arguments`` are its flat form. ``unread``: see ``DeviceCall``."""
        from whence.attention.fused import device_call

        key: list[Any] = [arguments[NUM_TENSORS:], call.q.device]
        for x in arguments[:NUM_TENSORS]:
            if x is None:
                key.append(None)
            else:
                key += (x.shape, x.stride(), x.dtype, x.data_ptr() % 16)
        if call.q.dtype is torch.float32:
            key.append(torch.backends.cuda.matmul.fp32_precision)
        signature = tuple(key)
        facts = self.kept.get(signature)
        if facts is not None:
            return device_call.DeviceCall(call, facts, unread)
        on_device = device_call.DeviceCall(call, None, unread)
        if len(self.kept) >= MAX_SIGNATURES:
            self.kept.clear()
        self.kept[signature] = on_device.facts
        return on_device


operator_facts = OperatorFacts()


def device_of(q: Tensor) -> AbstractContextManager[object]:
    """Kernels run on the current device, which may differ from that of q."""
    if q.device.type != "cuda" or torch._C._cuda_getDevice() == q.device.index:
        return nullcontext()
    return torch.cuda.device(q.device)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output; the base-2 log-sum-exp (see ``lse_shape``); the largest distance per head (empty: all distances); the sums of
    the weights by distance (empty: none)."""
    from whence.attention.fused import launch

    call = FusedCall.unflatten(arguments)
    with device_of(call.q):
        lse = call.q.new_empty(lse_shape(call.q, call.has_factors), dtype=torch.float32)
        on_device = operator_facts.describe(call, arguments, lse)
        out, max_distance, weight_sums = launch.forward(on_device, lse)
    if on_device.q is not call.q or on_device.v is not call.v:
        out = copy_into(empty_output(call.q, call.v), out)
    return out, lse, max_distance, weight_sums


def _backward(
    grad_out: Tensor, grad_sums: Tensor | None, out: Tensor, lse: Tensor, max_distance: Tensor, weight_sums: Tensor, *rest: Any
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v, table, sink, the clocks at queries and keys and the content table, and the sums from which
    ``_slope_and_parameter_gradients`` continues.

    Tensors that are not needed are empty.
    """
    from whence.attention.fused import launch

    *arguments, needed = rest
    call = FusedCall.unflatten(tuple(arguments))
    with device_of(call.q):
        on_device = operator_facts.describe(call, tuple(arguments), lse)
        selected = launch.select_gradients(call.effects, call.gradients, needed)
        dq, dk, dv, delta, sums, d_table, q_sums, k_sums, d_content = launch.backward(
            on_device, align(grad_out), grad_sums, align(out), lse, max_distance, weight_sums, selected
        )
    d_sink = lse.new_empty(0)
    sink, temperature = call.effects.sink, call.softmax.temperature
    if needed[2] and sink is not None:
        rows = slice(sink.shape[2])
        # beyond tile_ops.MAX_LSE, the division by the sum of the weights is in delta
        probability = torch.exp2(sink * base_2_factor(temperature) - lse[0, :, :, rows])
        d_sink = probability.mul_(-delta[:, :, rows]).div_(temperature).to(sink.dtype).contiguous()
    d_q_clock = _clock_gradient(q_sums, call.q.shape[2], temperature) if needed[4] else None
    d_k_clock = _clock_gradient(k_sums, call.k.shape[2], temperature) if needed[5] else None
    dq, dk, dv = restore_inputs((dq, dk, dv), on_device, call)
    others = (d_table, d_sink, d_q_clock, d_k_clock, d_content, sums)
    return dq, dk, dv, *(lse.new_empty(0) if x is None else x for x in others)


def _clock_gradient(sums: Tensor | None, length: int, temperature: float) -> Tensor | None:
    """The sums of kernels ``[B, H, padded_length]`` in the dtype of a clock."""
    if sums is None:
        return None
    gradient = sums[..., :length].double()
    return gradient if temperature == 1 else gradient.div_(temperature)


def restore_inputs(gradients: tuple[Tensor, ...], on_device: DeviceCall, call: FusedCall) -> tuple[Tensor, ...]:
    """The gradients of q, k and v in the shapes and strides of the inputs, where aligned copies took their place."""
    pairs = ((on_device.q, call.q), (on_device.k, call.k), (on_device.v, call.v))
    return tuple(
        d if used is x else copy_into(torch.empty_like(x), d) for d, (used, x) in zip(gradients, pairs, strict=True)
    )


def copy_into(target: Tensor, x: Tensor) -> Tensor:
    """Copy a result computed from an aligned copy into the shape and strides of the original."""
    return target.copy_(x[..., : target.shape[-1]])


# --- shapes, for tracing -------------------------------------------------------------------------------------------


def _forward_shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_one_device(*arguments[:NUM_TENSORS])
    call = FusedCall.unflatten(arguments)
    q, e = call.q, call.effects
    skips = call.mask.skip_blocks and (e.has_bias or e.slope is not None)
    max_distance = q.new_empty(2 * q.shape[1] + 1 if skips else 0, dtype=torch.int32)
    lse = q.new_empty(lse_shape(q, call.has_factors), dtype=torch.float32)
    weight_sums = lse.new_empty((*q.shape[:3], e.value_entries) if e.value_entries else 0)
    return empty_output(q, call.v), lse, max_distance, weight_sums


def _backward_shapes(
    grad_out: Tensor, grad_sums: Tensor | None, out: Tensor, lse: Tensor, max_distance: Tensor, weight_sums: Tensor, *rest: Any
) -> tuple[Tensor, ...]:  # fmt: skip
    *arguments, needed = rest
    table_needed, slope_needed, sink_needed, parameters_needed, q_clock_needed, k_clock_needed, content_needed = needed
    call = FusedCall.unflatten(tuple(arguments))
    content = call.effects.content_table
    q, table, sink, g = call.q, call.effects.table, call.effects.sink, call.gradients
    dense = table_needed and (g.dense_score_scale or g.dense_bias)
    d_table = table.new_empty(table.shape) if dense and table is not None else lse.new_empty(0)
    d_sink = sink.new_empty(sink.shape) if sink_needed and sink is not None else lse.new_empty(0)
    sums = lse.new_empty((q.shape[1], NUM_SLOTS) if slope_needed or parameters_needed else 0)
    if call.effects.num_knots >= 0 and parameters_needed and g.parameters is not None:
        sums = torch.empty_like(g.parameters)
    clocks = ((call.effects.q_clock, q_clock_needed), (call.effects.k_clock, k_clock_needed))
    d_clocks = (
        lse.new_empty(clock.shape, dtype=torch.float64) if needed and clock is not None else lse.new_empty(0)
        for clock, needed in clocks
    )
    d_content = lse.new_empty(content.shape if content_needed and content is not None else 0)
    three = (torch.empty_like(x) for x in (q, call.k, call.v))
    return *three, d_table, d_sink, *d_clocks, d_content, sums


# --- gradients -----------------------------------------------------------------------------------------------------


def run_below_autograd(operator: Any, implementation: Any, arguments: tuple[Any, ...], num_tensors: int) -> Any:
    """Run an operator, at once if nothing intercepts it: torch's dispatcher would convert all arguments a second time."""
    with torch._C._AutoDispatchBelowAutograd():
        return (implementation if _are_plain(arguments[:num_tensors]) else operator)(*arguments)


def _are_plain(tensors: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would call the implementation for these tensors: no mode, transform or wrapper is in the way."""
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    for x in tensors:
        if x is not None and (
            type(x) not in (Tensor, Parameter) or x.device.type not in DEVICES or x.is_neg() or x._is_zerotensor()
            or torch._is_functional_tensor(x)
        ):  # fmt: skip
            return False
    return True


def _compute(arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return run_below_autograd(torch.ops.whence.fused_attention.default, _forward, arguments, NUM_TENSORS)


def _compute_backward(arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    operator = torch.ops.whence.fused_attention_backward.default
    return run_below_autograd(operator, _backward, arguments, NUM_TENSORS + 6)


class FusedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        results = _compute(arguments)
        ctx.settings = arguments[NUM_TENSORS:]
        ctx.save_for_backward(*arguments[:NUM_TENSORS], *results)
        ctx.needed = list(ctx.needs_input_grad[EFFECT_INPUTS])
        ctx.mark_non_differentiable(*(results[1:3] if results[3].numel() else results[1:]))
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor | None, _lse: Any, _distance: Any, grad_sums: Tensor | None
    ) -> tuple[Any, ...]:
        if grad_out is None and grad_sums is None:
            return (None,) * NUM_ARGUMENTS
        saved = ctx.saved_tensors  # read once: activation checkpointing allows a single unpacking
        arguments, results = (*saved[:NUM_TENSORS], *ctx.settings), saved[NUM_TENSORS:]
        grad_out = torch.zeros_like(results[0]) if grad_out is None else grad_out
        dq, dk, dv, d_table, d_sink, d_q_clock, d_k_clock, d_content, sums = (
            torch.ops.whence.fused_attention_backward.default(grad_out, grad_sums, *results, *arguments, ctx.needed)
        )
        d_slope, d_parameters = _slope_and_parameter_gradients(sums, FusedCall.unflatten(arguments), ctx.needed)
        effects = zip(
            (d_table, d_slope, d_sink, d_parameters, d_q_clock, d_k_clock, d_content), ctx.needed, strict=True
        )
        none = (None,) * (NUM_ARGUMENTS - NUM_DIFFERENTIABLE)
        return (dq, dk, dv, *(gradient if needed else None for gradient, needed in effects), *none)


def _slope_and_parameter_gradients(
    sums: Tensor, call: FusedCall, needed: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of slope and parameters. Outside the operator, so that a compiler fuses these small operations."""
    slope, g, s = call.effects.slope, call.gradients, call.softmax
    d_slope = d_parameters = None
    if needed[1] and slope is not None:
        d_slope = (sums[:, SLOPE_SLOT] / s.temperature).to(slope.dtype)
    if needed[3] and call.effects.num_knots >= 0:
        d_parameters = sums
    elif needed[3] and g.parameters is not None:
        num_scale, num_bias = g.num_scale_derivatives, g.num_bias_derivatives
        columns = [
            sums[:, :num_scale] * (s.scale / s.temperature),
            sums[:, num_scale : num_scale + num_bias] / s.temperature,
        ]
        if g.has_amplitude:
            columns.append(sums[:, AMPLITUDE_SLOT : AMPLITUDE_SLOT + 1] / g.parameters[:, -1:])
        d_parameters = torch.cat([column for column in columns if column.shape[1]], -1).to(g.parameters.dtype)
    return d_slope, d_parameters


def _with_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in arguments[:NUM_TENSORS]):
        return FusedForward.apply(*arguments)
    return _compute(arguments)


class FusedBackward(torch.autograd.Function):
    """The backward operator inside autograd: a second derivative raises an error instead of being silently zero."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        return _compute_backward(arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("the triton backend has no second derivative; use backend='reference'")


def _without_second_derivative(*arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        return FusedBackward.apply(*arguments)
    return _compute_backward(arguments)


for _device in DEVICES:
    library.impl("fused_attention", _forward, _device.upper())
    library.impl("fused_attention_backward", _backward, _device.upper())
library.impl("fused_attention", _with_gradients, "Autograd")
library.impl("fused_attention_backward", _without_second_derivative, "Autograd")
torch.library.register_fake("whence::fused_attention", _forward_shapes, lib=library)
torch.library.register_fake("whence::fused_attention_backward", _backward_shapes, lib=library)
