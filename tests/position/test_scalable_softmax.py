"""Scalable softmax: the paper's formula and initial value."""

import math

import pytest
import torch

from whence import LogTemperature, Rotary, ScalableSoftmax, WhenceError, attend


def test_the_initial_slope_is_the_reciprocal_of_the_mean_logarithm_up_to_1024():
    mean = sum(math.log(n) for n in range(1, 1025)) / 1024
    assert ScalableSoftmax(2).s.tolist() == [[pytest.approx(0.168)]] * 2 and 1 / mean == pytest.approx(0.168, abs=1e-3)
    assert ScalableSoftmax(2).b is None and ScalableSoftmax(2, intercept=True).b.tolist() == [[0.0], [0.0]]


def test_it_is_the_softmax_to_the_base_n_power_s():
    """The paper's definition: weights proportional to n^(s z)."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 7, 4, dtype=torch.float64) for _ in range(3))
    s = torch.tensor([0.5, -0.3], dtype=torch.float64)[:, None]
    _, weights = attend(q, k, v, position=ScalableSoftmax(2, s=[0.5, -0.3]).double(), causal=True, return_weights=True)
    for i in range(7):
        power = torch.tensor(i + 1.0, dtype=torch.float64) ** (s * (q @ k.mT / 2)[0, :, i, : i + 1])
        torch.testing.assert_close(weights[0, :, i, : i + 1], power / power.sum(-1, keepdim=True), rtol=1e-6, atol=1e-9)


def test_the_largest_weight_of_figure_1_stays_beyond_any_length():
    """The paper's figure 1: scores of -2, the last +3, and s = 0.43. The last key has weight 1 / (1 + (n - 1) n^(-5 s)), which rises
    with n because 5 s > 1, where that of a softmax, 1 / (1 + (n - 1) e^-5), vanishes."""
    position = ScalableSoftmax(1, s=0.43)
    shares = []
    for n in (10, 100, 1000):
        q, k = torch.ones(1, 1, 1, 1), torch.full((1, 1, n, 1), -2.0)
        k[..., -1, :] = 3.0
        here = {"q_positions": torch.tensor([n - 1]), "k_positions": torch.arange(n)}
        weights = attend(q, k, k, position=position, causal=True, scale=1.0, return_weights=True, **here)[1]
        shares.append(float(weights[0, 0, 0, -1].detach()))
        assert shares[-1] == pytest.approx(1 / (1 + (n - 1) * n ** -(5 * 0.43)), rel=1e-4)
    assert shares == sorted(shares) and shares == pytest.approx([0.940, 0.995, 0.9996], abs=5e-4)


def test_slope_and_intercept_learn_for_each_head_beside_a_rotation():
    torch.manual_seed(0)
    position, x = ScalableSoftmax(2, intercept=True) + Rotary(), torch.randn(1, 2, 6, 4)
    attend(x, x, x, position=position, causal=True).square().sum().backward()
    for parameter in position.parameters():
        assert parameter.grad.shape == (2, 1) and (parameter.grad != 0).all()


def test_it_exports_beside_a_log_temperature():
    """The export to ONNX in tests/attention leaves both out."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.position = ScalableSoftmax(2, intercept=True) + LogTemperature(original=2)

        def forward(self, x):
            return attend(x, x, x, position=self.position, causal=True)

    layer, x = Layer().eval().requires_grad_(False), torch.randn(1, 2, 6, 4)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_what_it_says_of_itself_and_refuses():
    assert repr(ScalableSoftmax(2, s=[0.1, 0.2])) == "ScalableSoftmax(heads=2, s=[0.1, 0.2], learnable)"
    x = torch.randn(1, 2, 6, 4)
    with pytest.raises(WhenceError, match=r"causal=False.*pass causal=True"):
        attend(x, x, x, position=ScalableSoftmax(2))
    with pytest.raises(WhenceError, match=r"ScalableSoftmax\(s=...\) got 3 numbers for heads=2.*pass 2 numbers"):
        ScalableSoftmax(2, s=[1.0, 2.0, 3.0])
    with pytest.raises(WhenceError, match=r"intercept.*'yes'"):
        ScalableSoftmax(2, intercept="yes")
