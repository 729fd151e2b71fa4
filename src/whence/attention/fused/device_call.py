"""One call on the device: aligned tensors, how kernels address them, scales and compile-time flags that the kernels share.

Padding and packed segments become one integer per token, and a range of blocks that each block can attend to.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from whence.attention.fused import gluon_launch, packing, tile_configs
from whence.attention.fused.clock_terms import BY_BLOCK, EXACT, split_clock
from whence.attention.fused.descriptors import build_descriptor
from whence.attention.fused.direct_launch import DirectLaunch
from whence.attention.fused.fused_call import FusedCall, Mask, ScoreEffects
from whence.attention.fused.ops import operator_facts
from whence.attention.fused.packing import (
    TABLE_PADDING,
    align,
    base_2_factor,
    ceil_div,
    next_power_of_two,
    padded_length,
    tile_columns,
)
from whence.attention.fused.row_tables import COORDINATES, SLOPES
from whence.attention.fused.tile_configs import TileConfig, loads_by_tma, max_head_dim
from whence.errors import usage_error

MAX_SLOPE = 160.0  # base-2 logits per step of distance: 2 ** -160 is below the smallest float32
SEGMENT_BLOCK = 64  # tokens per step of the ranges of blocks
PADDING_ID = torch.iinfo(torch.int64).min


class CallFacts:
    """What the signature of a call decides: sizes, scales, compile-time flags; and its launches, which later calls reuse.

    It holds no tensor. ``q``, ``k`` and ``v`` are aligned, and those of the call if kernels can read it in place.

    Attributes:
        group_size: query heads per key head.
        parts_d, parts_dv: columns of the parts of tiles (see ``head_parts``) of q, k and of v.
        block_d, block_dv: their sums; max_block_d is the larger one.
        padded_d, padded_dv: columns of kernels whose tiles have one part.
        qk_scale, logit_scale: turn ``q . k``, and a bias, into base-2 logits.
        qk_grad_scale: turns the gradient of a logit, times the score scale in the table, into the gradient of ``q . k``.
        table_entries: the number of distances in the table, and table_stride with its padding.
        clock: how kernels compute the bias of a clock; see ``clock_terms``. 0 for none.
        sizes: the integer arguments of most kernels, from ``batch`` to ``table_stride``.
        flags: the compile-time arguments of most kernels.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, call: FusedCall) -> None:
        e, m, softmax = call.effects, call.mask, call.softmax
        self.device, self.element_size = q.device, q.element_size()
        self.reads_in_place = q is call.q and k is call.k and v is call.v
        self.has_factors = call.has_factors
        self.batch, self.heads, self.q_len, self.head_dim = q.shape
        self.kv_heads, self.kv_len, self.value_dim = k.shape[1], k.shape[2], v.shape[3]
        self.group_size = self.heads // self.kv_heads
        self.parts_d, self.parts_dv = (tile_columns(x, self.element_size) for x in (self.head_dim, self.value_dim))
        self.block_d, self.block_dv = sum(self.parts_d), sum(self.parts_dv)
        self.padded_d, self.padded_dv = next_power_of_two(self.block_d), next_power_of_two(self.block_dv)
        self.max_block_d = max(self.block_d, self.block_dv)
        self.logit_scale = base_2_factor(softmax.temperature)
        self.qk_scale = softmax.scale * self.logit_scale
        self.qk_grad_scale = math.log(2) if e.has_score_scale else softmax.scale / softmax.temperature
        self.has_padding_rows = padded_length(self.q_len) != self.q_len
        self.has_row_tables = e.content_table is not None or e.value_entries > 0
        self.has_segments = m.key_mask is not None or m.q_segment_ids is not None
        self.table_stride = 0 if e.table is None else e.table.shape[1]
        self.table_entries = self.table_stride - 2 * TABLE_PADDING
        self.clock = 0 if e.k_clock is None else EXACT.value if self.has_factors else BY_BLOCK.value
        pairs = None if self.has_row_tables or e.num_knots >= 0 else self.batch * self.heads * self.q_len * self.kv_len
        self.has_tma = loads_by_tma(self.device, pairs, self.max_block_d, self.element_size)
        largest = max_head_dim(self.has_tma, packing.shared_memory(self.device), self.element_size)
        if self.max_block_d > largest:  # refused earlier, except in a compiled call, which does not ask the device
            raise usage_error(
                "attend(backend='triton')", f"head dimension {max(self.head_dim, self.value_dim)} in {q.dtype}",
                f"the shared memory of this GPU holds tiles of head dimensions up to {largest}",
                "pass backend='blockwise', or compute in bfloat16",
            )  # fmt: skip
        self.sizes = (
            self.batch, self.heads, self.q_len, padded_length(self.q_len), self.kv_len, m.q_offset, e.first_distance,
            m.window or 0, self.table_stride,
        )  # fmt: skip
        # float32 inputs: three tf32 products keep float32 precision, unless torch allows tf32
        exact = q.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
        self.flags: dict[str, Any] = {
            "GROUP_SIZE": self.group_size, "BLOCK_D": self.block_d, "BLOCK_DV": self.block_dv,
            "HAS_SCORE_SCALE": e.has_score_scale, "HAS_BIAS": e.has_bias, "HAS_SLOPE": e.slope is not None, "CLOCK": self.clock,
            "CAUSAL": m.causal, "HAS_WINDOW": m.window is not None, "HAS_SEGMENTS": self.has_segments,
            "HAS_DROPOUT": softmax.dropout > 0, "INPUT_PRECISION": "tf32x3" if exact else "tf32",
        }  # fmt: skip
        self._choose_tiles(e)
        self.launches: dict[tuple[Any, ...], DirectLaunch] = {}
        self.descriptors = operator_facts.descriptors(self.device, build_descriptor)
        self.gluon_descriptors = operator_facts.descriptors(self.device, gluon_launch.describe)

    def _choose_tiles(self, e: ScoreEffects) -> None:
        sizes, by_pair = (self.max_block_d, self.element_size), e.num_knots >= 0
        splits = tile_configs.splits_keys(self.q_len, self.kv_len, self.group_size, *sizes, e.q_places is not None)
        self.decodes = splits and not e.value_entries
        self.forward_tile = tile_configs.forward_config(
            *sizes, self.table_stride > 0, self.q_len, self.has_tma, self.has_row_tables
        )
        self.dkdv_passes = tile_configs.dkdv_passes(
            *sizes, self.has_tma, e.has_score_scale or by_pair, e.decay is not None or by_pair,
            e.slope is not None or e.k_clock is not None, self.has_segments, self.has_row_tables,
        )  # fmt: skip
        self._has_pieces = e.num_knots > 0
        self._dq_tiles: dict[tuple[int, int], TileConfig] = {}
        dq_tiles = [self.dq_tile(derivatives, dense) for derivatives in range(2) for dense in range(3)]
        table_tile = tile_configs.table_gradient_config(*sizes, self.has_tma and not self.has_row_tables)
        after_dq = (table_tile, *(tile for _, tile in self.dkdv_passes))
        self._read_after_dq = max(self._rows(tile) for tile in after_dq)
        written = 0 if self.decodes else self._rows(self.forward_tile)
        self.fills_lse = max(self._read_after_dq, *map(self._rows, dq_tiles)) > written

    def _rows(self, tile: TileConfig) -> int:
        """Rows in the blocks of a tile, padding included."""
        return ceil_div(self.q_len, tile.block_m) * tile.block_m

    def dq_tile(self, derivatives: int, dense: int) -> TileConfig:
        """The tile of the dq kernel by the numbers of derivatives and of dense gradients."""
        tile = self._dq_tiles.get((derivatives, dense))
        if tile is None:
            tile = self._dq_tiles[derivatives, dense] = tile_configs.dq_config(
                self.max_block_d,
                self.element_size,
                derivatives,
                dense,
                self.has_tma,
                self._has_pieces,
                self.has_row_tables,
            )
        return tile

    def fills_delta(self, tile: TileConfig) -> bool:
        """Whether later kernels read rows of delta that the dq kernel does not write."""
        return self._read_after_dq > self._rows(tile)


class DeviceCall(CallFacts):
    """A ``FusedCall`` ready for launching kernels.

    Attributes:
        table: score scale and bias for base-2 logits, interleaved: ``[H, table_stride, 1 or 2]``.
        dummy: passed for tensors that a kernel does not read; ``unread``, any float32 tensor, if it is given.
        slope: the change of a base-2 logit per step of distance, ``[H]``.
        table_argument: the table, or a function of it (see ``scaled_distance_kernels``), for a kernel's argument.
    """

    def __init__(self, call: FusedCall, facts: CallFacts | None = None, unread: Tensor | None = None) -> None:
        self.q, self.k, self.v = call.q, call.k, call.v
        if facts is None or not facts.reads_in_place:
            self.q, self.k, self.v = align(call.q), align(call.k), align(call.v)
        facts = CallFacts(self.q, self.k, self.v, call) if facts is None else facts
        self.facts = facts
        self.__dict__.update(facts.__dict__)
        self.effects, self.mask, self.softmax = call.effects, call.mask, call.softmax
        e = call.effects
        self.dummy = dummy = self.q.new_empty(1, dtype=torch.float32) if unread is None else unread
        self.seed = dummy if self.softmax.seed is None else self.softmax.seed
        self.table = dummy if e.table is None else e.table.contiguous()  # a compiler may change strides
        self.function = None if e.num_knots < 0 else call.gradients.parameters
        self.table_argument: Any = self.table
        if self.function is not None:
            self.table_argument = self.table, self.function.contiguous(), tl.constexpr(e.num_knots)
        self.slope = dummy
        if e.slope is not None:
            # a steeper slope gives weight 0 in any precision, but its query and key parts would cancel with large errors
            self.slope = (e.slope * self.logit_scale).float().clamp(-MAX_SLOPE, MAX_SLOPE).contiguous()
        self.sink, self.sink_strides = (dummy, (0, 0, 0)) if e.sink is None else (e.sink, e.sink.stride())
        # what the call does not have needs no property
        if e.k_clock is None:
            self.__dict__["clocks"] = dummy, dummy
        if e.content_table is None:
            self.__dict__["content_table"] = dummy
        if not self.has_segments:
            self.__dict__["segments"] = None

    def launch(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], tile: TileConfig | None = None, *,
        variant: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        """Launch a kernel. Triton binds the arguments of the first launch of the signature, later ones reuse the compiled kernel.

        ``variant``: what else Triton may compile for, such as the strides of tensors that are no argument of the call.
        """
        key = (kernel.__name__, *variant, *constants.values())
        launch = self.launches.get(key)
        if launch is None:
            options = {} if tile is None else tile.options
            launch = self.launches[key] = DirectLaunch(kernel, constants, options, self.device)
        launch(programs, *arguments)

    @cached_property
    def segments(self) -> Segments | None:
        return Segments(self.batch, self.q_len, self.kv_len, self.q.device, self.mask)

    @property
    def segment_ids(self) -> tuple[Tensor, Tensor]:
        """Ids of queries and keys, for a kernel's arguments."""
        return (self.dummy, self.dummy) if self.segments is None else (self.segments.q_ids, self.segments.k_ids)

    def segment_arguments(self, block: int, by_query: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Ids of queries and keys, and the ranges of blocks that can share an id; where blocks are skipped, then the range of
        queries of each sequence that do not see their own key."""
        if self.segments is None:
            return self.dummy, self.dummy, self.dummy
        ranges = self.segments.block_ranges(block, by_query)
        if self.mask.skip_blocks:
            ranges = torch.cat([ranges.flatten(), self.segments.hidden_queries(self.mask.q_offset).flatten()])
        return (*self.segment_ids, ranges)

    @cached_property
    def clocks(self) -> tuple[Tensor, Tensor]:
        """Base-2 running sums at queries and, with the opposite sign, at keys; see ``clock_terms``."""
        q_clock, k_clock = self.effects.q_clock, self.effects.k_clock
        assert k_clock is not None
        scale = self.logit_scale
        if q_clock is None:
            q_split, k_split = split_clock(k_clock, scale, self.clock, self.launch, signs=2)
            return q_split, k_split
        q_split = split_clock(q_clock, scale, self.clock, self.launch)
        return q_split, split_clock(k_clock, -scale, self.clock, self.launch)

    @cached_property
    def content_table(self) -> Any:
        """Score terms of single queries for a kernel's argument; see ``row_tables``. Kernels add them to ``q . k``."""
        table = self.effects.content_table
        assert table is not None
        stride = table.shape[1]  # of a head, if it is a table of coordinates
        return self.content_argument(table.contiguous(), 1 / self.softmax.scale, stride)

    def content_argument(self, table: Tensor, factor: float, head_stride: int) -> Any:
        """A tensor like the content table, which kernels multiply with a factor."""
        places = self.effects.q_places, self.effects.k_places
        if places[0] is not None and self.effects.content_table is not None:
            center = self.effects.content_table.shape[1] // 2
            return (table, *places, factor, COORDINATES, center, self.heads, self.kv_len, head_stride)
        if table.ndim == 3:
            return table, self.kv_len, self.kv_len, factor, SLOPES
        first = self.effects.content_first
        clipped = tl.constexpr(self.effects.content_clipped)
        return table, first, first + table.shape[3] - 1, factor, clipped

    def sums_argument(self, sums: Tensor) -> Any:
        """A tensor like the sums of the weights by distance."""
        first = self.effects.value_first
        return sums, first, first + self.effects.value_entries - 1, 1.0, tl.constexpr(self.effects.value_clipped)

    def describe(self, x: Tensor, rows: int, columns: int) -> Any:
        """``[B, H, length, dim]`` as kernels take it, for tiles of some rows: a TMA descriptor, or a pointer with the strides of
        batch, head and row, and the dim."""
        if not self.has_tma:
            return plain_pointer(x)
        return self.descriptors.describe(x, rows, columns)

    def describe_parts(self, x: Tensor, rows: int, parts: tuple[int, int]) -> tuple[Any, Any]:
        """The same for both parts of a tile; see ``head_parts``."""
        if not self.has_tma:
            return (x, *x.stride()[:3], x.shape[3]), None
        describe = self.descriptors.describe
        return describe(x, rows, parts[0]), describe(x, rows, parts[1]) if parts[1] else None


def plain_pointer(x: Tensor) -> tuple[Any, ...]:
    """``[B, H, length, dim]`` as kernels take it without TMA: a pointer with strides, and the dim."""
    return (x, *x.stride()[:3], x.shape[3])


class Segments:
    """An id for each query ``[B, T]`` and key ``[B, S]``; a query attends to keys with the same id. Padding has its own."""

    def __init__(self, batch: int, q_len: int, kv_len: int, device: torch.device, mask: Mask) -> None:
        if mask.q_segment_ids is None or mask.k_segment_ids is None:
            q_ids, k_ids = (torch.zeros(1, n, dtype=torch.int64, device=device) for n in (q_len, kv_len))
        else:
            q_ids, k_ids = mask.q_segment_ids.long(), mask.k_segment_ids.long()
        if mask.key_mask is not None:
            k_ids = torch.where(mask.key_mask, k_ids, PADDING_ID)
        self.q_ids = q_ids.expand(batch, -1).contiguous()
        self.k_ids = k_ids.expand(batch, -1).contiguous()

    def block_ranges(self, block: int, by_query: bool) -> Tensor:
        """``[B, blocks, 2]``: for each block of one side, the range of the other side that can have the same id."""
        own, other = (self.q_ids, self.k_ids) if by_query else (self.k_ids, self.q_ids)
        own_min, own_max = (x[:, :, None] for x in _block_extremes(own, block))
        other_min, other_max = (x[:, None, :] for x in _block_extremes(other, SEGMENT_BLOCK))
        overlap = (own_min <= other_max) & (own_max >= other_min)  # one byte per pair: 16 MB for 262,144 tokens
        some, count = overlap.any(-1), overlap.shape[2]
        low = torch.where(some, overlap.byte().argmax(-1), 0)
        high = torch.where(some, count - overlap.flip(-1).byte().argmax(-1), 0)
        return torch.stack([low, high], -1).mul(SEGMENT_BLOCK).to(torch.int32).contiguous()

    def hidden_queries(self, q_offset: int) -> Tensor:
        """``[B, 2]``: the range of queries in each sequence whose own key has another id; (T, 0) if there are none."""
        length = self.q_ids.shape[1]
        hidden = self.q_ids != self.k_ids[:, q_offset : q_offset + length]
        index = torch.arange(length, device=hidden.device)
        low, high = torch.where(hidden, index, length).amin(1), torch.where(hidden, index + 1, 0).amax(1)
        return torch.stack([low, high], -1).to(torch.int32)


def _block_extremes(ids: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest id of each block, ``[B, blocks]`` each."""
    padding = -ids.shape[1] % block
    blocks = torch.cat([ids, ids[:, -1:].expand(-1, padding)], 1).unflatten(1, (-1, block))
    return blocks.amin(-1), blocks.amax(-1)
