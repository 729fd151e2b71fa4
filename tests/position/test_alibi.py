"""ALiBi against the paper's slopes, BLOOM's as transformers has them, and x-transformers."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from x_transformers.x_transformers import AlibiPositionalBias as Witness

from whence.errors import WhenceError
from whence.position.alibi import Alibi, slopes


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance):
        return self.position.bias(distance, None)


def test_the_papers_slopes():
    assert slopes(8) == [2.0**-h for h in range(1, 9)]
    torch.testing.assert_close(slopes(16), [2 ** (-h / 2) for h in range(1, 17)])
    assert slopes(1) == [2.0**-8]
    assert slopes(12)[:8] == slopes(8) and slopes(12)[8:] == slopes(16)[0:8:2]


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_blooms(heads):
    theirs = build_alibi_tensor(torch.ones(1, 4, dtype=torch.long), heads, torch.float32)  # slope * key position
    torch.testing.assert_close(torch.tensor(slopes(heads)), theirs[:, 0, 1], rtol=1e-6, atol=0)
    ours = Alibi(heads).bias(3 - torch.arange(4.0), None)
    torch.testing.assert_close(ours.softmax(-1), theirs[:, 0].softmax(-1))  # they differ by a constant of the row


@pytest.mark.parametrize("heads", (1, 2, 3, 6, 8, 12, 20))
def test_against_x_transformers(heads):
    i, j = torch.meshgrid(torch.arange(5.0, 12.0), torch.arange(12.0), indexing="ij")
    ours = Alibi(heads, form="symmetric").bias((i - j).flatten(), None).unflatten(-1, (7, 12))
    torch.testing.assert_close(ours, Witness(heads=heads)(7, 12))


def test_formula_in_double_precision():
    alibi = Alibi(3, scale=1.1, slope=[0.5, 2.0, 0.0]).double()
    d = [-7.0, 0.0, 1.0, 1000.0]
    want = [[-1.1 * s * abs(x) for x in d] for s in (0.5, 2.0, 0.0)]
    got = alibi.bias(torch.tensor(d, dtype=torch.float64), None)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-14, atol=0)


def test_gradients():
    alibi = Alibi(2, learnable=True).double()
    d = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64, requires_grad=True)
    alibi.bias(d, None).sum().backward()
    assert torch.isfinite(d.grad).all()
    torch.testing.assert_close(alibi.slope.raw.grad, -4 * torch.sigmoid(alibi.slope.raw.detach()))


@pytest.mark.parametrize("sign", (1, -1))
def test_slopes_stay_above_zero_under_learning(sign):
    alibi = Alibi(4, learnable=True)
    steps = torch.optim.Adam(alibi.parameters(), lr=10.0)
    for _ in range(200):
        steps.zero_grad()
        (sign * alibi.bias(torch.arange(8.0), None).mean()).backward()
        steps.step()
    assert (alibi.slope() > 0).all() and torch.isfinite(alibi.slope()).all()


@pytest.mark.parametrize("learnable", (True, False))
def test_state_dict_round_trip_compile_and_export(learnable):
    alibi, other = Alibi(3, slope=[0.1, 0.2, 0.3], learnable=learnable), Alibi(3, learnable=learnable)
    d = torch.arange(-3.0, 6.0)
    want = alibi.bias(d, None)
    other.load_state_dict(alibi.state_dict())
    assert torch.equal(other.bias(d, None), want)
    torch.testing.assert_close(torch.compile(Hook(alibi), backend="eager", fullgraph=True)(d), want)
    torch.testing.assert_close(torch.export.export(Hook(alibi), (d,)).module()(d), want)


def test_what_it_says_of_itself():
    assert repr(Alibi(2)) == "Alibi(heads=2, form='causal', scale=1, slope=[0.0625, 0.00390625])"
    assert repr(Alibi(1, form="symmetric", learnable=True)).endswith(
        "form='symmetric', scale=1, slope=0.00390625, learnable)"
    )
    assert Alibi(2).causal_only and not Alibi(2, form="symmetric").causal_only
    assert Alibi(2).effects == {"bias"} and Alibi(2).relative


@pytest.mark.parametrize(
    "arguments, text",
    (
        (
            {"heads": 0},
            r"Alibi\(heads=...\) got 0, but .*; pass the number of query heads\.",
        ),
        ({"heads": 2.0}, r"Alibi\(heads=...\) got 2.0, but"),
        (
            {"heads": 2, "form": "both"},
            r"Alibi\(form=...\) got 'both', but .*; choose one of them\.",
        ),
        (
            {"heads": 2, "slope": [1.0]},
            r"slope=...\) got 1 numbers for heads=2, but .*; pass 2 numbers, or one for all heads\.",
        ),
        (
            {"heads": 1, "slope": [-1.0]},
            r"slope=...\) got -1.0, but .*; pass a number inside that range\.",
        ),
        ({"heads": 1, "slope": [0.0], "learnable": True}, r"slope=...\) got 0.0"),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Alibi(**arguments)
