"""Collectives with gradients, and the sum of gradients over processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class AllToAll(torch.autograd.Function):
    """``[P, ...]``: process r sends row s to process s and receives its row r."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return AllToAll.apply(gradient, ctx.group), None


class AllGather(torch.autograd.Function):
    """``[P, ...]``: the tensors of all processes. The gradient of a tensor is the sum over the processes that used it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        out = x.new_empty(dist.get_world_size(group), *x.shape)
        dist.all_gather(list(out.unbind(0)), x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = torch.empty_like(gradient[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter(own, list(gradient.contiguous().unbind(0)), group=ctx.group)
        return own, None


def all_reduce_gradients(module: nn.Module, *, group: dist.ProcessGroup | None = None) -> None:
    """Sum the gradients of all parameters over the processes, in one all-reduce for each dtype.

    Every process computes the part of a gradient that its tokens, or its heads, contribute. This gives the gradient of
    the sum of all processes' losses. ``DistributedDataParallel`` does the same with the mean.
    """
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for parameters in by_dtype.values():
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=group)
        for parameter, total in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = total.view_as(parameter)
