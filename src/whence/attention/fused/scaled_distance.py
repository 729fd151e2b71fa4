"""Mechanisms with ``length="query"`` for the kernels: a function of the distance scaled by the query's length.

See ``scaled_distance_kernels`` for the two functions. The parameters of the mechanism are turned into the numbers of the
function here, by torch, so that autograd continues from their gradients. Knots have no gradient: a continuous function does
not change to first order when a knot moves along one of its two lines.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.attention.fused.fused_call import EffectGradients, ScoreEffects, Softmax
from whence.attention.fused.packing import LOG2E, TABLE_PADDING, base_2_factor, distance_range, next_power_of_two
from whence.attention.layout import Layout
from whence.position.fire import EPS
from whence.position.hook_types import DECAY, LOG_NETWORK, PairFunction


def function_effects(
    pair: PairFunction, q: Tensor, kv_len: int, layout: Layout, softmax: Softmax, sink: Tensor | None
) -> tuple[ScoreEffects, EffectGradients]:
    """The numbers of the function, and a table that the scale of a query multiplies."""
    assert layout.offset is not None
    batch, heads, q_len = q.shape[:3]
    first, end = distance_range(layout.offset, layout.causal, layout.window, q_len, kv_len)
    # tiles exceed the range; the padding continues the table, because the largest x of a tile comes from its corners
    distance = torch.arange(first - TABLE_PADDING, end + TABLE_PADDING, device=q.device, dtype=torch.float32).abs()
    length = layout.query_lengths().float()
    numbers, logit_scale = pair.numbers.float().expand(heads, -1), base_2_factor(softmax.temperature)
    derivatives = None
    if pair.form == DECAY:
        floor, span, rate = numbers.unbind(-1)
        amplitude = softmax.scale * logit_scale
        packed = torch.stack([floor * amplitude, span * amplitude, rate * LOG2E], -1)
        table, scale, num_knots, parameter = distance, 1 / length, 0, numbers.new_zeros(1)
    else:
        (c, threshold), network = numbers[0, :2].split(1), numbers[:, 2:]
        with torch.no_grad():
            table = torch.log1p(c * distance)
            derivatives = _repeat_for_heads(distance / (1 + c * distance), heads)
        scale = 1 / (torch.log1p(c * torch.maximum(threshold, length - 1)) + EPS)
        packed = piecewise_linear(network, logit_scale)
        num_knots, parameter = (packed.shape[1] - 2) // 3, c
    effects = ScoreEffects(
        table=_repeat_for_heads(table, heads),
        has_score_scale=pair.form == DECAY,
        has_bias=pair.form == LOG_NETWORK,
        first_distance=first,
        num_knots=num_knots,
        slope=None,
        decay=None,
        sink=sink,
        q_clock=None,
        k_clock=None,
    )
    parameters = torch.cat([packed.flatten(), scale.expand(batch, -1).flatten(), parameter])
    return effects, EffectGradients(False, False, parameters, derivatives, 0, 0, False)


def _repeat_for_heads(table: Tensor, heads: int) -> Tensor:
    return table.expand(heads, -1)[..., None].contiguous()


def piecewise_linear(network: Tensor, factor: float) -> Tensor:
    """A network of x as knots, slopes and intercepts ``[H, 3 * K + 2]``, for x of at least 0, times a factor.

    ``network`` ``[H, 3 * units + 1]`` holds weight and bias of the hidden ReLU units, which are the same for all heads, then
    weights and bias of the output. K is the number of units, padded by knots at infinity.
    """
    units = (network.shape[1] - 1) // 3
    output, output_bias = network[:, 2 * units :].split([units, 1], 1)
    hidden = network[0, : 2 * units].view(2, 1, units)
    with torch.no_grad():
        weight, bias = hidden
        knot = bias / -weight
        knots = torch.where(knot >= 0, knot, torch.inf).sort(-1).values[0]
        knots = torch.nn.functional.pad(knots, (0, next_power_of_two(max(2, units)) - units), value=torch.inf)
        middle = (
            torch.nn.functional.pad(knots, (1, 0)) / 2 + torch.nn.functional.pad(knots, (0, 1), value=torch.inf) / 2
        )
        # a unit is active on a whole piece; where the first knot is 0, the first piece is x = 0, and the unit is not active
        active = weight * middle.clamp(max=1e30)[:, None] + bias > 0
    # a sum and no matrix product, which may be allowed to round to half precision
    slopes, intercepts = ((output * factor)[:, None, None] * hidden * active).sum(-1).unbind(1)
    return torch.cat([knots.expand(network.shape[0], -1), slopes, intercepts + output_bias * factor], -1)


def decay_gradients(sums: Tensor, parameters: Tensor) -> Tensor:
    """The gradient of the numbers of a decay from sums ``[H, 3 or more]``."""
    heads = sums.shape[0]
    gradient, span = torch.zeros_like(parameters), parameters[: 3 * heads].view(heads, 3)[:, 1]
    numbers = gradient[: 3 * heads].view(heads, 3)
    numbers.copy_(sums[:, :3] * math.log(2))
    numbers[:, 2] *= -math.log(2) * span
    return gradient


def piece_gradients(sums: Tensor, row_gradients: Tensor, table_gradient: Tensor) -> Tensor:
    """The gradient of the numbers of pieces.

    ``sums`` ``[H, 2, 2, K + 1]``: by piece and by knot, of the gradient of f and of that times x (see the kernels);
    ``row_gradients`` ``[B, T]``; ``table_gradient`` is that of the parameter of the table, ``[1]``.
    """
    by_piece, by_knot = sums.unbind(1)
    # pairs above each knot: all pairs for the knot before the first
    above = by_piece.flip(-1).cumsum(-1).flip(-1)
    above[..., 1:] += by_knot[..., :-1]
    in_piece = above.clone()
    in_piece[..., :-1] -= above[..., 1:]
    intercepts, slopes = in_piece.unbind(1)
    knots = torch.zeros_like(slopes[:, 1:])
    numbers = torch.cat([knots, slopes, intercepts], -1)
    return torch.cat([numbers.flatten(), row_gradients.flatten(), table_gradient]) * math.log(2)
