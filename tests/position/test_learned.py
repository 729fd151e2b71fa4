"""Learned positions: a table look-up, and the end of the table."""

from __future__ import annotations

import pytest
import torch

from whence.errors import WhenceError
from whence.position.learned import Learned


def test_each_position_adds_its_own_row() -> None:
    learned = Learned(4, 6, std=1.0)
    x = torch.randn(2, 3, 4)
    positions = torch.tensor([[0, 1, 2], [5, 3, 3]])
    got = learned.embed(x, positions)
    for b in range(2):
        for t in range(3):
            assert torch.equal(got[b, t], x[b, t] + learned.table[positions[b, t]])


def test_shared_and_float_positions_look_up_the_same_rows() -> None:
    learned = Learned(4, 6)
    x = torch.randn(2, 3, 4)
    assert torch.equal(
        learned.embed(x, torch.tensor([[3, 4, 5]])), learned.embed(x, torch.tensor([[3.0, 4.0, 5.0]] * 2))
    )


def test_left_padding_takes_row_zero() -> None:
    learned = Learned(4, 6, std=1.0)
    got = learned.embed(torch.zeros(1, 4, 4), torch.tensor([[-2, -1, 0, 1]]))
    assert torch.equal(got[0], learned.table[torch.tensor([0, 0, 0, 1])])


def test_only_the_rows_used_learn() -> None:
    learned = Learned(4, 6)
    learned.embed(torch.zeros(1, 2, 4), torch.tensor([[1, 4]])).sum().backward()
    assert learned.table.grad is not None
    assert learned.table.grad.sum(-1).tolist() == [0.0, 4.0, 0.0, 0.0, 4.0, 0.0]


def test_float64_and_a_state_dict_round_trip() -> None:
    learned = Learned(4, 6).to(torch.float64)
    x, positions = torch.randn(1, 6, 4, dtype=torch.float64), torch.arange(6)[None]
    other = Learned(4, 6).to(torch.float64)
    other.load_state_dict(learned.state_dict())
    assert learned.embed(x, positions).dtype == torch.float64
    assert torch.equal(learned.embed(x, positions), other.embed(x, positions))
    assert Learned(4, 6).embed(x.bfloat16(), positions).dtype == torch.bfloat16
    assert not learned.relative
    assert learned.effects == {"embed"}
    assert repr(learned) == "Learned(embed_dim=4, max_length=6, learnable)"


def test_initial_standard_deviation() -> None:
    torch.manual_seed(0)
    assert Learned(64, 256).table.std().item() == pytest.approx(0.02, rel=0.05)


def test_it_exports_with_a_dynamic_length() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = Learned(8, 32)

        def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return self.position.embed(x, positions)

    model, tokens = Model(), torch.export.Dim("tokens", min=2)
    example = (torch.zeros(2, 5, 8), torch.arange(5)[None])
    program = torch.export.export(model, example, dynamic_shapes=({1: tokens}, {1: tokens}))
    x, positions = torch.randn(2, 11, 8), torch.arange(11)[None]
    torch.testing.assert_close(program.module()(x, positions), model(x, positions))


def test_errors() -> None:
    with pytest.raises(
        WhenceError,
        match=r"^Learned\(max_length=6\) got position 6, but .*; increase max_length, or use a mechanism that extrapolates\.$",
    ):
        Learned(4, 6).embed(torch.zeros(1, 2, 4), torch.tensor([[5, 6]]))
    with pytest.raises(
        WhenceError, match=r"^Learned\(4, \.\.\.\) got an input of dimension 3, but .*; build it with embed_dim=3"
    ):
        Learned(4, 6).embed(torch.zeros(1, 2, 3), torch.tensor([[0, 1]]))
    with pytest.raises(WhenceError, match=r"^Learned\(max_length=\.\.\.\) got 0, but .*; pass"):
        Learned(4, 0)
