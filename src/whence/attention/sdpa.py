"""torch's ``scaled_dot_product_attention``, for calls without score effects and for a bias small enough to be a dense mask."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from whence import torch_modes
from whence.attention.backends import Backend, register_backend
from whence.attention.call import Call, Request
from whence.errors import usage_error
from whence.position.evaluate import evaluate

DENSE_BIAS = 1 << 22  # numbers of a bias that may be a dense mask: 16 MB in float32
# torch's fused kernels keep one number per row, the log-sum-exp of its logits, and their backward pass subtracts it. Where a
# row's logits are far from 0, rounding that number changes every weight of the row; the dense kernel keeps the weights.
MAX_FUSED_LOGIT = 64.0


class Sdpa(Backend):
    """``torch.nn.functional.scaled_dot_product_attention``."""

    name = "sdpa"
    effects = frozenset({"bias", "clock"})
    takes_masks = True
    takes_dropout = True
    takes_grouped_heads = True
    memory = "linear in length; quadratic with a bias, a mask beyond causal, dropout, or value_dim != head_dim"
    devices = "CPU, GPU"
    dtypes = "fp64, fp32, fp16, bf16"
    gradients = "q, k, v and every parameter (dense for a learnable bias)"
    tracing = "compile, export, ONNX"
    purpose = "no score effect, or a small fixed bias or clock"

    def supports(self, request: Request) -> str | None:
        unsupported = super().supports(request)
        if unsupported is None and request.transforming:
            return "torch's kernels have no rule for torch.func and forward-mode AD"
        return unsupported

    def priority(self, request: Request) -> int:
        """Above triton without a mask, above blockwise with a small one, above reference with a large one."""
        if not request.effects and request.pair_mask != "additive":
            return 40 if request.mask_numbers == 0 else 25 if request.mask_numbers <= DENSE_BIAS else 15
        fixed = not request.learnable and not request.half_precision
        return 25 if fixed and request.bias_numbers <= DENSE_BIAS else 0

    def reason(self, request: Request) -> str:
        if request.pair_mask == "additive":
            return f"attn_mask and the bias together have {request.bias_numbers} numbers, few enough for a dense mask"
        if not request.effects:
            return "no part acts on the scores, so torch's kernel computes the whole call"
        only = " and ".join(sorted(request.effects))
        return f"the only effect is a fixed {only} of {request.bias_numbers} numbers, small enough for a dense mask"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        return compute(call), None


def compute(call: Call) -> Tensor:
    """The output ``[B, H, T, E]``; the mask holds causality, window, padding, segments and the bias."""
    q, k, v, position, layout = call.q, call.k, call.v, call.position, call.layout
    temperature, dropout = call.temperature, call.dropout
    grouped = bool(q.shape[1] != k.shape[1])  # under torch.jit.trace, shapes are tensors
    has_additive_mask = layout.pair_mask is not None and layout.pair_mask.is_additive
    has_bias = "bias" in position.effects or call.clock is not None or has_additive_mask
    if has_bias and q.dtype == torch.float16:  # the mask must have the dtype of q, and a bias may exceed float16
        q, k, v = q.float(), k.float(), v.float()
    q, scale = with_positive_scale(q, call.scale / temperature)
    if not has_bias and layout.is_plain_causal:
        out = F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=layout.causal, scale=scale, enable_gqa=grouped
        )
        return refuse_second_derivative(out)
    visible = layout.visible()
    # torch's kernels differ on rows without visible keys: those rows attend to every key, and their output is set to 0
    alone = ~visible.any(-1, keepdim=True)
    mask: Tensor = visible | alone
    kernels: AbstractContextManager[None] = nullcontext()
    if has_bias:
        dtype = torch.promote_types(q.dtype, torch.float32)
        bias = evaluate(position, "bias", layout.hook_distances(dtype), q.shape[1], layout.length_of)
        clock = None if call.clock is None else call.clock.bias(dtype)
        added = [None if bias is None else bias.transpose(0, 1), clock, layout.additive_mask(dtype)]
        logits = sum((x for x in added if x is not None), torch.zeros((), dtype=dtype, device=q.device))
        logits = (logits / temperature).masked_fill(~visible, -torch.inf).masked_fill(alone, 0.0)
        top = logits.detach().amax(-1, keepdim=True)
        if q.dtype != dtype:  # a constant per row changes no weight; low precision is most accurate around 0
            logits = logits - top.masked_fill(torch.isinf(top), 0.0)
        elif needs_gradient(q, k, v, logits):
            far = top.abs() > MAX_FUSED_LOGIT
            if not torch_modes.can_read_values(top):
                # a compiled graph cannot choose the kernel by values, so it moves such rows to 0. That is the same softmax;
                # the scores survive beside -1e9, where the addition in float32 would round them away
                logits = logits - torch.where(far & ~torch.isinf(top), top, 0.0)
            elif bool(far.any()):
                kernels = sdpa_kernel(SDPBackend.MATH)
        mask = logits.to(q.dtype)
        mask = mask.expand(q.shape[0], q.shape[1], -1, -1)
    with kernels:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=grouped
        )
    return refuse_second_derivative(out).masked_fill(alone, 0.0)


def needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def with_positive_scale(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """The same scores with a scale above 0: torch's kernels scale after masking, where a scale of 0 or below breaks -inf."""
    smallest = torch.finfo(torch.promote_types(q.dtype, torch.float32)).tiny
    if abs(scale) < smallest:  # the scores are 0 in the kernel's precision
        return q * 0.0, 1.0
    return (q, scale) if scale > 0 else (-q, -scale)


def refuse_second_derivative(out: Tensor) -> Tensor:
    """torch's fused kernels have no second derivative: raise a usage error where one is taken."""
    node = None if torch_modes.is_tracing() else out.grad_fn
    if node is None or not node.name().startswith("ScaledDotProduct"):
        return out

    def guard(gradients: tuple[Any, ...], _: object) -> tuple[Any, ...] | None:
        if not torch.is_grad_enabled():  # the backward pass records no graph
            return None
        return tuple(g if g is None or not g.requires_grad else FirstDerivative.apply(g) for g in gradients)

    node.register_hook(guard)
    return out


class FirstDerivative(torch.autograd.Function):
    """The identity. Its backward pass raises, because the gradient itself cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Tensor:
        raise usage_error(
            "attend(backend='sdpa')",
            "a second derivative",
            "torch's fused kernels have first derivatives only",
            "use backend='blockwise' or backend='reference'",
        )


register_backend(Sdpa())
