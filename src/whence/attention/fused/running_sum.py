"""Running sums along the last axis on a GPU, in float64: one kernel forward and one backward.

torch takes three kernels for the gradient, which it reverses, adds up and reverses again, and four more to limit the entries
first. Its sums of a few long rows take longer.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # entries that a program sums at once
ADDED = 4096  # entries outside its span that a program adds up in one step
MAX_SPANS = 64  # of a row: each program reads half the row on average, so with more, long rows are read too often


@triton.jit
def load_limited(X, at, n, stride, limit, LIMITED: tl.constexpr):
    values = tl.load(X + at.to(tl.int64) * stride, mask=at < n, other=0.0).to(tl.float64)
    if LIMITED:  # a comparison with NaN is false, so NaN remains
        values = tl.where(values > limit, limit, tl.where(values < -limit, -limit, values))
    return values


@triton.jit(do_not_specialize=["rows", "n", "span"])
def running_sum_kernel(
    X, ENTRIES, OUT, rows, n, span, x_b, x_h, x_t, entries_b, entries_h, entries_t, out_row, limit,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """One span of a row of ``[B, rows, n]``. Each program adds up what comes before its span, so that none waits for another.

    GRADIENT: entry i is the sum of all entries of X from i on, or 0 if ENTRIES is limited there; what comes after the span is
    added up. ``span``: entries, a multiple of BLOCK.
    """
    spans = tl.cdiv(n, span)
    row = (tl.program_id(0) // spans).to(tl.int64)
    low = tl.program_id(0) % spans * span
    high = tl.minimum(n, low + span)
    x = X + row // rows * x_b + row % rows * x_h
    entries = ENTRIES + row // rows * entries_b + row % rows * entries_h
    first = high if GRADIENT else 0
    end = n if GRADIENT else low
    others = tl.zeros([ADDED], tl.float64)
    for start in range(first, end, ADDED):
        others += load_limited(x, start + tl.arange(0, ADDED), end, x_t, limit, not GRADIENT)
    before = tl.sum(others, 0)
    for step in range(0, span, BLOCK):
        start = low + (span - BLOCK - step if GRADIENT else step)
        at = start + tl.arange(0, BLOCK)
        values = load_limited(x, at, high, x_t, limit, not GRADIENT)
        sums = before + tl.cumsum(values, 0, reverse=GRADIENT)
        if GRADIENT:
            limited = tl.abs(load_limited(entries, at, high, entries_t, limit, False)) > limit
            sums = tl.where(limited, 0.0, sums)
        tl.store(OUT + row * out_row + at, sums.to(OUT.dtype.element_ty), mask=at < high)
        before += tl.sum(values, 0)


class RunningSum(torch.autograd.Function):
    """See ``running_sum``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return _launch(x, x, limit, torch.float64, gradient=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _launch(grad, x, ctx.limit, x.dtype, gradient=True), None
        sums = grad.flip(-1).cumsum(-1).flip(-1)  # whose derivatives torch knows
        return torch.where(x.detach().double().abs() > ctx.limit, 0.0, sums).to(x.dtype), None


def _launch(x: Tensor, entries: Tensor, limit: float, dtype: torch.dtype, *, gradient: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    batch, rows, n = x.shape
    span = triton.cdiv(triton.cdiv(n, BLOCK), MAX_SPANS) * BLOCK
    if out.numel():
        with torch.cuda.device_of(x):
            running_sum_kernel[(batch * rows * triton.cdiv(n, span),)](
                x, entries, out, rows, n, span, *x.stride(), *entries.stride(), n, limit, GRADIENT=gradient, BLOCK=BLOCK,
                ADDED=ADDED, num_warps=8,
            )  # fmt: skip
    return out


def running_sum(x: Tensor, limit: float = torch.inf) -> Tensor:
    """``x.double().clamp(-limit, limit).cumsum(-1)`` of ``[B, H, n]``."""
    out: Tensor = RunningSum.apply(x, limit)
    return out
