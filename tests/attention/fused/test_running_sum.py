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


@pytest.mark.parametrize("n, spans", [(1, 64), (2048, 64), (5000, 64), (5000, 2)])
def test_sums_and_gradients_are_those_of_torch(interpreted, n, spans, monkeypatch):
    from whence.attention.fused import running_sum

    monkeypatch.setattr(running_sum, "MAX_SPANS", spans)
    compare_with_torch(n, "cpu")


def check_gradients_reach_earlier_entries_alone(device):
    """A huge gradient leaves the digits of later ones, and one that is not finite leaves them finite, within a block, too."""
    from whence.attention.fused.running_sum import running_sum

    x = torch.zeros(1, 3, 1500, device=device, requires_grad=True)
    grad = torch.linspace(-1, 2, 1500, dtype=torch.float64, device=device).repeat(1, 3, 1)
    grad[0, :, 300] = torch.tensor([1e25, torch.inf, torch.nan], device=device)
    got, wanted = (
        torch.autograd.grad(compute(x), x, grad) for compute in (running_sum, lambda x: x.double().cumsum(-1))
    )
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9, equal_nan=True)


def test_gradients_reach_earlier_entries_alone(interpreted):
    check_gradients_reach_earlier_entries_alone("cpu")


def test_offsets_in_memory_exceed_32_bits(interpreted):
    """As those of the last entries of a long row, in a tensor with many other numbers for each; the fixture checks products."""
    from whence.attention.fused.running_sum import running_sum

    stride = 2**22
    steps = torch.ones(stride + 1, dtype=torch.half).as_strided((1, 1, 2), (1, 1, stride)).requires_grad_()
    out = running_sum(steps)
    out.sum().backward()
    assert out.tolist() == [[[1, 2]]] and steps.grad.tolist() == [[[2, 1]]]


@pytest.mark.gpu
@on_gpu
def test_on_a_gpu():
    for n in (1, 100, 2048, 5000, 100_000):
        compare_with_torch(n, "cuda")
    check_gradients_reach_earlier_entries_alone("cuda")
