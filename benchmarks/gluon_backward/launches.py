"""What a launch of each kernel takes: the number of programs, arguments and compile-time arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from configs import Config
from dkdv_kernel import gluon_dkdv_kernel
from dq_kernel import gluon_dq_kernel
from roles import CONSUMERS, TILE, WARPS
from whence.attention.fused import gluon_launch, packing

KERNELS = {"dq": gluon_dq_kernel, "dkdv": gluon_dkdv_kernel}


@dataclasses.dataclass
class Problem:
    """What both kernels take. ``describe`` makes descriptors of tensors: of 4 axes for tiles of some rows, of 2 axes for 64 columns."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    table_stride: int
    has_score_scale: bool
    has_bias: bool
    qk_scale: float
    qk_grad_scale: float
    programs: int  # that run at the same time
    describe: Callable[[Tensor, int], Any]

    def schedule(self, heads: int) -> tuple[int, tuple[int, ...]]:
        blocks = packing.ceil_div(self.q.shape[2], TILE.value)
        programs = min(self.programs, heads * blocks)
        return programs, tuple(gluon_launch.make_schedule(heads, blocks, programs))


def dkdv_launch(
    config: Config, problem: Problem, grad_out: Tensor, lse: Tensor, delta: Tensor, dk: Tensor, dv: Tensor
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """The number of programs, the arguments and the compile-time arguments."""
    x = problem
    batch, heads = x.q.shape[:2]
    programs, schedule = x.schedule(batch * x.k.shape[1])
    tensors = (
        *(x.describe(t, 64) for t in (x.q, x.k, x.v, grad_out, dk, dv)),
        *(x.describe(t.flatten(0, 1), 64) for t in (lse, delta)),
        x.table,
    )
    sizes = (heads, heads // x.k.shape[1], x.table_stride, x.qk_scale, x.qk_grad_scale)
    constants = {
        "STAGES": config.stages,
        "TURNS": config.turns,
        "PREFETCH": config.prefetch,
        "HAS_SCORE_SCALE": x.has_score_scale,
        "HAS_BIAS": x.has_bias,
    }
    return programs, (*tensors, *sizes, *schedule), constants


def dq_launch(
    config: Config, problem: Problem, grad_out: Tensor, out: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, derivatives: Tensor,
    partial_sums: Tensor, num_derivatives: int, amplitude: bool,
) -> tuple[int, tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    x = problem
    batch, heads, q_len, _ = x.q.shape
    programs, schedule = x.schedule(batch * heads)
    tensors = (
        x.describe(x.q, 64), x.describe(x.k, config.keys), x.describe(x.v, config.keys), x.describe(grad_out, 64),
        x.describe(out, 64), x.describe(dq, 64), lse, delta, x.table, derivatives, partial_sums,
    )  # fmt: skip
    sizes = (heads, heads // x.k.shape[1], packing.padded_length(q_len), x.table_stride, x.qk_scale, x.qk_grad_scale)
    constants = {
        "KEYS": config.keys, "STAGES": config.stages, "AHEAD": config.ahead, "HELD": config.held, "TURNS": config.turns,
        "PREFETCH": config.prefetch, "HAS_SCORE_SCALE": x.has_score_scale,
        "HAS_BIAS": x.has_bias, "DERIVS": num_derivatives, "DERIV_WIDTH": (1, 1, 2, 4)[num_derivatives], "AMPLITUDE": amplitude,
    }  # fmt: skip
    return programs, (*tensors, *sizes, *schedule), constants


def partial_sums_shape(q: Tensor) -> tuple[int, ...]:
    """``[B, H, sums of a head, slots]``: one for each warp of each consumer of each tile."""
    return (*q.shape[:2], packing.ceil_div(q.shape[2], TILE.value) * CONSUMERS.value * WARPS.value, packing.NUM_SLOTS)
