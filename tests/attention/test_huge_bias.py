"""Biases that stand for "masked" as a huge finite number, such as -1e9 or ``finfo.min``, at any share of a row's keys.

Such a number is no mask: a row whose keys all have it still gives them weight, and a fast backward pass must recompute
just these weights. The error budget is twice the error of the dense computation in the same precision, plus rounding. Two
kinds of data: random scores, which float32 rounds away beside -1e9 in any backend, and equal scores, which it does not, so
that the budget is rounding alone.
"""

import copy
import itertools

import pytest
import torch

import whence
from whence import attend

B, H, GROUPS, T, D = 2, 4, 2, 20, 8
VALUES = {"-1e4": -1e4, "-1e9": -1e9, "finfo.min": torch.finfo(torch.float32).min, "1e9": 1e9}
BARRED = {
    "everywhere": lambda distance, head: torch.ones_like(distance + head, dtype=torch.bool),
    "far": lambda distance, head: (distance.abs() > 3) | (head < 0),
    "near": lambda distance, head: (distance.abs() <= 3) | (head < 0),
    "one head": lambda distance, head: (distance == distance) & (head == 1),
    "differs by head": lambda distance, head: distance.abs() > 2 * head,
}
SCORES = ("random", "equal")
MASKS = {
    "causal": {"causal": True},
    "bidirectional": {},
    "window": {"causal": True, "window": 6},
    "key_mask": {"key_mask": torch.arange(T) >= torch.tensor([[0], [7]]), "q_positions": torch.arange(T)},
    "holes": {"key_mask": torch.arange(T) % 5 == torch.tensor([[0], [3]]), "q_positions": torch.arange(T)},
    "lengths": {"causal": True, "lengths": torch.tensor([T, 5])},
    "segment_ids": {"causal": True, "segment_ids": torch.arange(T) // 7},
    "temperature": {"causal": True, "temperature": 0.5},
}


class Barrier(whence.Position):
    """A learnable value at some distances of some heads, a learnable slope at the others."""

    def __init__(self, value, barred):
        super().__init__()
        self.value = torch.nn.Parameter(torch.full((H, 1), value))
        self.slope = torch.nn.Parameter(torch.linspace(-0.3, -0.1, H)[:, None])
        self.barred = BARRED[barred]

    def bias(self, distance, length):
        head = torch.arange(H)[:, None]
        return torch.where(self.barred(distance, head), self.value, self.slope * distance.abs())


EXTRAS = {
    "no other part": lambda: (),
    "sink": lambda: (whence.Sink(H),),
    "score_scale": lambda: (whence.Epar(H, context=T, learnable=True),),
}


def build(value, barred, extra="no other part"):
    position = Barrier(VALUES[value], barred)
    for part in EXTRAS[extra]():
        position = position + part
    return position


def random_inputs(scores, dtype=torch.float32):
    """q, k, v and the gradient of the output; with equal scores, q.k is the same for all pairs."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, grad = (torch.randn(B, n, T, D, generator=generator) for n in (H, GROUPS, GROUPS, H))
    if scores == "equal":
        q, k[..., 0] = torch.eye(D)[0].expand(B, H, T, D), 0.5
    return [x.to(dtype) for x in (q, k, v, grad)]


def run(position, inputs, options, backend, call=attend):
    """The output and the gradients of q, k, v and of all parameters as one vector: four numbers alone estimate no error.

    Outputs of padded queries have no meaning, and get no gradient.
    """
    leaves = [x.clone().requires_grad_() for x in inputs[:3]]
    out = call(*leaves, position=position, backend=backend, **options)
    real = torch.ones(B, 1, T, 1, dtype=torch.bool)
    if "key_mask" in options:
        real = options["key_mask"][:, None, :, None]
    if "lengths" in options:
        real = (torch.arange(T) < options["lengths"][:, None])[:, None, :, None]
    wanted = [*leaves, *(p for p in position.parameters() if p.requires_grad)]
    found = torch.autograd.grad(out, wanted, inputs[3].to(out.dtype) * real, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
    return [out.detach() * real, *found[:3], *([torch.cat([g.flatten() for g in found[3:]])] if found[3:] else [])]


def error(found, exact, floor):
    assert torch.isfinite(found).all()
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt().clamp(min=floor))


def check(position, inputs, options, backend, call=attend, about=""):
    exact = run(copy.deepcopy(position).double(), [x.double() for x in inputs], options, "reference")
    plain = run(position, inputs, options, "reference")
    found = run(position, inputs, options, backend, call)
    roundings = (16 if inputs[0].dtype == torch.float32 else 2) * torch.finfo(inputs[0].dtype).eps
    for i, (f, x, p) in enumerate(zip(found, exact, plain, strict=True)):
        floor = 0.1 if i < 4 else 1.0  # parameters sum hundreds of terms of unit size, which may cancel
        lost, budget = error(f, x, floor), 2 * (error(p, x, floor) + roundings)
        assert lost <= budget, f"{about} result {i}: {lost:.2e} over {budget:.2e}"


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("value", VALUES)
def test_blockwise_output_and_gradients(value, mask):
    for barred, scores in itertools.product(BARRED, SCORES):
        about = f"{barred}, {scores} scores:"
        check(build(value, barred), random_inputs(scores), MASKS[mask], "blockwise", about=about)


@pytest.mark.parametrize("learnable", [True, False])  # torch's fused kernels take a fixed bias only
@pytest.mark.parametrize("mask", ["causal", "holes"])
@pytest.mark.parametrize("value", VALUES)
def test_sdpa_output_and_gradients(value, mask, learnable):
    for barred, scores in itertools.product(BARRED, SCORES):
        position, about = build(value, barred).requires_grad_(learnable), f"{barred}, {scores} scores:"
        check(position, random_inputs(scores), MASKS[mask], "sdpa", about=about)


@pytest.mark.parametrize("backend", ["blockwise", "sdpa"])
@pytest.mark.parametrize("value", VALUES)
def test_bfloat16(value, backend):
    for barred in BARRED:
        check(
            build(value, barred).requires_grad_(False), random_inputs("equal", torch.bfloat16), MASKS["causal"], backend
        )


@pytest.mark.parametrize("backend", ["blockwise", "sdpa"])
@pytest.mark.parametrize("value", ["-1e9", "finfo.min"])
def test_compiled(value, backend):
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    position = build(value, "near").requires_grad_(False)
    for scores in ("random", "equal"):
        if scores == "equal" or value == "-1e9":  # float64 itself rounds scores away beside finfo.min; sdpa keeps them
            check(position, random_inputs(scores), MASKS["causal"], backend, compiled)


@pytest.mark.parametrize("extra", ["sink", "score_scale"])
@pytest.mark.parametrize("mask", ["causal", "holes", "temperature"])
@pytest.mark.parametrize("value", VALUES)
def test_beside_another_effect(value, mask, extra):
    for barred, scores in itertools.product(BARRED, SCORES):
        about = f"{barred}, {scores} scores:"
        check(build(value, barred, extra), random_inputs(scores), MASKS[mask], "blockwise", about=about)
