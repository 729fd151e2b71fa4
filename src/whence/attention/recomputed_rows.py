"""Blocks of query rows that are computed again in the backward pass, so that only one block's matrix exists at any moment."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whence import torch_modes
from whence.attention.call import Call

COMPILED_BLOCKS = 32  # at most, because a compiled graph holds the operations of each block


def run_in_blocks(call: Call, rows: int, block: Callable[[slice], Tensor]) -> Tensor:
    """The outputs of ``block`` for consecutive slices of that many rows, joined: ``[B, H, T, E]``."""
    count = call.q.shape[2]
    if torch.compiler.is_compiling():
        rows = max(rows, -(-count // COMPILED_BLOCKS))
    # checkpoints do not go through torch.func
    recompute = gets_gradient(call) and not torch_modes.is_transforming()
    # a checkpoint draws the same random numbers again on the devices of its arguments; CUDA graph capture does not allow that
    draws = call.dropout > 0 or torch_modes.is_tracing() or torch_modes.can_read_values(call.q)
    devices = (call.q,) if draws else ()
    outs = []
    for first in range(0, count, rows):
        part = slice(first, min(first + rows, count))
        outs.append(checkpoint(_run_block, block, part, *devices, use_reentrant=False) if recompute else block(part))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _run_block(block: Callable[[slice], Tensor], rows: slice, *_: Tensor) -> Tensor:
    return block(rows)


def gets_gradient(call: Call) -> bool:
    """Whether a tensor or parameter of the call gets a gradient."""
    mask, clocks = call.layout.pair_mask, () if call.clock is None else (call.clock.q, call.clock.k)
    learnable = call.position.trainable or (mask is not None and mask.learnable)
    tensors = [x for x in (call.q, call.k, call.v, *clocks, call.q_input) if x is not None]
    return torch.is_grad_enabled() and (learnable or any(x.requires_grad for x in tensors))
