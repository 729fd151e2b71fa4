"""A quantity keeps its value, its shape and its bounds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whence.errors import WhenceError
from whence.position.parameter import BoundedParameter


@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=st.floats(1e-6, 1e6), learnable=st.booleans())
def test_initial_value(value, learnable):
    got = BoundedParameter("x", value, heads=None, learnable=learnable)()
    assert got.shape == () and got.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("learnable", (True, False))
def test_shapes(learnable):
    assert BoundedParameter("x", 2.0, heads=3, learnable=learnable)().flatten().tolist() == pytest.approx([2.0] * 3)
    assert BoundedParameter("x", (1.0, 2.0), heads=2, learnable=learnable)().shape == (2, 1)
    assert (BoundedParameter("x", [1.0, 2.0], heads=2, learnable=learnable)() * torch.ones(5)).shape == (2, 5)


def test_fixed_is_a_buffer_and_learnable_a_parameter():
    fixed, trainable = (BoundedParameter("x", 0.5, heads=2, learnable=learnable) for learnable in (False, True))
    assert [n for n, _ in fixed.named_buffers()] == ["fixed"] and not list(fixed.parameters())
    assert [n for n, _ in trainable.named_parameters()] == ["raw"] and not list(trainable.buffers())
    assert fixed.double()().dtype == trainable.double()().dtype == torch.float64


@pytest.mark.parametrize("learnable", (True, False))
def test_state_dict_round_trip(learnable):
    one, two = (BoundedParameter("x", v, heads=2, learnable=learnable) for v in (0.25, 4.0))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(), two())


def test_the_inverse_in_double_precision():
    q = BoundedParameter("x", 0.3, heads=None, learnable=True).double()
    assert q().item() == pytest.approx(math.log1p(math.exp(q.raw.item())), rel=1e-14)


def push(quantity, optimiser, rate, sign):
    steps = optimiser(quantity.parameters(), lr=rate)
    for _ in range(200):
        steps.zero_grad()
        (sign * quantity().sum()).backward()
        steps.step()
    return quantity()


@pytest.mark.parametrize("sign", (1, -1))
@pytest.mark.parametrize(
    "optimiser, rate",
    ((torch.optim.Adam, 10.0), (torch.optim.SGD, 50.0), (torch.optim.SGD, 1e6), (torch.optim.Adam, 1e4)),
)
def test_never_negative_and_never_nan_under_learning(optimiser, rate, sign):
    value = push(BoundedParameter("x", 1.0, heads=2, learnable=True), optimiser, rate, sign)
    assert (value >= 0).all() and torch.isfinite(value).all()


@pytest.mark.parametrize("optimiser, rate", ((torch.optim.Adam, 10.0), (torch.optim.SGD, 50.0)))
def test_above_zero_under_learning(optimiser, rate):
    assert (push(BoundedParameter("x", 1.0, heads=2, learnable=True), optimiser, rate, 1) > 0).all()


@pytest.mark.parametrize("optimiser, rate", ((torch.optim.SGD, 1e3), (torch.optim.Adam, 100.0)))
def test_above_zero_even_after_one_absurd_step(optimiser, rate):
    assert (push(BoundedParameter("x", 1.0, heads=2, learnable=True), optimiser, rate, 1) > 0).all()


@pytest.mark.parametrize(
    "arguments, text",
    (
        (
            {"value": -1.0, "heads": None, "learnable": False},
            r"x=... got -1.0, but .*; pass a number inside that range\.",
        ),
        (
            {"value": math.nan, "heads": None, "learnable": False},
            r"x=... got nan",
        ),
        (
            {"value": math.inf, "heads": None, "learnable": False},
            r"x=... got inf",
        ),
        (
            {"value": 0.0, "heads": None, "learnable": True},
            r"x=... got 0.0, but .*; pass a number inside that range, or learnable=False\.",
        ),
        (
            {"value": 0.0, "heads": None, "learnable": False, "zero_allowed": False},
            r"x=... got 0.0, but .*; pass a number inside that range\.",
        ),
        (
            {"value": [1.0, 2.0], "heads": 3, "learnable": False},
            r"x=... got 2 numbers for heads=3, but .*; pass 3 numbers, or one for all heads\.",
        ),
        (
            {"value": [1.0, -2.0], "heads": 2, "learnable": False},
            r"x=... got -2.0",
        ),
        (
            {"value": [1.0], "heads": None, "learnable": False},
            r"x=... got 1 numbers for heads=None",
        ),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        BoundedParameter("x", **arguments)


def test_zero_is_allowed_when_fixed():
    assert BoundedParameter("x", 0.0, heads=2, learnable=False)().tolist() == [[0.0], [0.0]]
