"""Calls of the operator on a GPU whose backward pass takes the kernels of this trial."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

import gpu_variants
import whence
from configs import Config
from gpu_timing import DEVICE
from launches import KERNELS, Problem, dkdv_launch, dq_launch, partial_sums_shape
from roles import CONSUMERS, HEAD_DIM, WARPS
from whence.attention.fused import eager_plan, gluon_launch, packing

MECHANISMS = ("none", "epar", "power prior")
TIMED_SHAPES = ((4, 16, 16, 4096), (1, 16, 16, 16384))


def describe_on_gpu(x: Tensor, rows: int) -> Any:
    if x.dim() == 4:
        return gluon_launch.describe(x, rows)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, rows], layout)


def launch_on_gpu(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    kernel[(programs,)](*arguments, **constants, num_warps=WARPS.value)


class Backward:
    """Takes the place of ``Plan.backward``. Kernels without a configuration are those of the plan.

    ``launches``: the launches of the last call, to repeat them alone.
    """

    def __init__(self, dq: Config | None, dkdv: Config | None, poison: bool = False) -> None:
        self.dq, self.dkdv, self.poison = dq, dkdv, poison
        self.launches: dict[str, Callable[[], None]] = {}
        self.original = eager_plan.Plan.backward

    def empty(self, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        x = torch.empty_like(like) if shape is None else like.new_empty(shape)
        return x.fill_(torch.nan) if self.poison else x

    def launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.launches[name] = functools.partial(launch_on_gpu, KERNELS[name], *arguments)
        self.launches[name]()

    def __call__(
        self, plan: Any, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor,
        derivatives: Tensor, head_values: Tensor, tensors: tuple[Tensor, ...], extent: Any, ids: Any, seed: int,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        tables = plan.tables
        gradients: tuple[Tensor | None, ...] = ()
        if self.dq is None or self.dkdv is None:
            rest = (q, k, v, out, lse, table, derivatives, head_values, tensors, extent, ids, seed)
            dq, dk, dv, *gradients = self.original(plan, grad_out, *rest)
        grad_out = packing.align(grad_out)
        if tables.has_bias:
            grad_out = plan._scale_rows(grad_out, lse)
        problem = Problem(
            q, k, v, table, extent.stride, tables.has_score_scale, tables.has_bias, plan.qk_scale, plan.qk_grad_scale,
            packing.num_multiprocessors(q.device), describe_on_gpu,
        )  # fmt: skip
        delta = self.empty(lse[0])
        if self.dq is None:
            delta.zero_()[..., : q.shape[2]] = (out.float() * grad_out.float()).sum(-1)
        else:
            dq, sums = self.empty(q), self.empty(lse, partial_sums_shape(q))
            count = tables.num_derivatives if tables.learns else 0
            amplitude = tables.learns and tables.has_score_scale
            arguments = (grad_out, out, lse[0], delta, dq, derivatives, sums, count, amplitude)
            self.launch("dq", dq_launch(self.dq, problem, *arguments))
            by_tile = sums.unflatten(2, (-1, CONSUMERS.value * WARPS.value)).sum(3)
            gradients = tables.gradients(tensors, by_tile, delta, extent)
        if self.dkdv is not None:
            dk, dv = self.empty(k), self.empty(v)
            self.launch("dkdv", dkdv_launch(self.dkdv, problem, grad_out, lse[0], delta, dk, dv))
        return (dq, dk, dv, *gradients)


def recorded_launches(run: Callable[[], object]) -> dict[str, Callable[[], None]]:
    """The launches of the Triton kernels of a backward pass, to repeat them alone."""
    launches: dict[str, Callable[[], None]] = {}
    tiled = eager_plan.Plan._tiled

    def record(plan: Any, key: tuple[Any, ...], *rest: Any) -> Any:
        launch = tiled(plan, key, *rest)

        def run_launch(*arguments: Any) -> None:
            launches[key[0]] = functools.partial(launch, *arguments)
            launch(*arguments)

        return run_launch

    with mock.patch.object(eager_plan.Plan, "_tiled", record):
        run()
    return launches


def patched(backward: Backward) -> Any:
    return mock.patch.object(eager_plan.Plan, "backward", lambda plan, *arguments: backward(plan, *arguments))


def make_call(
    mechanism: str, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Callable[[], list[Tensor]], Any, list[Tensor], Tensor]:
    """A forward and backward pass that returns the output and the gradients; its position and inputs."""
    torch.manual_seed(0)
    batch, heads, kv_heads, length = shape
    position = gpu_variants.POSITIONS[mechanism](heads, length, HEAD_DIM.value)
    position = None if position is None else position.to(DEVICE)
    parameters = [] if position is None else list(position.parameters())
    q, k, v = (
        torch.randn(batch, n, length, HEAD_DIM.value, device=DEVICE).to(dtype).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    )
    grad_out = torch.randn(batch, heads, length, HEAD_DIM.value, device=DEVICE).to(dtype)

    def both() -> list[Tensor]:
        out = whence.attend(q, k, v, position=position, causal=True, backend="triton", skip_blocks=False)
        return [out, *torch.autograd.grad(out, [q, k, v, *parameters], grad_out)]

    return both, position, [q, k, v], grad_out


def exact_results(position: Any, inputs: list[Tensor], grad_out: Tensor) -> list[Tensor]:
    exact_position = None if position is None else copy.deepcopy(position).double()
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    parameters = [] if exact_position is None else list(exact_position.parameters())
    out = whence.attend(*leaves, position=exact_position, causal=True, backend="reference")
    return [out, *torch.autograd.grad(out, [*leaves, *parameters], grad_out.double())]
