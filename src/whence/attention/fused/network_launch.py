"""Launches of the kernels for a network over heads (see ``network_kernels``): blocks of query rows, forward and backward.

A block's scores are a matrix product in memory, ``MAX_SCORES`` numbers in float32 at most, or ``MIN_ROWS`` rows of a sequence. The
kernels then make logits and weights of them. The backward pass computes the scores again. Memory beside the block is linear in length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from whence.attention.fused import packing, tile_configs
from whence.attention.fused.device_call import DeviceCall
from whence.attention.fused.network_kernels import (
    network_backward_kernel,
    network_logits_kernel,
    network_softmax_kernel,
)
from whence.attention.fused.packing import ceil_div, empty_output, next_power_of_two
from whence.attention.half_product import multiply_to_float32

MAX_SCORES = 1 << 25  # 128 MiB of float32; with fewer, the last programs of a block leave a large GPU idle
MIN_ROWS = 64  # of a block, even if it has more scores then: every block reads all keys again
MAX_ROWS = 512  # with more, a block holds many keys that causality hides
SOFTMAX_BLOCK = 1024  # keys of a row at once
FLAGS = ("CAUSAL", "HAS_WINDOW", "HAS_SEGMENTS", "INPUT_PRECISION")
#: of the factors of products in kernels, as in the products of queries and keys; their sums are float32
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


class Network(NamedTuple):
    """The network as kernels read it: float32, padded with zeros to powers of two of at least 16."""

    first: Tensor  # [heads, hidden], the part that reads scores, transposed
    last: Tensor  # [hidden, heads], transposed
    of_hidden: Tensor  # [n, hidden], at n distances
    of_logits: Tensor  # [n, heads]
    first_distance: int
    negative_slope: float


class Block(NamedTuple):
    """Some query rows, and the keys that causality and the window leave them."""

    rows: slice
    keys: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start


def split_rows(call: DeviceCall) -> list[Block]:
    """The blocks of a call; blocks whose rows see no key have none."""
    rows = MAX_SCORES // max(1, call.batch * call.heads * call.kv_len) // tile_configs.NETWORK_ROWS
    rows = min(max(rows * tile_configs.NETWORK_ROWS, MIN_ROWS), MAX_ROWS)
    blocks, offset, window = [], call.mask.q_offset, call.mask.window
    for start in range(0, call.q_len, rows):
        end = min(start + rows, call.q_len)
        low, high = 0, call.kv_len
        if window is not None:
            low, high = max(low, offset + start - window + 1), min(high, offset + end - 1 + window)
        if call.mask.causal:
            high = min(high, offset + end)
        blocks.append(Block(slice(start, end), slice(low, max(low, high))))
    return blocks


def forward(call: DeviceCall, network: Network) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and for each row ``[B, H, T]`` its largest base-2 logit and the sum of the exponentials."""
    out = empty_output(call.q, call.v)
    top = torch.zeros(call.q.shape[:3], dtype=torch.float32, device=call.q.device)
    total = torch.ones_like(top)
    k, v = call.k.flatten(0, 1), call.v.flatten(0, 1)
    for block in split_rows(call):
        rows, keys = block.shape
        if keys == 0:
            out[:, :, block.rows] = 0
            continue
        scores = multiply_to_float32(_select(call, call.q, block.rows), k[:, block.keys].mT)
        _launch_pairs(
            call, network, block, network_logits_kernel, (scores,), (), (call.softmax.scale, call.logit_scale)
        )
        weights = _empty_weights(call, block)
        arguments = (scores, weights, top, total, rows, keys, weights.stride(1), block.rows.start, call.q_len)
        constants = {"BLOCK": min(SOFTMAX_BLOCK, max(16, next_power_of_two(call.kv_len)))}
        call.launch(network_softmax_kernel, call.batch * call.heads * rows, arguments, constants)
        part = multiply_to_float32(weights, v[:, block.keys]).view(call.batch, call.heads, rows, -1)
        out[:, :, block.rows] = part.div_(total[:, :, block.rows, None])
    return out, top, total


def backward(
    call: DeviceCall, network: Network, grad_out: Tensor, out: Tensor, top: Tensor, total: Tensor, learns: bool
) -> tuple[Tensor, ...]:
    """dq, dk, dv and, if the network learns, the gradients of first, last, of_hidden and of_logits."""
    delta = (grad_out.float() * out.float()).sum(-1)
    k, v = call.k.flatten(0, 1), call.v.flatten(0, 1)
    dq = torch.empty_like(call.q)
    dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v))
    blocks = split_rows(call)
    sums = _empty_sums(call, network, blocks, learns)
    temperature, scale = call.softmax.temperature, call.softmax.scale
    for block in blocks:
        rows, keys = block.shape
        if keys == 0:
            dq[:, :, block.rows] = 0
            continue
        q, grad = (_select(call, x, block.rows) for x in (call.q, grad_out))
        scores = multiply_to_float32(q, k[:, block.keys].mT)
        upstream = multiply_to_float32(grad, v[:, block.keys].mT)
        weights, d_scores = _empty_weights(call, block), _empty_weights(call, block)
        tensors = (scores, upstream, weights, d_scores, top, total, delta)
        numbers = (scale, call.logit_scale, 1 / temperature)
        _launch_pairs(
            call, network, block, network_backward_kernel, tensors, sums, numbers, weights.stride(1), LEARNS=learns
        )
        dv[:, block.keys] += multiply_to_float32(weights.mT, grad)
        dk[:, block.keys] += multiply_to_float32(d_scores.mT, q)
        part = multiply_to_float32(d_scores, k[:, block.keys])
        dq[:, :, block.rows] = part.mul_(scale).view(call.batch, call.heads, rows, -1)
    wide = (dk.mul_(scale), call.k), (dv, call.v)
    dk, dv = (torch.empty_like(x).copy_(d.view(x.shape)) for d, x in wide)  # a compiler expects these strides
    return dq, dk, dv, *(x.sum(0) if learns else x for x in sums)


def _select(call: DeviceCall, x: Tensor, rows: slice) -> Tensor:
    """Rows of queries or gradients of outputs, ``[B * G, heads of the group * rows, dim]``."""
    return x[:, :, rows].reshape(call.batch * call.kv_heads, -1, x.shape[3])


def _empty_weights(call: DeviceCall, block: Block) -> Tensor:
    """For the weights of a block, ``[B * G, heads of the group * rows, keys]``; the rows begin at multiples of 16 bytes."""
    rows, keys = block.shape
    stored = call.q.new_empty(call.batch * call.kv_heads, call.group_size * rows, ceil_div(keys, 8) * 8)
    return stored[..., :keys]


def _choose_tile(call: DeviceCall, network: Network) -> tile_configs.TileConfig:
    heads, hidden = network.first.shape
    return tile_configs.network_config(heads, hidden, call.element_size, packing.has_tma(call.device))


def _count_programs(call: DeviceCall, block: Block, pairs: int) -> int:
    rows, keys = block.shape
    parts, diagonals = ceil_div(rows, tile_configs.NETWORK_ROWS), keys + tile_configs.NETWORK_ROWS - 1
    return call.batch * parts * ceil_div(diagonals, pairs)


def _empty_sums(call: DeviceCall, network: Network, blocks: list[Block], learns: bool) -> tuple[Tensor, ...]:
    """Sums of the gradients of the weights for each program, and of the tables for each part of a block's rows."""
    four = network[:4]
    if not learns:
        return tuple(x.new_empty(0) for x in four)
    pairs = _choose_tile(call, network).block_n
    programs = max(_count_programs(call, block, pairs) for block in blocks)
    parts = call.batch * max(ceil_div(block.shape[0], tile_configs.NETWORK_ROWS) for block in blocks)
    counts = (programs, programs, parts, parts)
    return tuple(x.new_zeros(count, *x.shape) for count, x in zip(counts, four, strict=True))


def _launch_pairs(
    call: DeviceCall, network: Network, block: Block, kernel: Any, tensors: tuple[Tensor, ...], sums: tuple[Tensor, ...],
    numbers: tuple[float, ...], *strides: int, **constants: Any,
) -> None:  # fmt: skip
    """Launch a kernel over all pairs of a block."""
    tile = _choose_tile(call, network)
    rows, keys = block.shape
    block_offset = call.mask.q_offset + block.rows.start - block.keys.start
    arguments = (
        *tensors, *network[:4], *sums, *call.segment_ids, call.heads, rows, keys, *strides, block.rows.start, block.keys.start,
        call.q_len, call.kv_len, block_offset, call.mask.window or 0, network.first_distance, network.of_hidden.shape[0],
        *numbers, network.negative_slope,
    )  # fmt: skip
    heads, hidden = network.first.shape
    sizes = {"ROWS": tile_configs.NETWORK_ROWS, "PAIRS": tile.block_n, "HEADS": heads, "HIDDEN": hidden}
    flags = {name: call.flags[name] for name in FLAGS} | {"DTYPE": DTYPES[call.q.dtype]}
    variant = tuple(x.data_ptr() % 16 for x in network[:4])
    programs = _count_programs(call, block, tile.block_n)
    call.launch(kernel, programs, arguments, sizes | constants | flags, tile, variant=variant)
