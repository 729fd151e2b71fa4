"""The sink: one logit a head, the same everywhere."""

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.parameter import make_unbounded
from whence.position.sink import Sink


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, positions):
        return self.position.sink(positions, None)


def weights(scores, sink):
    """Softmax over scores and sink, without the sink's own share."""
    return torch.softmax(torch.cat([scores, sink[..., None]], -1), -1)[..., :-1]


def test_fixed_zero_is_softmax_off_by_one():
    torch.manual_seed(0)
    scores = torch.randn(2, 5, 7, dtype=torch.float64)
    sink = Sink(2, learnable=False).double().sink(torch.arange(5.0), None)
    want = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(weights(scores, sink), want, rtol=1e-12, atol=0)


def test_shape_and_values():
    sink = Sink(3, value=[1.0, -2.0, 0.5]).sink(torch.arange(-1, 4), None)
    assert sink.tolist() == [[1.0] * 5, [-2.0] * 5, [0.5] * 5]


def test_learns_and_falls_when_a_row_wants_all_its_weight():
    sink = Sink(2)
    steps = torch.optim.SGD(sink.parameters(), lr=1.0)
    scores = torch.zeros(2, 4, 3)
    for _ in range(50):
        steps.zero_grad()
        (-weights(scores, sink.sink(torch.arange(4), None)).sum()).backward()
        steps.step()
    assert (sink.value < -1).all() and sink.value.grad.shape == (2, 1)


@pytest.mark.parametrize("learnable", (True, False))
def test_state_dict_round_trip_compile_and_export(learnable):
    sink, other = Sink(2, value=[3.0, -1.0], learnable=learnable), Sink(2, learnable=learnable)
    p = torch.arange(6.0)
    want = sink.sink(p, None)
    other.load_state_dict(sink.state_dict())
    assert torch.equal(other.sink(p, None), want) and sink.double().sink(p, None).dtype == torch.float64
    torch.testing.assert_close(torch.compile(Hook(sink.float()), backend="eager", fullgraph=True)(p), want)
    torch.testing.assert_close(torch.export.export(Hook(sink), (p,)).module()(p), want)


def test_what_it_says_of_itself():
    assert repr(Sink(2)) == "Sink(heads=2, value=[0] * 2, learnable)"
    assert repr(Sink(2, value=1.0, learnable=False)) == "Sink(heads=2, value=[1] * 2)"
    assert Sink(2).effects == {"sink"} and Sink(2).relative and not Sink(2).causal_only


@pytest.mark.parametrize(
    "arguments, text",
    (
        ({"heads": 0}, r"Sink\(heads=...\) got 0, but"),
        (
            {"heads": 2, "value": math.inf},
            r"value=...\) got inf, but .*; pass a number inside that range\.",
        ),
        (
            {"heads": 2, "value": [1.0]},
            r"value=...\) got 1 numbers for heads=2, but .*; pass 2 numbers, or one for all heads\.",
        ),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Sink(**arguments)


def test_per_head_shapes():
    assert make_unbounded("x", 2.0, None).shape == () and make_unbounded("x", 2, 3).tolist() == [[2], [2], [2]]
    assert make_unbounded("x", (1, 2), 2).tolist() == [[1], [2]]
