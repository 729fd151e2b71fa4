"""Tile sizes and launch options per kernel, measured on an H200.

Small tiles of four warps win, with two or three programs per multiprocessor. Register use decides: one more table can
make the same tile a third slower. ``max_registers`` caps the registers per thread where the compiler would otherwise
use so many that only two programs fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from whence.attention.fused import packing

MAX_HEAD_DIM = 256
LONG_QUERIES = 4096  # number of queries above which a large tile is faster
BOTH, ONLY_DV, ONLY_DK = 0, 1, 2  # what a pass of the kernel for dk and dv computes
NETWORK_ROWS = 16  # of a program with a network over heads
#: pairs of query and key up to which the host is slower than the device; TMA descriptors, which cost host time, pay off above
FEW_PAIRS = 2**26


#: number of keys up to which the forward kernel reads them in one program: it needs one launch and no partial results
FEW_KEYS = 256


@dataclass(frozen=True)
class TileConfig:
    block_m: int
    block_n: int
    num_warps: int = 4
    num_stages: int = 2
    max_registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Launch options; the number of stages is an argument of the loops instead."""
        options = {"num_warps": self.num_warps}
        if self.max_registers is None or packing.IS_AMD:  # NVIDIA's compiler takes this option
            return options
        return options | {"maxnreg": self.max_registers}


def max_head_dim(has_tma: bool, shared_memory: int, element_size: int) -> int:
    """The largest head dimension whose tiles fit into the shared memory of a program, in bytes.

    Loads by pointers need more of it: 256 dimensions of half precision need 163 KiB (compute capability 8.0), 128 need 99 KiB
    (8.6, 8.9, 12.0), and float32 has half as many. ``benchmarks/compile_targets.py`` compiles every kernel and compares.
    """
    if has_tma:
        return MAX_HEAD_DIM
    half = MAX_HEAD_DIM if shared_memory >= 163 * 1024 else MAX_HEAD_DIM // 2
    return half // 2 if element_size == 4 else half


def loads_by_tma(device: torch.device, pairs: int | None, block_d: int, element_size: int) -> bool:
    """Whether a call loads tiles by TMA. ``pairs`` of query and key; None: too few is no reason against it."""
    if not packing.has_tma(device):
        return False
    few = pairs is not None and pairs <= FEW_PAIRS
    return not (few and block_d <= max_head_dim(False, packing.shared_memory(device), element_size))


def forward_config(
    head_dim: int, element_size: int, has_table: bool, q_len: int, has_tma: bool = True, has_row_tables: bool = False
) -> TileConfig:
    """The tile for long sequences needs the shared memory of TMA's GPUs. ``has_row_tables``: compiled, not measured."""
    if element_size == 4:
        return TileConfig(64, 32, 4, 2) if head_dim <= 64 else TileConfig(64, 32, 8, 1)
    if head_dim > 128:
        return TileConfig(128, 64, 8, 2) if has_tma and not has_row_tables else TileConfig(64, 64, 8, 2)
    if has_row_tables:
        return TileConfig(64, 64, 4, 2)
    if head_dim > 64 and q_len > LONG_QUERIES and has_tma:
        return TileConfig(128, 128, 8, 3)
    return TileConfig(64, 64, 4, 2 if has_table and head_dim <= 64 else 3)


def dkdv_passes(
    head_dim: int, element_size: int, has_tma: bool, has_score_scale: bool, has_decay: bool, has_slope: bool,
    has_segments: bool, has_row_tables: bool = False,
) -> tuple[tuple[int, TileConfig], ...]:  # fmt: skip
    """What each pass computes, with its tile. Two passes with head dimensions above 128: compiled, not measured."""
    if head_dim > 128 and element_size == 2 and has_tma and not (has_segments or has_row_tables):
        return (ONLY_DV, TileConfig(64, 128, 8, 2)), (ONLY_DK, TileConfig(64, 128, 8, 1))
    tile = dkdv_config(head_dim, element_size, has_score_scale, has_decay, has_slope, has_segments, has_row_tables)
    return ((BOTH, tile),)


def dkdv_config(
    head_dim: int, element_size: int, has_score_scale: bool, has_decay: bool, has_slope: bool, has_segments: bool,
    has_row_tables: bool = False,
) -> TileConfig:  # fmt: skip
    """Segments mask every block; the smallest tiles are not used for them. ``has_row_tables``: compiled, not measured."""
    if element_size == 4:
        return TileConfig(32, 64, 4, 1) if head_dim <= 64 else TileConfig(32, 64, 8, 1)
    if head_dim > 128:
        return TileConfig(32, 64, 8, 2)
    if has_row_tables:
        return TileConfig(32, 64, 4, 2)
    if head_dim > 64:
        return TileConfig(32, 64, 4, 3) if has_decay and not has_segments else TileConfig(64, 64, 4, 2)
    small = (has_score_scale or has_slope) and not has_segments
    return TileConfig(32, 64, 4, 3) if small else TileConfig(64, 64, 4, 3, 168)


def dq_config(
    head_dim: int,
    element_size: int,
    num_derivatives: int,
    num_dense: int,
    has_tma: bool = True,
    has_pieces: bool = False,
    has_row_tables: bool = False,
) -> TileConfig:
    """Without TMA, the largest tile would exceed the shared memory of compute capability 8.6 and 8.9.

    ``has_pieces``: a piecewise linear function, whose gradients need the most registers (compiled, not measured).
    ``has_row_tables``: the same holds.
    """
    if element_size == 4:
        return TileConfig(64, 32, 4, 1) if head_dim <= 64 else TileConfig(64, 32, 8, 1)
    if head_dim > 128:
        large = has_tma and num_dense < 2 and not (has_pieces or has_row_tables)
        return TileConfig(128, 64, 8, 1) if large else TileConfig(64, 32, 4, 2)
    if has_row_tables:
        return TileConfig(64, 32, 4, 2)
    if has_pieces and num_derivatives:
        return TileConfig(64, 32, 4, 2) if head_dim > 64 else TileConfig(64, 64, 4, 2)
    if head_dim > 64:
        return TileConfig(64, 64, 4, 2) if num_dense or num_derivatives or not has_tma else TileConfig(128, 64, 8, 3)
    if num_dense == 1:
        return TileConfig(64, 64, 4, 2, 168)
    return TileConfig(64, 64, 4, 3, 168) if num_derivatives else TileConfig(64, 64, 4, 3)


def table_gradient_config(head_dim: int, element_size: int, has_tma: bool = True) -> TileConfig:
    if element_size == 4:
        return TileConfig(64, 32, 4, 1) if head_dim <= 64 else TileConfig(64, 32, 8, 1)
    if head_dim > 128:
        return TileConfig(64, 64, 8, 1)
    if head_dim > 64:
        return TileConfig(128, 64, 8, 2) if has_tma else TileConfig(64, 64, 4, 2)
    return TileConfig(64, 64, 4, 3)


def splits_keys(
    q_len: int, kv_len: int, group_size: int, head_dim: int, element_size: int, has_coordinates: bool = False
) -> bool:
    """Whether the decode kernels compute a call: few queries, whose keys take longer than a second launch."""
    most_rows = max_decode_rows(head_dim, element_size, has_coordinates)
    few = q_len <= packing.MAX_DECODE_QUERIES and q_len * group_size <= most_rows
    return few and kv_len > FEW_KEYS


def max_decode_rows(head_dim: int, element_size: int, has_coordinates: bool = False) -> int:
    """Queries of all heads that share keys, up to which the decode kernels run: more rows of float32, or with places on a grid (a
    table of coordinates), exceed the shared memory."""
    return 32 if has_coordinates or (element_size == 4 and head_dim > 128) else 128


def decode_config(rows: int, head_dim: int, element_size: int) -> TileConfig:
    if element_size == 4 or head_dim > 128:
        return TileConfig(rows, 32, 4, 2)
    return TileConfig(rows, 128, 4, 2) if rows <= 32 else TileConfig(rows, 64, 4, 3)


def gated_forward_config(head_dim: int, element_size: int, q_len: int) -> tuple[TileConfig, int]:
    """For kernels with gated counts, which load by pointers, with the keys of a gated tile: compiled, not measured."""
    rows = 16 if q_len <= 16 else 64
    if element_size == 4:
        return TileConfig(rows, 32, 4, 1), 16
    return TileConfig(rows, 64, 4, 2), 16


def gated_backward_configs(head_dim: int, element_size: int) -> tuple[tuple[TileConfig, int], tuple[TileConfig, int]]:
    """Tiles of dq with the keys of a gated tile, and of dk and dv with its queries.

    Both have equal blocks of keys, and the first has at least the queries of the second.
    """
    if element_size == 4:
        return (TileConfig(32, 32, 4, 1), 16), (TileConfig(32, 32, 4, 1), 16)
    return (TileConfig(64, 64, 4, 2), 16), (TileConfig(64, 64, 4, 2), 16)


def network_config(heads: int, hidden: int, element_size: int, has_tma: bool) -> TileConfig:
    """For kernels with a network over heads, of padded sizes: ``block_n`` pairs of one query row at once. Compiled, not measured."""
    width = max(heads, hidden)
    if element_size == 4:
        return TileConfig(NETWORK_ROWS, 32, 8 if heads > 16 else 4)
    if width > 32:
        return TileConfig(NETWORK_ROWS, 16, 4)
    if heads > 16:
        return TileConfig(NETWORK_ROWS, 32, 4)
    return TileConfig(NETWORK_ROWS, 64, 4, max_registers=168 if has_tma else None)
