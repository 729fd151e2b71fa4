"""StableMask's extra logit against the padded form of the paper, loops, and the ends of its range."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.alibi import slopes
from whence.position.stable_mask import StableMask

N = 12


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, positions):
        return self.position.sink(positions, N)


def padded(q, k, gamma):
    """A = softmax(QK^T / sqrt d * C + P) * C, with P_ij = -gamma (j - 1) for j > i, counted from 1."""
    n, d = q.shape[-2:]
    c = torch.ones(n, n, dtype=q.dtype).tril()
    p = torch.zeros(len(gamma), n, n, dtype=q.dtype)
    for h, g in enumerate(gamma):
        for i in range(1, n + 1):
            for j in range(i + 1, n + 1):
                p[h, i - 1, j - 1] = -g * (j - 1)
    return torch.softmax(q @ k.mT / math.sqrt(d) * c + p, -1) * c


def with_sink(q, k, mask, n):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), float("-inf"))
    sink = mask.sink(torch.arange(n, dtype=q.dtype), mask.context)
    return torch.softmax(torch.cat([scores, sink[..., None].expand(*scores.shape[:-1], 1)], -1), -1)[..., :-1]


@pytest.mark.parametrize("gamma", (None, 0.0, 1e-9, 2.0, [0.0, 1e-3, 0.4, 7.0]))
def test_equals_the_padded_form(gamma):
    torch.manual_seed(0)
    mask = StableMask(4, context=N, gamma=gamma).double()
    q, k = torch.randn(2, 2, 4, N, 8, dtype=torch.float64)
    want = padded(q, k, mask.gamma().flatten().tolist())
    torch.testing.assert_close(with_sink(q, k, mask, N), want, rtol=1e-11, atol=1e-14)


def test_identical_inputs_give_rising_row_sums():
    mask = StableMask(4, context=N).double()
    x = torch.ones(1, 4, N, 8, dtype=torch.float64)
    sums = with_sink(x, x, mask, N).sum(-1)
    assert (sums[..., 1:] > sums[..., :-1]).all() and (sums[..., 0] < 1).all()
    torch.testing.assert_close(sums[..., -1], torch.ones(1, 4, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize("gamma", (0.0, 1e-300, 1e-30, 1e-12, 1e-6, 1e-3, 9.9e-3, 1.01e-2, 0.1, 1.0, 30.0, 700.0))
@pytest.mark.parametrize("context", (1, 2, 50, 1000))
def test_loops(gamma, context):
    mask = StableMask(1, context=context, gamma=1.0, learnable=False).double()
    mask.gamma.fixed.fill_(gamma)
    at = [p for p in (-5, -1, 0, 1, 7, context - 3, context - 2) if p < context - 1]
    want = []
    for p in at:
        terms = [-gamma * t for t in range(p + 1, context)]
        top = max(terms)
        want.append(top + math.log(math.fsum(math.exp(t - top) for t in terms)))
    got = mask.sink(torch.tensor(at, dtype=torch.float64), context)[0]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_the_end_of_the_context_and_beyond():
    mask = StableMask(2, context=N, gamma=[0.0, 0.5]).double()
    got = mask.sink(torch.tensor([N - 2, N - 1, N, N + 5]), N)
    want = [[0.0, -math.inf, 0.0, 0.0], [-0.5 * (N - 1), -math.inf, -0.5 * (N + 1), -0.5 * (N + 6)]]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64))


def test_single_precision_at_a_real_length():
    mask = StableMask(8, context=32768)
    p = torch.tensor([-100.0, 0.0, 1.0, 1000.0, 32000.0, 32766.0])
    torch.testing.assert_close(
        mask.sink(p, 32768).double(), mask.double().sink(p.double(), 32768), rtol=1e-6, atol=1e-5
    )


@pytest.mark.parametrize("gamma", (1e-8, 1e-4, 1e-2, 0.3, 5.0))
def test_gradient_of_gamma_against_finite_differences(gamma):
    mask = StableMask(1, context=N, gamma=gamma, learnable=True).double()
    p = torch.tensor([-3.0, 0.0, 4.0, N - 2, N + 2], dtype=torch.float64)

    def sink(raw):
        return torch.func.functional_call(Hook(mask), {"position.gamma.raw": raw}, (p,))

    assert torch.autograd.gradcheck(sink, (mask.gamma.raw.detach().requires_grad_(),))


@pytest.mark.parametrize("gamma", (0.0, 1e-40, 1e-20, 1e-7, 0.5, 100.0, 1e6))
def test_gradients_are_finite_everywhere(gamma):
    mask = StableMask(1, context=64, gamma=1.0)
    leaf = torch.full((1, 1), gamma, requires_grad=True)
    mask.gamma.fixed = leaf
    p = torch.tensor([-1e4, -1.0, 0.0, 30.0, 62.0, 63.0, 64.0, 1e5], requires_grad=True)
    out = mask.sink(p, 64)
    assert torch.isfinite(out[:, :5]).all() and out[0, 5] == -math.inf and torch.isfinite(out[:, 6:]).all()
    out.sum().backward()
    assert torch.isfinite(leaf.grad).all() and torch.isfinite(p.grad).all()


def test_gradient_at_gamma_zero_is_minus_the_mean_position():
    mask = StableMask(1, context=9, gamma=0.0)
    mask.gamma.fixed = leaf = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    mask.sink(torch.tensor([2.0], dtype=torch.float64), 9).sum().backward()
    assert leaf.grad.item() == pytest.approx(-(3 + 8) / 2)


def test_gamma_stays_in_bounds_under_learning():
    for sign in (1, -1):
        mask = StableMask(2, context=N, learnable=True)
        steps = torch.optim.Adam(mask.parameters(), lr=10.0)
        for _ in range(200):
            steps.zero_grad()
            (sign * mask.sink(torch.arange(N - 1.0), N).mean()).backward()
            steps.step()
        assert (mask.gamma() >= 0).all() and torch.isfinite(mask.sink(torch.arange(N - 1.0), N)).all()


@pytest.mark.parametrize("learnable", (True, False))
def test_state_dict_round_trip_compile_and_export(learnable):
    mask, other = (
        StableMask(2, context=N, gamma=0.3, learnable=learnable),
        StableMask(2, context=N, learnable=learnable),
    )
    p = torch.arange(-2.0, N + 2)
    want = mask.sink(p, N)
    other.load_state_dict(mask.state_dict())
    assert torch.equal(other.sink(p, N), want)
    torch.testing.assert_close(torch.compile(Hook(mask), backend="eager", fullgraph=True)(p), want)
    torch.testing.assert_close(torch.export.export(Hook(mask), (p,)).module()(p), want)


def test_what_it_says_of_itself():
    mask = StableMask(2, context=N)
    assert mask.gamma().flatten().tolist() == slopes(2)
    assert repr(mask) == "StableMask(heads=2, gamma=[0.0625, 0.00390625], length='context', context=12)"
    assert mask.effects == {"sink"} and mask.causal_only and not mask.relative and mask.context == N


@pytest.mark.parametrize(
    "arguments, text",
    (
        (
            {"heads": 2, "context": 0},
            r"StableMask\(context=...\) got 0",
        ),
        (
            {"heads": 2, "context": 8, "gamma": -0.1},
            r"gamma=...\) got -0.1, but .*; pass a number inside that range\.",
        ),
        (
            {"heads": 2, "context": 8, "gamma": 0.0, "learnable": True},
            r"gamma=...\) got 0.0",
        ),
        (
            {"heads": 2, "context": 8, "gamma": [1.0]},
            r"gamma=...\) got 1 numbers for heads=2",
        ),
        ({"heads": 0, "context": 8}, r"StableMask\(heads=...\) got 0, but"),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        StableMask(**arguments)
