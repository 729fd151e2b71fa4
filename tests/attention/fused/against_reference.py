"""Output and gradients of one call against the float64 reference, within what eager arithmetic in that dtype loses."""

import copy

import torch

from whence import attend
from whence.attention.arguments import Arguments
from whence.attention.layout import resolve_layout
from whence.position.evaluate import evaluate

PLACES = ("q_positions", "k_positions", "lengths", "key_mask", "segment_ids", "window")


def stirred(position):
    """A mechanism at its start may be flat, or the same in all heads: give every parameter something to show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in position.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return position


def randoms(*shapes, dtype=torch.float32, device="cpu", seed=2):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def inputs(batch, heads, groups, queries, keys, width, value_dim, **about):
    """q, k, v, and what is sent back for the output."""
    sizes = ((heads, queries, width), (groups, keys, width), (groups, keys, value_dim), (heads, queries, value_dim))
    return randoms(*((batch, *size) for size in sizes), **about)


def as_they_are(*tensors):
    return tensors


def run(position, tensors, upstream, given, *, view=as_they_are, backend):
    """The output, and the gradients of the tensors and of every parameter; ``view`` makes q, k and v of the tensors."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = attend(*view(*leaves), position=position, backend=backend, **given)
    return [out.detach(), *gradients(out, leaves, position, upstream)]


def gradients(out, leaves, position, upstream):
    learnt = [] if position is None else [p for p in position.parameters() if p.requires_grad]
    wanted = [*leaves, *learnt]
    found = torch.autograd.grad(out, wanted, upstream.to(out.dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def eager(position, tensors, upstream, given, *, view=as_they_are):
    """What a user would write without whence, every product and softmax in the dtype of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    q, k, v = view(*leaves)
    causal = given.get("causal", False)
    layout = resolve_layout(Arguments(q, k, v, causal=causal, **{n: given.get(n) for n in PLACES}))
    heads, dtype, temperature = q.shape[1], q.dtype, given.get("temperature", 1.0)
    for part in () if position is None else position.parts:
        q, k = part.rotate(q, k, layout.q_positions, layout.k_positions)
    k, v = (x.repeat_interleave(heads // k.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * given.get("scale", q.shape[3] ** -0.5)
    sink = None
    if position is not None:
        places = {"score_scale": layout.measured(torch.float32), "bias": layout.measured(torch.float32)}
        for hook, distance in places.items():
            effect = evaluate(position, hook, distance, heads, layout.length_of)
            if effect is not None:
                effect = effect.transpose(0, 1).to(dtype)
                scores = scores * effect if hook == "score_scale" else scores + effect
        sink = evaluate(position, "sink", layout.q_positions.float()[..., None], heads, layout.length_of)
    scores = scores.masked_fill(~layout.visible()[:, None], -torch.inf)
    if sink is not None:
        extra = sink.transpose(0, 1).to(dtype).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, extra], -1)
    alone = torch.isneginf(scores).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(alone, 0.0) / temperature, -1).masked_fill(alone, 0.0)
    out = weights[..., : k.shape[2]] @ v
    return [out.detach(), *gradients(out, leaves, position, upstream)]


def error(found, exact, floor):
    """Root mean square of the difference, relative to that of the exact result or to a floor.

    Inputs have unit size, so terms of size 1 cancel in a gradient that comes out smaller than the floor.
    """
    assert torch.isfinite(found).all()
    size = exact.square().mean().sqrt().clamp(min=floor)
    return float((found.double() - exact).square().mean().sqrt() / size)


def assert_within(found, exact, plain, dtype, tensors=3, slack=1):
    """Four times what plain float32 loses, or twice what eager half precision loses, each with a few roundings more."""
    times, roundings = (4 * slack, 16) if dtype == torch.float32 else (2 * slack, 2)
    for i, (f, x, p) in enumerate(zip(found, exact, plain, strict=True)):
        floor = 0.1 if i <= tensors else 1.0  # a parameter sums thousands of terms of unit size, which may cancel
        budget = times * (error(p, x, floor) + roundings * torch.finfo(dtype).eps)
        lost = error(f, x, floor)
        name = ["output", *[f"gradient of tensor {n}" for n in range(tensors)]][i] if i <= tensors else "parameter"
        assert lost <= budget, f"result {i} ({name}): {lost:.2e} over {budget:.2e}"


def exact_and_plain(position, tensors, upstream, given, *, view=as_they_are):
    """The float64 reference on the same numbers, and what the same formula gives in the dtype of the tensors."""
    given = {name: value for name, value in given.items() if name != "skip_blocks"}
    wide = None if position is None else copy.deepcopy(position).double()
    exact = run(wide, [x.double() for x in tensors], upstream.double(), given, view=view, backend="reference")
    return exact, eager(position, tensors, upstream, given, view=view)


def compare(position, tensors, upstream, given, *, view=as_they_are, slack=1):
    """Run the kernels and hold every result against the reference; returns what the kernels gave."""
    exact, plain = exact_and_plain(position, tensors, upstream, given, view=view)
    found = run(position, tensors, upstream, given, view=view, backend="triton")
    assert_within(found, exact, plain, tensors[0].dtype, len(tensors), slack)
    return found
