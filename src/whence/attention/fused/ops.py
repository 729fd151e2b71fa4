"""The fused attention as torch operators with gradients; the kernels are imported when one runs.

The operators are defined by hand rather than through ``torch.library.custom_op``: its wrappers around every call cost
as much time on the host as a short sequence costs on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.attention.fused.memory import MARGIN, aligned, empty_out, line

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? factor, Tensor? bias, Tensor? slope, Tensor? sink, Tensor? numbers, "
    "Tensor[] rates, Tensor? real, Tensor? q_documents, Tensor? k_documents, Tensor? decay, int factor_rates, bool amplitude, "
    "SymInt first, SymInt offset, bool causal, SymInt? window, float scale, float temperature, float dropout, "
    "Tensor? seed, bool skip"
)
LEARNT = slice(3, 8)  # factor, bias, slope, sink and numbers, among the arguments
TENSORS = 13  # arguments up to the decay; the rest are plain settings

library = torch.library.Library("whence", "FRAGMENT")
library.define(f"fused({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
library.define(
    f"fused_backward(Tensor grad, Tensor out, Tensor lse, Tensor reach, Tensor table, {_ARGUMENTS}, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def fused(*arguments: Any) -> Tensor:
    """The output ``[B, H, T, E]``; see the operator's schema for the arguments."""
    return torch.ops.whence.fused.default(*arguments)[0]


# --- on the device -------------------------------------------------------------------------------------------------


def _work(arguments: tuple[Any, ...], table: Tensor | None = None) -> Any:
    from whence.attention.fused.call import Effects, Settings
    from whence.attention.fused.launch import Work

    q, k, v, factor, bias, slope, sink, _, _, real, q_docs, k_docs, decay = arguments[:TENSORS]
    _, _, first, offset, causal, window, scale, temperature, dropout, seed, skip = arguments[TENSORS:]
    settings = Settings(
        first, offset, causal, window, scale, temperature, dropout, 0 if seed is None else int(seed), skip
    )
    effects = Effects(factor, bias, slope, decay, sink, real, q_docs, k_docs)
    return Work(aligned(q), aligned(k), aligned(v), effects, settings, table)


def _fit(x: Tensor, target: Tensor) -> Tensor:
    """What was computed from a copy that fits the copy engine, in the shape and order of the original."""
    return target.copy_(x[..., : target.shape[-1]])


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output; each row's normaliser in units of log 2; how far each head had to look (empty: everywhere); the table
    in the kernels' units."""
    q, v = arguments[0], arguments[2]
    with torch.cuda.device_of(q):  # kernels go to the current device, which need not be where q is
        work = _work(arguments)
        out, lse, reach = work.forward()
    if work.q is not q or work.v is not v:
        out = _fit(out, empty_out(q, v))
    return out, lse, reach, work.table


def _backward(grad: Tensor, out: Tensor, lse: Tensor, reach: Tensor, table: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, factor, bias, slope, sink and numbers; empty where none is wanted."""
    from whence.attention.fused.launch import LOG2E

    *given, wanted = rest
    arguments = tuple(given)
    q, k, v, factor, bias, slope, sink, numbers, rates = arguments[:9]
    factor_rates, amplitude = arguments[TENSORS : TENSORS + 2]
    want_factor, want_bias, want_slope, want_sink, few = wanted
    with torch.cuda.device_of(q):
        work = _work(arguments, table)
        dq, dk, dv, delta, sums, d_factor, d_bias = work.backward(
            aligned(grad), aligned(out), lse, reach, list(rates) if few else [], factor_rates if few else 0,
            amplitude and few, (want_factor, want_bias), want_slope, torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
    s = work.settings
    d_slope, d_sink, d_numbers = (lse.new_empty(0) for _ in range(3))  # an operator's answers may not be one tensor
    if want_slope:
        d_slope = (sums[:, 4] / s.temperature).to(slope.dtype)
    if want_sink:
        rows = slice(sink.shape[2])
        share = torch.exp2(sink * (LOG2E / s.temperature) - lse[:, :, rows])
        d_sink = share.mul_(-delta[:, :, rows]).div_(s.temperature).to(sink.dtype).contiguous()
    if few:
        d_numbers = sums[:, : len(rates)] / s.temperature
        if factor_rates:
            d_numbers[:, :factor_rates] *= s.scale
        if amplitude:
            d_numbers = torch.cat([d_numbers, sums[:, 5:6] / numbers[:, -1:]], -1)
        d_numbers = d_numbers.to(numbers.dtype)
    tables = (
        lse.new_empty(0) if d is None else d.to(t.dtype).contiguous() for d, t in ((d_factor, factor), (d_bias, bias))
    )
    three = ((dq, work.q, q), (dk, work.k, k), (dv, work.v, v))
    dq, dk, dv = (d if used is x else _fit(d, torch.empty_like(x)) for d, used, x in three)
    return dq, dk, dv, *tables, d_slope, d_sink, d_numbers


# --- shapes, for tracing -------------------------------------------------------------------------------------------


def _forward_shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, v, factor, bias, slope, skip = arguments[0], *arguments[2:6], arguments[-1]
    skips = skip and (bias is not None or slope is not None)
    reach = q.new_empty(2 * q.shape[1] + 1 if skips else 0, dtype=torch.int32)
    lse = q.new_empty(*q.shape[:2], line(q.shape[2]), dtype=torch.float32)
    present = [t for t in (factor, bias) if t is not None]
    size = (q.shape[1], present[0].shape[1] + 2 * MARGIN, len(present)) if present else (0,)
    return empty_out(q, v), lse, reach, q.new_empty(size, dtype=torch.float32)


def _backward_shapes(
    grad: Tensor, out: Tensor, lse: Tensor, reach: Tensor, table: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    q, k, v = rest[:3]
    pairs = zip(rest[LEARNT], rest[-1], strict=True)
    found = [t.new_empty(t.shape) if want else lse.new_empty(0) for t, want in pairs]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *found


# --- gradients -----------------------------------------------------------------------------------------------------


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        count = len(arguments) - TENSORS - 10
        rates, arguments = list(arguments[-count:]) if count else [], arguments[: TENSORS + 10]
        whole = (*arguments[:8], rates, *arguments[8:])
        with torch._C._AutoDispatchBelowAutograd():
            answers = torch.ops.whence.fused.default(*whole)
        ctx.plain = whole[TENSORS:-2], whole[-1]
        ctx.count = count
        ctx.save_for_backward(*whole[:8], *whole[9:TENSORS], whole[-2], *rates, *answers)
        ctx.wanted = list(ctx.needs_input_grad[LEARNT])
        ctx.mark_non_differentiable(*answers[1:])
        ctx.set_materialize_grads(False)
        return answers

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        nothing = [None] * (TENSORS + 10 + ctx.count)
        if grad is None:
            return tuple(nothing)
        saved = ctx.saved_tensors
        rates, (out, lse, reach, table) = list(saved[13 : 13 + ctx.count]), saved[13 + ctx.count :]
        settings, skip = ctx.plain
        results = torch.ops.whence.fused_backward.default(
            grad, out, lse, reach, table, *saved[:8], rates, *saved[8:12], *settings, saved[12], skip, ctx.wanted
        )
        learnt = [r if want else None for r, want in zip(results[3:], ctx.wanted, strict=True)]
        return (*results[:3], *learnt, *nothing[8:])


def _with_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = (*arguments[:8], *arguments[8])
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        # tensors in a list would be invisible to autograd, so the rates go last, one by one
        return Fused.apply(*arguments[:8], *arguments[9:], *arguments[8])
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.whence.fused.default(*arguments)


class Once(torch.autograd.Function):
    """The backward operator in a graph of its own: it runs, and a second derivative through it is refused aloud."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.whence.fused_backward.default(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("whence's fused attention has no second derivative; use backend='reference', which has")


def _without_second_derivative(*arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        return Once.apply(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.whence.fused_backward.default(*arguments)


for _device in ("CPU", "CUDA"):
    library.impl("fused", _forward, _device)
    library.impl("fused_backward", _backward, _device)
library.impl("fused", _with_gradients, "Autograd")
library.impl("fused_backward", _without_second_derivative, "Autograd")
torch.library.register_fake("whence::fused", _forward_shapes, lib=library)
torch.library.register_fake("whence::fused_backward", _backward_shapes, lib=library)
