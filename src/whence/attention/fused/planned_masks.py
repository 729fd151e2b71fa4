"""Padding and packed segments of a planned call: one kernel writes an id for each token and says whether a plan covers the values.

A query attends to keys of its own id. Distances are differences of indices only if the real tokens of a sequence are adjacent,
so the values are read in each call, as validation reads them. Where they are irregular, the call goes the way without a plan,
which raises the error or chooses another backend.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused.direct_launch import DirectLaunch
from whence.attention.fused.packing import next_power_of_two

KINDS = ("lengths", "key_mask", "segment_ids")
LENGTHS, KEY_MASK = tl.constexpr(0), tl.constexpr(1)
WHOLE = (0, 2**30)  # the range of blocks that a block can attend to


@triton.jit(do_not_specialize=["length", "row_stride", "step"])
def token_ids_kernel(MASK, IDS, IRREGULAR, length, row_stride, step, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The ids of one sequence: 1 for real tokens and 0 for padding, or its segment ids."""
    b = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    exists = index < length
    row = MASK + b.to(tl.int64) * row_stride
    if KIND == LENGTHS:
        count = tl.load(row).to(tl.int64)
        ids = (index < count).to(tl.int64)
        irregular = ((count < 0) | (count > length)).to(tl.int32)
    else:
        has_previous = exists & (index > 0)
        ids = tl.load(row + index * step, mask=exists, other=0).to(tl.int64)
        previous = tl.load(row + tl.maximum(index - 1, 0) * step, mask=has_previous, other=0).to(tl.int64)
        if KIND == KEY_MASK:  # real tokens in several pieces
            irregular = (tl.sum((ids > previous).to(tl.int32), 0) > 1).to(tl.int32)
        else:  # segments that may be interrupted
            irregular = tl.max((has_previous & (ids < previous)).to(tl.int32), 0)
    tl.store(IDS + b.to(tl.int64) * length + index, ids, mask=exists)
    tl.store(IRREGULAR + b, irregular)


class TokenIds(NamedTuple):
    """Ids of queries ``[B, T]`` and keys ``[B, S]``, and the range of keys or queries for each block."""

    q: Tensor
    k: Tensor
    ranges: Tensor


class PlannedMask:
    """``lengths``, ``key_mask`` or ``segment_ids`` of one signature, for as many queries as keys."""

    def __init__(self, kind: str, batch: int, length: int, device: torch.device) -> None:
        self.kind, self.batch, self.length, self.device = kind, batch, length, device
        constants = {"KIND": KINDS.index(kind), "BLOCK": next_power_of_two(length)}
        self._write = DirectLaunch(token_ids_kernel, constants, {}, device)
        with torch.inference_mode(False):
            self._ones = torch.ones(batch, length, dtype=torch.int64, device=device)
            # for short sequences, looking for the blocks that share an id takes longer than masking them; 16 tokens: any block
            blocks = -(-length // 16)
            self._ranges = torch.tensor(WHOLE, dtype=torch.int32, device=device).repeat(batch * blocks)

    def ids(self, mask: Tensor) -> TokenIds | None:
        """The ids; None if the values are irregular. Waits for the GPU."""
        ids = torch.empty((self.batch, self.length), dtype=torch.int64, device=self.device)
        irregular = torch.empty(self.batch, dtype=torch.int32, device=self.device)
        *rows, step = mask.stride()
        row_stride = (step if self.kind == "lengths" else 0) if not rows else rows[0]
        self._write(self.batch, mask, ids, irregular, self.length, row_stride, step)
        if not is_regular(irregular):
            return None
        return TokenIds(ids if self.kind == "segment_ids" else self._ones, ids, self._ranges)


def is_regular(irregular: Tensor) -> bool:
    """Whether a plan covers every sequence; waits for the GPU."""
    return not any(irregular.tolist())
