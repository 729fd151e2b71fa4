"""The spline autoencoder: the basis, what its encoder knows of the order, and that it learns."""

import pytest
import torch
from scipy.interpolate import BSpline

from whence import Alibi, WhenceError
from whence.models import SplineAutoencoder
from whence.models.spline import bspline_basis

SIZE = {"features": 2, "control_points": 6, "embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 32}


@pytest.mark.parametrize(("points", "degree"), [(4, 3), (9, 3), (5, 1), (7, 4)])
def test_basis_equals_scipy(points, degree):
    times = torch.linspace(0, 1, 37, dtype=torch.float64)
    basis = bspline_basis(times, points, degree)
    knots = torch.arange(-degree, points + 1, dtype=torch.float64)
    expected = BSpline.design_matrix((times * (points - degree)).numpy(), knots.numpy(), degree).toarray()
    torch.testing.assert_close(basis, torch.tensor(expected))
    assert bool((basis >= 0).all())
    torch.testing.assert_close(basis.sum(1), torch.ones(37, dtype=torch.float64))


def test_one_cubic_segment_starts_between_three_points():
    model, p = SplineAutoencoder(**SIZE), torch.randn(1, 4, 16)
    torch.testing.assert_close(model.curve(p, torch.tensor([0.0]))[:, 0], (p[:, 0] + 4 * p[:, 1] + p[:, 2]) / 6)


def test_curve_is_affine_equivariant_and_independent_of_the_sampling():
    model = SplineAutoencoder(**SIZE).double()
    p, times = torch.randn(2, 6, 16, dtype=torch.float64), torch.linspace(0, 1, 11, dtype=torch.float64)
    matrix, shift = torch.randn(16, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    torch.testing.assert_close(model.curve(p @ matrix + shift, times), model.curve(p, times) @ matrix + shift)
    finer = model.curve(p, torch.linspace(0, 1, 21, dtype=torch.float64))
    torch.testing.assert_close(finer[:, ::2], model.curve(p, times))


def test_without_position_the_encoder_knows_no_order():
    x = torch.randn(2, 10, 2, dtype=torch.float64)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    plain = SplineAutoencoder(**SIZE).double()
    torch.testing.assert_close(plain.encode(x[:, order]), plain.encode(x))
    biased = SplineAutoencoder(**SIZE, position=Alibi(2, form="symmetric")).double()
    for other in (x[:, order], x.flip(1)):  # the control tokens stand at one end, so the reverse differs as well
        assert (biased.encode(other) - biased.encode(x)).abs().max() > 1e-3


def test_it_learns_to_reconstruct():
    torch.manual_seed(0)
    model = SplineAutoencoder(**SIZE, position=Alibi(2, form="symmetric"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        x = waves(64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = waves(256)
    assert (model(x) - x).square().mean().detach() / x.var() < 0.5  # 0.9 after 150 steps, 0.2 after 400


def waves(count):
    """Sums of two cosines with random amplitudes, 16 points of 2 numbers. The set of points does not tell their order."""
    times = torch.linspace(0, torch.pi, 16)
    return (torch.randn(count, 2, 2) @ torch.stack((times.cos(), (2 * times).cos()))).transpose(1, 2)


def test_bad_input():
    with pytest.raises(WhenceError, match="control_points"):
        SplineAutoencoder(features=2, control_points=3)
    with pytest.raises(WhenceError, match=r"\[batch, length, 2\]"):
        SplineAutoencoder(**SIZE)(torch.zeros(3, 2))
    with pytest.raises(WhenceError, match="from 0 to 1"):
        bspline_basis(torch.tensor([2.0]), 5)
