"""KERPLE against its two formulas, its bounds under learning, and the corner at distance 0."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.alibi import Alibi, slopes
from whence.position.kerple import FLOOR, Kerple

DISTANCES = torch.tensor([-1000.0, -7.0, -1.0, 0.0, 1.0, 2.0, 3.0, 50.0, 1e5], dtype=torch.float64)
FORMS = ("log", "power")


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance):
        return self.position.bias(distance, None)


def by_hand(form, r1, r2, d):
    return -r1 * math.log(1 + r2 * abs(d)) if form == "log" else -r1 * abs(d) ** r2 if d else 0.0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("learnable", (True, False))
def test_formula_in_double_precision(form, learnable):
    kerple = Kerple(5, form=form, learnable=learnable).double()
    r1, r2 = kerple.r1().flatten().tolist(), kerple.r2().flatten().tolist()
    want = [[by_hand(form, r1[h], r2[h], d) for d in DISTANCES.tolist()] for h in range(5)]
    got = kerple.bias(DISTANCES, None)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-14)


def test_known_numbers():
    log = Kerple(1, r1=2.0, r2=3.0, learnable=False).bias(torch.tensor([0.0, 1.0, 5.0]), None)
    torch.testing.assert_close(log, torch.tensor([[0.0, -2 * math.log(4), -2 * math.log(16)]]))
    power = Kerple(1, form="power", r1=0.5, r2=2.0, learnable=False).bias(torch.tensor([0.0, 1.0, 4.0]), None)
    torch.testing.assert_close(power, torch.tensor([[0.0, -0.5, -8.0]]))


def test_power_with_exponent_one_is_alibi():
    kerple = Kerple(8, form="power", r1=slopes(8), r2=1.0, learnable=False)
    d = torch.arange(-20.0, 200.0)
    torch.testing.assert_close(kerple.bias(d, None), Alibi(8).bias(d, None))


def test_initial_values_share_out_the_ranges():
    log = Kerple(4)
    torch.testing.assert_close(log.r1().flatten().detach(), torch.tensor([0.25, 0.75, 1.25, 1.75]))
    torch.testing.assert_close(log.r2().flatten().detach(), torch.tensor([0.875, 0.625, 0.375, 0.125]))
    power = Kerple(4, form="power")
    torch.testing.assert_close(power.r1().flatten().detach(), torch.tensor([0.125, 0.375, 0.625, 0.875]))
    torch.testing.assert_close(power.r2().flatten().detach(), torch.tensor([1.75, 1.25, 0.75, 0.25]))
    assert all(Kerple(h, form=f).heads == h for h in (1, 3, 257) for f in FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_symmetric_and_falling(form):
    kerple = Kerple(6, form=form)
    d = torch.arange(0.0, 300.0)
    bias = kerple.bias(d, None)
    assert torch.equal(bias, kerple.bias(-d, None))
    assert (bias[:, 1:] < bias[:, :-1]).all() and (bias[:, 0] == 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form):
    kerple = Kerple(3, form=form).double()
    d = torch.tensor([0.0, 0.5, -2.0, 9.0], dtype=torch.float64, requires_grad=True)
    kerple.bias(d, None).sum().backward()
    for grad in (d.grad, *(p.grad for p in kerple.parameters())):
        assert torch.isfinite(grad).all()
    away = torch.tensor([1.0, -2.0, 9.0], dtype=torch.float64, requires_grad=True)
    names = [n for n, _ in kerple.named_parameters()]

    def bias(away, *values):
        return torch.func.functional_call(
            Hook(kerple), {f"position.{n}": v for n, v in zip(names, values, strict=True)}, (away,)
        )

    assert torch.autograd.gradcheck(bias, (away, *(p.detach().requires_grad_() for p in kerple.parameters())))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sign", (1, -1))
@pytest.mark.parametrize("optimiser, rate", ((torch.optim.Adam, 10.0), (torch.optim.SGD, 1e3)))
def test_bounds_hold_under_learning(form, sign, optimiser, rate):
    kerple = Kerple(2, form=form)
    steps = optimiser(kerple.parameters(), lr=rate)
    for _ in range(200):
        steps.zero_grad()
        (sign * kerple.bias(torch.arange(4.0), None).mean()).backward()
        steps.step()
    assert (kerple.r1() >= 0).all() and torch.isfinite(kerple.bias(torch.arange(-4.0, 50.0), None)).all()
    if form == "power":
        assert (kerple.r2() > 0).all() and (kerple.r2() <= 2).all()


def test_exponent_at_both_ends_of_its_range():
    kerple = Kerple(2, form="power")
    with torch.no_grad():
        kerple.r2.raw.copy_(torch.tensor([[-1e30], [1e30]]))
    assert kerple.r2().flatten().tolist() == [2.0, pytest.approx(FLOOR, rel=1e-2)]


@pytest.mark.parametrize("form", FORMS)
def test_state_dict_round_trip_compile_and_export(form):
    kerple, other = Kerple(3, form=form, r1=0.3, r2=0.7), Kerple(3, form=form)
    d = torch.arange(-3.0, 6.0)
    other.load_state_dict(kerple.state_dict())
    assert torch.equal(other.bias(d, None), kerple.bias(d, None))
    torch.testing.assert_close(torch.compile(Hook(kerple), backend="eager", fullgraph=True)(d), kerple.bias(d, None))
    torch.testing.assert_close(torch.export.export(Hook(kerple), (d,)).module()(d), kerple.bias(d, None))


def test_what_it_says_of_itself():
    kerple = Kerple(2, form="power", r1=0.5, r2=2.0, learnable=False)
    assert repr(kerple) == "Kerple(heads=2, form='power', r1=[0.5] * 2, r2=[2] * 2)"
    assert kerple.effects == {"bias"} and kerple.relative and not kerple.causal_only and not kerple.trainable
    assert Kerple(2).trainable and len(list(Kerple(2, form="power").parameters())) == 2


@pytest.mark.parametrize(
    "arguments, text",
    (
        ({"heads": 0}, r"Kerple\(heads=...\) got 0"),
        (
            {"heads": 2, "form": "cubic"},
            r"Kerple\(form=...\) got 'cubic', but .*; choose one of them\.",
        ),
        (
            {"heads": 2, "r1": 0.0},
            r"r1=...\) got 0.0, but .*; pass a number inside that range\.",
        ),
        ({"heads": 2, "r2": [1.0]}, r"r2=...\) got 1 numbers for heads=2"),
        (
            {"heads": 2, "form": "power", "r2": 2.5, "learnable": False},
            r"r2=...\) got 2.5, but .*; pass a number inside that range\.",
        ),
        (
            {"heads": 2, "form": "power", "r2": 2.0},
            r"r2=...\) got 2.0, but .*; pass a number inside that range, or learnable=False\.",
        ),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Kerple(**arguments)
