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

from whence.attention.fused.packing import next_power_of_two

MAX_BLOCK = 8192  # entries that a program sums at once


@triton.jit(do_not_specialize=["rows", "n"])
def running_sum_kernel(
    X, ENTRIES, OUT, rows, n, x_b, x_h, x_t, entries_b, entries_h, entries_t, out_row, limit,
    GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of ``[B, rows, n]``. GRADIENT: entry i is the sum of all entries of X from i on, or 0 if ENTRIES is limited there."""
    program = tl.program_id(0).to(tl.int64)
    x = X + program // rows * x_b + program % rows * x_h
    entries = ENTRIES + program // rows * entries_b + program % rows * entries_h
    out = OUT + program * out_row
    blocks = tl.cdiv(n, BLOCK)
    before = tl.zeros([1], tl.float64)
    for step in range(0, blocks):
        block = blocks - 1 - step if GRADIENT else step
        at = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + at * x_t, mask=at < n, other=0.0).to(tl.float64)
        entry = values
        if GRADIENT:
            entry = tl.load(entries + at * entries_t, mask=at < n, other=0.0).to(tl.float64)
        else:  # a comparison with NaN is false, so NaN remains
            values = tl.where(values > limit, limit, tl.where(values < -limit, -limit, values))
        sums = tl.cumsum(values, 0, reverse=GRADIENT) + before
        if GRADIENT:
            sums = tl.where(tl.abs(entry) > limit, 0.0, sums)
        tl.store(out + at, sums.to(OUT.dtype.element_ty), mask=at < n)
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
    block = min(MAX_BLOCK, max(256, next_power_of_two(n)))
    if out.numel():
        with torch.cuda.device_of(x):
            running_sum_kernel[(batch * rows,)](
                x, entries, out, rows, n, *x.stride(), *entries.stride(), n, limit, GRADIENT=gradient, BLOCK=block,
                num_warps=min(16, block // 256),
            )  # fmt: skip
    return out


def running_sum(x: Tensor, limit: float = torch.inf) -> Tensor:
    """``x.double().clamp(-limit, limit).cumsum(-1)`` of ``[B, H, n]``."""
    out: Tensor = RunningSum.apply(x, limit)
    return out
