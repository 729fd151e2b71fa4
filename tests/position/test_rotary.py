"""Rotary against complex numbers, transformers and x-transformers."""

from __future__ import annotations

import cmath
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whence.errors import WhenceError
from whence.position.rotary import Rotary, oscillation
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Scaling, Yarn

SCALINGS: list[Scaling | None] = [None, Linear(4.0), Yarn(4.0, 64), Llama3(8.0, original=256)]


def by_hand(x: torch.Tensor, positions: list[float], layout: str, width: int, base: float) -> torch.Tensor:
    """Multiply each pair, as a complex number, by exp(1j * position * base^(-2i/width))."""
    out = x.clone()
    for t, position in enumerate(positions):
        for i in range(width // 2):
            a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + width // 2)
            for head in range(x.shape[1]):
                z = complex(x[0, head, t, a], x[0, head, t, b]) * cmath.exp(1j * position * base ** (-2 * i / width))
                out[0, head, t, a], out[0, head, t, b] = z.real, z.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("width", [None, 4, 8])
def test_pairs_turn_as_complex_numbers_do(layout: str, width: int | None) -> None:
    q, k = torch.randn(1, 2, 3, 8, dtype=torch.float64), torch.randn(1, 1, 4, 8, dtype=torch.float64)
    at_q, at_k = [0.0, 2.5, 1000.0], [-3.0, 0.0, 1.0, 7.0]
    got = Rotary(layout=layout, rotary_dim=width, base=500.0).rotate(q, k, torch.tensor([at_q]), torch.tensor([at_k]))
    torch.testing.assert_close(got[0], by_hand(q, at_q, layout, width or 8, 500.0), rtol=0, atol=1e-11)
    torch.testing.assert_close(got[1], by_hand(k, at_k, layout, width or 8, 500.0), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        (None, {"rope_type": "default"}),
        (Linear(4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            Yarn(4.0, 64),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        (
            Llama3(8.0, original=128),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        ),
        (DynamicNtk(2.0, 256), {"rope_type": "dynamic", "factor": 2.0}),
        (
            LongRope([1.0] * 8, [float(i + 1) for i in range(8)], 128, 2.0),
            {
                "rope_type": "longrope",
                "factor": 2.0,
                "short_factor": [1.0] * 8,
                "long_factor": [float(i + 1) for i in range(8)],
                "original_max_position_embeddings": 128,
            },
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
@pytest.mark.parametrize("tokens", [40, 300])
def test_llama_in_transformers_turns_the_same(scaling: Scaling | None, parameters: dict[str, Any], tokens: int) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10000.0, **parameters},
    )
    q, k = torch.randn(1, 4, tokens, 16), torch.randn(1, 2, tokens, 16)
    positions = torch.arange(tokens)[None]
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, positions)
    want = llama.apply_rotary_pos_emb(q, k, cos, sin)
    length = "sequence" if scaling is not None and scaling.needs_length else None
    got = Rotary(scaling=scaling, length=length).rotate(q, k, positions, positions)
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=2e-4)  # float32 angles of up to 300 on both sides
    torch.testing.assert_close(got[1], want[1], rtol=0, atol=2e-4)


def test_gptj_in_transformers_turns_the_same_leading_columns() -> None:
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q = torch.randn(2, 3, 10, 16)  # batch, heads, tokens, width
    angle = torch.arange(10)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    want = gptj.apply_rotary_pos_emb(q.transpose(1, 2)[..., :8], angle.sin()[None], angle.cos()[None]).transpose(1, 2)
    positions = torch.arange(10)[None]
    got, _ = Rotary(layout="interleaved", rotary_dim=8).rotate(q, q, positions, positions)
    torch.testing.assert_close(got[..., :8], want, rtol=0, atol=1e-5)
    assert torch.equal(got[..., 8:], q[..., 8:])


def test_neox_in_transformers_turns_the_same_leading_columns() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")  # NeoX applies this to its first columns
    q = torch.randn(2, 3, 10, 16)
    angle = torch.arange(10)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    double = torch.cat((angle, angle), dim=-1)[None]
    want, _ = llama.apply_rotary_pos_emb(q[..., :8], q[..., :8], double.cos(), double.sin())
    positions = torch.arange(10)[None]
    got, _ = Rotary(rotary_dim=8).rotate(q, q, positions, positions)
    torch.testing.assert_close(got, torch.cat((want, q[..., 8:]), dim=-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("width", "factor"), [(16, 1.0), (8, 1.0), (16, 4.0)])
def test_x_transformers_turns_the_same(width: int, factor: float) -> None:
    xt = pytest.importorskip("x_transformers.x_transformers")
    q, k = torch.randn(2, 3, 10, 16), torch.randn(2, 3, 10, 16)
    freqs, scale = xt.RotaryEmbedding(width, interpolation_factor=factor).forward_from_seq_len(10)
    positions = torch.arange(10)[None]
    scaling = Linear(factor) if factor > 1 else None
    got = Rotary(layout="interleaved", rotary_dim=width, scaling=scaling).rotate(q, k, positions, positions)
    torch.testing.assert_close(got[0], xt.apply_rotary_pos_emb(q, freqs, scale), rtol=0, atol=1e-5)
    torch.testing.assert_close(got[1], xt.apply_rotary_pos_emb(k, freqs, scale), rtol=0, atol=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shift=st.integers(-5000, 5000),
    layout=st.sampled_from(["half", "interleaved"]),
    scaling=st.sampled_from(SCALINGS),
    seed=st.integers(0, 1000),
)
def test_scores_depend_on_differences_and_lengths_stay(shift: int, layout: str, scaling: Any, seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 2, 5, 8, dtype=torch.float64, generator=make) for _ in range(2))
    at_q, at_k = torch.randint(0, 200, (2, 1, 5), generator=make)
    rotary = Rotary(layout=layout, scaling=scaling)
    here, there = rotary.rotate(q, k, at_q, at_k), rotary.rotate(q, k, at_q + shift, at_k + shift)
    torch.testing.assert_close(here[0] @ here[1].mT, there[0] @ there[1].mT, rtol=0, atol=1e-9)
    torch.testing.assert_close(here[0].norm(dim=-1), q.norm(dim=-1) * rotary.attention_factor)


@pytest.mark.parametrize("scaling", [DynamicNtk(2.0, 16), LongRope([1.0] * 4, [3.0] * 4, 16, 2.0)])
def test_sequence_length_is_each_rows_largest_position_plus_one(scaling: Scaling) -> None:
    q, k = torch.randn(3, 2, 4, 8, dtype=torch.float64), torch.randn(3, 1, 6, 8, dtype=torch.float64)
    at_k = torch.stack((torch.arange(6), torch.arange(6) + 11, torch.arange(6) + 40))
    at_q = at_k[:, 2:]
    got = Rotary(scaling=scaling, length="sequence").rotate(q, k, at_q, at_k)
    for b, length in enumerate([6, 17, 46]):
        fixed = Rotary(scaling=scaling, context=length)
        want = fixed.rotate(q[b : b + 1], k[b : b + 1], at_q[b : b + 1], at_k[b : b + 1])
        torch.testing.assert_close(got[0][b : b + 1], want[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(got[1][b : b + 1], want[1], rtol=0, atol=1e-12)
    assert Rotary(scaling=scaling, context=64).relative
    assert not Rotary(scaling=scaling, length="sequence").relative


def test_dtypes_come_back_and_whole_positions_equal_floats() -> None:
    q, positions = torch.randn(1, 2, 5, 8), torch.arange(5)[None]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        got_q, got_k = (
            Rotary(rotary_dim=4).to(torch.float64).rotate(q.to(dtype), q.to(dtype), positions, positions.double())
        )
        assert got_q.dtype == got_k.dtype == dtype
        assert torch.equal(got_q, got_k)
    assert Rotary().state_dict() == {}


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_it_exports_with_dynamic_lengths(layout: str) -> None:
    """Every scaling in one program: an export costs more than what is exported."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            positions = [Rotary(layout=layout, scaling=scaling, rotary_dim=4) for scaling in SCALINGS]
            by_length = [DynamicNtk(2.0, 16), LongRope([1.0] * 2, [3.0] * 2, 16, 2.0)]
            positions += [Rotary(layout=layout, scaling=one, rotary_dim=4, length="sequence") for one in by_length]
            self.positions = torch.nn.ModuleList(positions)

        def forward(self, q: torch.Tensor, k: torch.Tensor, at_q: torch.Tensor, at_k: torch.Tensor) -> Any:
            return [x for position in self.positions for x in position.rotate(q, k, at_q, at_k)]

    def example(t: int, s: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(2, 2, t, 8), torch.randn(2, 1, s, 8), torch.arange(t)[None] + s - t, torch.arange(s)[None]

    rows, keys = torch.export.Dim("rows", min=2), torch.export.Dim("keys", min=2)
    shapes = ({2: rows}, {2: keys}, {1: rows}, {1: keys})
    program = torch.export.export(Model(), example(5, 7), dynamic_shapes=shapes)
    inputs = example(6, 30)
    for got, want in zip(program.module()(*inputs), Model()(*inputs), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("width", [None, 4])
def test_oscillation_is_the_score_of_ones(scaling: Scaling | None, width: int | None) -> None:
    rotary = Rotary(scaling=scaling, rotary_dim=width)
    distance = torch.arange(0, 100, dtype=torch.float64)
    ones = torch.ones(1, 1, 100, 8, dtype=torch.float64)
    q, k = rotary.rotate(ones, ones, distance[None], torch.zeros(1, 100))
    torch.testing.assert_close(oscillation(rotary, distance, 8), (q * k).sum(-1)[0, 0] / 8)


def test_oscillation_with_a_sequence_length_reaches_the_largest_distance() -> None:
    distance = torch.arange(100.0)
    want = oscillation(Rotary(scaling=DynamicNtk(2.0, 16), context=100), distance, 8)
    torch.testing.assert_close(oscillation(Rotary(scaling=DynamicNtk(2.0, 16), length="sequence"), distance, 8), want)


def test_repr() -> None:
    assert repr(Rotary()) == "Rotary(base=10000, layout='half')"
    assert (
        repr(Rotary(rotary_dim=4, scaling=DynamicNtk(2.0, 16), context=64))
        == "Rotary(base=10000, layout='half', rotary_dim=4, scaling=DynamicNtk(factor=2.0, original=16), length='context', context=64)"
    )


def test_errors() -> None:
    q, at = torch.zeros(1, 1, 2, 8), torch.arange(2)[None]
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(base=\.\.\.\) got 0\.0, but .*; use 10000, as published\.$",
    ):
        Rotary(base=0.0)
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(layout=\.\.\.\) got 'neox', but .*; choose one of them\.$",
    ):
        Rotary(layout="neox")
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(rotary_dim=\.\.\.\) got 5, but .*; columns are rotated in pairs, so pass an even number\.$",
    ):
        Rotary(rotary_dim=5)
    with pytest.raises(WhenceError, match=r"^Rotary got head_dim 7, but .*; pass an even rotary_dim\.$"):
        Rotary().rotate(q[..., :7], q[..., :7], at, at)
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(rotary_dim=16\) got head_dim 8, but .*; lower rotary_dim, or leave",
    ):
        Rotary(rotary_dim=16).rotate(q, q, at, at)
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(scaling=\.\.\.\) got dict, but .*; take one from whence\.position\.rot",
    ):
        Rotary(scaling={"factor": 2.0})  # type: ignore[arg-type]
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(context=\.\.\.\) got None, but .*; pass context=32768, or choose length='sequence'\.$",
    ):
        Rotary(scaling=DynamicNtk(2.0, 16))
    with pytest.raises(WhenceError, match=r"^Rotary\(context=\.\.\.\) got 0"):
        Rotary(scaling=LongRope([1.0], [1.0], 16, 2.0), length="context", context=0)
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(scaling=DynamicNtk\) got length='query', but .*; choose length='context' or length='sequence'\.$",
    ):
        Rotary(scaling=DynamicNtk(2.0, 16), length="query")
    with pytest.raises(
        WhenceError,
        match=r"^Rotary\(scaling=Linear\) got length='context', context=64, but .*; leave both out\.$",
    ):
        Rotary(scaling=Linear(2.0), length="context", context=64)
    with pytest.raises(WhenceError, match=r"^Rotary\(scaling=None\) got length='sequence', context=None"):
        Rotary(length="sequence")
    with pytest.raises(WhenceError, match=r"^Rotary\(length=\.\.\.\) got 'all'"):
        Rotary(scaling=DynamicNtk(2.0, 16), length="all")
