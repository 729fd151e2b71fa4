"""Positions with axes: indices in reading order and coordinates, and rotary embedding by row and column."""

import math

import pytest
import torch

from whence import Attention, AxialRotary, Fope, KVCache, Rotary, SwinBias, WhenceError, attend
from whence.position import grid_coordinates, grid_positions


def turn(position, x, coordinates, grid):
    at = grid_positions(torch.as_tensor(coordinates), grid).reshape(1, -1)
    return position.rotate(x, x, at, at)[0]


def test_indices_in_reading_order_and_back():
    at = torch.arange(24)
    coordinates = grid_coordinates(at, (2, 3, 4))
    assert coordinates[17].tolist() == [1, 1, 1] and coordinates[-1].tolist() == [1, 2, 3]
    assert torch.equal(grid_positions(coordinates, (2, 3, 4)), at)
    assert grid_coordinates(torch.tensor([50.5]), (2, 8)).tolist() == [[6.0, 2.5]]  # the first axis has no end


def test_the_numbers_of_the_formula():
    """D = 8, base 100: frequencies 1 and 0.1; at row 2 and column 3 the angles are 2, 0.2 and 3, 0.3."""
    out = turn(AxialRotary((5, 5)), torch.eye(8).reshape(1, 8, 1, 8), [2, 3], (5, 5))[0, :, 0]
    for column, angle in ((0, 2.0), (1, 0.2), (4, 3.0), (5, 0.3)):
        assert out[column, column].item() == pytest.approx(math.cos(angle), abs=1e-6)
        assert out[column, column + 2].item() == pytest.approx(math.sin(angle), abs=1e-6)


@pytest.mark.parametrize("layout, family", [("blocks", "gemma4"), ("across", "qwen2_vl")])
def test_models_of_transformers_rotate_the_same(layout, family):
    modeling = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    torch.manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    at = torch.stack([rows.flatten(), columns.flatten()], -1)
    x = torch.randn(1, 2, 12, 16)
    mine = AxialRotary((3, 4), layout=layout).rotate(x, x, torch.arange(12)[None], torch.arange(12)[None])[0]
    frequencies = 100.0 ** (-torch.arange(0, 8, 2) / 8)
    by_row, by_column = (at[:, axis, None] * frequencies for axis in (0, 1))
    if family == "gemma4":
        angle = torch.cat([by_row, by_row, by_column, by_column], -1)[None]
        expected = modeling.apply_multidimensional_rope(x.transpose(1, 2), angle.cos(), angle.sin(), at[None])
        expected = expected.transpose(1, 2)
    else:
        angle = torch.cat([by_row, by_column] * 2, -1)
        tokens = x[0].transpose(0, 1)
        expected, _ = modeling.apply_rotary_pos_emb_vision(tokens, tokens, angle.cos(), angle.sin())
        expected = expected.transpose(0, 1)[None]
    torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("layout", ["blocks", "across"])
@pytest.mark.parametrize("grid, shift", [((9, 9), [3, 4]), ((5, 9, 9), [1, 3, 4])])
def test_scores_depend_on_differences_of_coordinates(layout, grid, shift):
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 6, 14, dtype=torch.float64)
    coordinates = torch.randint(0, 4, (6, len(grid)))
    position = AxialRotary(grid, layout=layout)
    here, there = (
        turn(position, q, c, grid) @ turn(position, k, c, grid).mT
        for c in (coordinates, coordinates + torch.tensor(shift))
    )
    torch.testing.assert_close(here, there)
    assert not torch.allclose(here, q @ k.mT)
    rest = 2 * (14 // (2 * len(grid))) * len(grid)
    assert torch.equal(turn(position, q, coordinates, grid)[..., rest:], q[..., rest:])


def test_one_row_is_rotary_on_the_columns_of_its_axis():
    x, at = torch.randn(1, 2, 5, 8), torch.arange(5)[None]
    out = AxialRotary((1, 5), base=50.0).rotate(x, x, at, at)[0]
    assert torch.equal(out[..., :4], x[..., :4])
    torch.testing.assert_close(out[..., 4:], Rotary(base=50.0).rotate(x[..., 4:], x[..., 4:], at, at)[0])


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: AxialRotary((3, 4)), lambda: SwinBias(2, (3, 4), std=1.0)])
def test_images_packed_into_a_row_and_decoded(make):
    """Positions count from 0 in each image, and from a cache they go on."""
    torch.manual_seed(0)
    layer = Attention(16, 2, make(), causal=True)
    x, ids = torch.randn(1, 24, 16), torch.arange(24) // 12
    packed = layer(x, segment_ids=ids)
    torch.testing.assert_close(packed[:, 12:], layer(x[:, 12:]), rtol=1e-5, atol=1e-5)
    cache = KVCache()
    steps = [layer(x[:, n : n + 4], cache=cache) for n in range(0, 12, 4)]
    torch.testing.assert_close(torch.cat(steps, 1), packed[:, :12], rtol=1e-5, atol=1e-5)


def test_they_export():
    """The export to ONNX in tests/attention leaves these out."""
    positions = AxialRotary((2, 3)) + SwinBias(2, (2, 3)), Fope(4)
    layer = torch.nn.Sequential(*(Attention(8, 2, position, causal=True) for position in positions))
    layer, x = layer.eval().requires_grad_(False), torch.randn(1, 6, 8)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_what_they_refuse():
    for grid in (7, (7,), "77"):
        with pytest.raises(WhenceError, match=r"AxialRotary\(grid=...\).*two or three axes.*grid=\(14, 14\)"):
            AxialRotary(grid)
    with pytest.raises(WhenceError, match=r"grid.*0.*grid=\(14, 14\)"):
        AxialRotary((0, 3))
    with pytest.raises(WhenceError, match=r"shape \[4, 3\].*2 coordinates.*torch.stack"):
        grid_positions(torch.zeros(4, 3), (2, 2))
    x = torch.randn(1, 1, 4, 3)
    with pytest.raises(WhenceError, match=r"head_dim 3.*at least 4"):
        attend(x, x, x, position=AxialRotary((2, 2)))
