"""Transformer-XL against a loop over the paper's four terms and against its shifted matrix."""

from __future__ import annotations

import math

import pytest
import torch

from whence.errors import WhenceError
from whence.position.hook_types import Rows
from whence.position.sinusoidal import sinusoid
from whence.position.transformer_xl import TransformerXL


def make_rows(at_q: torch.Tensor, at_k: torch.Tensor, *, batch: int = 2, dtype: torch.dtype = torch.float64) -> Rows:
    q = torch.randn(batch, 2, at_q.shape[-1], 4, dtype=dtype)
    k = torch.randn(batch, 2, at_k.shape[-1], 4, dtype=dtype)
    visible = at_q[:, None, :, None] >= at_k[:, None, None, :]
    return Rows(q, k, 0.5 * q @ k.mT, at_q, at_k, visible, 0.5)


def sine_row(distance: float, width: int, base: float) -> torch.Tensor:
    angles = [distance * base ** (-2 * i / width) for i in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


POSITIONS = {
    "shared": (torch.arange(5)[None], torch.arange(5)[None]),
    "with memory": (torch.arange(3)[None] + 4, torch.arange(7)[None]),
    "own": (torch.tensor([[4, 5], [0, 9]]), torch.tensor([[0, 1, 2, 3], [-2, 0, 3, 9]])),
    "mixed": (torch.arange(3)[None], torch.tensor([[0, 1, 2, 9], [5, 3, 1, 0]])),
    "float": (torch.tensor([[0.5, 2.25]]), torch.tensor([[0.0, 1.0, 1.5]])),
}


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS.keys())
@pytest.mark.parametrize(("width", "base"), [(None, 10000.0), (6, 100.0)])
def test_the_papers_formula_in_float64(
    positions: tuple[torch.Tensor, torch.Tensor], width: int | None, base: float
) -> None:
    rows = make_rows(*positions)
    xl = TransformerXL(2, 4, embed_dim=width, base=base, std=1.0).to(torch.float64)
    width = width or 8
    got = rows.scores + xl.content_bias(rows)
    assert got.dtype == torch.float64
    for b, h, t, s in torch.cartesian_prod(*(torch.arange(n) for n in rows.scores.shape)).tolist():
        distance = float(rows.q_positions[b % len(rows.q_positions), t]) - float(
            rows.k_positions[b % len(rows.k_positions), s]
        )
        q, k = rows.q[b, h, t], rows.k[b, h, s]
        project = xl.projection[4 * h : 4 * h + 4]
        far = project @ sine_row(distance, width, base)
        want = 0.5 * ((q + xl.u[h]) @ k + (q + xl.v[h]) @ far)
        assert got[b, h, t, s].item() == pytest.approx(want.item(), abs=1e-11)


def test_the_papers_relative_shift() -> None:
    """Scores by distance M + L - 1 .. 0 for each query, row i shifted left by L - 1 - i (the paper's appendix B)."""
    queries, memory = 4, 3
    keys = queries + memory
    rows = make_rows(torch.arange(queries)[None] + memory, torch.arange(keys)[None])
    xl = TransformerXL(2, 4, std=1.0).to(torch.float64)
    table = sinusoid(torch.arange(keys - 1, -1, -1).double(), 8, 10000.0, "concatenated")
    far = torch.einsum("hdw,nw->hnd", xl.projection.reshape(2, 4, 8), table)
    unshifted = (rows.q + xl.v[:, None]) @ far.mT
    padded = torch.cat((unshifted.new_zeros(2, 2, queries, 1), unshifted), dim=-1)
    shifted = padded.reshape(2, 2, keys + 1, queries)[:, :, 1:].reshape(2, 2, queries, keys)
    want = 0.5 * ((rows.k @ xl.u[:, :, None]).mT + shifted)
    seen = rows.visible.expand_as(want)  # the shift leaves other rows' numbers where keys are in the future
    torch.testing.assert_close(xl.content_bias(rows)[seen], want[seen], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [1, 1000, 1_000_000])
def test_far_from_the_start_float32_loses_nothing(shift: int) -> None:
    at_q, at_k = torch.arange(6)[None], torch.arange(6)[None]
    near = make_rows(at_q, at_k, dtype=torch.float32)
    far = Rows(near.q, near.k, near.scores, at_q + shift, at_k + shift, near.visible, 0.5)
    xl = TransformerXL(2, 4, std=1.0)
    assert torch.equal(xl.content_bias(near), xl.content_bias(far))


def test_low_precision_comes_back_and_future_keys_are_finite() -> None:
    rows = make_rows(torch.arange(6)[None], torch.arange(6)[None], dtype=torch.bfloat16)
    content = TransformerXL(2, 4).content_bias(rows)
    assert content.dtype == torch.bfloat16
    assert bool(content.isfinite().all())
    assert TransformerXL(2, 4).bfloat16().content_bias(rows).dtype == torch.bfloat16


def test_all_parameters_learn_and_travel() -> None:
    rows = make_rows(torch.arange(3)[None], torch.arange(3)[None])
    one, other = TransformerXL(2, 4).double(), TransformerXL(2, 4).double()
    one.content_bias(rows).square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in one.parameters())
    other.load_state_dict(one.state_dict())
    assert sorted(one.state_dict()) == ["projection", "u", "v"]
    assert torch.equal(one.content_bias(rows), other.content_bias(rows))
    assert one.relative
    assert one.effects == {"content_bias"}


def test_errors() -> None:
    with pytest.raises(
        WhenceError,
        match=r"^TransformerXL\(embed_dim=\.\.\.\) got 7, but .*; sines and cosines come in pairs, so pass an even number\.$",
    ):
        TransformerXL(2, 4, embed_dim=7)
    with pytest.raises(WhenceError, match=r"^TransformerXL\(embed_dim=\.\.\.\) got 3"):
        TransformerXL(1, 3)
    with pytest.raises(
        WhenceError,
        match=r"^TransformerXL\(head_dim=\.\.\.\) got 0, but .*; pass the dimension",
    ):
        TransformerXL(2, 0)
    with pytest.raises(WhenceError, match=r"^TransformerXL\(base=\.\.\.\) got 1\.0, but .*; use 10000, as"):
        TransformerXL(2, 4, base=1.0)
    with pytest.raises(
        WhenceError,
        match=r"^TransformerXL\(4, 4\) got 2 heads of dimension 4, but .*; build it with heads=2 and head_dim=4",
    ):
        TransformerXL(4, 4).content_bias(make_rows(torch.arange(3)[None], torch.arange(3)[None]))
