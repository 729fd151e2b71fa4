"""Sinusoidal against the paper's formula, term by term."""

from __future__ import annotations

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.sinusoidal import Sinusoidal, sinusoid


def by_hand(position: float, width: int, base: float) -> list[float]:
    """PE(pos, 2i) = sin(pos / base^(2i/width)), PE(pos, 2i+1) = cos(the same angle)."""
    row = []
    for column in range(width):
        angle = position / base ** (2 * (column // 2) / width)
        row.append(math.sin(angle) if column % 2 == 0 else math.cos(angle))
    return row


@pytest.mark.parametrize("width", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_the_papers_formula_in_float64(width: int, base: float) -> None:
    positions = [0, 1, 2, 17, 1000, -3, 0.5]
    want = torch.tensor([by_hand(p, width, base) for p in positions], dtype=torch.float64)
    got = Sinusoidal(width, base=base).embed(
        torch.zeros(1, len(positions), width, dtype=torch.float64), torch.tensor([positions])
    )
    torch.testing.assert_close(got[0], want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("width", [5, 8])
def test_concatenated_is_interleaved_reordered(width: int) -> None:
    positions = torch.arange(6)
    interleaved = sinusoid(positions, width, 10000.0, "interleaved")
    concatenated = sinusoid(positions, width, 10000.0, "concatenated")
    assert torch.equal(concatenated, torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), dim=-1))


def test_it_adds_to_the_input_times_scale_at_each_rows_own_positions() -> None:
    x = torch.randn(2, 3, 6)
    positions = torch.tensor([[0, 1, 2], [7, 9, 4]])
    got = Sinusoidal(6, scale=0.5).embed(x, positions)
    for b in range(2):
        for t in range(3):
            want = x[b, t] + 0.5 * torch.tensor(by_hand(int(positions[b, t]), 6, 10000.0))
            torch.testing.assert_close(got[b, t], want, rtol=0, atol=1e-6)


def test_half_precision_inputs_keep_float32_angles() -> None:
    positions = torch.tensor([[2047, 2048, 2049]])
    got = Sinusoidal(8).embed(torch.zeros(1, 3, 8, dtype=torch.bfloat16), positions)
    want = Sinusoidal(8).embed(torch.zeros(1, 3, 8), positions).bfloat16()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want)


def test_float64_and_state_dict() -> None:
    module = Sinusoidal(8).to(torch.float64)
    assert module.state_dict() == {}
    assert module.embed(torch.zeros(1, 2, 8, dtype=torch.float64), torch.tensor([[0, 1]])).dtype == torch.float64
    assert not module.relative
    assert module.effects == {"embed"}
    assert repr(module) == "Sinusoidal(embed_dim=8, base=10000, scale=1)"


def test_it_exports_with_a_dynamic_length() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = Sinusoidal(8)

        def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return self.position.embed(x, positions)

    tokens = torch.export.Dim("tokens", min=2)
    example = (torch.zeros(2, 5, 8), torch.arange(5)[None])
    program = torch.export.export(Model(), example, dynamic_shapes=({1: tokens}, {1: tokens}))
    x, positions = torch.randn(2, 11, 8), torch.arange(11)[None]
    torch.testing.assert_close(program.module()(x, positions), Model()(x, positions))


def test_errors() -> None:
    with pytest.raises(
        WhenceError,
        match=r"^Sinusoidal\(embed_dim=\.\.\.\) got 0, but .*; pass the dimension of the input\.$",
    ):
        Sinusoidal(0)
    with pytest.raises(
        WhenceError,
        match=r"^Sinusoidal\(base=\.\.\.\) got 1, but .*; use 10000, as published\.$",
    ):
        Sinusoidal(8, base=1)
    with pytest.raises(
        WhenceError,
        match=r"^Sinusoidal\(8\) got an input of dimension 6, but .*; build it with embed_dim=6\.$",
    ):
        Sinusoidal(8).embed(torch.zeros(1, 2, 6), torch.tensor([[0, 1]]))
    with pytest.raises(
        WhenceError,
        match=r"^sinusoid\(layout=\.\.\.\) got 'half', but .*; choose one of",
    ):
        sinusoid(torch.arange(2), 4, 10000.0, "half")
