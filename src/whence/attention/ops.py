"""The tiled attention as torch operators, so that autograd and ``torch.compile`` see one node and never its loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.attention import tiles
from whence.attention.bands import Span

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? factor, Tensor? bias, Tensor? sink, Tensor? real, Tensor? q_documents, "
    "Tensor? k_documents, int offset, bool causal, int? window, float scale, float temperature, float dropout, Tensor? seed"
)


def _unpack(q: Tensor, k: Tensor, arguments: tuple[Any, ...]) -> tuple[Span, tiles.Tables, tiles.Settings]:
    factor, bias, sink, real, q_docs, k_docs, offset, causal, window, scale, temperature, dropout, seed = arguments
    return (
        Span(q.shape[2], k.shape[2], offset, causal, window),
        tiles.Tables(factor, bias, sink, real, q_docs, k_docs),
        tiles.Settings(scale, temperature, dropout, 0 if seed is None else int(seed)),
    )


@torch.library.custom_op("whence::tiled", mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)")
def tiled(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return tiles.forward(q, k, v, *_unpack(q, k, arguments))


@tiled.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


@torch.library.custom_op(
    "whence::tiled_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor out, Tensor lse, {_ARGUMENTS}, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def tiled_backward(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    *arguments, wanted = rest
    span, tables, settings = _unpack(q, k, tuple(arguments))
    results = tiles.backward(grad, out, lse, q, k, v, span, tables, settings, wanted)
    return tuple(q.new_empty(0) if r is None else r.contiguous() for r in results)


@tiled_backward.register_fake
def _(grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    factor, bias, sink, wanted = rest[0], rest[1], rest[2], rest[-1]
    tables = [(factor, wanted[0]), (bias, wanted[1]), (sink, wanted[2])]
    learnt = [t.new_empty(t.shape) if t is not None and want else q.new_empty(0) for t, want in tables]
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), *learnt  # contiguous, whatever came


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.settings = inputs[9:15]
    ctx.save_for_backward(*inputs[:9], inputs[15], *output)
    ctx.wanted = [bool(need) for need in ctx.needs_input_grad[3:6]]
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    *tensors, seed, out, lse = ctx.saved_tensors
    results = tiled_backward(grad.contiguous(), out, lse, *tensors, *ctx.settings, seed, ctx.wanted)
    learnt = [r if want else None for r, want in zip(results[3:], ctx.wanted, strict=True)]
    return (*results[:3], *learnt, *([None] * 10))


tiled.register_autograd(_differentiate, setup_context=_remember)
