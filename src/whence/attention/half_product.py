"""Matrix products of half-precision numbers, summed in float32: what tensor cores compute.

``multiply_in_half`` rounds its arguments to half precision, as flash attention rounds weights and gradients of scores, and
returns float32. The softmax between two products stays in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.torch_modes import without_autocast


def multiply_in_half(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """``a @ b`` of ``[..., n, m]`` and ``[..., m, p]``, both rounded to ``dtype``: a float32 tensor.

    Gradients are products of the same kind and have the dtypes of a and b.
    """
    product: Tensor = _HalfProduct.apply(a, b, dtype)
    return product


class _HalfProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.dtype = dtype
        return multiply_to_float32(a.to(dtype), b.to(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        grad = grad.to(ctx.dtype)  # once for both products
        da = multiply_in_half(grad, b.mT, ctx.dtype).to(a.dtype) if ctx.needs_input_grad[0] else None
        db = multiply_in_half(a.mT, grad, ctx.dtype).to(b.dtype) if ctx.needs_input_grad[1] else None
        return da, db, None


def multiply_to_float32(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of ``[..., n, m]`` and ``[..., m, p]`` of one dtype, without gradients: a float32 tensor."""
    with without_autocast(a):  # a backward pass may run inside autocast, which would round the factors
        if (
            not a.is_cuda or a.dtype == torch.float32
        ):  # the same: products of half-precision numbers are exact in float32
            return a.float() @ b.float()
        out = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32)
    return out.view(*a.shape[:-1], b.shape[-1])
