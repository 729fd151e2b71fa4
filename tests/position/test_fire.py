"""FIRE against loops over its formula, with both kinds of length."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.fire import EPS, Fire


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance, length):
        return self.position.bias(distance, length)


def by_hand(fire, d, i):
    """f(psi(|d|) / psi(max(threshold, i))), one number at a time."""
    c, threshold = abs(fire.c.item()), abs(fire.multiplier.item() * fire.threshold)
    share = math.log(1 + c * abs(d)) / (math.log(1 + c * max(threshold, i)) + EPS)
    first, second = fire.network[0], fire.network[2]
    hidden = [max(0.0, w * share + b) for w, b in zip(first.weight[:, 0].tolist(), first.bias.tolist(), strict=True)]
    return [
        sum(w * x for w, x in zip(row, hidden, strict=True)) + b
        for row, b in zip(second.weight.tolist(), second.bias.tolist(), strict=True)
    ]


def grid(size):
    i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return (i - j).flatten().double(), (i + 1).flatten().double()


def test_formula_in_double_precision():
    torch.manual_seed(0)
    fire = Fire(3, hidden_dim=5, c=0.3, threshold=4.0).double()
    with torch.no_grad():
        fire.c.mul_(-1)
        fire.multiplier.fill_(-1.25)
    distance, length = grid(9)
    want = [by_hand(fire, d, n - 1) for d, n in zip(distance.tolist(), length.tolist(), strict=True)]
    got = fire.bias(distance, length)
    assert got.shape == (3, 81) and got.dtype == torch.float64
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64).T, rtol=1e-12, atol=1e-13)


def test_the_normaliser_is_the_position_and_not_the_length():
    fire = Fire(1, c=1.0, threshold=2.0).double()
    share = fire.normalized_distance(
        torch.tensor([7.0, 7.0], dtype=torch.float64), torch.tensor([8.0, 16.0], dtype=torch.float64)
    )
    torch.testing.assert_close(share.tolist(), [1.0, math.log(8) / math.log(16)], rtol=1e-6, atol=0)


def test_shares_stay_between_0_and_1():
    fire = Fire(1, threshold=16.0)
    i = torch.arange(0.0, 5000.0, 7.0)
    assert (fire.normalized_distance(i, i + 1) <= 1).all() and (fire.normalized_distance(i, i + 1) >= 0).all()
    short = torch.tensor([3.0])
    assert torch.equal(
        fire.normalized_distance(short, torch.tensor([4.0])), fire.normalized_distance(short, torch.tensor([16.0]))
    )  # threshold


def test_context_gives_one_normaliser():
    torch.manual_seed(1)
    fire = Fire(2, threshold=4.0, length="context", context=32).double()
    assert fire.relative
    distance = torch.arange(-5.0, 20.0, dtype=torch.float64)
    want = torch.tensor([by_hand(fire, d, 31) for d in distance.tolist()], dtype=torch.float64).T
    torch.testing.assert_close(fire.bias(distance, 32), want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(fire.bias(distance, torch.full_like(distance, 32)), want, rtol=1e-12, atol=1e-13)


def test_padding_positions_and_future_keys_are_finite():
    fire = Fire(2, threshold=1e-3)
    distance = torch.tensor([-1e5, -3.0, 0.0, 0.0, 3.0, 1e6], requires_grad=True)
    length = torch.tensor([-1e5, -2.0, 0.0, 1.0, 4.0, 1e6 + 1])
    for c, multiplier in ((0.1, 1.0), (0.0, 1.0), (0.1, 0.0), (0.0, 0.0)):
        with torch.no_grad():
            fire.c.fill_(c)
            fire.multiplier.fill_(multiplier)
        fire.zero_grad()
        out = fire.bias(distance, length)
        out.sum().backward()
        assert torch.isfinite(out).all() and torch.isfinite(distance.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in fire.parameters())


def test_everything_learns():
    torch.manual_seed(0)
    fire = Fire(2, threshold=64.0)
    distance, length = (x.float() for x in grid(8))
    fire.bias(distance, length).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in fire.parameters())
    assert {n for n, _ in fire.named_parameters()} >= {"c", "multiplier"}


def test_learning_with_a_huge_rate_stays_finite():
    fire = Fire(1, threshold=4.0)
    steps = torch.optim.Adam([fire.c, fire.multiplier], lr=100.0)
    distance, length = (x.float() for x in grid(6))
    for _ in range(200):
        steps.zero_grad()
        fire.bias(distance, length).sum().backward()
        steps.step()
    assert torch.isfinite(fire.bias(distance, length)).all()


def test_state_dict_round_trip_compile_and_export():
    fire, other = Fire(3), Fire(3)
    distance, length = (x.float() for x in grid(4))
    want = fire.bias(distance, length)
    other.load_state_dict(fire.state_dict())
    assert torch.equal(other.bias(distance, length), want)
    torch.testing.assert_close(torch.compile(Hook(fire), backend="eager", fullgraph=True)(distance, length), want)
    torch.testing.assert_close(torch.export.export(Hook(fire), (distance, length)).module()(distance, length), want)


def test_what_it_says_of_itself():
    fire = Fire(2, hidden_dim=8)
    assert repr(fire) == "Fire(heads=2, hidden_dim=8, c=0.1, threshold=512, length='query', learnable)"
    assert fire.effects == {"bias"} and fire.causal_only and not fire.relative


@pytest.mark.parametrize(
    "arguments, text",
    (
        (
            {"heads": 2, "hidden_dim": 0},
            r"Fire\(hidden_dim=...\) got 0, but .*; try hidden_dim=32\.",
        ),
        ({"heads": 2, "c": 0.0}, r"Fire\(c=...\) got 0.0, but .*; pass a number above 0\."),
        (
            {"heads": 2, "threshold": math.nan},
            r"Fire\(threshold=...\) got nan",
        ),
        (
            {"heads": 2, "length": "context"},
            r"Fire\(context=...\) got None",
        ),
        (
            {"heads": 2, "length": "row"},
            r"Fire\(length=...\) got 'row'",
        ),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Fire(**arguments)
