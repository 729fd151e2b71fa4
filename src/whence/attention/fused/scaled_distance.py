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
from whence.attention.fused.packing import LOG2E, TABLE_PADDING, distance_range, next_power_of_two
from whence.attention.layout import Layout
from whence.position.base import DECAY, Position
from whence.position.fire import EPS


def function_part(position: Position) -> Position:
    """The only part that changes scores by distance; ``call.pair_form`` says that there is one."""
    (part,) = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    return part


def function_effects(
    q: Tensor, kv_len: int, position: Position, layout: Layout, softmax: Softmax, sink: Tensor | None
) -> tuple[ScoreEffects, EffectGradients]:
    """The numbers of the function, and a table that the scale of a query multiplies."""
    part = function_part(position)
    (hook,) = part.effects & {"score_scale", "bias"}
    pair = part.pair_function(hook)
    assert pair is not None and layout.offset is not None
    batch, heads, q_len = q.shape[:3]
    first, end = distance_range(layout.offset, layout.causal, layout.window, q_len, kv_len)
    # tiles exceed the range; the padding continues the table, because the largest x of a tile comes from its corners
    distance = torch.arange(first - TABLE_PADDING, end + TABLE_PADDING, device=q.device, dtype=torch.float32).abs()
    length = layout.length_of(part)[..., 0].float()
    numbers, logit_scale = pair.numbers.float().expand(heads, -1), LOG2E / softmax.temperature
    derivatives = None
    if pair.form == DECAY:
        floor, span, rate = numbers.unbind(-1)
        amplitude = softmax.scale * logit_scale
        packed = torch.stack([floor * amplitude, span * amplitude, rate * LOG2E], -1)
        table, scale, num_knots, parameter = distance, 1 / length, 0, numbers.new_zeros(1)
    else:
        c = numbers[:1, 0]
        with torch.no_grad():
            table = torch.log1p(c * distance)
            derivatives = _repeat_for_heads(distance / (1 + c * distance), heads)
        scale = 1 / (torch.log1p(c * torch.maximum(numbers[0, 1], length - 1)) + EPS)
        packed = piecewise_linear(numbers[:, 2:], logit_scale)
        num_knots, parameter = (packed.shape[1] - 2) // 3, c
    effects = ScoreEffects(
        table=_repeat_for_heads(table, heads),
        has_score_scale=hook == "score_scale",
        has_bias=hook == "bias",
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
    weight, bias, output = network[0, :units], network[0, units : 2 * units], network[:, 2 * units : 3 * units]
    with torch.no_grad():
        knot = -bias / weight
        rises, falls = (weight > 0) & (knot >= 0), (weight < 0) & (knot > 0)
        crosses = rises | falls
        always = ~crosses & (weight >= 0) & ((weight > 0) | (bias > 0))
        knots, order = torch.where(crosses, knot, torch.inf).sort()
        padding = next_power_of_two(max(2, units)) - units
        knots = torch.nn.functional.pad(knots, (0, padding), value=torch.inf)
        piece = torch.arange(knots.shape[0] + 1, device=network.device)[:, None]
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(units, device=network.device))
        active = torch.where(rises, piece > rank, torch.where(falls, piece <= rank, always)).to(network.dtype)
    # sums and no matrix products, which may be allowed to round to half precision
    slopes = ((output * weight)[:, None] * active).sum(-1)
    intercepts = ((output * bias)[:, None] * active).sum(-1) + network[:, 3 * units :]
    return torch.cat([knots.expand(network.shape[0], -1), slopes * factor, intercepts * factor], -1)


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
