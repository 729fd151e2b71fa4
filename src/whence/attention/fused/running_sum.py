"""Running sums along the last axis on a GPU, in float64: one kernel forward and one backward.

torch takes three for the gradient, which it reverses, adds up and reverses again, its sums of a few long rows take longer, and
limiting the entries first takes four more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # entries whose sums a program stores
ADDED = 4096  # of those before them, added up in one step


@triton.jit
def load_limited(X, at, n, stride, limit, LIMITED: tl.constexpr):
    values = tl.load(X + at * stride, mask=at < n, other=0.0).to(tl.float64)
    if LIMITED:  # a comparison with NaN is false, so NaN remains
        values = tl.where(values > limit, limit, tl.where(values < -limit, -limit, values))
    return values


@triton.jit(do_not_specialize=["rows", "n"])
def running_sum_kernel(
    X, ENTRIES, OUT, rows, n, x_b, x_h, x_t, entries_b, entries_h, entries_t, out_row, limit,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """One block of a row of ``[B, rows, n]``. Each program adds up what comes before its block, so that none waits for another.

    GRADIENT: entry i is the sum of all entries of X from i on, or 0 if ENTRIES is limited there.
    """
    blocks = tl.cdiv(n, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    x = X + row // rows * x_b + row % rows * x_h
    at = block * BLOCK + tl.arange(0, BLOCK)
    values = load_limited(x, at, n, x_t, limit, not GRADIENT)
    first = (block + 1) * BLOCK if GRADIENT else 0
    end = n if GRADIENT else block * BLOCK
    others = tl.zeros([ADDED], tl.float64)
    for start in range(first, end, ADDED):
        others += load_limited(x, start + tl.arange(0, ADDED), end, x_t, limit, not GRADIENT)
    sums = tl.cumsum(values, 0)
    if GRADIENT:
        sums = tl.sum(others, 0) + (tl.sum(values, 0) - sums + values)
        entries = ENTRIES + row // rows * entries_b + row % rows * entries_h
        sums = tl.where(tl.abs(load_limited(entries, at, n, entries_t, limit, False)) > limit, 0.0, sums)
    else:
        sums = tl.sum(others, 0) + sums
    tl.store(OUT + row * out_row + at, sums.to(OUT.dtype.element_ty), mask=at < n)


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
    if out.numel():
        with torch.cuda.device_of(x):
            running_sum_kernel[(batch * rows * triton.cdiv(n, BLOCK),)](
                x, entries, out, rows, n, *x.stride(), *entries.stride(), n, limit, GRADIENT=gradient, BLOCK=BLOCK,
                ADDED=ADDED, num_warps=8,
            )  # fmt: skip
    return out


def running_sum(x: Tensor, limit: float = torch.inf) -> Tensor:
    """``x.double().clamp(-limit, limit).cumsum(-1)`` of ``[B, H, n]``."""
    out: Tensor = RunningSum.apply(x, limit)
    return out
