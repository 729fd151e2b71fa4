"""A planned call inside autograd; ``eager_plan`` computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from whence.attention.fused.eager_plan import Plan
    from whence.attention.fused.planned_masks import TokenIds
    from whence.attention.fused.planned_tables import Extent


class PlannedAttention(torch.autograd.Function):
    """A planned call inside autograd. A second derivative raises an error."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, extent: Extent, ids: TokenIds | None, seed: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor
    ) -> Tensor:  # fmt: skip
        out, *saved = plan.forward(q, k, v, tensors, extent, ids, seed, needs_gradient=True)
        rotated_q, rotated_k, *rest = saved
        ctx.save_for_backward(rotated_q, rotated_k, v, out, *rest, *tensors)
        ctx.plan, ctx.extent, ctx.ids, ctx.seed = plan, extent, ids, seed
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            return _backward_once(ctx, grad_out)
        return _backward(ctx, grad_out)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
    q, k, v, out, lse, table, derivatives, head_values, *tensors = ctx.saved_tensors
    plan: Plan = ctx.plan
    gradients = plan.backward(
        grad_out, q, k, v, out, lse, table, derivatives, head_values, tuple(tensors), ctx.extent, ctx.ids, ctx.seed
    )
    return (None, None, None, None, *gradients)


_backward_once = once_differentiable(_backward)
#: ``PlannedAttention.apply`` without its preparation for ``torch.func``, inside which no call has a plan
record = super(torch.autograd.Function, PlannedAttention).apply
