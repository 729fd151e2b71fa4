"""Compare output and gradients with the float64 reference; the error budget is the error of eager code in the same dtype."""

import copy

import torch

from whence import Rows, attend
from whence.attention.arguments import Arguments
from whence.attention.clock import run_clock
from whence.attention.layout import resolve_layout
from whence.position.evaluate import evaluate, evaluate_content_bias, evaluate_value_bias

LAYOUT_ARGUMENTS = ("q_positions", "k_positions", "lengths", "key_mask", "segment_ids", "window")


def perturb(position):
    """Perturb all parameters: at initialization a mechanism may be flat or equal in all heads."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in position.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return position


def random_tensors(*shapes, dtype=torch.float32, device="cpu", seed=2):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def random_inputs(batch, heads, groups, queries, keys, width, value_dim, **about):
    """q, k, v and the gradient of the output."""
    sizes = ((heads, queries, width), (groups, keys, width), (groups, keys, value_dim), (heads, queries, value_dim))
    return random_tensors(*((batch, *size) for size in sizes), **about)


def identity(*tensors):
    return tensors


def run(position, tensors, grad_out, options, *, view=identity, backend):
    """The output, and the gradients of the tensors and of every parameter.

    ``view`` maps the tensors to q, k and v, and the steps of a clock where the position has one.
    """
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    q, k, v, *clock = view(*leaves)
    options = options | ({"clock": clock[0]} if clock else {})
    out = attend(q, k, v, position=position, backend=backend, **options)
    return [out.detach(), *gradients(out, leaves, position, grad_out)]


def gradients(out, leaves, position, grad_out):
    parameters = [] if position is None else [p for p in position.parameters() if p.requires_grad]
    wanted = [*leaves, *parameters]
    result = torch.autograd.grad(out, wanted, grad_out.to(out.dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, result, strict=True)]


def to_dtype(x, dtype):
    """x in a dtype, with the gradient of a cast. Finite numbers stay finite.

    In bfloat16, ``finfo.min`` of float32 would become -inf. That hides the key: eager results would be 0, which makes the
    budget of the output too large and that of the bias, whose gradient is 0 too, too small.
    """
    largest = torch.finfo(dtype).max
    excess = torch.where(torch.isfinite(x), x.clamp(-largest, largest) - x, 0.0).detach()
    return (x + excess).to(dtype)


def eager(position, tensors, grad_out, options, *, view=identity):
    """The same attention in eager torch, with every operation in the dtype of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    q, k, v, *clock = view(*leaves)
    causal = options.get("causal", False)
    layout = resolve_layout(Arguments(q, k, v, causal=causal, **{n: options.get(n) for n in LAYOUT_ARGUMENTS}))
    heads, dtype, temperature = q.shape[1], q.dtype, options.get("temperature", 1.0)
    plain = q
    for part in () if position is None else position.parts:
        q, k = part.rotate(q, k, layout.q_positions, layout.k_positions)
    k, v = (x.repeat_interleave(heads // k.shape[1], 1) for x in (k, v))
    scale = options.get("scale", q.shape[3] ** -0.5)
    scores = (q @ k.transpose(-1, -2)) * scale
    rows = Rows(q, k, scores, layout.q_positions, layout.k_positions, layout.visible(), scale, plain)
    sink = None
    if position is not None:
        content = evaluate_content_bias(position, rows)
        scores = scores if content is None else scores + content
        places = {"score_scale": layout.hook_distances(torch.float32), "bias": layout.hook_distances(torch.float32)}
        for hook, distance in places.items():
            effect = evaluate(position, hook, distance, heads, layout.length_of)
            if effect is not None:
                effect = to_dtype(effect.transpose(0, 1), dtype)
                scores = scores * effect if hook == "score_scale" else scores + effect
        for steps in clock:
            scores = scores + run_clock(steps, layout, dtype).bias(dtype)
        sink = evaluate(position, "sink", layout.q_positions.float()[..., None], heads, layout.length_of)
    scores = scores.masked_fill(~layout.visible(), -torch.inf)
    if sink is not None:
        extra = sink.transpose(0, 1).to(dtype).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, extra], -1)
    alone = torch.isneginf(scores).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(alone, 0.0) / temperature, -1).masked_fill(alone, 0.0)
    weights = weights[..., : k.shape[2]]
    out = weights @ v
    more = None if position is None else evaluate_value_bias(position, weights, rows, tuple(out.shape))
    out = out if more is None else out + more
    return [out.detach(), *gradients(out, leaves, position, grad_out)]


def relative_error(result, exact, floor):
    """Root mean square of the difference, relative to that of the exact result or to a floor.

    Inputs have unit size, so terms of size 1 cancel in a gradient that comes out smaller than the floor.
    """
    assert torch.isfinite(result).all()
    size = exact.square().mean().sqrt().clamp(min=floor)
    return float((result.double() - exact).square().mean().sqrt() / size)


def assert_within_budget(result, exact, plain, dtype, tensors=3, slack=1, more_plain=lambda: []):
    """Budget: four times the error of eager float32, or twice that of eager half precision, plus a few roundings.

    The rounding error of a scalar is one draw, which may be near zero by luck. Before a parameter is called wrong, the error
    of eager code is therefore taken as the largest of several draws, ``more_plain``.
    """
    times, roundings = (4 * slack, 16) if dtype == torch.float32 else (2 * slack, 2)
    draws = [plain]
    for i, (f, x) in enumerate(zip(result, exact, strict=True)):
        parameter = i > tensors
        floor = 1.0 if parameter else 0.1  # a parameter gradient sums thousands of terms of unit size, which may cancel
        lost = relative_error(f, x, floor)
        budget = eager_budget(draws, i, x, floor, times, roundings * torch.finfo(dtype).eps)
        if lost > budget and parameter and len(draws) == 1:
            draws += more_plain()
            budget = eager_budget(draws, i, x, floor, times, roundings * torch.finfo(dtype).eps)
        name = "parameter" if parameter else ["output", *[f"gradient of tensor {n}" for n in range(tensors)]][i]
        assert lost <= budget, f"result {i} ({name}): {lost:.2e} over {budget:.2e}"


def eager_budget(draws, i, exact, floor, times, roundings):
    """The largest error of result i of eager code, with some roundings added, times a factor."""
    return times * (max(relative_error(draw[i], exact, floor) for draw in draws) + roundings)


def nudge(x, generator):
    """x with every entry changed by at most half a unit in its last place."""
    noise = torch.rand(x.shape, generator=generator).to(x.device) - 0.5
    return (x.double() * (1 + noise * torch.finfo(x.dtype).eps)).to(x.dtype)


def eager_with_other_roundings(position, tensors, grad_out, options, *, view=identity, draws=4):
    """Results of eager code on inputs that differ by roundings: other draws of its error."""
    generator = torch.Generator().manual_seed(0)
    options = {name: value for name, value in options.items() if name != "skip_blocks"}
    return [
        eager(position, [nudge(x, generator) for x in tensors], nudge(grad_out, generator), options, view=view)
        for _ in range(draws)
    ]


def reference_and_eager(position, tensors, grad_out, options, *, view=identity):
    """Results of the float64 reference and of eager code in the dtype of the tensors."""
    options = {name: value for name, value in options.items() if name != "skip_blocks"}
    wide = None if position is None else copy.deepcopy(position).double()
    exact = run(wide, [x.double() for x in tensors], grad_out.double(), options, view=view, backend="reference")
    return exact, eager(position, tensors, grad_out, options, view=view)


def check_against_reference(position, tensors, grad_out, options, *, view=identity, slack=1):
    """Run the kernels, compare every result with the reference, and return the results."""
    exact, plain = reference_and_eager(position, tensors, grad_out, options, view=view)
    result = run(position, tensors, grad_out, options, view=view, backend="triton")
    assert_within_budget(
        result, exact, plain, tensors[0].dtype, len(tensors), slack,
        lambda: eager_with_other_roundings(position, tensors, grad_out, options, view=view),
    )  # fmt: skip
    return result
