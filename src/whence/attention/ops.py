"""The tiled attention as torch operators, so that autograd and ``torch.compile`` see one node instead of its loops."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from whence.attention import blockwise_kernel
from whence.attention.toeplitz import Span
from whence.errors import usage_error
from whence.shapes import require_one_device

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? score_scale, Tensor? bias, Tensor? sink, Tensor? q_clock, "
    "Tensor? k_clock, Tensor? real, Tensor? q_segment_ids, "
    "Tensor? k_segment_ids, int offset, bool causal, int? window, float scale, float temperature, float dropout, Tensor? seed"
)


_define = functools.partial(torch.library.define, tags=torch.Tag.pt2_compliant_tag)


def _unpack(
    q: Tensor, k: Tensor, arguments: tuple[Any, ...]
) -> tuple[Span, blockwise_kernel.Tables, blockwise_kernel.Settings]:
    *tables, offset, causal, window, scale, temperature, dropout, seed = arguments
    return (
        Span(q.shape[2], k.shape[2], offset, causal, window),
        blockwise_kernel.Tables(*tables),
        blockwise_kernel.Settings(scale, temperature, dropout, 0 if seed is None else int(seed)),
    )


# torch.library.custom_op would import the compiler, which takes seconds, at the first call
_define("whence::tiled_attention", f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_define(
    "whence::tiled_attention_backward",
    f"(Tensor grad, Tensor out, Tensor tops, Tensor totals, {_ARGUMENTS}, bool[] needed)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
tiled_attention = torch.ops.whence.tiled_attention.default
tiled_attention_backward = torch.ops.whence.tiled_attention_backward.default


@torch.library.impl("whence::tiled_attention", "default")
def _(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return blockwise_kernel.forward(q, k, v, *_unpack(q, k, arguments))


@torch.library.register_fake("whence::tiled_attention")
def _(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device(q, k, v, *arguments[:8])
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3]), q.new_empty(q.shape[:3])


@torch.library.impl("whence::tiled_attention_backward", "default")
def _(
    grad: Tensor, out: Tensor, tops: Tensor, totals: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    *arguments, needed = rest
    span, tables, settings = _unpack(q, k, tuple(arguments))
    results = blockwise_kernel.backward(grad, out, tops, totals, q, k, v, span, tables, settings, needed)
    return tuple(q.new_empty(0) if r is None else r.contiguous() for r in results)


@torch.library.register_fake("whence::tiled_attention_backward")
def _(
    grad: Tensor, out: Tensor, tops: Tensor, totals: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    tables = zip(rest[:5], rest[-1], strict=True)  # those with a gradient, and which are needed
    differentiable = [t.new_empty(t.shape) if t is not None and need else q.new_empty(0) for t, need in tables]
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        *differentiable,
    )  # contiguous, whatever the inputs are


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.settings = inputs[11:17]
    ctx.save_for_backward(*inputs[:11], inputs[17], *output)
    ctx.needed = [bool(need) for need in ctx.needs_input_grad[3:8]]
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    *tensors, seed, out, tops, totals = ctx.saved_tensors
    if (
        torch.is_grad_enabled() and not torch.compiler.is_compiling()
    ):  # create_graph=True: the gradient is differentiated again
        return _double_backward(ctx, grad, tensors)
    results = tiled_attention_backward(grad.contiguous(), out, tops, totals, *tensors, *ctx.settings, seed, ctx.needed)
    differentiable = [r if need else None for r, need in zip(results[3:], ctx.needed, strict=True)]
    return (*results[:3], *differentiable, *([None] * 10))


def _double_backward(ctx: Any, grad: Tensor, tensors: list[Any]) -> tuple[Any, ...]:
    """The gradients in plain operations on whole matrices, which autograd can differentiate again."""
    offset, causal, window, scale, temperature, dropout = ctx.settings
    if dropout > 0:
        raise usage_error(
            "backward(create_graph=True) through attend(backend='blockwise')",
            f"dropout={dropout}",
            "the second derivative would need the same dropout mask",
            "pass dropout=0, or use backend='reference'",
        )
    span = Span(tensors[0].shape[2], tensors[1].shape[2], offset, causal, window)
    out = dense_attention(*tensors, span=span, scale=scale, temperature=temperature)
    differentiable = [i for i in range(8) if ctx.needs_input_grad[i]]
    gradients = torch.autograd.grad(
        out, [tensors[i] for i in differentiable], grad, create_graph=True, allow_unused=True
    )
    results: list[Tensor | None] = [None] * 18
    for i, gradient in zip(differentiable, gradients, strict=True):
        results[i] = gradient
    return tuple(results)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_scale: Tensor | None,
    bias: Tensor | None,
    sink: Tensor | None,
    q_clock: Tensor | None,
    k_clock: Tensor | None,
    real: Tensor | None,
    q_segment_ids: Tensor | None,
    k_segment_ids: Tensor | None,
    *,
    span: Span,
    scale: float,
    temperature: float,
) -> Tensor:
    """What ``tiled_attention`` computes, without dropout, in plain operations on whole matrices."""
    share = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(share, 1) for x in (k, v))
    index = torch.arange(span.queries, device=q.device)[:, None] - torch.arange(span.keys, device=q.device)
    entry, distance = index + span.keys - 1, index + span.offset
    z = scale * (q @ k.transpose(-1, -2))
    z = z if score_scale is None else z * score_scale[:, entry]
    z = z if bias is None else z + bias[:, entry]
    if q_clock is not None and k_clock is not None:
        z = z + (q_clock[..., :, None] - k_clock[..., None, :]).to(z.dtype)
    visible = torch.ones_like(distance, dtype=torch.bool)[None]
    if span.causal:
        visible = visible & (distance >= 0)
    if span.window is not None:
        visible = visible & (distance.abs() < span.window)
    if real is not None:
        visible = visible & real[:, None, :]
    if q_segment_ids is not None and k_segment_ids is not None:
        visible = visible & (q_segment_ids[:, :, None] == k_segment_ids[:, None, :])
    visible = visible[:, None]
    z = (z / temperature).masked_fill(~visible, -torch.inf)
    if sink is not None:
        z = torch.cat([z, (sink / temperature)[..., None]], -1)
    alone = torch.isneginf(z).all(-1, keepdim=True)
    weights = torch.softmax(z.masked_fill(alone, 0.0), -1).masked_fill(alone, 0.0)
    return weights[..., : span.keys] @ v


torch.library.register_autograd("whence::tiled_attention", _backward, setup_context=_save_for_backward)
