"""Compare the derivatives that a mechanism supplies for fast kernels with those of its own hooks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from whence.position.base import Position
from whence.position.evaluate import fixed_length
from whence.position.head_network import require_head_network
from whence.position.hook_types import ParameterGradient, Rows

#: relative to the largest entry; both sides are float64
TOLERANCE = 1e-9


def find_wrong_derivative(part: Position, distance: Tensor) -> str | None:
    """The first error in ``parameter_gradients``, ``bias_slope``, ``score_scale_decay``, ``pair_function``, ``relative_keys``,
    ``distance_slopes`` or ``head_network``, as a sentence; None if there is none."""
    # with length="query" kernels build no table of distances, so they use pair_function alone
    error = None if part.length == "query" else _find_wrong_table_method(part, distance)
    for hook in ("score_scale", "bias"):
        error = error or _compare_pairs(part, hook, distance)
    error = error or _compare_relative_keys(part, distance) or _compare_slopes(part, distance)
    return error or _compare_networks(part, distance)


def _find_wrong_table_method(part: Position, distance: Tensor) -> str | None:
    length = fixed_length(part, distance.shape[0])
    nonnegative = distance[distance >= 0]
    slope = part.bias_slope()
    if slope is not None:
        bias = part.bias(nonnegative, length)
        if bias is None:
            return "bias_slope() returns a tensor and bias() returns None"
        error = _compare("bias_slope() times the distance and bias()", slope * nonnegative, bias)
        if error is not None:
            return error
    decay_terms = part.score_scale_decay(length)
    if decay_terms is not None:
        score_scale = part.score_scale(nonnegative, length)
        if score_scale is None:
            return "score_scale_decay() returns tensors and score_scale() returns None"
        floor, span, decay = decay_terms
        if not bool((decay >= 0).all()):
            return "score_scale_decay() returns a decay below 0, which grows with distance"
        exponential = floor + span * torch.exp(-decay * nonnegative)
        error = _compare("score_scale_decay() and score_scale()", exponential, score_scale)
        if error is not None:
            return error
    supplied = part.parameter_gradients(distance, length)
    if supplied is None:
        return None
    for hook in ("score_scale", "bias"):
        output = getattr(part, hook)(distance, length)
        if (output is None) != (getattr(supplied, hook) is None):
            return f"{hook} is None in only one of parameter_gradients() and {hook}()"
        if output is None:
            continue
        error = _compare(f"{hook} in parameter_gradients() and {hook}()", getattr(supplied, hook), output)
        gradients = [gradient for gradient in supplied.gradients if gradient.hook == hook]
        error = error or _compare_gradients(hook, output, gradients)
        if error is not None:
            return error
    return None


def _compare_pairs(part: Position, hook: str, distance: Tensor) -> str | None:
    """``pair_function`` against the hook, at lengths from 1 to twice the largest distance."""
    function = part.pair_function(hook) if part.length is not None else None
    if function is None:
        return None
    length = torch.linspace(1, 2 * float(distance.max()), distance.shape[0], dtype=distance.dtype)
    output = getattr(part, hook)(distance, length)
    if output is None:
        return f"pair_function({hook!r}) returns a function and {hook}() returns None"
    values = function.evaluate(lambda i: function.numbers[:, i, None], distance, length)
    return _compare(f"pair_function({hook!r}) and {hook}()", values, output)


def _compare_relative_keys(part: Position, distance: Tensor) -> str | None:
    """``relative_keys`` against ``content_bias`` of one query, with a key at each distance."""
    relative = part.relative_keys(distance)
    if relative is None:
        return None
    heads, width = part.heads or relative.vectors.shape[0], relative.keys().shape[-1]
    rows = _random_rows(distance, heads, width)
    q, k = rows.q, rows.k
    terms = relative.shift(q, relative.v) @ relative.keys().mT + relative.shift(q, relative.u) @ k.mT - q @ k.mT
    content = part.content_bias(rows)
    if content is None:
        return "relative_keys() returns vectors and content_bias() returns None"
    return _compare("relative_keys() and content_bias()", rows.scale * terms, content)


def _compare_slopes(part: Position, distance: Tensor) -> str | None:
    """``distance_slopes`` against ``content_bias``."""
    if "content_bias" not in part.effects:
        return None
    rows = _random_rows(distance, part.heads or 1, getattr(part, "head_dim", None) or 8)
    slopes = part.distance_slopes(rows.q, rows.k)
    if slopes is None:
        return None
    of_queries, of_keys = slopes
    slope = distance.new_zeros(()) if of_queries is None else of_queries[..., None]
    slope = slope if of_keys is None else slope + of_keys[..., None, :]
    content = part.content_bias(rows)
    if content is None:
        return "distance_slopes() returns slopes and content_bias() returns None"
    return _compare("distance_slopes() and content_bias()", distance * slope, content)


def _compare_networks(part: Position, distance: Tensor) -> str | None:
    """``head_network`` against ``content_bias``."""
    answer = part.head_network()
    if answer is None:
        return None
    network = require_head_network(type(part).__name__, answer, part.heads)
    if network.bias is not None and network.bias.length is not None:  # kernels do not use it then
        return None
    distance = distance[distance >= 0] if part.causal_only else distance
    heads = network.last.shape[0]
    rows = _random_rows(distance, heads, 8)
    of_hidden, of_logits = network.tables(distance)
    z = rows.scores.movedim(1, -1)
    hidden = leaky_relu(z @ network.first[:, :heads].T + of_hidden, network.negative_slope)
    content = part.content_bias(rows)
    if content is None:
        return "head_network() returns a network and content_bias() returns None"
    return _compare("head_network() and content_bias()", hidden @ network.last.T + of_logits, content.movedim(1, -1))


def _random_rows(distance: Tensor, heads: int, width: int) -> Rows:
    """One query, and a key at each distance."""
    n, generator, scale = distance.shape[0], torch.Generator().manual_seed(0), 0.5
    q, k = (torch.randn(1, heads, m, width, dtype=distance.dtype, generator=generator) for m in (1, n))
    visible = torch.ones(1, 1, 1, n, dtype=torch.bool)
    return Rows(q, k, scale * q @ k.mT, torch.zeros(1, 1), -distance.to(torch.float32)[None], visible, scale)


def _compare_gradients(hook: str, output: Tensor, gradients: list[ParameterGradient]) -> str | None:
    """Autograd from the output to the parameters, against autograd from the values with the supplied derivatives."""
    weights = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(0))
    through_values = output.new_zeros(())
    for gradient in gradients:
        if gradient.derivative is None and hook == "score_scale":
            derivative = output.detach() / gradient.value.detach()
        elif gradient.derivative is None:
            return f"a gradient of {hook} has derivative=None, which only a factor of the whole score_scale may have"
        else:
            derivative = gradient.derivative.detach()
        through_values = through_values + (gradient.value * (weights * derivative)).sum()
    parameters = [p for p in _leaves(output) if p.requires_grad]
    if not parameters:
        return None
    if not gradients:
        return f"parameter_gradients() has no value for the parameters of {hook}()"
    exact = torch.autograd.grad((output * weights).sum(), parameters, retain_graph=True, allow_unused=True)
    supplied = torch.autograd.grad(through_values, parameters, allow_unused=True)
    for a, b, parameter in zip(supplied, exact, parameters, strict=True):
        error = _compare(
            f"the gradient of {hook} through parameter_gradients() and through {hook}()",
            _or_zero(a, parameter),
            _or_zero(b, parameter),
        )
        if error is not None:
            return error
    return None


def _leaves(output: Tensor) -> list[Tensor]:
    """The leaf tensors that an output was computed from."""
    visited, pending, leaves = set(), [output.grad_fn], []
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        pending += [following for following, _ in node.next_functions]
    return leaves


def _or_zero(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


def _compare(what: str, a: Tensor, b: Tensor) -> str | None:
    a, b = torch.broadcast_tensors(a.detach(), b.detach())
    difference, limit = float((a - b).abs().max()), TOLERANCE * (1 + float(b.abs().max()))
    return None if difference <= limit else f"{what} differ by {difference:.2g}, allowed {limit:.2g}"
