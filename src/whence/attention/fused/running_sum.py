"""Running sums along the last axis on a GPU, in float64: one kernel forward and one backward.

torch takes three for the gradient, which it reverses, adds up and reverses again, and its sums of a few long rows take longer.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # entries that a program sums at once


@triton.jit(do_not_specialize=["rows", "n"])
def running_sum_kernel(X, OUT, rows, n, x_b, x_h, x_t, out_row, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """One row of ``[B, rows, n]``. REVERSE: entry i is the sum of all entries from i on."""
    program = tl.program_id(0).to(tl.int64)
    x = X + program // rows * x_b + program % rows * x_h
    out = OUT + program * out_row
    blocks = tl.cdiv(n, BLOCK)
    before = tl.zeros([1], tl.float64)
    for step in range(0, blocks):
        block = blocks - 1 - step if REVERSE else step
        at = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + at * x_t, mask=at < n, other=0.0).to(tl.float64)
        sums = tl.cumsum(values, 0, reverse=REVERSE) + before
        tl.store(out + at, sums.to(OUT.dtype.element_ty), mask=at < n)
        before += tl.sum(values, 0)


class RunningSum(torch.autograd.Function):
    """``x.double().cumsum(-1)`` of ``[B, H, n]``, or from the end with ``reverse``, in the dtype ``to``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reverse: bool, to: torch.dtype) -> Tensor:
        ctx.reverse, ctx.dtype = reverse, x.dtype
        out = torch.empty(x.shape, dtype=to, device=x.device)
        batch, rows, n = x.shape
        if out.numel():
            with torch.cuda.device_of(x):
                running_sum_kernel[(batch * rows,)](
                    x, out, rows, n, *x.stride(), n, REVERSE=reverse, BLOCK=BLOCK, num_warps=8
                )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return RunningSum.apply(grad, not ctx.reverse, ctx.dtype), None, None


def running_sum(x: Tensor) -> Tensor:
    """``x.double().cumsum(-1)``."""
    out: Tensor = RunningSum.apply(x, False, torch.float64)
    return out
