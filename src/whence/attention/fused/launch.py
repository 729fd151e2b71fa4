"""Launching the kernels: descriptors, units, masks and grids for one attention call."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from whence.attention.fused import decode, gradient_tables, skipping, tiling
from whence.attention.fused.call import Effects, Settings
from whence.attention.fused.forward import forward_kernel
from whence.attention.fused.gradient_keys import keys_kernel
from whence.attention.fused.gradient_queries import queries_kernel
from whence.attention.fused.packing import FEW_QUERIES, LOG2E, MARGIN, NUMBERS, ceil_div, empty_out, line, power_of_two
from whence.attention.fused.segments import Texts

STEEPEST = 160.0  # logits of log 2: less than float32's smallest number
#: bits that a slope may add across a block of keys and still be one weight a key, which neither overflows nor underflows
GENTLE = {torch.bfloat16: 160, torch.float16: 8}


class Work:
    """One call on the device."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, effects: Effects, settings: Settings) -> None:
        self.q, self.k, self.v = q, k, v
        self.effects, self.settings = effects, settings
        self.batch, self.heads, self.rows, self.head_dim = q.shape
        self.groups, self.keys, self.value_dim = k.shape[1], k.shape[2], v.shape[3]
        self.share = self.heads // self.groups
        self.wide, self.value_wide = (max(16, power_of_two(w)) for w in (self.head_dim, self.value_dim))
        self.widest = max(self.wide, self.value_wide)
        self.unit = settings.scale * LOG2E / settings.temperature
        self.bias_unit = LOG2E / settings.temperature
        # fp32 inputs: three tf32 products that together keep float32's digits, unless torch is told to be faster
        exact = q.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")
        self.precision = "tf32x3" if exact else "tf32"
        self.nothing = q.new_empty(1, dtype=torch.float32)
        self.ragged = line(self.rows) != self.rows
        self._described: dict[tuple[int, int, int], TensorDescriptor] = {}
        #: factor and bias in the kernels' units, side by side: ``[H, entries, 1 or 2]``
        self.table = self.nothing if effects.table is None else effects.table
        self.stride = 0 if effects.table is None else effects.table.shape[1]

    # --- what kernels share ----------------------------------------------------------------------------------------

    @cached_property
    def texts(self) -> Texts | None:
        e = self.effects
        if e.real is None and e.q_segment_ids is None:
            return None
        return Texts(self.batch, self.rows, self.keys, self.q.device, e.real, e.q_segment_ids, e.k_segment_ids)

    @cached_property
    def slope(self) -> Tensor:
        """In the kernels' unit: what one step of distance adds to a logit."""
        if self.effects.slope is None:
            return self.nothing
        # beyond STEEPEST one step of distance weighs 0 in any precision, while rows and keys apart would cancel digits
        return (self.effects.slope * self.bias_unit).float().clamp(-STEEPEST, STEEPEST).contiguous()

    @property
    def flags(self) -> dict[str, Any]:
        e, s = self.effects, self.settings
        return {
            "SHARE": self.share, "BD": self.wide, "BE": self.value_wide, "FACTOR": e.score_scale,
            "BIAS": e.bias, "SLOPED": e.slope is not None, "CAUSAL": s.causal,
            "WINDOWED": s.window is not None, "IDS": self.texts is not None, "DROPOUT": s.dropout > 0,
            "PRECISION": self.precision,
        }  # fmt: skip

    def describe(self, x: Tensor, rows: int, wide: int) -> TensorDescriptor:
        """How the copy engine cuts ``[B, H, n, width]`` into tiles of some rows; kernels of one call share them."""
        key = (id(x), rows, wide)  # a descriptor holds x, so no other tensor takes its id
        if key not in self._described:
            # an axis of one entry may carry any stride; the copy engine wants a fitting one all the same
            steps = [step if size > 1 else wide for step, size in zip(x.stride()[:3], x.shape[:3], strict=True)]
            self._described[key] = TensorDescriptor(x, list(x.shape), [*steps, 1], [1, 1, rows, wide])
        return self._described[key]

    def reach(self) -> Tensor:
        """The farthest distance each head needs, then the heads in the order of it; empty when every distance is looked at."""
        e, s = self.effects, self.settings
        if not (s.skip and (e.bias or e.slope is not None)):
            return self.q.new_empty(0, dtype=torch.int32)
        q, k = (self.describe(x, skipping.BLOCK, self.wide) for x in (self.q, self.k))
        shape = (self.batch, self.heads, self.groups, self.rows, self.keys)
        return skipping.reach(
            q, k, shape, self.wide, s.offset, self.unit, self.table, None if e.slope is None else self.slope,
            e.score_scale, self.stride - 2 * MARGIN, s.first,
        )  # fmt: skip

    # --- forward ---------------------------------------------------------------------------------------------------

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        out = empty_out(self.q, self.v)
        lse = self.q.new_empty(*self.q.shape[:2], line(self.rows), dtype=torch.float32)
        if self.ragged:
            lse.fill_(torch.inf)  # rows that are none weigh nothing in the backward pass
        if self.rows <= FEW_QUERIES and self.rows * self.share <= 128:
            decode.decode(self, out, lse)
            return out, lse, self.q.new_empty(0, dtype=torch.int32)
        reach = self.reach()
        tile = tiling.forward_tile(self.widest, self.q.element_size(), self.stride > 0, self.rows)
        e, s = self.effects, self.settings
        sink = self.nothing.expand(1, 1, 1) if e.sink is None else e.sink
        q_ids, k_ids, spans = self._ids_for(tile.rows, by_query=True)
        blocks = ceil_div(self.rows, tile.rows)
        forward_kernel[(blocks * self.batch * self.heads,)](
            self.describe(self.q, tile.rows, self.wide), self.describe(self.k, tile.keys, self.wide),
            self.describe(self.v, tile.keys, self.value_wide), self.describe(out, tile.rows, self.value_wide),
            lse, self.table, self.slope, sink, q_ids, k_ids, spans, reach if reach.numel() else self.nothing,
            *self.counts, self.unit, self.bias_unit, *sink.stride(), s.dropout, s.seed,
            BM=tile.rows, BN=tile.keys, SINKED=e.sink is not None, SKIP=reach.numel() > 0, STAGES=tile.stages,
            **self.flags, **tile.options,
        )  # fmt: skip
        return out, lse, reach

    def _ids_for(self, block: int, by_query: bool) -> tuple[Tensor, Tensor, Tensor]:
        if self.texts is None:
            return self.nothing, self.nothing, self.nothing
        return self.texts.queries, self.texts.keys, self.texts.stretches(block, by_query)

    # --- backward --------------------------------------------------------------------------------------------------

    def backward(
        self,
        grad: Tensor,
        out: Tensor,
        lse: Tensor,
        reach: Tensor,
        parameter_gradients: Tensor | None,
        how_many: tuple[int, int],
        amplitude: bool,
        dense: tuple[bool, bool],
        slope_grad: bool,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """dq, dk, dv, delta ``[B, H, line]``, sums ``[H, NUMBERS]``, and the gradient of the packed table.

        rates hold, of how_many, so many derivatives of the factor and then so many of the bias.
        """
        apart = deterministic and any(dense)  # dense gradients by a kernel of their own
        inside = dense if not apart else (False, False)
        dq, delta, numbers, sums = self.queries(
            grad, out, lse, reach, parameter_gradients, how_many, amplitude, inside, slope_grad
        )
        dk, dv = self.keys_and_values(grad, lse, delta, reach)
        found: list[Tensor] = []
        if sums is not None:
            found = list(sums.sum(1).unbind(0))
        elif apart:
            found = gradient_tables.tables(self, grad, lse, delta, reach, dense, self.stride - 2 * MARGIN)
        d_table = self._column_by_column(found, dense) if found else None
        return dq, dk, dv, delta, None if numbers is None else numbers.sum((0, 2)), d_table

    def _column_by_column(self, found: list[Tensor], dense: tuple[bool, bool]) -> Tensor:
        """Gradients of some columns, ``[H, entries]`` with or without margins, as one of the packed table."""
        present = [d for d, there in zip(dense, (self.effects.score_scale, self.effects.bias), strict=True) if there]
        whole = torch.zeros_like(self.table)
        for column, gradient in zip((c for c, wanted in enumerate(present) if wanted), found, strict=True):
            margin = (self.stride - gradient.shape[1]) // 2
            # a column is in units of log 2, whatever it holds
            torch.mul(gradient, math.log(2), out=whole[:, margin : margin + gradient.shape[1], column])
        return whole

    @property
    def counts(self) -> tuple[int, ...]:
        s = self.settings
        return (
            self.batch, self.heads, self.rows, line(self.rows), self.keys, s.offset, s.first, s.window or 0,
            self.stride,
        )  # fmt: skip

    @property
    def _back(self) -> float:
        """What turns a logit's gradient times the kernels' factor into one of q.k."""
        s = self.settings
        return math.log(2) if self.effects.score_scale else s.scale / s.temperature

    def queries(
        self,
        grad: Tensor,
        out: Tensor,
        lse: Tensor,
        reach: Tensor,
        parameter_gradients: Tensor | None,
        how_many: tuple[int, int],
        amplitude: bool,
        dense: tuple[bool, bool],
        slope_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """dq, delta, each program's share of the numbers' gradients, and the dense sums per sequence and head."""
        s, stride = self.settings, self.stride
        tile = tiling.queries_tile(self.widest, self.q.element_size(), sum(how_many), sum(dense))
        blocks = ceil_div(self.rows, tile.rows)
        dq = torch.empty_like(self.q)
        delta = torch.zeros_like(lse) if self.ragged else torch.empty_like(lse)
        counting = parameter_gradients is not None or slope_grad or amplitude
        numbers = lse.new_empty(self.batch, self.heads, blocks, NUMBERS) if counting else None
        sums = lse.new_zeros(sum(dense), self.batch, self.heads, stride) if any(dense) else None
        q_ids, k_ids, spans = self._ids_for(tile.rows, by_query=True)
        queries_kernel[(blocks * self.batch * self.heads,)](
            self.describe(self.q, tile.rows, self.wide), self.describe(self.k, tile.keys, self.wide),
            self.describe(self.v, tile.keys, self.value_wide), self.describe(grad, tile.rows, self.value_wide),
            self.describe(out, tile.rows, self.value_wide), self.describe(dq, tile.rows, self.wide), lse, delta, self.table,
            self.nothing if parameter_gradients is None else parameter_gradients, self.nothing if sums is None else sums, self.nothing if numbers is None else numbers,
            self.slope, q_ids, k_ids, spans, reach if reach.numel() else self.nothing, *self.counts,
            self.batch * self.heads * stride, self.unit, self._back, s.dropout, s.seed,
            BM=tile.rows, BN=tile.keys, SKIP=reach.numel() > 0, DENSE_FACTOR=dense[0], DENSE_BIAS=dense[1],
            FACTOR_RATES=how_many[0], BIAS_RATES=how_many[1], RATE_WIDTH=1 if parameter_gradients is None else parameter_gradients.shape[2],
            SLOPE_GRAD=slope_grad, AMPLITUDE=amplitude, STAGES=tile.stages, **self.flags, **tile.options,
        )  # fmt: skip
        return dq, delta, numbers, sums

    def keys_and_values(self, grad: Tensor, lse: Tensor, delta: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """dk and dv; delta comes from ``queries``."""
        e, s = self.effects, self.settings
        tile = tiling.keys_tile(
            self.widest, self.q.element_size(), e.score_scale, e.decay is not None, e.slope is not None,
            self.texts is not None,
        )  # fmt: skip
        dk, dv = torch.empty_like(self.k), torch.empty_like(self.v)
        q_ids, k_ids, spans = self._ids_for(tile.keys, by_query=False)
        keys_kernel[(ceil_div(self.keys, tile.keys) * self.batch * self.groups,)](
            self.describe(self.q, tile.rows, self.wide), self.describe(self.k, tile.keys, self.wide),
            self.describe(self.v, tile.keys, self.value_wide), self.describe(grad, tile.rows, self.value_wide),
            self.describe(dk, tile.keys, self.wide), self.describe(dv, tile.keys, self.value_wide), lse, delta,
            self.table, self.slope, self.nothing if e.decay is None else e.decay, q_ids, k_ids, spans,
            reach if reach.numel() else self.nothing, *self.counts, self.unit, self._back, s.dropout, s.seed,
            BM=tile.rows, BN=tile.keys, SKIP=reach.numel() > 0, STAGES=tile.stages, DECAYS=e.decay is not None,
            GENTLE=GENTLE.get(self.q.dtype, 0) if e.slope is not None and self.share == 1 else 0, **self.flags,
            **tile.options,
        )  # fmt: skip
        return dk, dv
