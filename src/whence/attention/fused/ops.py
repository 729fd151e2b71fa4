"""The fused attention as torch operators with gradients; the kernels are imported when one runs.

The operators are defined by hand rather than through ``torch.library.custom_op``: its wrappers around every call cost
as much time on the host as a short sequence costs on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.attention.fused.packing import AMPLITUDE, LOG2E, NUMBERS, SLOPE, aligned, empty_out, line

# table and rates are packed; of each, how many columns belong to the factor and how many to the bias, and for which
# columns of the table a gradient is wanted, if for any
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? table, Tensor? slope, Tensor? sink, Tensor? numbers, Tensor? rates, "
    "Tensor? real, Tensor? q_segment_ids, Tensor? k_segment_ids, Tensor? decay, Tensor? seed, bool[] held, bool[] dense, "
    "int[] rate_counts, bool amplitude, SymInt first, SymInt offset, bool causal, SymInt? window, float scale, "
    "float temperature, float dropout, bool skip"
)
LEARNT = slice(3, 7)  # table, slope, sink and numbers, among the arguments
TENSORS = 13  # arguments up to the seed; the rest are plain settings

library = torch.library.Library("whence", "FRAGMENT")
library.define(f"fused({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
library.define(
    f"fused_backward(Tensor grad, Tensor out, Tensor lse, Tensor reach, {_ARGUMENTS}, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def fused(*arguments: Any) -> Tensor:
    """The output ``[B, H, T, E]``; see the operator's schema for the arguments."""
    return torch.ops.whence.fused.default(*arguments)[0]


# --- on the device -------------------------------------------------------------------------------------------------


def _work(arguments: tuple[Any, ...]) -> Any:
    from whence.attention.fused.call import Effects, Settings
    from whence.attention.fused.launch import Work

    q, k, v, table, slope, sink, _, _, real, q_segments, k_segments, decay, seed, held = arguments[: TENSORS + 1]
    first, offset, causal, window, scale, temperature, dropout, skip = arguments[TENSORS + 4 :]
    settings = Settings(
        first, offset, causal, window, scale, temperature, dropout, 0 if seed is None else int(seed), skip
    )
    score_scale, bias = held
    table = None if table is None else table.contiguous()  # a compiler may have laid it out otherwise
    effects = Effects(table, score_scale, bias, slope, decay, sink, real, q_segments, k_segments)
    return Work(aligned(q), aligned(k), aligned(v), effects, settings)


def _fit(x: Tensor, target: Tensor) -> Tensor:
    """What was computed from a copy that fits the copy engine, in the shape and order of the original."""
    return target.copy_(x[..., : target.shape[-1]])


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output; each row's normaliser in units of log 2; how far each head had to look (empty: everywhere)."""
    q, v = arguments[0], arguments[2]
    with torch.cuda.device_of(q):  # kernels go to the current device, which need not be where q is
        work = _work(arguments)
        out, lse, reach = work.forward()
    if work.q is not q or work.v is not v:
        out = _fit(out, empty_out(q, v))
    return out, lse, reach


def _backward(grad: Tensor, out: Tensor, lse: Tensor, reach: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, table and sink, and the sums from which ``_of_sums`` makes those of slope and numbers; empty
    where none is wanted."""
    *given, wanted = rest
    arguments = tuple(given)
    q, k, v, _, _, sink, _, parameter_gradients = arguments[:8]
    _, dense, rate_counts, amplitude = arguments[TENSORS : TENSORS + 4]
    want_table, want_slope, want_sink, few = wanted
    with torch.cuda.device_of(q):
        work = _work(arguments)
        dq, dk, dv, delta, sums, d_table = work.backward(
            aligned(grad), aligned(out), lse, reach, parameter_gradients.contiguous() if few and parameter_gradients is not None else None,
            tuple(rate_counts) if few else (0, 0),
            amplitude and few, tuple(dense) if want_table else (False, False), want_slope,
            torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
    d_sink = lse.new_empty(0)
    if want_sink:
        temperature, rows = work.settings.temperature, slice(sink.shape[2])
        share = torch.exp2(sink * (LOG2E / temperature) - lse[:, :, rows])
        d_sink = share.mul_(-delta[:, :, rows]).div_(temperature).to(sink.dtype).contiguous()
    three = ((dq, work.q, q), (dk, work.k, k), (dv, work.v, v))
    dq, dk, dv = (d if used is x else _fit(d, torch.empty_like(x)) for d, used, x in three)
    return dq, dk, dv, *(lse.new_empty(0) if x is None else x for x in (d_table, d_sink, sums))


# --- shapes, for tracing -------------------------------------------------------------------------------------------


def _forward_shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, v, slope, bias, skip = arguments[0], arguments[2], arguments[4], arguments[TENSORS][1], arguments[-1]
    reach = q.new_empty(2 * q.shape[1] + 1 if skip and (bias or slope is not None) else 0, dtype=torch.int32)
    return empty_out(q, v), q.new_empty(*q.shape[:2], line(q.shape[2]), dtype=torch.float32), reach


def _backward_shapes(grad: Tensor, out: Tensor, lse: Tensor, reach: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    q, k, v, table, _, sink = rest[:6]
    want_table, want_slope, want_sink, few = rest[-1]
    wants = want_table and any(rest[TENSORS + 1])
    d_table = table.new_empty(table.shape) if wants else lse.new_empty(0)
    d_sink = sink.new_empty(sink.shape) if want_sink else lse.new_empty(0)
    sums = lse.new_empty((q.shape[1], NUMBERS) if want_slope or few else 0)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), d_table, d_sink, sums


# --- gradients -----------------------------------------------------------------------------------------------------


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            answers = torch.ops.whence.fused.default(*arguments)
        ctx.plain = arguments[TENSORS:]
        ctx.save_for_backward(*arguments[:TENSORS], *answers)
        ctx.wanted = list(ctx.needs_input_grad[LEARNT])
        ctx.mark_non_differentiable(*answers[1:])
        ctx.set_materialize_grads(False)
        return answers

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        nothing = [None] * (TENSORS + len(ctx.plain))
        if grad is None:
            return tuple(nothing)
        saved = ctx.saved_tensors  # once: under activation checkpointing each is unpacked a single time
        given, answers = saved[:TENSORS], saved[TENSORS:]
        dq, dk, dv, d_table, d_sink, sums = torch.ops.whence.fused_backward.default(
            grad, *answers, *given, *ctx.plain, ctx.wanted
        )
        d_slope, d_numbers = _of_sums(sums, given[4], given[6], ctx.plain, ctx.wanted)
        learnt = [
            r if want else None for r, want in zip((d_table, d_slope, d_sink, d_numbers), ctx.wanted, strict=True)
        ]
        return (dq, dk, dv, *learnt, *nothing[7:])


def _of_sums(
    sums: Tensor, slope: Tensor | None, numbers: Tensor | None, plain: tuple[Any, ...], wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the slope and of the numbers; outside the operator, where a compiler makes one kernel of it."""
    _, _, (of_factor, of_bias), amplitude, *_, scale, temperature, _, _ = plain
    d_slope = d_numbers = None
    if wanted[1] and slope is not None:
        d_slope = (sums[:, SLOPE] / temperature).to(slope.dtype)
    if wanted[3] and numbers is not None:
        parts = [
            sums[:, :of_factor] * (scale / temperature),
            sums[:, of_factor : of_factor + of_bias] / temperature,
        ]
        if amplitude:
            parts.append(sums[:, AMPLITUDE : AMPLITUDE + 1] / numbers[:, -1:])
        d_numbers = torch.cat([part for part in parts if part.shape[1]], -1).to(numbers.dtype)
    return d_slope, d_numbers


def _with_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in arguments[:TENSORS]):
        return Fused.apply(*arguments)
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
