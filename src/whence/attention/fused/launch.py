"""Kernel launches of the forward and the backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whence.attention.fused import backward_tables, block_skipping, decode, gluon_launch, scaled_distance
from whence.attention.fused.backward_dkdv import backward_dkdv_kernel
from whence.attention.fused.backward_dq import backward_dq_kernel, scale_rows_kernel
from whence.attention.fused.clock_terms import BY_BLOCK
from whence.attention.fused.device_call import DeviceCall
from whence.attention.fused.forward import forward_kernel
from whence.attention.fused.fused_call import EffectGradients, ScoreEffects
from whence.attention.fused.packing import (
    NUM_SLOTS,
    ceil_div,
    empty_output,
    padded_length,
)
from whence.attention.fused.row_tables import GRADIENT_COPIES

#: a slope or a clock is split into query and key weights if it changes the logits by at most this many bits across a block of
#: keys (a clock: twice the largest difference to the first token of 128), so that the weights neither overflow nor underflow
SPLIT_BITS = {torch.bfloat16: 160, torch.float16: 8}
SCALED_ROWS = 64  # per program of scale_rows_kernel
COPIES = GRADIENT_COPIES.value


@dataclass
class NeededGradients:
    """Gradients of the score effects that a backward pass computes beside dq, dk and dv; see ``EffectGradients``."""

    dense: tuple[bool, bool]  # columns of the table: score scale, bias
    derivatives: Tensor | None
    num_derivatives: tuple[int, int]  # of the score scale, of the bias
    amplitude: bool
    slope: bool
    content: bool

    @property
    def any_parameter(self) -> bool:
        return sum(self.num_derivatives) > 0 or self.slope or self.amplitude


def select_gradients(effects: ScoreEffects, gradients: EffectGradients, needed: list[bool]) -> NeededGradients:
    """The gradients that autograd needs, where ``needed`` is for table, slope, sink, parameters, clocks and content."""
    table, slope, _, parameters, _, _, content = needed
    g = gradients
    num_scale, num_bias = g.num_scale_derivatives, g.num_bias_derivatives
    if effects.num_knots >= 0:  # sums of a function, see scaled_distance_kernels
        num_scale, num_bias = (3, 0) if effects.has_score_scale else (0, 3)
    return NeededGradients(
        (g.dense_score_scale, g.dense_bias) if table else (False, False),
        g.derivatives.contiguous() if parameters and g.derivatives is not None else None,
        (num_scale, num_bias) if parameters else (0, 0),
        g.has_amplitude and parameters,
        slope,
        content,
    )


class GradientsOfRows(NamedTuple):
    """The tables of single queries in the backward pass; see ``row_tables``."""

    content: Any  # gradient of the content table
    sums: Any  # gradient of the sums of the weights
    delta: Tensor  # [B, H, T], the products of the sums and their gradient

    @property
    def facts(self) -> tuple[bool, int | None]:
        """Which of them there are, and the alignment of the one that the caller allocated."""
        return isinstance(self.content, tuple), self.sums[0].data_ptr() % 16 if isinstance(self.sums, tuple) else None


def forward(call: DeviceCall, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, ``max_distance`` for the backward pass, and the sums of the weights by distance (empty: none).

    Also fills the log-sum-exp, of ``packing.lse_shape``.
    """
    out = empty_output(call.q, call.v)
    gluon, e = uses_gluon(call), call.effects
    if gluon and gluon_launch.covers_forward(call.head_dim, e.has_score_scale, e.has_bias):  # writes padding rows, too
        max_distance = block_skipping.max_distances(call)
        launch = gluon_launch.arguments(
            call.q, call.k, call.v, out, lse, call.table, max_distance if max_distance.numel() else call.dummy,
            call.table_stride, call.qk_scale, call.gluon_descriptors,
        )  # fmt: skip
        run_gluon(call, launch, {"SKIP_BLOCKS": max_distance.numel() > 0})
        return out, max_distance, lse.new_empty(0)
    entries = call.effects.value_entries
    if call.decodes:
        decode.decode(call, out, lse)
        return out, call.q.new_empty(0, dtype=torch.int32), lse.new_empty(0)
    if call.fills_lse or (gluon and call.has_padding_rows):
        lse.fill_(torch.inf)  # padding rows have p = 0 in the backward pass
    shape = (call.batch, call.heads, call.q_len, entries)
    slots = lse.new_full(shape, -torch.inf) if entries else lse.new_empty(0)
    max_distance = block_skipping.max_distances(call)
    tile = call.forward_tile
    blocks = ceil_div(call.q_len, tile.block_m)
    arguments = (
        *call.describe_parts(call.q, tile.block_m, call.parts_d), *call.describe_parts(call.k, tile.block_n, call.parts_d),
        *call.describe_parts(call.v, tile.block_n, call.parts_dv), *call.describe_parts(out, tile.block_m, call.parts_dv),
        lse, call.table_argument, call.slope, *call.clocks, call.sink, *call.segment_arguments(tile.block_m, by_query=True),
        max_distance if max_distance.numel() else call.dummy, call.content_table,
        call.sums_argument(slots) if entries else call.dummy, *call.sizes, call.qk_scale, call.logit_scale,
        *call.sink_strides, call.softmax.dropout, call.seed,
    )  # fmt: skip
    constants = {
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "HAS_SINK": call.effects.sink is not None,
        "SKIP_BLOCKS": max_distance.numel() > 0, "NUM_STAGES": tile.num_stages, **call.flags,
    }  # fmt: skip
    call.launch(forward_kernel, blocks * call.batch * call.heads, arguments, constants, tile)
    return out, max_distance, sum_weights(call, slots, lse) if entries else slots


def uses_gluon(call: DeviceCall) -> bool:
    """Whether ``gluon_dkdv`` computes gradients of the call unless blocks are skipped, and the call itself ``gluon_forward``, if
    ``gluon_launch.covers_forward``."""
    e, m = call.effects, call.mask
    return (
        gluon_launch.covers(
            call.q, call.k, call.v, causal=m.causal, offset=m.q_offset, window=m.window, dropout=call.softmax.dropout,
            qk_scale=call.qk_scale,
        )
        and call.has_tma and not call.has_segments and e.slope is None and e.sink is None and e.k_clock is None
        and e.first_distance == 0 and call.function is None and not call.has_row_tables
    )  # fmt: skip


def run_gluon(
    call: DeviceCall, launch: tuple[Any, int, tuple[Any, ...]], constants: dict[str, Any], variant: tuple[Any, ...] = ()
) -> None:
    kernel, programs, arguments = launch
    flags = {name: call.flags[name] for name in gluon_launch.FLAGS}
    call.launch(kernel, programs, arguments, flags | constants, gluon_launch.TILE, variant=variant)


def sum_weights(call: DeviceCall, slots: Tensor, lse: Tensor) -> Tensor:
    """The weights of entries from their base-2 logits, in place."""
    rows = lse[:, :, :, : call.q_len, None]
    weights = slots.sub_(rows[0]).exp2_()
    return weights.mul_(rows[1]) if call.has_factors else weights


def backward(
    call: DeviceCall,
    grad_out: Tensor,
    grad_sums: Tensor | None,
    out: Tensor,
    lse: Tensor,
    max_distance: Tensor,
    weight_sums: Tensor,
    needed: NeededGradients,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """dq, dk, dv, delta ``[B, H, padded_length]``, sums ``[H, NUM_SLOTS]`` for parameters, the table's gradient, with a
    clock, its gradient at each query and key, both ``[B, H, padded_length]``, and the gradient of the content table.

    Delta includes the factors of the rows. Where query and key share a clock, both gradients are one tensor: their sum.
    """  # fmt: skip
    if call.has_factors:
        grad_out = scale_rows(call, grad_out, lse[1])
        grad_sums = None if grad_sums is None else grad_sums * lse[1, :, :, : call.q_len, None]
    lse = lse[0]
    d_content, row_gradients = prepare_row_gradients(call, grad_sums, weight_sums, needed.content)
    separate = torch.are_deterministic_algorithms_enabled() and any(needed.dense)
    in_dq = replace(needed, dense=(False, False)) if separate else needed
    gluon = uses_gluon(call) and not max_distance.numel()
    dq, delta, partial_sums, table_sums, key_lse, q_sums = backward_dq(
        call, grad_out, out, lse, max_distance, in_dq, row_gradients, gluon
    )
    if d_content is not None and call.effects.q_places is not None:
        d_content = d_content.sum(1)
    dk, dv, k_sums = backward_dkdv(call, grad_out, key_lse, delta, max_distance, row_gradients, q_sums, gluon)
    if call.function is not None and partial_sums is not None:
        return dq, dk, dv, delta, function_gradients(call, partial_sums, table_sums), None, q_sums, k_sums, d_content
    columns: list[Tensor] = []
    if table_sums is not None:
        columns = list(table_sums.sum(1).unbind(0))
    elif separate:
        columns = backward_tables.table_gradients(
            call, grad_out, lse, delta, max_distance, row_gradients.sums, needed.dense
        )
    d_table = _pack_gradients(call, columns, needed.dense) if columns else None
    sums = None if partial_sums is None else partial_sums.sum((0, 2))
    return dq, dk, dv, delta, sums, d_table, q_sums, k_sums, d_content


def prepare_row_gradients(
    call: DeviceCall, grad_sums: Tensor | None, weight_sums: Tensor, content_needed: bool
) -> tuple[Tensor | None, GradientsOfRows]:
    """The tensor that will hold the gradient of the content table, if it is needed, and what the kernels take."""
    d_content, content, sums, delta = None, call.dummy, call.dummy, call.dummy
    table = call.effects.content_table
    if content_needed and table is not None:
        # entries of distances without a key stay 0; queries of a head share a table of coordinates
        shape = table.shape if call.effects.q_places is None else (call.heads, COPIES, table.shape[1])
        d_content = torch.zeros(shape, dtype=torch.float32, device=call.q.device)
        content = call.content_argument(d_content, call.qk_grad_scale / call.softmax.scale, COPIES * table.shape[1])
    if grad_sums is not None:
        grad_sums = grad_sums.float().contiguous()
        sums, delta = call.sums_argument(grad_sums), (weight_sums * grad_sums).sum(-1)
    return d_content, GradientsOfRows(content, sums, delta)


def function_gradients(call: DeviceCall, partial_sums: Tensor, piece_sums: Tensor | None) -> Tensor:
    """The gradient of the numbers of a function (see ``scaled_distance_kernels``), in their flat form."""
    assert call.function is not None
    sums = partial_sums.sum((0, 2))
    if piece_sums is None:
        return scaled_distance.decay_gradients(sums, call.function)
    batch, heads, blocks, _ = partial_sums.shape
    size, pieces = batch * heads * padded_length(call.q_len), call.effects.num_knots + 1
    by_program = piece_sums[:-size].view(batch, heads, blocks, 2, 2, pieces)
    rows = piece_sums[-size:].view(batch, heads, -1)[..., : call.q_len]
    return scaled_distance.piece_gradients(by_program.sum((0, 2)), rows.sum(1), sums[:, 2].sum(0, keepdim=True))


def _pack_gradients(call: DeviceCall, columns: list[Tensor], dense: tuple[bool, bool]) -> Tensor:
    """Gradients of some columns, ``[H, entries]`` with or without padding, as the gradient of the packed table."""
    has_column = (call.effects.has_score_scale, call.effects.has_bias)
    dense_columns = [wanted for wanted, exists in zip(dense, has_column, strict=True) if exists]
    packed = torch.zeros_like(call.table)
    for column, gradient in zip((c for c, wanted in enumerate(dense_columns) if wanted), columns, strict=True):
        padding = (call.table_stride - gradient.shape[1]) // 2
        # the table holds base-2 logits
        torch.mul(gradient, math.log(2), out=packed[:, padding : padding + gradient.shape[1], column])
    return packed


def scale_rows(call: DeviceCall, grad_out: Tensor, factor: Tensor) -> Tensor:
    """grad_out with each row multiplied by its factor, which is 1 except in rows beyond ``tile_ops.MAX_LSE``.

    The other kernels compute such a row's weights without the division by their sum. All its gradients are products of
    weights and grad_out, so the factor may multiply either one.
    """
    scaled = torch.empty_like(grad_out)
    arguments = (
        call.describe(grad_out, SCALED_ROWS, call.padded_dv), call.describe(scaled, SCALED_ROWS, call.padded_dv), factor,
        call.heads, call.q_len, padded_length(call.q_len),
    )  # fmt: skip
    call.launch(
        scale_rows_kernel, ceil_div(call.q_len, SCALED_ROWS) * call.batch * call.heads, arguments,
        {"BLOCK_M": SCALED_ROWS, "BLOCK_DV": call.padded_dv}, variant=(*grad_out.stride(), factor.data_ptr() % 16),
    )  # fmt: skip
    return scaled


def backward_dq(
    call: DeviceCall,
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    max_distance: Tensor,
    needed: NeededGradients,
    rows: GradientsOfRows,
    gluon: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]:
    """dq, delta, each program's sums for the parameters, the dense table sums per sequence and head, the lse that ``backward_dkdv``
    takes and, with a clock, the sums of the gradients of each query's logits. ``gluon``: whether warp-specialised kernels may run.
    """
    e = call.effects
    if gluon and gluon_launch.covers_sums(
        call.head_dim, needed.dense, e.has_score_scale, e.has_bias, sum(needed.num_derivatives)
    ):
        return *backward_dq_by_gluon(call, grad_out, out, lse, needed), None, lse, None
    tile = call.dq_tile(sum(needed.num_derivatives), sum(needed.dense))
    blocks = ceil_div(call.q_len, tile.block_m)
    dq = torch.empty_like(call.q)
    # other kernels read padding rows that this one does not write
    fills_delta = call.fills_delta(tile) or (gluon and call.has_padding_rows)
    delta = torch.zeros_like(lse) if fills_delta else torch.empty_like(lse)
    partial_sums = lse.new_empty(call.batch, call.heads, blocks, NUM_SLOTS) if needed.any_parameter else None
    table_sums, bias_grad_offset = None, call.batch * call.heads * call.table_stride
    if call.effects.num_knots > 0 and partial_sums is not None:
        # sums of pieces, then gradients of the scales of queries
        bias_grad_offset = call.batch * call.heads * blocks * 4 * (call.effects.num_knots + 1)
        table_sums = lse.new_zeros(bias_grad_offset + lse.numel())
    elif any(needed.dense):
        table_sums = lse.new_zeros(sum(needed.dense), call.batch, call.heads, call.table_stride)
    derivatives = call.dummy if needed.derivatives is None else needed.derivatives
    by_query = torch.empty_like(lse) if call.clock else None  # sums of the gradients of each query's logits
    if call.clock == BY_BLOCK.value:  # then lse less the rests of the clock; as ``delta``, with padding rows
        by_query = torch.stack((lse, lse)) if call.has_padding_rows else lse.new_empty(2, *lse.shape)
    arguments = (
        *call.describe_parts(call.q, tile.block_m, call.parts_d), *call.describe_parts(call.k, tile.block_n, call.parts_d),
        *call.describe_parts(call.v, tile.block_n, call.parts_dv), *call.describe_parts(grad_out, tile.block_m, call.parts_dv),
        *call.describe_parts(out, tile.block_m, call.parts_dv), *call.describe_parts(dq, tile.block_m, call.parts_d), lse, delta,
        call.table_argument, derivatives, call.dummy if table_sums is None else table_sums,
        call.dummy if partial_sums is None else partial_sums, call.slope, *call.clocks,
        call.dummy if by_query is None else by_query, *call.segment_arguments(tile.block_m, by_query=True),
        max_distance if max_distance.numel() else call.dummy, call.content_table, *rows, *call.sizes, bias_grad_offset,
        call.qk_scale, call.qk_grad_scale, call.softmax.dropout, call.seed,
    )  # fmt: skip
    constants = {
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "SKIP_BLOCKS": max_distance.numel() > 0,
        "DENSE_SCALE_GRAD": needed.dense[0], "DENSE_BIAS_GRAD": needed.dense[1],
        "NUM_SCALE_DERIVS": needed.num_derivatives[0], "NUM_BIAS_DERIVS": needed.num_derivatives[1],
        "DERIV_WIDTH": 1 if needed.derivatives is None else needed.derivatives.shape[2],
        "SLOPE_GRAD": needed.slope, "AMPLITUDE_GRAD": needed.amplitude, "NUM_STAGES": tile.num_stages, **call.flags,
    }  # fmt: skip
    variant = (*rows.facts, grad_out.stride(), out.stride(), lse.data_ptr() % 16)
    call.launch(backward_dq_kernel, blocks * call.batch * call.heads, arguments, constants, tile, variant=variant)
    if by_query is None or call.clock != BY_BLOCK.value:
        return dq, delta, partial_sums, table_sums, lse, by_query
    return dq, delta, partial_sums, table_sums, by_query[1], by_query[0]


def backward_dq_by_gluon(
    call: DeviceCall, grad_out: Tensor, out: Tensor, lse: Tensor, needed: NeededGradients
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dq, delta and sums for the parameters."""
    dq, delta = torch.empty_like(call.q), torch.empty_like(lse)
    sums = gluon_launch.empty_sums(call.q) if needed.any_parameter else None
    derivatives = call.dummy if needed.derivatives is None else needed.derivatives
    launch = gluon_launch.dq_arguments(
        call.q, call.k, call.v, grad_out, out, dq, lse, delta, call.table, derivatives, call.dummy if sums is None else sums,
        call.table_stride, call.qk_scale, call.qk_grad_scale, call.gluon_descriptors,
    )  # fmt: skip
    width = 1 if needed.derivatives is None else needed.derivatives.shape[2]
    constants = gluon_launch.dq_constants(sum(needed.num_derivatives), width, needed.amplitude)
    run_gluon(call, launch, constants, (grad_out.stride(), out.stride(), lse.data_ptr() % 16))
    return dq, delta, sums


def backward_dkdv(
    call: DeviceCall,
    grad_out: Tensor,
    lse: Tensor,
    delta: Tensor,
    max_distance: Tensor,
    rows: GradientsOfRows,
    q_sums: Tensor | None,
    gluon: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dk, dv and, with a clock, its gradient at each key, the negative sum of the gradients of the key's logits.

    lse, delta and the sums of the queries come from ``backward_dq``. Where query and key share a clock, the latter are added.
    """
    e = call.effects
    has_decay, has_slope, has_clock = e.decay is not None, e.slope is not None, e.k_clock is not None
    clock_sums = q_sums if e.q_clock is None else lse.new_zeros(call.batch, call.heads, padded_length(call.kv_len))
    dk, dv = torch.empty_like(call.k), torch.empty_like(call.v)
    if gluon:
        sizes = (call.table_stride, call.qk_scale, call.qk_grad_scale)
        tensors = (call.q, call.k, call.v, grad_out, dk, dv, lse, delta, call.table)
        launch = gluon_launch.dkdv_arguments(*tensors, *sizes, call.gluon_descriptors)
        constants = gluon_launch.dkdv_constants(call.head_dim, e.has_score_scale, e.has_bias)
        run_gluon(call, launch, constants, (grad_out.stride(), lse.data_ptr() % 16))
        return dk, dv, None
    # a clock with more dimensions needs more registers than there are
    splits_clock = call.clock == BY_BLOCK.value and not has_slope and call.max_block_d <= 64
    splits = call.group_size == 1 and (splits_clock or (has_slope and not has_clock))
    constants = {
        "SKIP_BLOCKS": max_distance.numel() > 0, "HAS_DECAY": has_decay,
        "SPLIT_BITS": SPLIT_BITS.get(call.q.dtype, 0) if splits else 0, **call.flags,
    }  # fmt: skip
    variant = (*rows.facts, grad_out.stride(), lse.data_ptr() % 16)
    for part, tile in call.dkdv_passes:
        arguments = (
            *call.describe_parts(call.q, tile.block_m, call.parts_d), *call.describe_parts(call.k, tile.block_n, call.parts_d),
            *call.describe_parts(call.v, tile.block_n, call.parts_dv), *call.describe_parts(grad_out, tile.block_m, call.parts_dv),
            *call.describe_parts(dk, tile.block_n, call.parts_d), *call.describe_parts(dv, tile.block_n, call.parts_dv), lse, delta,
            call.table_argument, call.content_table, rows.sums, call.slope, call.dummy if e.decay is None else e.decay,
            *call.clocks, call.dummy if clock_sums is None else clock_sums,
            *call.segment_arguments(tile.block_n, by_query=False),
            max_distance if max_distance.numel() else call.dummy,
            *call.sizes, call.qk_scale, call.qk_grad_scale, call.softmax.dropout, call.seed,
        )  # fmt: skip
        programs = ceil_div(call.kv_len, tile.block_n) * call.batch * call.kv_heads
        own = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "NUM_STAGES": tile.num_stages, "PART": part}
        call.launch(backward_dkdv_kernel, programs, arguments, own | constants, tile, variant=variant)
    return dk, dv, clock_sums
