"""``Plan``: one signature of an eager call, with its tiles, sizes and launches; and its gradients.

A plan launches the kernels of the ``triton`` backend and those of ``planned_tables``; see ``eager`` for which calls have one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.attention.fused import gluon_launch, tile_configs
from whence.attention.fused.backward_dkdv import backward_dkdv_kernel
from whence.attention.fused.backward_dq import backward_dq_kernel, scale_rows_kernel
from whence.attention.fused.decode import combine_kernel, max_splits, split_k_kernel, split_keys
from whence.attention.fused.descriptors import build_descriptor
from whence.attention.fused.direct_launch import DirectLaunch
from whence.attention.fused.forward import forward_kernel
from whence.attention.fused.launch import SCALED_ROWS, SPLIT_BITS
from whence.attention.fused.ops import operator_facts
from whence.attention.fused.packing import (
    NUM_SLOTS,
    TABLE_PADDING,
    align,
    base_2_factor,
    ceil_div,
    distance_range,
    draw_seed,
    effective_window,
    next_power_of_two,
    padded_length,
    tile_columns,
)
from whence.attention.fused.planned_gradients import record
from whence.attention.fused.planned_masks import PlannedMask, TokenIds
from whence.attention.fused.planned_tables import Extent, Scales, make_tables
from whence.attention.fused.rotation import Rotation

if TYPE_CHECKING:
    from whence.attention.fused.eager import EagerCall

Saved = tuple[Tensor, ...]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v and the gradient of the output


class Plan:
    """Everything about a call that its signature decides. ``run`` launches it."""

    def __init__(self, call: EagerCall) -> None:
        a = call.arguments
        q, k, v = a.q, a.k, a.v
        self.device = q.device
        self.causal, self.window, self.dropout = a.causal, a.window, a.dropout
        self.batch, self.heads, self.q_len, self.head_dim = q.shape
        self.kv_heads, self.value_dim = k.shape[1], v.shape[3]
        self.group_size = self.heads // self.kv_heads
        # see CallFacts
        self.parts_d, self.parts_dv = (tile_columns(x, q.element_size()) for x in (self.head_dim, self.value_dim))
        self.block_d, self.block_dv = sum(self.parts_d), sum(self.parts_dv)
        self.padded_d, self.padded_dv = next_power_of_two(self.block_d), next_power_of_two(self.block_dv)
        self.max_block_d = max(self.block_d, self.block_dv)
        self.lse_stride = padded_length(self.q_len)
        self.element_size, self.dtype = q.element_size(), q.dtype
        self.half_precision = q.dtype != torch.float32
        scale = float(self.head_dim**-0.5) if a.scale is None else a.scale
        self.logit_scale = base_2_factor(a.temperature)
        self.qk_scale = scale * self.logit_scale
        scales = Scales(self.qk_scale, self.logit_scale, scale / a.temperature, 1.0 / a.temperature)
        self.tables = tables = make_tables(call, self.heads, scales, self.device)
        self.qk_grad_scale = math.log(2) if tables.has_score_scale else scale / a.temperature
        self.has_slope = tables.has_slope
        self.mask = None if call.mask is None else PlannedMask(call.mask[0], self.batch, self.q_len, self.device)
        self.rotation = None if call.rotary is None else Rotation(call.rotary, self.head_dim, self.device)
        exact = not self.half_precision and torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
        keys = k.shape[2] if a.cache is None else a.cache.capacity  # type: ignore[attr-defined]
        pairs = self.batch * self.heads * self.q_len * keys
        self.has_tma = tile_configs.loads_by_tma(self.device, pairs, self.max_block_d, self.element_size)
        self.flags: dict[str, Any] = {
            "GROUP_SIZE": self.group_size, "BLOCK_D": self.block_d, "BLOCK_DV": self.block_dv,
            "HAS_SCORE_SCALE": tables.has_score_scale, "HAS_BIAS": tables.has_bias, "HAS_SLOPE": self.has_slope, "CLOCK": 0,
            "CAUSAL": a.causal, "HAS_SEGMENTS": call.mask is not None, "HAS_DROPOUT": a.dropout > 0,
            "INPUT_PRECISION": "tf32x3" if exact else "tf32",
        }  # fmt: skip
        # a plan of a cache has one kernel for every number of keys
        kv_len = k.shape[2] if a.cache is None else max(keys, tile_configs.FEW_KEYS + 1)
        self.few_queries = tile_configs.splits_keys(
            self.q_len, kv_len, self.group_size, self.max_block_d, self.element_size
        )
        self.max_splits = max_splits(self.device, self.batch, self.kv_heads)
        self.has_decay = call.form is not None and tables.has_score_scale and self.half_precision and self.causal
        sizes = (self.max_block_d, self.element_size)
        rows = max(16, next_power_of_two(self.q_len * self.group_size))
        self.decode_tile = tile_configs.decode_config(rows, *sizes)
        self.forward_tile = tile_configs.forward_config(*sizes, tables.has_table, self.q_len, self.has_tma)
        # by the number of dense gradients
        count = tables.num_derivatives
        self.dq_tiles = [tile_configs.dq_config(*sizes, count, dense, self.has_tma) for dense in range(3)]
        self.dkdv_passes = tile_configs.dkdv_passes(
            *sizes, self.has_tma, tables.has_score_scale, self.has_decay, self.has_slope, self.mask is not None
        )
        # fixed here, so that a plan always launches the same kernel
        self.uses_gluon = self.has_tma and a.cache is None and self.mask is None and not self.has_slope
        self.uses_gluon = self.uses_gluon and gluon_launch.covers(
            q, k, v, causal=a.causal, offset=0, window=a.window, dropout=a.dropout, qk_scale=self.qk_scale
        )
        self.uses_gluon_forward = self.uses_gluon and gluon_launch.covers_forward(
            self.head_dim, tables.has_score_scale, tables.has_bias
        )
        self._lse_shape = (2 if tables.has_bias else 1, self.batch, self.heads, self.lse_stride)
        self._fills_lse = self._needs_filled_lse(self.forward_tile.block_m)
        self._dkdv_constants = gluon_launch.dkdv_constants(self.head_dim, tables.has_score_scale, tables.has_bias)
        self._whole = None if a.cache is not None else self._extent(k.shape[2], 0)
        self._descriptors = operator_facts.descriptors(self.device, build_descriptor)
        self._gluon_descriptors = operator_facts.descriptors(self.device, gluon_launch.describe)
        self._launches: dict[Any, DirectLaunch] = {}  # by the facts that differ between calls of the signature

    def _extent(self, kv_len: int, offset: int) -> Extent:
        first, end = distance_range(offset, self.causal, self.window, self.q_len, kv_len)
        window = effective_window(offset, self.window, self.q_len, kv_len)
        entries = end - first if self.tables.has_table else 0
        return Extent(kv_len, offset, first, entries, entries + 2 * TABLE_PADDING if entries else 0, window)

    def _launch(self, kernel: Any, constants: dict[str, Any], options: dict[str, Any] | None = None) -> DirectLaunch:
        return DirectLaunch(kernel, constants, options or {}, self.device)

    def run(self, call: EagerCall, k: Tensor, v: Tensor, offset: int) -> Tensor | None:
        """The output; None if padding or segments are irregular.

        ``offset``: the position of the first query minus that of the first key.
        """
        if self.device.type == "cuda" and torch._C._cuda_getDevice() != self.device.index:
            with torch.cuda.device(self.device):
                return self._run(call, k, v, offset)
        return self._run(call, k, v, offset)

    def _run(self, call: EagerCall, k: Tensor, v: Tensor, offset: int) -> Tensor | None:
        ids = None
        if self.mask is not None and call.mask is not None:
            ids = self.mask.ids(call.mask[1])
            if ids is None:
                return None
        extent = self._extent(k.shape[2], offset) if self._whole is None else self._whole
        tensors = self.tables.tensors(call, extent)
        seed = draw_seed(self.device) if self.dropout > 0 else None
        # a hook may depend on any tensor, so whether its output needs a gradient is known only now
        if call.needs_gradient or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return record(self, extent, ids, seed, call.arguments.q, k, v, *tensors)
        return self.forward(call.arguments.q, k, v, tensors, extent, ids, seed, needs_gradient=False)[0]

    # --- forward -------------------------------------------------------------------------------------------------------

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, tensors: tuple[Tensor, ...], extent: Extent, ids: TokenIds | None, seed: Tensor | None, *,
        needs_gradient: bool,
    ) -> Saved:  # fmt: skip
        """The output, and what the backward pass reads: q and k as rotated, log-sum-exp, tables, values per head."""
        heads = self.heads
        kv_len, offset, first, _, stride, window = extent
        if self.rotation is not None:
            q, k = self.rotation.rotate(q, k, offset)
        table, derivatives, head_values = self.tables.write(tensors, extent)
        lse = self.tables.like.new_empty(self._lse_shape)
        out = torch.empty_like(q) if self.head_dim == self.value_dim else q.new_empty(*q.shape[:3], self.value_dim)
        q_ids, k_ids, ranges = (lse, lse, lse) if ids is None else ids
        seed = lse if seed is None else seed
        if self.few_queries:
            self._decode(q, k, v, out, lse, table, head_values, q_ids, k_ids, extent, seed, needs_gradient)
        elif self.uses_gluon_forward:
            launch = gluon_launch.arguments(
                q, k, v, out, lse, table, lse, stride, self.qk_scale, self._gluon_descriptors
            )
            self._run_gluon(("gluon",), launch, {"SKIP_BLOCKS": False})
        else:
            tile = self.forward_tile
            if needs_gradient and self._fills_lse:
                lse.fill_(torch.inf)
            self._tiled(
                ("forward", window is not None), forward_kernel, tile,
                lambda: {"HAS_WINDOW": window is not None, "HAS_SINK": False, "SKIP_BLOCKS": False},
            )(
                ceil_div(self.q_len, tile.block_m) * self.batch * heads,
                *self._parts(q, tile.block_m, self.parts_d), *self._parts(k, tile.block_n, self.parts_d),
                *self._parts(v, tile.block_n, self.parts_dv), *self._parts(out, tile.block_m, self.parts_dv),
                lse, table, head_values, lse, lse, lse, q_ids, k_ids, ranges, lse, lse, lse, self.batch, heads, self.q_len,
                self.lse_stride, kv_len, offset, first, window or 0, stride, self.qk_scale, self.logit_scale, 0, 0, 0, self.dropout, seed,
            )  # fmt: skip
        return out, q, k, lse, table, derivatives, head_values

    def _decode(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor, head_values: Tensor, q_ids: Tensor,
        k_ids: Tensor, extent: Extent, seed: Tensor, needs_gradient: bool,
    ) -> None:  # fmt: skip
        kv_len, offset, first, _, stride, window = extent
        tile = self.decode_tile
        splits = split_keys(self.q_len, kv_len, offset, self.causal, window, tile.block_n, self.max_splits)
        shape = (self.batch, self.heads, self.q_len, splits.count)
        partial_out = lse.new_empty((*shape, self.padded_dv))
        partial_max, partial_sum = lse.new_empty(shape), lse.new_empty(shape)
        self._tiled(
            ("split", window is not None), split_k_kernel, tile,
            lambda: {"HAS_WINDOW": window is not None, "BLOCK_D": self.padded_d, "BLOCK_DV": self.padded_dv},
        )(
            self.batch * self.kv_heads * splits.count, q, self._tiles(k, tile.block_n, self.padded_d),
            self._tiles(v, tile.block_n, self.padded_dv), partial_out, partial_max, partial_sum, table, head_values, lse,
            lse, q_ids, k_ids, lse, self.heads, self.q_len, kv_len, offset, first, window or 0, stride, self.qk_scale,
            *q.stride()[:3],
            self.head_dim, splits.low, splits.high, splits.keys, splits.count, self.dropout, seed,
        )  # fmt: skip
        block = max(2, next_power_of_two(splits.count))
        combine = self._launches.get(("combine", block, needs_gradient))
        if combine is None:
            combine = self._launches["combine", block, needs_gradient] = self._launch(
                combine_kernel,
                {
                    "HAS_SINK": False, "HAS_FACTORS": self.tables.has_bias, "FILL_LSE": needs_gradient,
                    "BLOCK_SPLITS": block, "BLOCK_DV": self.padded_dv,
                },
            )  # fmt: skip
        combine(
            self.batch * self.heads * self.q_len, partial_out, partial_max, partial_sum, lse, out, lse, self.heads,
            self.q_len, self.lse_stride, splits.count, self.logit_scale, 0, 0, 0, *out.stride()[:3], self.value_dim,
        )  # fmt: skip

    def _needs_filled_lse(self, written: int) -> bool:
        """Whether a backward kernel reads rows of the log-sum-exp that a forward kernel of these blocks does not write."""
        covered, tiles = ceil_div(self.q_len, written) * written, (*self.dq_tiles, *(x for _, x in self.dkdv_passes))
        read = max(ceil_div(self.q_len, x.block_m) * x.block_m for x in tiles)
        return (self.lse_stride if self.uses_gluon else read) > covered

    # --- backward ------------------------------------------------------------------------------------------------------

    def backward(
        self, grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, table: Tensor,
        derivatives: Tensor, head_values: Tensor, tensors: tuple[Tensor, ...], extent: Extent, ids: TokenIds | None, seed: Tensor | None,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """The gradients of q, k, v and of the tensors of the tables."""
        tables = self.tables
        grad_out = align(grad_out)
        strides = grad_out.stride()
        if tables.has_bias:
            grad_out = self._scale_rows(grad_out, lse)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(lse)  # as large or larger, and allocated in half the time of a shape
        q_ids, k_ids, ranges = (delta, delta, delta) if ids is None else ids
        seed = delta if seed is None else seed
        read = (q, k, v, grad_out)
        ids_and_ranges = (q_ids, k_ids, ranges)
        tables_read = (table, derivatives, head_values)
        sums, table_sums = self._backward_dq(
            read, strides, out, dq, lse, delta, *tables_read, ids_and_ranges, tensors, extent, seed
        )
        self._backward_dkdv(read, strides, dk, dv, lse, delta, table, head_values, ids_and_ranges, extent, seed)
        if self.rotation is not None:
            self.rotation.rotate_gradients(dq, dk)
        return (dq, dk, dv, *tables.gradients(tensors, sums, table_sums, extent))

    def _backward_dq(
        self, read: Inputs, strides: tuple[int, ...], out: Tensor, dq: Tensor, lse: Tensor, delta: Tensor, table: Tensor,
        derivatives: Tensor, head_values: Tensor, ids: Saved, tensors: Saved, extent: Extent, seed: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Write dq and delta; the sums for the parameters, and those of each distance."""
        tables, heads, count = self.tables, self.heads, self.tables.num_derivatives
        kv_len, offset, first, _, stride, window = extent
        dense, learns = tables.dense(tensors), tables.learns
        if self.uses_gluon and gluon_launch.covers_sums(
            self.head_dim, dense, tables.has_score_scale, tables.has_bias, count
        ):
            sums = gluon_launch.empty_sums(dq) if learns else delta
            launch = gluon_launch.dq_arguments(
                *read, out, dq, lse[0], delta[0], table, derivatives, sums, stride, self.qk_scale, self.qk_grad_scale,
                self._gluon_descriptors,
            )  # fmt: skip
            constants = gluon_launch.dq_constants(count, max(1, count), learns and tables.has_score_scale)
            self._run_gluon(("gluon dq", strides), launch, constants)
            return sums, delta
        tile = self.dq_tiles[sum(dense)]
        blocks = ceil_div(self.q_len, tile.block_m)
        if (
            self.uses_gluon and self.q_len != self.lse_stride
        ):  # then the kernel of dk and dv reads the padding rows, too
            delta.zero_()
        sums = table_sums = delta
        if learns:
            sums = lse.new_empty((self.batch, heads, blocks, NUM_SLOTS))
        if any(dense):
            table_sums = lse.new_zeros((sum(dense), self.batch, heads, stride))
        bias_grad_offset = self.batch * heads * stride if all(dense) else 0
        self._tiled(
            ("dq", window is not None, strides, dense), backward_dq_kernel, tile,
            lambda: {
                "HAS_WINDOW": window is not None, "SKIP_BLOCKS": False, "DENSE_SCALE_GRAD": dense[0],
                "DENSE_BIAS_GRAD": dense[1], "NUM_SCALE_DERIVS": count if tables.has_score_scale else 0,
                "NUM_BIAS_DERIVS": count if tables.has_bias else 0, "DERIV_WIDTH": max(1, count),
                "SLOPE_GRAD": learns and self.has_slope, "AMPLITUDE_GRAD": learns and tables.has_score_scale,
            },
        )(
            blocks * self.batch * heads, *self._input_tiles(*read, tile), *self._parts(out, tile.block_m, self.parts_dv),
            *self._parts(dq, tile.block_m, self.parts_d), lse, delta, table, derivatives, table_sums, sums, head_values,
            delta, delta, delta, *ids, delta, delta, delta, delta, delta, self.batch, heads, self.q_len, self.lse_stride, kv_len,
            offset, first, window or 0, stride, bias_grad_offset, self.qk_scale, self.qk_grad_scale, self.dropout, seed,
        )  # fmt: skip
        return sums, table_sums

    def _backward_dkdv(
        self, read: Inputs, strides: tuple[int, ...], dk: Tensor, dv: Tensor, lse: Tensor, delta: Tensor, table: Tensor,
        head_values: Tensor, ids: Saved, extent: Extent, seed: Tensor,
    ) -> None:  # fmt: skip
        kv_len, offset, first, _, stride, window = extent
        if self.uses_gluon:
            launch = gluon_launch.dkdv_arguments(
                *read,
                dk,
                dv,
                lse[0],
                delta[0],
                table,
                stride,
                self.qk_scale,
                self.qk_grad_scale,
                self._gluon_descriptors,
            )
            self._run_gluon(("gluon dkdv", strides), launch, self._dkdv_constants)
            return
        split_slope = SPLIT_BITS.get(self.dtype, 0) if self.has_slope and self.group_size == 1 else 0
        inputs: tuple[Any, ...] = ()
        for part, tile in self.dkdv_passes:
            if self.has_tma or not inputs:  # pointers do not depend on the tile
                inputs = self._input_tiles(*read, tile)
            self._tiled(
                ("dkdv", part, window is not None, strides), backward_dkdv_kernel, tile,
                lambda part=part: {
                    "HAS_WINDOW": window is not None, "SKIP_BLOCKS": False, "HAS_DECAY": self.has_decay,
                    "SPLIT_BITS": split_slope, "PART": part,
                },
            )(
                ceil_div(kv_len, tile.block_n) * self.batch * self.kv_heads, *inputs,
                *self._parts(dk, tile.block_n, self.parts_d), *self._parts(dv, tile.block_n, self.parts_dv), lse, delta, table,
                delta, delta, head_values, head_values, delta, delta, delta, *ids, delta, self.batch, self.heads, self.q_len,
                self.lse_stride, kv_len, offset, first, window or 0, stride, self.qk_scale, self.qk_grad_scale, self.dropout, seed,
            )  # fmt: skip

    def _scale_rows(self, grad_out: Tensor, lse: Tensor) -> Tensor:
        """See ``launch.scale_rows``."""
        scaled = torch.empty_like(grad_out)
        key = ("scale", grad_out.stride())
        if key not in self._launches:
            constants = {"BLOCK_M": SCALED_ROWS, "BLOCK_DV": self.padded_dv}
            self._launches[key] = self._launch(scale_rows_kernel, constants)
        self._launches[key](
            ceil_div(self.q_len, SCALED_ROWS) * self.batch * self.heads,
            self._tiles(grad_out, SCALED_ROWS, self.padded_dv), self._tiles(scaled, SCALED_ROWS, self.padded_dv), lse[1],
            self.heads, self.q_len, self.lse_stride,
        )  # fmt: skip
        return scaled

    # --- tiles ---------------------------------------------------------------------------------------------------------

    def _run_gluon(
        self, key: tuple[Any, ...], launch: tuple[Any, int, tuple[Any, ...]], constants: dict[str, Any]
    ) -> None:
        """Run a warp-specialised kernel with the flags of this plan and its own constants."""
        kernel, programs, arguments = launch
        if key not in self._launches:
            flags = {name: self.flags[name] for name in gluon_launch.FLAGS}
            self._launches[key] = self._launch(kernel, flags | constants, gluon_launch.TILE.options)
        self._launches[key](programs, *arguments)

    def _tiled(self, key: tuple[Any, ...], kernel: Any, tile: tile_configs.TileConfig, constants: Any) -> DirectLaunch:
        """The launch of a kernel with the flags of this plan and its own constants, which are built once per key."""
        launch = self._launches.get(key)
        if launch is None:
            own = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "NUM_STAGES": tile.num_stages, **constants()}
            taken = {name: value for name, value in {**self.flags, **own}.items() if name in kernel.arg_names}
            launch = self._launches[key] = self._launch(kernel, taken, tile.options)
        return launch

    def _input_tiles(
        self, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, tile: tile_configs.TileConfig
    ) -> tuple[Any, ...]:
        """The tensors that both backward kernels read."""
        return (
            *self._parts(q, tile.block_m, self.parts_d), *self._parts(k, tile.block_n, self.parts_d),
            *self._parts(v, tile.block_n, self.parts_dv), *self._parts(grad_out, tile.block_m, self.parts_dv),
        )  # fmt: skip

    def _tiles(self, x: Tensor, rows: int, columns: int) -> Any:
        """See ``DeviceCall.describe``."""
        if not self.has_tma:
            return (x, *x.stride()[:3], x.shape[3])
        return self._descriptors.describe(x, rows, columns)

    def _parts(self, x: Tensor, rows: int, parts: tuple[int, int]) -> tuple[Any, Any]:
        """See ``DeviceCall.describe_parts``."""
        if not self.has_tma:
            return (x, *x.stride()[:3], x.shape[3]), None
        describe = self._descriptors.describe
        return describe(x, rows, parts[0]), describe(x, rows, parts[1]) if parts[1] else None
