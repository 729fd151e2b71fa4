"""Launches of the kernels with score terms by gated counts; see ``gated_tiles``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.attention.fused import tile_configs
from whence.attention.fused.device_call import DeviceCall, plain_pointer
from whence.attention.fused.gated_backward import gated_dkdv_kernel, gated_dq_kernel
from whence.attention.fused.gated_forward import gated_forward_kernel
from whence.attention.fused.packing import ceil_div, empty_output, lse_shape, padded_length

#: for the sums at the edges of blocks in the backward pass; rows that need more are computed one part after the other
EDGE_BYTES = 2**28
ROWS = 128  # parts are multiples of it
FLAGS = ("GROUP_SIZE", "CAUSAL", "HAS_WINDOW", "HAS_SEGMENTS", "INPUT_PRECISION")


def forward(call: DeviceCall, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the log-sum-exp ``[1, B, H, padded_length]`` and, in the same shape, how many keys have the last count."""
    out = empty_output(call.q, call.v)
    lse = call.q.new_empty(lse_shape(call.q, False), dtype=torch.float32)
    clamped = torch.empty_like(lse, dtype=torch.int32)
    if call.has_padding_rows:  # results without chance numbers
        lse.fill_(torch.inf)
        clamped.zero_()
    tile, gated = tile_configs.gated_forward_config(call.max_block_d, call.element_size, call.q_len)
    arguments = (
        *map(plain_pointer, (call.q, call.k, call.v, out)), lse, clamped, table,
        *call.segment_arguments(tile.block_m, by_query=True), *_sizes(call, table), call.softmax.scale, call.logit_scale,
    )  # fmt: skip
    programs = ceil_div(call.q_len, tile.block_m) * call.batch * call.heads
    call.launch(gated_forward_kernel, programs, arguments, _constants(call, tile, gated), tile, variant=_variant(table))
    return out, lse, clamped


def backward(
    call: DeviceCall, table: Tensor, grad_out: Tensor, out: Tensor, lse: Tensor, clamped: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and the gradient of the table."""
    (dq_tile, edge), (dkdv_tile, gated_rows) = tile_configs.gated_backward_configs(call.max_block_d, call.element_size)
    blocks, batch_heads = ceil_div(call.kv_len, dq_tile.block_n), call.batch * call.heads
    all_rows = padded_length(call.q_len)
    edges_per_row = blocks * (dq_tile.block_n // edge)
    rows = min(max(EDGE_BYTES // (8 * batch_heads * edges_per_row) // ROWS, 1) * ROWS, all_rows)
    parts = range(0, call.q_len, rows)
    # with segments or a window, the kernel for dk and dv may visit a tile without a visible pair that the other one leaves out
    some_unvisited = call.has_segments or call.mask.window is not None
    edge_sums = (torch.zeros if some_unvisited else torch.empty)(
        2, batch_heads, edges_per_row, rows, dtype=torch.float32, device=call.q.device
    )
    dq, delta, d_table = torch.empty_like(call.q), torch.empty_like(lse), torch.zeros_like(table)
    wide = torch.float32 if len(parts) > 1 else call.k.dtype
    dk, dv = torch.empty_like(call.k, dtype=wide), torch.empty_like(call.v, dtype=wide)
    sizes = _sizes(call, table)
    scales = (call.softmax.scale, call.logit_scale, call.softmax.temperature)
    variant = (*_variant(table, out, grad_out), grad_out.stride(), out.stride(), wide)
    q, k, v, grad = map(plain_pointer, (call.q, call.k, call.v, grad_out))
    for first in parts:
        shared = (*sizes, first, rows, *scales)
        arguments: tuple[Any, ...] = (
            q, k, v, grad, plain_pointer(out), plain_pointer(dq), lse, delta, clamped, table, d_table, *edge_sums,
            *call.segment_arguments(dq_tile.block_m, by_query=True), *shared,
        )  # fmt: skip
        programs = ceil_div(min(rows, call.q_len - first), dq_tile.block_m) * batch_heads
        call.launch(gated_dq_kernel, programs, arguments, _constants(call, dq_tile, edge), dq_tile, variant=variant)
        arguments = (
            q, k, v, grad, plain_pointer(dk), plain_pointer(dv), lse, delta, clamped, table, *edge_sums,
            *call.segment_arguments(dkdv_tile.block_n, by_query=False), *shared,
        )  # fmt: skip
        constants = _constants(call, dkdv_tile, gated_rows) | {"EDGE": edge, "ADD": first > 0}
        programs = blocks * call.batch * call.kv_heads
        call.launch(gated_dkdv_kernel, programs, arguments, constants, dkdv_tile, variant=variant)
    return dq, dk.to(call.k.dtype), dv.to(call.v.dtype), d_table


def _sizes(call: DeviceCall, table: Tensor) -> tuple[int, ...]:
    """The integer arguments of the kernels, from ``heads`` to ``entries``."""
    m = call.mask
    return (
        call.heads, call.q_len, padded_length(call.q_len), call.kv_len, m.q_offset, m.window or 0, table.shape[3],
    )  # fmt: skip


def _constants(call: DeviceCall, tile: tile_configs.TileConfig, gated: int) -> dict[str, Any]:
    own = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_G": gated, "NUM_STAGES": tile.num_stages}
    padded = {"BLOCK_D": call.padded_d, "BLOCK_DV": call.padded_dv}
    return own | {name: call.flags[name] for name in FLAGS} | padded


def _variant(*tensors: Tensor) -> tuple[int, ...]:
    """What Triton compiles for besides the arguments of the call: the alignment of other tensors."""
    return tuple(x.data_ptr() % 16 for x in tensors)
