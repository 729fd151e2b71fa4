"""Evaluate the hooks of all parts of a mechanism and combine them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence import hook_outputs, torch_modes
from whence.position.base import Position
from whence.position.hook_types import Rows
from whence.position.sum import combine_outputs

#: maps a part to the length that its hooks receive: None, a number, or a tensor that broadcasts to the distances
LengthOf = Callable[[Position], Any]


def evaluate(
    position: Position, hook: str, inputs: Tensor, heads: int, length_of: LengthOf, *, temperature: float = 1.0
) -> Tensor | None:
    """``score_scale``, ``bias`` or ``sink`` of all parts, as ``[heads or 1, *inputs.shape]`` in the dtype of inputs.

    ``inputs`` are distances, or positions for ``sink``. The result is None when no part has the hook. Score scales
    multiply, biases add, sinks are joined to one logit, which depends on the temperature of the softmax. If sequences of
    a batch share positions and differ in length, the result has the batch axis of the lengths.
    """
    total: Tensor | None = None
    for part in position.parts:
        if hook not in part.effects:
            continue
        length, at = length_of(part), inputs
        if isinstance(length, Tensor):
            at = inputs.expand(torch.broadcast_shapes(inputs.shape, length.shape))
            length = length.expand(at.shape).reshape(-1).to(inputs.dtype)
        flat = at.reshape(-1)
        name = type(part).__name__
        answer = hook_outputs.call_on_tensors(f"{name}.{hook}", getattr(part, hook), flat, length)
        out = hook_outputs.require_per_head(name, hook, answer, heads, flat.shape[0])
        out = out.to(inputs.dtype).reshape(out.shape[0], *at.shape)
        total = out if total is None else combine_outputs(hook, total, out, temperature)
    return total


def evaluate_content_bias(position: Position, rows: Rows) -> Tensor | None:
    """The sum of ``content_bias`` over all parts, like the scores; None when no part has the hook."""
    total: Tensor | None = None
    for part in position.parts:
        if "content_bias" in part.effects:
            name = type(part).__name__
            answer = hook_outputs.call_on_tensors(f"{name}.content_bias", part.content_bias, rows)
            term = hook_outputs.require_shape(name, "content_bias", answer, tuple(rows.scores.shape))
            term = term.to(rows.scores.dtype)
            total = term if total is None else total + term
    return total


def evaluate_value_bias(position: Position, weights: Tensor, rows: Rows, shape: tuple[int, ...]) -> Tensor | None:
    """The sum of ``value_bias`` over all parts, of the given shape; None when no part has the hook."""
    total: Tensor | None = None
    for part in position.parts:
        if "value_bias" in part.effects:
            name = type(part).__name__
            answer = hook_outputs.call_on_tensors(f"{name}.value_bias", part.value_bias, weights, rows)
            term = hook_outputs.require_shape(name, "value_bias", answer, shape).to(weights.dtype)
            total = term if total is None else total + term
    return total


def evaluate_clock(position: Position, x: Tensor, heads: int | None) -> Tensor | None:
    """The sum of ``clock`` over all parts, ``[B, heads, T]`` in at least float32; None when no part has the hook.

    ``heads``: the number of query heads; None where it is not known, and the hook's own is taken.
    """
    total: Tensor | None = None
    for part in position.parts:
        if "clock" in part.effects:
            name = type(part).__name__
            with torch_modes.without_autocast(x):  # a step of few digits would be summed over the whole length
                answer = hook_outputs.call_on_tensors(f"{name}.clock", part.clock, x)
            if heads is None and isinstance(answer, Tensor) and answer.ndim == 3:
                heads = answer.shape[1]
            steps = hook_outputs.require_shape(name, "clock", answer, (x.shape[0], heads or 1, x.shape[1]))
            steps = steps.to(torch.promote_types(steps.dtype, torch.float32))
            total = steps if total is None else total + steps
    return total


def evaluate_table(position: Position, hook: str, distance: Tensor, heads: int, sequence: int) -> Tensor | None:
    """``score_scale`` or ``bias`` at 1-D distances as ``[heads or 1, n]``, for lengths that do not depend on the query."""
    return evaluate(position, hook, distance, heads, lambda part: fixed_length(part, sequence))


def fixed_length(part: Position, sequence: int) -> int | None:
    """The length that a part's hooks receive, if it is the same for every query."""
    return part.context if part.length == "context" else sequence if part.length == "sequence" else None
