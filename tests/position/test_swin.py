"""Swin's bias: the published index, the code of Swin and Swin V2 in transformers, and grids in other orders."""

import math

import pytest
import torch

from whence import Rotary, SwinBias, WhenceError, attend
from whence.position import grid_positions


def test_the_published_index():
    """A window of 2 x 2: rows 4310, 5421, 7643 and 8754."""
    swin, at = SwinBias(1, (2, 2)), torch.arange(4)[None]
    swin.table.data = torch.arange(9.0)[None]
    wanted = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    assert swin.evaluate(at, at)[0, 0].tolist() == wanted


def test_swin_in_transformers():
    modeling = pytest.importorskip("transformers.models.swin.modeling_swin")
    swin, at = SwinBias(3, (4, 5), std=1.0), torch.arange(20)[None]
    theirs = modeling.SwinRelativePositionBias(3, (4, 5))
    theirs.relative_position_bias_table.data = swin.table.data.T
    torch.testing.assert_close(swin.evaluate(at, at), theirs())


@pytest.mark.parametrize("trained", [None, (8, 8)])
def test_swin_v2_in_transformers(trained):
    modeling = pytest.importorskip("transformers.models.swinv2.modeling_swinv2")
    config = type("Config", (), {"qkv_bias": True, "attention_probs_dropout_prob": 0.0})()
    theirs = modeling.Swinv2SelfAttention(config, 12, 3, (4, 4), list(trained or (0, 0)))
    swin, at = SwinBias(3, (4, 4), form="continuous", trained_grid=trained), torch.arange(16)[None]
    swin.network.load_state_dict(theirs.continuous_position_bias_mlp.state_dict())
    table = theirs.continuous_position_bias_mlp(theirs.relative_coords_table).view(-1, 3)
    expected = 16 * torch.sigmoid(table[theirs.relative_position_index.view(-1)].view(16, 16, 3).permute(2, 0, 1))
    torch.testing.assert_close(swin.evaluate(at, at)[0], expected)


def test_the_edge_of_the_trained_grid():
    """log2(9) / 3 = 1.0566, where the network has an input of its own for each axis."""
    swin = SwinBias(2, (3, 3), form="continuous", hidden_dim=2)
    swin.network[0].weight.data, swin.network[0].bias.data = torch.eye(2), torch.zeros(2)
    swin.network[2].weight.data = torch.eye(2)
    inputs = torch.logit(swin.make_table() / 16)
    assert inputs.max().item() == pytest.approx(1.0566, abs=5e-5) and math.log2(9) / 3 == pytest.approx(
        1.0566, abs=5e-5
    )


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_tokens_in_any_order_as_a_mask(backend, small_tiles):
    """A crop, shuffled, of a grid of 5 x 6, with a rotation beside the bias; the gradient reaches the table."""
    torch.manual_seed(0)
    swin, grid = SwinBias(4, (5, 6), std=1.0).double(), (5, 6)
    rows, columns = torch.randperm(12) // 4 + 1, torch.randperm(12) % 4 + 2
    at = grid_positions(torch.stack([rows, columns], -1), grid)
    q, k, v = (torch.randn(2, n, 12, 8, dtype=torch.float64) for n in (4, 2, 2))
    bias = torch.stack([
        swin.table.view(4, 9, 11)[:, rows[i] - rows + 4, columns[i] - columns + 5] for i in range(12)
    ], 1)  # fmt: skip
    wanted = attend(q, k, v, position=Rotary(), attn_mask=bias[None], q_positions=at)
    out = attend(q, k, v, position=Rotary() + swin, q_positions=at, backend=backend)
    torch.testing.assert_close(out, wanted)
    sides = (torch.autograd.grad(x.square().sum(), swin.table)[0] for x in (out, wanted))
    torch.testing.assert_close(*sides)


def test_video_and_the_edge_of_the_table():
    swin = SwinBias(1, (2, 1, 3))
    swin.table.data = torch.arange(15.0)[None]
    at = torch.tensor([[0, 5, 29]])  # frames 0, 1 and 9
    assert swin.evaluate(at, at)[0, 0].tolist() == [[7, 0, 0], [14, 7, 2], [14, 12, 7]]


def test_what_it_says_of_itself_and_refuses():
    assert repr(SwinBias(2, (7, 7))) == "SwinBias(heads=2, grid=(7, 7), form='table', learnable)"
    with pytest.raises(WhenceError, match=r"form.*'v2'.*'continuous'"):
        SwinBias(2, (2, 2), form="v2")
