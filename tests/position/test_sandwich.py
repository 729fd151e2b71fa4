"""Sandwich against the inner product of sinusoidal encodings that it is, and against its sum."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.sandwich import Sandwich


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance):
        return self.position.bias(distance, None)


def sinusoids(positions, width, base):
    """The encoding of Vaswani et al., sines then cosines."""
    parameter_gradients = base ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    angle = positions[:, None] * parameter_gradients
    return torch.cat([angle.sin(), angle.cos()], -1)


@pytest.mark.parametrize("heads, width, base", ((12, 128, 10000.0), (3, 6, 100.0), (1, 2, 10.0)))
def test_it_is_the_inner_product_of_two_encodings(heads, width, base):
    at = torch.arange(40, dtype=torch.float64)
    code = sinusoids(at, width, base)
    products = code @ code.T
    want = torch.stack([products / ((h + 1) * 8 / heads) for h in range(heads)])
    distance = (at[:, None] - at[None, :]).flatten()
    got = Sandwich(heads, dim=width, base=base).bias(distance, None)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got.unflatten(-1, (40, 40)), want, rtol=1e-12, atol=1e-12)


def test_loops():
    sandwich = Sandwich(4, dim=8)
    distance = [-17.0, 0.0, 1.0, 1000.0]
    want = [
        [sum(math.cos(d / 10000 ** (2 * i / 8)) for i in range(4)) / (8 * h / 4) for d in distance]
        for h in (1, 2, 3, 4)
    ]
    got = sandwich.bias(torch.tensor(distance, dtype=torch.float64), None)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-13, atol=1e-13)


def test_distance_zero_is_half_the_width_over_the_ratio():
    bias = Sandwich(8).bias(torch.zeros(1), None)
    torch.testing.assert_close(bias.flatten(), 64 / torch.arange(1.0, 9.0))


def test_symmetric_falling_and_flatter_for_later_heads():
    d = torch.arange(0.0, 64.0)
    bias = Sandwich(8).bias(d, None)
    torch.testing.assert_close(bias, Sandwich(8).bias(-d, None))
    assert (bias[:, 1:].amax(-1) < bias[:, 0]).all() and (bias[:, 32] < bias[:, 4]).all()
    drop = bias[:, 0] - bias[:, 63]
    assert (drop[1:] < drop[:-1]).all()


def test_compile_export_and_no_state():
    sandwich, d = Sandwich(3), torch.arange(-3.0, 6.0)
    assert not sandwich.state_dict() and not sandwich.trainable
    sandwich.load_state_dict(Sandwich(3).state_dict())
    want = sandwich.bias(d, None)
    assert torch.isfinite(want).all()
    torch.testing.assert_close(torch.compile(Hook(sandwich), backend="eager", fullgraph=True)(d), want)
    torch.testing.assert_close(torch.export.export(Hook(sandwich), (d,)).module()(d), want)


def test_what_it_says_of_itself():
    assert repr(Sandwich(2, dim=64)) == "Sandwich(heads=2, dim=64, base=10000)"
    assert Sandwich(2).effects == {"bias"} and Sandwich(2).relative and not Sandwich(2).causal_only


@pytest.mark.parametrize(
    "arguments, text",
    (
        (
            {"heads": 2, "dim": 7},
            r"Sandwich\(dim=...\) got 7, but .*; use dim=128, as published\.",
        ),
        ({"heads": 2, "dim": 0}, r"Sandwich\(dim=...\) got 0"),
        (
            {"heads": 2, "base": 0.0},
            r"Sandwich\(base=...\) got 0.0, but .*; use base=10000.0, as published\.",
        ),
        ({"heads": 2, "base": math.inf}, r"Sandwich\(base=...\) got inf"),
        ({"heads": 0}, r"Sandwich\(heads=...\) got 0, but"),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Sandwich(**arguments)
