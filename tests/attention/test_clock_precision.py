"""Long running sums: the bias of near tokens is a small difference of two large numbers."""

import pytest
import torch

from whence import Position, attend

ROWS, DIM = 4, 8


class Steps(Position):
    causal_only = True

    def clock(self, x):
        return x.transpose(1, 2)


def attention_of_last_rows(length, size, dtype, backend):
    """The last rows over all keys, and the gradient of the steps."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, DIM) for n in (ROWS, length, length))
    steps = (-2 * size * torch.rand(1, 1, length)).to(dtype).requires_grad_()
    at = {"q_positions": torch.arange(length - ROWS, length), "k_positions": torch.arange(length)}
    q, k, v = (x.to(dtype) for x in (q, k, v))
    out = attend(q, k, v, position=Steps(), clock=steps, causal=True, backend=backend, **at)
    (gradient,) = torch.autograd.grad(out.square().sum(), steps)
    return q, k, v, steps.detach(), out.detach().double(), gradient.double()


@pytest.mark.parametrize("size", [0.5, 0.01])
@pytest.mark.parametrize("length", [1024, 65536])
def test_the_error_does_not_grow_with_the_length(length, size):
    """The budget is what the same logits lose in float32 without any clock; float32 sums exceed it a hundred times."""
    *_, exact, exact_gradient = attention_of_last_rows(length, size, torch.float64, "reference")
    budget = 64 * torch.finfo(torch.float32).eps
    for backend in ("reference", "blockwise"):
        *_, out, gradient = attention_of_last_rows(length, size, torch.float32, backend)
        assert (out - exact).abs().max() <= budget
        assert (gradient - exact_gradient).abs().max() <= budget * max(1.0, exact_gradient.abs().max())


def test_sums_in_float32_would_lose_the_digits():
    q, k, v, steps, _, _ = attention_of_last_rows(65536, 0.5, torch.float32, "reference")
    *_, exact, _ = attention_of_last_rows(65536, 0.5, torch.float64, "reference")
    sums = steps.cumsum(-1)
    logits = q @ k.mT / DIM**0.5 + sums[..., -ROWS:, None] - sums[..., None, :]
    hidden = torch.ones(ROWS, 65536, dtype=torch.bool).triu(65536 - ROWS + 1)
    naive = torch.softmax(logits.masked_fill(hidden, -torch.inf), -1) @ v
    assert (naive - exact).abs().max() > 100 * 64 * torch.finfo(torch.float32).eps / 10


def test_decoding_goes_on_exactly_after_many_tokens():
    """One more token after 65536, from its own sum and from the whole pass."""
    torch.manual_seed(0)
    steps = -torch.rand(1, 1, 65536)
    whole = steps.double().cumsum(-1)
    assert torch.equal(whole[..., -1] - whole[..., -2], steps[..., -1].double())  # float64 holds every digit of a step
