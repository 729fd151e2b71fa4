"""Rows of blockwise in half precision, as on tensor cores: products of rounded numbers, sums and softmax in float32.

A CPU computes the same products in float32 from rounded numbers. The error allowed is twice that of a computation in which
every operation is in half precision, plus rounding, all against the float64 reference on the same inputs.
"""

import copy

import pytest
import torch

from whence import Cope, Shaw, attend, from_score_mod
from whence.attention.half_product import multiply_in_half
from whence.position.hook_types import Rows

B, H, G, T, D = 2, 4, 2, 70, 16
POSITIONS = {
    "Shaw": lambda: Shaw(D, clip=9, std=0.5),
    "Cope": lambda: Cope(D, positions=20),
    "a score_mod": lambda: from_score_mod(lambda score, b, h, q_idx, kv_idx: 4 * torch.tanh(score / 4)),
}


def eager(position, q, k, v):
    """Attention with every operation in the dtype of the inputs."""
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    at, scale = torch.arange(T)[None], D**-0.5
    visible = (at[0][:, None] >= at[0])[None, None]
    scores = (q @ k.mT) * scale
    rows = Rows(q, k, scores, at, at, visible, scale)
    logits = (scores + position.content_bias(rows).to(q.dtype)).masked_fill(~visible, -torch.inf)
    weights = torch.softmax(logits, -1)
    out = weights @ v
    return out + position.value_bias(weights, rows) if "value_bias" in position.effects else out


def results(compute, position, tensors, grad_out):
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    parameters = list(position.parameters())
    out = compute(position, *leaves)
    return [out, *torch.autograd.grad(out, [*leaves, *parameters], grad_out.to(out.dtype))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", POSITIONS)
def test_rows_in_half_precision_lose_no_more_than_eager_code(name, dtype, monkeypatch):
    monkeypatch.setattr("whence.attention.blockwise.multiplies_in_half", lambda q: q.dtype == dtype)
    monkeypatch.setattr("whence.attention.blockwise.SCORES", B * H * T * 30)  # three blocks
    generator = torch.Generator().manual_seed(0)
    sizes = ((H, D), (G, D), (G, D), (H, D))
    *tensors, grad_out = (torch.randn(B, h, T, d, generator=generator).to(dtype) for h, d in sizes)
    torch.manual_seed(0)
    position = POSITIONS[name]()

    def run(backend):
        return lambda position, *leaves: attend(*leaves, position=position, causal=True, backend=backend)

    exact = results(run("reference"), copy.deepcopy(position).double(), [x.double() for x in tensors], grad_out)
    low = results(eager, copy.deepcopy(position).to(dtype), tensors, grad_out)
    got = results(run("blockwise"), position, tensors, grad_out)
    whole = results(run("reference"), position, tensors, grad_out)
    for i, (mine, plain, single, x) in enumerate(zip(got, low, whole, exact, strict=True)):
        size = x.square().mean().sqrt()
        lost, baseline, least = ((y.double() - x).square().mean().sqrt() / size for y in (mine, plain, single))
        assert lost <= 2 * (baseline + torch.finfo(dtype).eps), f"result {i}"
        if i == 1:  # gradients of scores are rounded here, and in float32 they are not
            assert lost > least
    assert got[0].dtype == dtype


def test_the_product_and_its_derivatives():
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6)
    a, b = (x.bfloat16().double().requires_grad_() for x in (a, b))  # numbers that rounding leaves as they are
    torch.testing.assert_close(multiply_in_half(a, b, torch.bfloat16).double(), a @ b, rtol=1e-6, atol=1e-6)
    ones = torch.ones(2, 3, 4, 6, dtype=torch.float64)
    for got, exact in zip(
        torch.autograd.grad(multiply_in_half(a, b, torch.bfloat16).double(), (a, b), ones),
        torch.autograd.grad(a @ b, (a, b), ones),
        strict=True,
    ):
        torch.testing.assert_close(got, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensor_cores_compute_the_same_product(dtype):
    a, b = (torch.randn(2, 3, n, m).to(dtype) for n, m in ((70, 33), (33, 90)))
    exact = a.double() @ b.double()
    got = multiply_in_half(a.cuda(), b.cuda(), dtype)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), exact, rtol=1e-5, atol=1e-4)
    torch.manual_seed(0)
    position = Shaw(64, std=0.5).cuda()
    inputs = [torch.randn(1, 4, 300, 64).to("cuda", dtype) for _ in range(4)]

    def run(position, *leaves):
        return attend(*leaves, position=position, causal=True, backend="blockwise")

    exact = results(run, copy.deepcopy(position).double(), [x.double() for x in inputs[:3]], inputs[3])
    for i, (mine, x) in enumerate(zip(results(run, position, inputs[:3], inputs[3]), exact, strict=True)):
        assert (mine.double() - x).square().mean().sqrt() <= 4 * torch.finfo(dtype).eps * x.square().mean().sqrt(), i
