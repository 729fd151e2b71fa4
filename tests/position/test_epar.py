"""EPAR against its two formulas, its floor, and its bounds under learning."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.epar import Epar

FORMS = ("basic", "enhanced")


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance, length):
        return self.position.score_scale(distance, length)


def by_hand(form, alpha, beta, gamma, d, length):
    decay = math.exp(-beta * abs(d) / length)
    return alpha * decay if form == "basic" else alpha * (1 + gamma * decay) / (1 + gamma)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads", (None, 2))
def test_formula_in_double_precision(form, heads):
    epar = Epar(heads, form=form, alpha=0.75, beta=2.0, gamma=1.5, context=64).double()
    d = [-100.0, -1.0, 0.0, 1.0, 63.0, 1e6]
    want = torch.tensor([by_hand(form, 0.75, 2.0, 1.5, x, 64) for x in d], dtype=torch.float64)
    got = epar.score_scale(torch.tensor(d, dtype=torch.float64), 64)
    assert got.dtype == torch.float64 and got.shape == ((6,) if heads is None else (2, 6))
    torch.testing.assert_close(got, want.expand_as(got), rtol=1e-13, atol=1e-300)


def test_one_set_a_head():
    epar = Epar(2, alpha=[1.0, 2.0], beta=[0.0, 1.0], gamma=[3.0, 1.0], context=10).double()
    got = epar.score_scale(torch.tensor([0.0, 10.0], dtype=torch.float64), 10)
    torch.testing.assert_close(got.tolist(), [[1.0, 1.0], [2.0, 1 + math.exp(-1)]], rtol=1e-14, atol=0)


def test_a_length_for_each_query():
    epar = Epar(form="basic", length="query").double()
    d, n = torch.tensor([3.0, 3.0], dtype=torch.float64), torch.tensor([4.0, 8.0], dtype=torch.float64)
    torch.testing.assert_close(
        epar.score_scale(d, n).tolist(), [math.exp(-3 / 4), math.exp(-3 / 8)], rtol=1e-14, atol=0
    )
    assert not epar.relative and Epar().relative


def test_at_distance_zero_and_far_away():
    d = torch.tensor([0.0, 1e9])
    torch.testing.assert_close(Epar(alpha=0.8, gamma=0.6).score_scale(d, 4096), torch.tensor([0.8, 0.8 / 1.6]))
    torch.testing.assert_close(Epar(alpha=0.8, form="basic").score_scale(d, 4096), torch.tensor([0.8, 0.0]))
    torch.testing.assert_close(Epar(beta=0.0).score_scale(d, 4096), torch.ones(2))
    torch.testing.assert_close(Epar(gamma=0.0).score_scale(d, 4096), torch.ones(2))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sign", (1, -1))
@pytest.mark.parametrize("optimiser, rate", ((torch.optim.Adam, 10.0), (torch.optim.SGD, 50.0)))
def test_bounds_hold_under_learning(form, sign, optimiser, rate):
    epar = Epar(2, form=form, learnable=True, context=8)
    steps = optimiser(epar.parameters(), lr=rate)
    for _ in range(200):
        steps.zero_grad()
        (sign * epar.score_scale(torch.arange(8.0), 8).mean()).backward()
        steps.step()
    assert (epar.alpha() > 0).all() and (epar.beta() >= 0).all()
    assert form == "basic" or (epar.gamma() >= 0).all()
    factor = epar.score_scale(torch.arange(8.0), 8)
    assert torch.isfinite(factor).all() and (factor >= 0).all()


def test_every_parameter_gets_a_gradient():
    epar = Epar(2, learnable=True, context=8).double()
    d = torch.arange(-2.0, 6.0, dtype=torch.float64, requires_grad=True)
    epar.score_scale(d, 8).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and (p.grad != 0).all() for p in epar.parameters())
    assert torch.isfinite(d.grad).all() and len(list(epar.parameters())) == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("learnable", (True, False))
def test_state_dict_round_trip_compile_and_export(form, learnable):
    epar, other = Epar(2, form=form, alpha=0.4, beta=3.0, learnable=learnable), Epar(2, form=form, learnable=learnable)
    d, n = torch.arange(-3.0, 6.0), torch.full((9,), 7.0)
    want = epar.score_scale(d, n)
    other.load_state_dict(epar.state_dict())
    assert torch.equal(other.score_scale(d, n), want)
    torch.testing.assert_close(torch.compile(Hook(epar), backend="eager", fullgraph=True)(d, n), want)
    torch.testing.assert_close(torch.export.export(Hook(epar), (d, n)).module()(d, n), want)


def test_what_it_says_of_itself():
    assert repr(Epar()) == "Epar(form='enhanced', alpha=1, beta=1, gamma=0.5, length='context', context=4096)"
    assert (
        repr(Epar(form="basic", length="query", learnable=True))
        == "Epar(form='basic', alpha=1, beta=1, length='query', learnable)"
    )
    assert Epar().effects == {"score_scale"} and not Epar().causal_only
    assert Epar(**Epar.CODE_DEFAULTS).beta() == 2


@pytest.mark.parametrize(
    "arguments, text",
    (
        ({"form": "linear"}, r"Epar\(form=...\) got 'linear', but .*; choose one of them\."),
        ({"alpha": 0.0}, r"alpha=...\) got 0.0, but .*; pass a number inside that range\."),
        (
            {"beta": -1.0},
            r"beta=...\) got -1.0, but .*; pass a number inside that range\.",
        ),
        ({"gamma": math.inf}, r"gamma=...\) got inf"),
        ({"beta": 0.0, "learnable": True}, r"beta=...\) got 0.0"),
        ({"heads": 2, "beta": [1.0, 2.0, 3.0]}, r"beta=...\) got 3 numbers for heads=2"),
        (
            {"length": "row"},
            r"Epar\(length=...\) got 'row', but .*; choose one of them\.",
        ),
        (
            {"context": None},
            r"Epar\(context=...\) got None, but .*; pass context=4096, or choose length='query'\.",
        ),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Epar(**arguments)
