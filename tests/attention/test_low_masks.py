"""Rows whose logits all lie far below zero, by an additive mask or by a bias."""

import pytest
import torch
from mask_inputs import BACKENDS, B, D, H, T, inputs
from torch.nn.attention import SDPBackend, sdpa_kernel

import whence
from whence import Position, Sink, attend

# --- rows whose logits all lie far below 0 ------------------------------------------------------------------------------

FAR = [(dtype, value) for dtype in (torch.float32, torch.float64) for value in (-1e4, -1e9, torch.finfo(dtype).min)]


class Low(Position):
    """A bias that hides every key as far as a number can."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def bias(self, distance, length):
        return torch.full_like(distance, self.value)


def by_math(q, k, v, mask):
    """torch's dense kernel. Its fused kernels form the same output, but lose the row's sum in the backward pass."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def with_gradients(run, *leaves):
    out = run()
    return out.detach(), *torch.autograd.grad(out.square().sum(), leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, value", FAR)
def test_rows_far_below_zero_are_those_of_sdpa(dtype, value, backend):
    q, k, v = (x.to(dtype).requires_grad_() for x in inputs())
    mask = torch.full((T, T), value, dtype=dtype)
    mask[1:3] = torch.randn(2, T)  # beside rows of ordinary size
    ones = torch.ones_like(v)
    torch.testing.assert_close(attend(q, k, ones, attn_mask=mask, backend=backend), torch.ones(B, H, T, D, dtype=dtype))
    actual = with_gradients(lambda: attend(q, k, v, attn_mask=mask, backend=backend), q, k, v)
    expected = with_gradients(lambda: by_math(q, k, v, mask), q, k, v)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_rows_far_below_zero_are_those_of_the_reference_in_float64(value, backend):
    """Equal scores, so that float32 loses nothing when it adds the mask."""
    _, k, v = inputs()
    q, mask = torch.zeros(B, H, T, D, dtype=torch.float64), torch.full((T, T), value, dtype=torch.float64)
    actual = []
    for dtype, name in ((torch.float64, "reference"), (torch.float32, backend)):
        x = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        actual.append(with_gradients(lambda x=x, name=name: attend(*x, attn_mask=mask, backend=name), *x))
    for a, b in zip(*actual, strict=True):
        torch.testing.assert_close(a, b.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype, value", FAR)
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("kind", ["mask", "score_mod", "bias at explicit positions"])
def test_rows_far_below_zero_in_blocks_of_rows(kind, sink, dtype, value):
    q, k, v = (x.to(dtype).requires_grad_() for x in inputs())
    options = {"mask": {"attn_mask": torch.full((T, T), value, dtype=dtype)}}.get(kind, {})
    if kind == "score_mod":
        options["position"] = whence.from_score_mod(lambda score, b, h, i, j: score * 0 + value)
    if kind == "bias at explicit positions":
        options |= {"position": Low(value), "q_positions": torch.tensor([0, 1, 3, 4, 8, 9])}
    if sink:
        options["position"] = (
            Sink(H).to(dtype) if "position" not in options else options["position"] + Sink(H).to(dtype)
        )
    outs = [
        with_gradients(lambda name=name: attend(q, k, v, backend=name, **options), q, k, v)
        for name in ("blockwise", "reference")
    ]
    for a, b in zip(*outs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)
    row_sums = attend(q, k, torch.ones_like(v), backend="blockwise", **options)
    torch.testing.assert_close(row_sums, torch.full_like(row_sums, 0.0 if sink else 1.0))
    tangents = [
        torch.func.jvp(lambda x, name=name: attend(x, k.detach(), v.detach(), backend=name, **options), (q.detach(),), (q.detach(),))[1]
        for name in ("blockwise", "reference")
    ]  # fmt: skip
    torch.testing.assert_close(*tangents, rtol=2e-6, atol=2e-6)
    slopes = [
        torch.func.grad(lambda x, name=name: attend(x, k.detach(), v.detach(), backend=name, **options).square().sum())(q.detach())
        for name in ("blockwise", "reference")
    ]  # fmt: skip
    torch.testing.assert_close(*slopes, rtol=2e-6, atol=2e-6)
