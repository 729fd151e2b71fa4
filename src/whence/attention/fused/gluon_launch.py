"""Which calls the warp-specialised kernels take, and their launches: ``gluon_forward``, ``gluon_dq`` and ``gluon_dkdv``.

Everything else stays with the Triton kernels, which read and write the same tables, log-sum-exp and delta.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from whence.attention.fused import packing
from whence.attention.fused.descriptors import Descriptors
from whence.attention.fused.packing import MAX_DECODE_QUERIES, ceil_div, padded_length
from whence.attention.fused.tile_configs import TileConfig

#: WHENCE_GLUON=0 turns it off
ENABLED = os.environ.get("WHENCE_GLUON") != "0"
#: versions of Triton whose Gluon compiles the kernel; the dialect is experimental, others use the Triton kernel
KNOWN_VERSIONS = ((3, 6), (3, 7))
HEAD_DIMS = (64, 128)
DQ_HEAD_DIM = 128  # of the kernel of dq; at 64 the Triton kernel is as fast or faster
ROWS, BLOCK = 64, 128  # of a consumer, and of a tile
FLAGS = ("HAS_SCORE_SCALE", "HAS_BIAS", "BLOCK_D")  # compile-time arguments of all kernels
TILE = TileConfig(BLOCK, BLOCK, num_warps=4)  # warps of the first consumer; the other roles have theirs in the kernel
SUMS_OF_TILE = 8  # for a parameter: one of each warp of the consumers
MAX_DERIVATIVES = 3  # of one column of the table


def covers(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, offset: int, window: int | None, dropout: float, qk_scale: float
) -> bool:
    """Whether the backward kernels compute this call, if nothing acts on its scores but score scales and biases in a table.

    They do so unless blocks are skipped; dq and sums for parameters also need ``covers_sums``. The forward kernel needs ``covers_forward``.
    """
    return (
        causal and offset == 0 and window is None and dropout == 0 and qk_scale > 0
        and MAX_DECODE_QUERIES < q.shape[2] == k.shape[2] and q.shape[3] == v.shape[3] and q.shape[3] in HEAD_DIMS
        and q.dtype != torch.float32 and is_available(q.device)
    )  # fmt: skip


def is_available(device: torch.device) -> bool:
    return ENABLED and packing.is_hopper(device) and packing.has_tma(device) and has_gluon()


def covers_forward(head_dim: int, has_score_scale: bool, has_bias: bool) -> bool:
    """Whether the forward kernel computes a call that ``covers`` allows. Measured: with pairs of scale and bias, the Triton kernel is
    faster at head dimension 64."""
    return head_dim > 64 or not (has_score_scale and has_bias)


def covers_sums(
    head_dim: int, dense: tuple[bool, ...], has_score_scale: bool, has_bias: bool, num_derivatives: int
) -> bool:
    """Whether the kernel of dq computes the call and the sums for the parameters of such a table; ``dense``: gradients of its columns."""
    most = 0 if has_score_scale and has_bias else MAX_DERIVATIVES
    return head_dim == DQ_HEAD_DIM and not any(dense) and num_derivatives <= most


def has_gluon() -> bool:
    if tuple(map(int, triton.__version__.split(".")[:2])) not in KNOWN_VERSIONS:
        return False
    try:
        from whence.attention.fused import gluon_dkdv, gluon_dq, gluon_forward  # noqa: F401
    except (ImportError, AttributeError):  # a build without the dialect, or another one of the same version
        return False
    return True


class Schedule(NamedTuple):
    """How tiles are divided among programs, one per multiprocessor, so that all end at about the same time.

    A tile of a causal mask costs as much as its row of blocks is long. A unit is one head, or two where a head has an odd
    number of blocks; its tiles, ordered by length, are its levels. Level i and the i-th from the end always cost the same
    together. The programs first go through such pairs, unit after unit, so that they share keys in the cache of the GPU. The
    last pairs do not divide evenly: their tiles are dealt one by one from the longest to the shortest, forth and back.
    """

    tiles: int
    row_blocks: int  # of a head
    unit_heads: int
    rounds: int  # pairs of each program
    begun: int  # the unit whose first pairs are in the rounds
    taken: int  # its pairs in the rounds
    whole: int  # units after it


def make_schedule(heads: int, row_blocks: int, programs: int) -> Schedule:
    """``heads``: of all sequences."""
    unit_heads = 2 if row_blocks % 2 and heads % 2 == 0 else 1
    units, pairs = heads // unit_heads, unit_heads * row_blocks // 2
    has_pairs = unit_heads * row_blocks % 2 == 0
    rounds = max(0, units * pairs // programs - 1) if has_pairs else 0
    begun, taken = divmod(rounds * programs, pairs) if rounds else (0, 0)
    return Schedule(heads * row_blocks, row_blocks, unit_heads, rounds, begun, taken, units - begun - 1)


def arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor, max_distance: Tensor, table_stride: int,
    qk_scale: float, descriptors: Descriptors,
) -> tuple[Any, int, tuple[Any, ...]]:  # fmt: skip
    """The forward kernel, the number of programs, and the arguments but for the compile-time ones. ``descriptors`` are made by
    ``describe``."""
    from whence.attention.fused.gluon_forward import gluon_forward_kernel

    batch, heads, q_len, _ = q.shape
    programs, schedule = schedule_tiles(q, heads)
    tiles = ((q, ROWS), (k, BLOCK), (v, BLOCK), (out, ROWS))
    tensors = (*(descriptors.describe(*tile) for tile in tiles), lse, table, max_distance)
    sizes = (batch, heads, heads // k.shape[1], q_len, padded_length(q_len), table_stride)
    return gluon_forward_kernel, programs, (*tensors, *sizes, qk_scale, *schedule)


def dq_arguments(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, out: Tensor, dq: Tensor, lse: Tensor, delta: Tensor, table: Tensor,
    derivatives: Tensor, sums: Tensor, table_stride: int, qk_scale: float, qk_grad_scale: float, descriptors: Descriptors,
) -> tuple[Any, int, tuple[Any, ...]]:  # fmt: skip
    """The same of the kernel of dq, which also writes delta and ``sums`` (see ``empty_sums``)."""
    from whence.attention.fused.gluon_dq import gluon_dq_kernel

    heads, q_len = q.shape[1:3]
    programs, schedule = schedule_tiles(q, heads)
    tiles = ((q, ROWS), (k, BLOCK), (v, BLOCK), (grad_out, ROWS), (out, ROWS), (dq, ROWS))
    tensors = (*(descriptors.describe(*tile) for tile in tiles), lse, delta, table, derivatives, sums)
    sizes = (heads, heads // k.shape[1], padded_length(q_len), table_stride, qk_scale, qk_grad_scale)
    return gluon_dq_kernel, programs, (*tensors, *sizes, *schedule)


def dq_constants(num_derivatives: int, width: int, amplitude: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel of dq beside FLAGS; ``width``: columns of the derivatives in memory."""
    return {"DERIVS": num_derivatives, "DERIV_WIDTH": width, "AMPLITUDE": amplitude}


def dkdv_constants(head_dim: int, has_score_scale: bool, has_bias: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel of dk and dv beside FLAGS, as measured: with a score scale, loads of tables decide its
    time, and with 64 dimensions a step without a table is too short for turns."""
    return {"STAGES": 2 if has_score_scale else 3, "TURNS": not has_score_scale and (has_bias or head_dim > 64)}


def dkdv_arguments(
    q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, dk: Tensor, dv: Tensor, lse: Tensor, delta: Tensor, table: Tensor,
    table_stride: int, qk_scale: float, qk_grad_scale: float, descriptors: Descriptors,
) -> tuple[Any, int, tuple[Any, ...]]:  # fmt: skip
    """The same of the kernel of dk and dv, which reads delta."""
    from whence.attention.fused.gluon_dkdv import gluon_dkdv_kernel

    heads, kv_heads = q.shape[1], k.shape[1]
    programs, schedule = schedule_tiles(q, kv_heads)
    tiles = (q, k, v, grad_out, dk, dv, lse, delta)
    tensors = (*(descriptors.describe(x, ROWS) for x in tiles), table)
    sizes = (heads, heads // kv_heads, table_stride, qk_scale, qk_grad_scale)
    return gluon_dkdv_kernel, programs, (*tensors, *sizes, *schedule)


def schedule_tiles(q: Tensor, heads: int) -> tuple[int, Schedule]:
    """The number of programs for the tiles of some heads, and their schedule."""
    row_blocks = ceil_div(q.shape[2], BLOCK)
    heads = q.shape[0] * heads
    programs = min(heads * row_blocks, packing.num_multiprocessors(q.device))
    return programs, make_schedule(heads, row_blocks, programs)


def empty_sums(q: Tensor) -> Tensor:
    """``[B, H, sums of a head, NUM_SLOTS]``, which the kernel of dq fills."""
    batch, heads, q_len, _ = q.shape
    shape = (batch, heads, ceil_div(q_len, BLOCK) * SUMS_OF_TILE, packing.NUM_SLOTS)
    return torch.empty(shape, dtype=torch.float32, device=q.device)


def describe(x: Tensor, rows: int) -> Any:
    """A TMA descriptor for tiles of some rows of ``[B, H, length, head_dim]``, or of numbers of queries ``[B, H, padded_length]``."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    if x.ndim == 3:
        layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
        return TensorDescriptor(x, [x.shape[0] * x.shape[1], x.shape[2]], [x.shape[2], 1], [1, rows], layout)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    head_dim = x.shape[3]
    strides = [stride if n > 1 else head_dim for stride, n in zip(x.stride()[:3], x.shape[:3], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, head_dim], layout)
