"""Tables of mechanisms that supply ``parameter_gradients``: kernels sum the gradients of their few parameters in registers."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from whence import hook_outputs
from whence.position.base import Position
from whence.position.evaluate import evaluate_table, fixed_length
from whence.position.hook_types import HookGradients, ParameterGradient

MAX_DERIVATIVES = 4  # tables contracted in registers; with more, dense gradients are faster


class ParameterTables(NamedTuple):
    """Score scale and bias ``[H or 1, n]`` without gradients, their parameters ``[H, N]`` and derivatives.

    Derivatives of the score scale come first, then those of the bias, then the amplitude of the score scale.
    """

    score_scale: Tensor | None
    bias: Tensor | None
    parameters: Tensor
    derivatives: tuple[ParameterGradient, ...]


def parameter_tables(position: Position, distance: Tensor, heads: int, kv_len: int) -> ParameterTables | None:
    """Tables and derivatives; None if nothing learns, a part has no derivatives, or there are too many."""
    active = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if not torch.is_grad_enabled() or not any(part.trainable for part in active):
        return None
    scales: list[Tensor] = []
    biases: list[Tensor] = []
    derivatives: list[tuple[ParameterGradient, Position, int]] = []  # with the part and the index of its scale
    for part in active:
        if part.trainable:
            own = part.parameter_gradients(distance, fixed_length(part, kv_len))
            if own is None or not covers_parameters(part, own):
                return None
            name, n = type(part).__name__, distance.shape[0]
            tables = tuple(
                None if table is None else hook_outputs.require_per_head(name, hook, table, heads, n)
                for hook, table in (("score_scale", own.score_scale), ("bias", own.bias))
            )
            derivatives += [(item, part, len(scales)) for item in own.gradients]
        else:
            tables = (
                evaluate_table(part, "score_scale", distance, heads, kv_len),
                evaluate_table(part, "bias", distance, heads, kv_len),
            )
            if any(table is not None and table.requires_grad for table in tables):
                return None  # its gradient flows to tensors that are not parameters of the part
        for known, table in zip((scales, biases), tables, strict=True):
            if table is not None:
                known.append(table.detach().float())
    amplitudes = [item for item, _, _ in derivatives if item.derivative is None]
    num_tables = len(derivatives) - len(amplitudes)
    if not derivatives or num_tables > MAX_DERIVATIVES or len(amplitudes) > 1:
        return None
    if (
        amplitudes and "content_bias" in position.effects
    ):  # the gradient of an amplitude is computed from q and dq alone
        return None
    if any(item.hook != "score_scale" for item in amplitudes):
        return None
    ordered = sorted(
        (
            _combined_derivative(item, part, index, scales, heads, distance.shape[0])
            for item, part, index in derivatives
            if item.derivative is not None
        ),
        key=lambda item: item.hook != "score_scale",
    )
    ordered += amplitudes
    parameters = torch.stack([item.value.float().reshape(-1).expand(heads) for item in ordered], -1)
    score_scale = functools.reduce(torch.mul, scales) if scales else None
    bias = functools.reduce(torch.add, biases) if biases else None
    return ParameterTables(score_scale, bias, parameters, tuple(ordered))


def covers_parameters(part: Position, own: HookGradients) -> bool:
    """Whether the derivatives cover every learnable parameter. A subclass may have added some."""
    learnable = sum(parameter.requires_grad for parameter in part.parameters())
    return learnable == sum(item.value.requires_grad for item in own.gradients)


def _combined_derivative(
    item: ParameterGradient, part: Position, index: int, scales: list[Tensor], heads: int, entries: int
) -> ParameterGradient:
    """The derivative of the whole effect: score scales multiply, so the scales of the other parts multiply it."""
    assert item.derivative is not None
    table = hook_outputs.require_per_head(
        type(part).__name__, "parameter_gradients", item.derivative.detach().float(), heads, entries
    )
    if item.hook == "score_scale":
        for other, score_scale in enumerate(scales):
            table = table if other == index else table * score_scale
    return ParameterGradient(item.value, item.hook, table.expand(heads, -1))
