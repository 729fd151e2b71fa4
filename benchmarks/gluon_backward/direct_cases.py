"""Kernels launched without the operator, on a GPU or emulated, compared with attention in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from configs import Config
from launches import KERNELS, Problem, dkdv_launch, dq_launch, partial_sums_shape
from roles import AMPLITUDE_SLOT, HEAD_DIM
from whence.attention.fused import packing

#: score scale, bias, derivative tables, amplitude
KINDS = {
    "none": (False, False, 0, False), "scale": (True, False, 2, True), "scale, 3 derivatives": (True, False, 3, False),
    "bias": (False, True, 2, False),
}  # fmt: skip


def reference_gradients(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, scale: Tensor, bias: Tensor
) -> dict[str, Tensor]:
    """Attention in float64: output, log-sum-exp in base 2, and gradients. Tables ``[H, T]`` are of natural logits."""
    leaves = [x.double().requires_grad_() for x in (q, k, v, scale, bias)]
    q, k, v, scale, bias = leaves
    length, group = q.shape[2], q.shape[1] // k.shape[1]
    distance = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
    place = distance.clamp(min=0)
    logits = q @ k.repeat_interleave(group, 1).mT * scale[:, place] + bias[:, place]
    logits = logits.masked_fill(distance < 0, -torch.inf)
    out = logits.softmax(-1) @ v.repeat_interleave(group, 1)
    names = ("dq", "dk", "dv", "scale", "bias")
    gradients = dict(zip(names, torch.autograd.grad(out, leaves, grad_out.double()), strict=True))
    return gradients | {"out": out.detach(), "lse": logits.detach().logsumexp(-1) * packing.LOG2E}


def direct_case(
    configs: list[Config], kind: str, shape: tuple[int, ...], launch: Callable[..., None], describe: Callable[[Tensor, int], Any],
    *, seed: int = 0, device: str = "cpu",
) -> dict[str, float]:  # fmt: skip
    """Relative errors of all results of kernels that are launched without the operator. Outputs begin as NaN."""
    torch.manual_seed(seed)
    batch, heads, kv_heads, length, programs = shape
    has_scale, has_bias, derivs, amplitude = KINDS[kind]
    q, k, v, grad_out = (
        torch.randn(batch, n, length, HEAD_DIM.value).to(device, torch.bfloat16)
        for n in (heads, kv_heads, kv_heads, heads)
    )
    softmax_scale = HEAD_DIM.value**-0.5
    distance, head = torch.arange(length, device=device), torch.arange(heads, device=device)[:, None]
    scale = torch.full((heads, length), softmax_scale, device=device)
    scale = scale * (1 + 0.5 * torch.sin(distance / 50 + head)) if has_scale else scale
    bias = -0.01 * distance * (1 + head) if has_bias else torch.zeros(heads, length, device=device)
    exact = reference_gradients(q, k, v, grad_out, scale, bias)
    padded = packing.padded_length(length)
    lse = torch.full((batch, heads, padded), torch.inf, device=device)
    lse[..., :length] = exact["lse"]
    table = packing.pack_tables([scale if has_scale else bias], [packing.LOG2E])
    assert table is not None
    tables = [torch.cos(distance * (i + 1) / 30).expand(heads, -1) for i in range(derivs)]
    derivatives = packing.pack_tables(tables, [1.0] * derivs)
    derivatives = table if derivatives is None else derivatives
    problem = Problem(
        q, k, v, table, table.shape[1], has_scale, has_bias, softmax_scale * packing.LOG2E,
        1 / packing.LOG2E if has_scale else softmax_scale, programs, describe,
    )  # fmt: skip
    out = exact["out"].to(torch.bfloat16)
    delta = torch.full_like(lse, torch.nan)
    if all(config.kernel != "dq" for config in configs):
        delta[..., :length] = (out.float() * grad_out.float()).sum(-1)
        delta[..., length:] = 0
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    sums = torch.full(partial_sums_shape(q), torch.nan, device=device)
    pairs = {}
    for config in configs:
        if config.kernel == "dkdv":
            arguments = dkdv_launch(config, problem, grad_out, lse, delta, dk, dv)
            pairs |= {"dk": (dk, exact["dk"]), "dv": (dv, exact["dv"])}
        else:
            arguments = dq_launch(config, problem, grad_out, out, lse, delta, dq, derivatives, sums, derivs, amplitude)
            pairs |= {"dq": (dq, exact["dq"])}
            for i, derivative in enumerate(tables):  # of the score scale: sums of the products q . k without it
                pairs[f"parameter {i}"] = sums[..., i], exact["scale" if has_scale else "bias"] * derivative
            if amplitude:
                pairs["amplitude"] = sums[..., AMPLITUDE_SLOT.value], (exact["dq"] * q.double()).sum((0, 3))
        launch(KERNELS[config.kernel], *arguments)
    return {name: relative_error(*pair) for name, pair in pairs.items()}


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Of a gradient; or of the sums ``[B, H, n]`` for a parameter, whose exact terms ``[H, n]`` cancel."""
    if result.shape == exact.shape:
        return ((result.double() - exact).norm() / exact.norm()).item()
    difference = result.double().sum((0, 2)) - exact.sum(1)
    return (difference.norm() / torch.maximum(exact.sum(1).norm(), exact.norm())).item()


def is_accurate(errors: dict[str, float]) -> bool:
    """Of results without the operator; a NaN is not accurate."""
    return all(error < (5e-3 if name in ("dq", "dk", "dv") else 2e-2) for name, error in errors.items())
