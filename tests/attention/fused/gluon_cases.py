"""The warp-specialised kernels launched without the operator, on a GPU or emulated, compared with attention in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.attention.fused import gluon_launch, packing

#: score scale, bias, derivative tables, amplitude
KINDS = {
    "none": (False, False, 0, False), "scale": (True, False, 2, True), "scale, 3 derivatives": (True, False, 3, False),
    "bias": (False, True, 2, False), "scale and bias": (True, True, 0, False),
}  # fmt: skip
KERNELS = ("forward", "dq", "dkdv")


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


def run_case(
    kind: str, shape: tuple[int, ...], launch: Callable[..., None], descriptors: Any, *, head_dim: int = 128,
    kernels: tuple[str, ...] = KERNELS, seed: int = 0, device: str = "cpu",
) -> dict[str, float]:  # fmt: skip
    """Relative errors of all results. Outputs begin as NaN. ``launch`` takes a kernel, the number of programs, arguments and
    compile-time arguments; ``descriptors`` makes the descriptors."""
    torch.manual_seed(seed)
    batch, heads, kv_heads, length = shape
    has_scale, has_bias, derivs, amplitude = KINDS[kind]
    q, k, v, grad_out = (
        torch.randn(batch, n, length, head_dim).to(device, torch.bfloat16) for n in (heads, kv_heads, kv_heads, heads)
    )
    softmax_scale = head_dim**-0.5
    distance, head = torch.arange(length, device=device), torch.arange(heads, device=device)[:, None]
    scale = torch.full((heads, length), softmax_scale, device=device)
    scale = scale * (1 + 0.5 * torch.sin(distance / 50 + head)) if has_scale else scale
    bias = -0.01 * distance * (1 + head) if has_bias else torch.zeros(heads, length, device=device)
    exact = reference_gradients(q, k, v, grad_out, scale, bias)
    columns = [*([scale] if has_scale else []), *([bias] if has_bias or not has_scale else [])]
    table = packing.pack_tables(columns, [packing.LOG2E] * len(columns))
    assert table is not None
    tables = [torch.cos(distance * (i + 1) / 30).expand(heads, -1) for i in range(derivs)]
    derivatives = packing.pack_tables(tables, [1.0] * derivs)
    derivatives = table if derivatives is None else derivatives
    scales = (softmax_scale * packing.LOG2E, 1 / packing.LOG2E if has_scale else softmax_scale)
    flags = {"HAS_SCORE_SCALE": has_scale, "HAS_BIAS": has_bias, "BLOCK_D": head_dim}
    stride = table.shape[1]
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    lse = torch.full((2, batch, heads, packing.padded_length(length)), torch.nan, device=device)
    out = torch.full_like(q, torch.nan)
    if "forward" in kernels:
        tensors = (q, k, v, out, lse, table, lse)
        launch(*gluon_launch.arguments(*tensors, stride, scales[0], descriptors), flags | {"SKIP_BLOCKS": False})
        pairs |= {"out": (out, exact["out"]), "lse": (lse[0, :, :, :length], exact["lse"])}
        assert (lse[0, :, :, length:] == torch.inf).all()
    else:
        out.copy_(exact["out"])
        lse[0] = torch.inf
        lse[0, :, :, :length] = exact["lse"]
    delta = torch.full_like(lse[0], torch.nan)
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    sums = gluon_launch.empty_sums(q).fill_(torch.nan)
    if "dq" in kernels:
        tensors = (q, k, v, grad_out, out, dq, lse[0], delta, table, derivatives, sums)
        constants = gluon_launch.dq_constants(derivs, derivatives.shape[2], amplitude)
        launch(*gluon_launch.dq_arguments(*tensors, stride, *scales, descriptors), flags | constants)
        pairs |= {"dq": (dq, exact["dq"])}
        for i, derivative in enumerate(tables):  # of the score scale: sums of the products q . k without it
            pairs[f"parameter {i}"] = sums[..., i], exact["scale" if has_scale else "bias"] * derivative
        if amplitude:
            pairs["amplitude"] = sums[..., packing.AMPLITUDE_SLOT], (exact["dq"] * q.double()).sum((0, 3))
    else:
        delta.zero_()[..., :length] = (out.float() * grad_out.float()).sum(-1)
    if "dkdv" in kernels:
        tensors = (q, k, v, grad_out, dk, dv, lse[0], delta, table)
        constants = gluon_launch.dkdv_constants(head_dim, has_scale, has_bias)
        launch(*gluon_launch.dkdv_arguments(*tensors, stride, *scales, descriptors), flags | constants)
        pairs |= {"dk": (dk, exact["dk"]), "dv": (dv, exact["dv"])}
    return {name: relative_error(*pair) for name, pair in pairs.items()}


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Of a tensor; or of the sums ``[B, H, n]`` for a parameter, whose exact terms ``[H, n]`` cancel."""
    if result.shape == exact.shape:
        return ((result.double() - exact).norm() / exact.norm()).item()
    difference = result.double().sum((0, 2)) - exact.sum(1)
    return (difference.norm() / torch.maximum(exact.sum(1).norm(), exact.norm())).item()


def is_accurate(errors: dict[str, float]) -> bool:
    """bfloat16 weights and operands; a NaN is not accurate."""
    return all(
        error < (2e-2 if name.startswith(("parameter", "amplitude")) else 5e-3) for name, error in errors.items()
    )
