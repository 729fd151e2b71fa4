"""Which calls the warp-specialised forward kernel of ``gluon_forward`` takes, and its launch.

Everything else, and the backward pass, stays with the Triton kernels, which read the same tables and log-sum-exp.
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
HEAD_DIM = 128  # measured; at 64 the Triton kernel is as fast
ROWS, BLOCK = 64, 128  # of descriptors of q and of k; a tile has BLOCK rows
FLAGS = ("HAS_SCORE_SCALE", "HAS_BIAS")  # compile-time arguments
TILE = TileConfig(BLOCK, BLOCK, num_warps=4)  # warps of the first consumer; the other roles have theirs in the kernel


def covers(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, offset: int, window: int | None, dropout: float, qk_scale: float
) -> bool:
    """Whether the kernel computes this call, if nothing acts on its scores but score scales and biases in a table."""
    return (
        ENABLED and causal and offset == 0 and window is None and dropout == 0 and qk_scale > 0
        and MAX_DECODE_QUERIES < q.shape[2] == k.shape[2] and q.shape[3] == v.shape[3] == HEAD_DIM and q.dtype != torch.float32
        and packing.is_hopper(q.device) and packing.has_tma(q.device) and has_gluon()
    )  # fmt: skip


def has_gluon() -> bool:
    if tuple(map(int, triton.__version__.split(".")[:2])) not in KNOWN_VERSIONS:
        return False
    try:
        from whence.attention.fused import gluon_forward  # noqa: F401
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


def kernel() -> Any:
    from whence.attention.fused.gluon_forward import gluon_forward_kernel

    return gluon_forward_kernel


def arguments(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor, max_distance: Tensor, table_stride: int,
    qk_scale: float, descriptors: Descriptors,
) -> tuple[int, tuple[Any, ...]]:  # fmt: skip
    """The number of programs, and the arguments of the kernel but for its compile-time flags. ``descriptors`` are
    made by ``describe``."""
    batch, heads, q_len, _ = q.shape
    row_blocks = ceil_div(q_len, BLOCK)
    programs = min(batch * heads * row_blocks, packing.num_multiprocessors(q.device))
    rows = ((q, ROWS), (k, BLOCK), (v, BLOCK), (out, ROWS))
    tensors = (*(descriptors.describe(*tiles) for tiles in rows), lse, table, max_distance)
    sizes = (batch, heads, heads // k.shape[1], q_len, padded_length(q_len), table_stride)
    return programs, (*tensors, *sizes, qk_scale, *make_schedule(batch * heads, row_blocks, programs))


def describe(x: Tensor, rows: int) -> Any:
    """A TMA descriptor for tiles of some rows; see ``DeviceCall.describe``."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    strides = [stride if n > 1 else HEAD_DIM for stride, n in zip(x.stride()[:3], x.shape[:3], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, HEAD_DIM], layout)
