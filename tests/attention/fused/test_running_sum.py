"""Running sums by a kernel are those of torch in float64, as are their gradients of any order."""

from __future__ import annotations

import pytest
import torch
from test_row_tables import on_gpu


def compare_with_torch(n, device):
    from whence.attention.fused.running_sum import running_sum

    generator = torch.Generator().manual_seed(0)
    gates = torch.randn(3, n, generator=generator).to(device)
    transposed = gates.T.contiguous().T
    cases = (gates.expand(2, 3, n), transposed.expand(2, 3, n), gates.half().expand(1, 3, n))
    for steps, limit in zip(cases, (torch.inf, 0.75, 0.75), strict=True):
        results = []
        for compute in (lambda x, a=limit: running_sum(x, a), lambda x, a=limit: x.double().clamp(-a, a).cumsum(-1)):
            x = steps.detach().requires_grad_()
            out = compute(x)
            weight = torch.linspace(-1e-3, 2e-3, n, dtype=torch.float64, device=device)
            (alone,) = torch.autograd.grad((out.sin() * weight).sum(), x, retain_graph=True)
            (first,) = torch.autograd.grad((out.sin() * weight).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.double().square().sum(), x)
            results.append((out, alone, first, second))
        for got, wanted in zip(*results, strict=True):
            assert got.dtype == wanted.dtype
            tolerance = 1e-12 if got.dtype == torch.float64 else 2 * torch.finfo(got.dtype).eps
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * wanted.abs().max().item())


@pytest.mark.parametrize("n", [1, 2048, 5000])
def test_sums_and_gradients_are_those_of_torch(interpreted, n):
    compare_with_torch(n, "cpu")


@pytest.mark.gpu
@on_gpu
def test_on_a_gpu():
    for n in (1, 100, 2048, 5000):
        compare_with_torch(n, "cuda")
