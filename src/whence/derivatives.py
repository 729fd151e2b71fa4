"""Whether the derivatives that a mechanism supplies for fast kernels are those of its own hooks."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.position.base import Position
from whence.position.evaluate import one_length

#: as a share of the largest entry; both sides are float64
TOLERANCE = 1e-9


def disagreement(part: Position, distance: Tensor) -> str | None:
    """What is wrong with ``parameter_gradients``, ``bias_slope`` or ``score_scale_decay`` here, as a sentence; None when nothing is."""
    if part.length == "query":
        return None  # no table of distances, so nobody asks for rates
    length = one_length(part, distance.shape[0])
    near = distance[distance >= 0]
    slope = part.bias_slope()
    if slope is not None:
        bias = part.bias(near, length)
        if bias is None:
            return "bias_slope() answers and bias() does not"
        found = _apart("bias_slope() times the distance and bias()", slope * near, bias)
        if found is not None:
            return found
    decay = part.score_scale_decay(length)
    if decay is not None:
        score_scale = part.score_scale(near, length)
        if score_scale is None:
            return "score_scale_decay() answers and factor() does not"
        lowest, span, fall = decay
        if not bool((fall >= 0).all()):
            return "score_scale_decay() has a fall under 0, which grows with distance"
        found = _apart("score_scale_decay() and factor()", lowest + span * torch.exp(-fall * near), score_scale)
        if found is not None:
            return found
    parameter_gradients = part.parameter_gradients(distance, length)
    if parameter_gradients is None:
        return None
    for hook in ("score_scale", "bias"):
        answer = getattr(part, hook)(distance, length)
        if (answer is None) != (getattr(parameter_gradients, hook) is None):
            return f"rates() and {hook}() do not both answer"
        if answer is None:
            continue
        found = _apart(f"{hook} in rates() and {hook}()", getattr(parameter_gradients, hook), answer)
        each = [rate for rate in parameter_gradients.each if rate.hook == hook]
        found = found or _chain_rule(hook, answer, each)
        if found is not None:
            return found
    return None


def _chain_rule(hook: str, answer: Tensor, each: list) -> str | None:
    """Autograd from the answer to the parameters against autograd from the numbers, with the rates between them."""
    weights = torch.randn(answer.shape, dtype=answer.dtype, generator=torch.Generator().manual_seed(0))
    through_numbers = answer.new_zeros(())
    for rate in each:
        if rate.table is None and hook == "score_scale":
            table = answer.detach() / rate.number.detach()
        elif rate.table is None:
            return f"a rate of {hook} has no table; only a number that scales the whole factor may leave it out"
        else:
            table = rate.table.detach()
        through_numbers = through_numbers + (rate.number * (weights * table)).sum()
    parameters = [p for p in _leaves(answer) if p.requires_grad]
    if not parameters:
        return None
    if not each:
        return f"rates() has no number for the parameters of {hook}()"
    exact = torch.autograd.grad((answer * weights).sum(), parameters, retain_graph=True, allow_unused=True)
    supplied = torch.autograd.grad(through_numbers, parameters, allow_unused=True)
    for a, b, parameter in zip(supplied, exact, parameters, strict=True):
        found = _apart(
            f"the gradient of {hook} through rates() and through {hook}()",
            _or_zero(a, parameter),
            _or_zero(b, parameter),
        )
        if found is not None:
            return found
    return None


def _leaves(answer: Tensor) -> list[Tensor]:
    """The parameters that an answer was computed from."""
    seen, todo, leaves = set(), [answer.grad_fn], []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return leaves


def _or_zero(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


def _apart(what: str, a: Tensor, b: Tensor) -> str | None:
    a, b = torch.broadcast_tensors(a.detach(), b.detach())
    difference, limit = float((a - b).abs().max()), TOLERANCE * (1 + float(b.abs().max()))
    return None if difference <= limit else f"{what} differ by {difference:.2g}, allowed {limit:.2g}"
