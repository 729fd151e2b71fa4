"""The power prior against its formula, ALiBi, finite differences, and the corners where a naive power is NaN."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.alibi import Alibi, slopes
from whence.position.power_prior import PowerPrior

DISTANCES = torch.tensor([-1000.0, -2.0, -1.0, 0.0, 1.0, 3.0, 64.0, 1e5], dtype=torch.float64)


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance):
        return self.position.bias(distance, None)


@pytest.mark.parametrize("heads", (None, 3))
@pytest.mark.parametrize("learnable", (True, False))
@pytest.mark.parametrize("alpha, beta", ((1.0, 1.0), (-0.25, 0.5), (0.1, 2.0)))
def test_formula_in_double_precision(heads, learnable, alpha, beta):
    prior = PowerPrior(heads, alpha=alpha, beta=beta, learnable=learnable).double()
    a, b = prior.alpha.flatten()[0].item(), prior.beta().flatten()[0].item()
    want = torch.tensor([-(abs(a * d) ** b) for d in DISTANCES.tolist()], dtype=torch.float64)
    got = prior.bias(DISTANCES, None)
    assert got.dtype == torch.float64 and got.shape == ((8,) if heads is None else (3, 8))
    torch.testing.assert_close(got, want.expand_as(got), rtol=1e-12, atol=0)


def test_starts_as_published():
    torch.testing.assert_close(PowerPrior().bias(torch.arange(5.0), None), -torch.arange(5.0))


def test_exponent_one_is_alibi_with_slope_alpha():
    signed = [s * (-1) ** h for h, s in enumerate(slopes(8))]
    prior = PowerPrior(8, alpha=signed, beta=1.0, learnable=False)
    d = torch.arange(-20.0, 2000.0)
    torch.testing.assert_close(prior.bias(d, None), Alibi(8).bias(d, None))


def test_one_pair_a_head():
    prior = PowerPrior(2, alpha=[0.5, -2.0], beta=[2.0, 0.5], learnable=False)
    want = torch.tensor([[0.0, -1.0, -4.0], [0.0, -2.0, -math.sqrt(8)]])
    torch.testing.assert_close(prior.bias(torch.tensor([0.0, 2.0, 4.0]), None), want)


def call(prior, names, distance, *values):
    return torch.func.functional_call(
        Hook(prior), {f"position.{n}": v for n, v in zip(names, values, strict=True)}, (distance,)
    )


@pytest.mark.parametrize("alpha, beta", ((1.0, 1.0), (-0.3, 0.4), (0.2, 2.5)))
def test_gradients_against_finite_differences(alpha, beta):
    prior = PowerPrior(2, alpha=alpha, beta=beta).double()
    names = [n for n, _ in prior.named_parameters()]
    d = torch.tensor([-4.0, 1.0, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    inputs = (d, *(p.detach().requires_grad_() for p in prior.parameters()))
    assert torch.autograd.gradcheck(lambda *a: call(prior, names, *a), inputs)


def test_gradient_of_the_exponent_is_zero_at_distance_zero():
    """d phi / d beta = -|x|**beta * log|x| tends to 0; written naively it is 0 * -inf."""
    prior = PowerPrior(alpha=1.0, beta=0.5).double()
    prior.bias(torch.zeros(3, dtype=torch.float64), None).sum().backward()
    assert prior.alpha.grad == 0 and prior.beta.raw.grad == 0


@pytest.mark.parametrize("alpha", (0.0, -0.0, 1e-45, 1e-38, 1.0, -3.0, 1e30))
@pytest.mark.parametrize("beta", (1e-3, 0.5, 1.0, 2.0, 50.0))
def test_finite_everywhere(alpha, beta):
    prior = PowerPrior(alpha=alpha, beta=beta)
    d = torch.tensor([-1e4, -1.0, 0.0, 1.0, 1e4], requires_grad=True)
    out = prior.bias(d, None)
    assert torch.isfinite(out).all() and out[2] == 0 and (out <= 0).all()
    if abs(alpha) >= 1 or alpha == 0:  # a true slope of 1e38 * beta at alpha = 1e-38 is no concern of ours
        (out / 1e20).sum().backward()
        for grad in (d.grad, prior.alpha.grad, prior.beta.raw.grad):
            assert torch.isfinite(grad).all()


def test_falls_with_distance_and_is_symmetric():
    prior = PowerPrior(3, alpha=[0.01, 0.5, 2.0], beta=[0.3, 1.0, 1.7])
    d = torch.arange(0.0, 100.0)
    bias = prior.bias(d, None)
    assert (bias[:, 1:] < bias[:, :-1]).all() and torch.equal(bias, prior.bias(-d, None))


@pytest.mark.parametrize("sign", (1, -1))
def test_bounds_hold_under_learning(sign):
    prior = PowerPrior(2)
    steps = torch.optim.Adam(prior.parameters(), lr=10.0)
    for _ in range(200):
        steps.zero_grad()
        (sign * prior.bias(torch.arange(6.0), None).mean()).backward()
        steps.step()
    assert (prior.beta() > 0).all() and torch.isfinite(prior.bias(torch.arange(-4.0, 50.0), None)).all()


@pytest.mark.parametrize("heads", (None, 2))
@pytest.mark.parametrize("learnable", (True, False))
def test_state_dict_round_trip_compile_and_export(heads, learnable):
    prior, other = PowerPrior(heads, alpha=0.3, beta=0.7, learnable=learnable), PowerPrior(heads, learnable=learnable)
    d = torch.arange(-3.0, 6.0)
    want = prior.bias(d, None)
    other.load_state_dict(prior.state_dict())
    assert torch.equal(other.bias(d, None), want)
    torch.testing.assert_close(torch.compile(Hook(prior), backend="eager", fullgraph=True)(d), want)
    torch.testing.assert_close(torch.export.export(Hook(prior), (d,)).module()(d), want)


def test_what_it_says_of_itself():
    assert repr(PowerPrior()) == "PowerPrior(alpha=1, beta=1, learnable)"
    assert repr(PowerPrior(2, alpha=[0.5, 2.0], learnable=False)) == "PowerPrior(heads=2, alpha=[0.5, 2], beta=[1] * 2)"
    assert PowerPrior().effects == {"bias"} and PowerPrior().relative and not PowerPrior().causal_only


@pytest.mark.parametrize(
    "arguments, text",
    (
        ({"beta": 0.0}, r"beta=...\) got 0.0, but .*; pass a number inside that range\."),
        ({"beta": -1.0, "learnable": False}, r"beta=...\) got -1.0"),
        ({"alpha": math.nan}, r"alpha=...\) got nan, but .*; pass a number inside that range\."),
        (
            {"heads": 2, "alpha": [1.0]},
            r"alpha=...\) got 1 numbers for heads=2, but .*; pass 2 numbers, or one for all heads\.",
        ),
        (
            {"alpha": [1.0]},
            r"alpha=...\) got 1 numbers for heads=None, but .*; pass one number, or set heads\.",
        ),
        ({"heads": 0}, r"PowerPrior\(heads=...\) got 0, but"),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        PowerPrior(**arguments)
