"""Each scaling against transformers' own frequencies and attention factor."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from whence.errors import WhenceError
from whence.hf.rotary_config import build_rotary
from whence.position.rotary import Rotary
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Proportional, Scaling, Yarn

utils = pytest.importorskip("transformers.modeling_rope_utils")

BASES = [10000.0, 500000.0]
WIDTHS = [8, 64, 128]


def theirs(
    kind: str, width: int, base: float, length: int | None = None, longest: int = 131072, **settings: Any
) -> Any:
    config = SimpleNamespace(
        rope_parameters={"rope_type": kind, "rope_theta": base, **settings},
        head_dim=width,
        hidden_size=width,
        num_attention_heads=1,
        max_position_embeddings=longest,
        standardize_rope_params=lambda: None,
    )
    return utils.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


def ours(
    scaling: Scaling, width: int, base: float, length: Any = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return scaling.frequencies(torch.arange(0, width, 2, dtype=dtype) / width, base, length)


def same(scaling: Scaling, want: tuple[torch.Tensor, float], width: int, base: float, length: Any = None) -> None:
    torch.testing.assert_close(ours(scaling, width, base, length), want[0], rtol=1e-6, atol=0)
    accurate = ours(scaling, width, base, length, torch.float64)
    assert accurate.dtype == torch.float64
    # their float32 itself is off by some 2e-6 where a ramp ends, as 1 - (1 - x) is rounded there
    torch.testing.assert_close(accurate.float(), want[0], rtol=5e-6, atol=0)
    assert scaling.attention_scaling == pytest.approx(want[1], abs=1e-6)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("factor", [1.0, 2.5, 8.0])
def test_linear(width: int, base: float, factor: float) -> None:
    same(Linear(factor), theirs("linear", width, base, factor=factor), width, base)


@pytest.mark.parametrize("width", [8, 10, 128])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 1.0])
def test_proportional(width: int, share: float) -> None:
    want = theirs("proportional", width, 1e6, partial_rotary_factor=share, factor=2.0)
    same(Proportional(share, 2.0), want, width, 1e6)


def test_proportional_leaves_out_the_lowest_frequencies_and_partial_rotary_spreads_them() -> None:
    torch.testing.assert_close(ours(Proportional(0.5), 8, 1e4), torch.tensor([1.0, 0.1, 0.0, 0.0]))
    q, at = torch.randn(1, 2, 5, 8), torch.arange(5)[None]
    rotated, _ = Rotary(scaling=Proportional(0.5)).rotate(q, q, at, at)
    assert torch.equal(rotated[..., [2, 3, 6, 7]], q[..., [2, 3, 6, 7]])
    two, _ = Rotary(rotary_dim=4, base=100.0).rotate(*[q[..., [0, 1, 4, 5]]] * 2, at, at)  # 100^(-2/4) = 0.1 too
    torch.testing.assert_close(rotated[..., [0, 1, 4, 5]], two)
    for wrong in (-0.1, 1.1, "x"):
        with pytest.raises(WhenceError, match=r"partial_rotary_factor.*use 0.25"):
            Proportional(wrong)  # type: ignore[arg-type]


def test_the_full_layers_of_gemma_4_rotate_in_proportion() -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Gemma4TextConfig"):
        pytest.skip("transformers without Gemma 4")
    config = transformers.Gemma4TextConfig()
    full = config.layer_types.index("full_attention")
    rotary = build_rotary("test", config, full)
    assert rotary.rotary_dim is None and rotary.scaling == Proportional(0.25) and rotary.base == 1e6
    sliding = build_rotary("test", config, config.layer_types.index("sliding_attention"))
    assert sliding.scaling is None and sliding.base == 1e4


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("length", [1, 2048, 2049, 8192, 100000])
def test_dynamic_ntk(width: int, base: float, length: int) -> None:
    want = theirs("dynamic", width, base, length=length, longest=2048, factor=4.0)
    same(DynamicNtk(4.0, 2048), want, width, base, length)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta_fast": 64.0, "beta_slow": 2.0},
        {"beta_fast": 1.0, "beta_slow": 1.0},
        {"attention_factor": 0.75},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 0.707},
        {"truncate": False},
        {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},  # a ramp of no length
    ],
)
@pytest.mark.parametrize(("factor", "original"), [(1.0, 4096), (4.0, 100), (4.0, 512), (40.0, 4096)])
def test_yarn(settings: dict[str, Any], factor: float, original: int) -> None:
    for width, base in itertools.product(WIDTHS, [10.0, *BASES]):  # at 10 the ramp ends beyond the last column
        want = theirs("yarn", width, base, factor=factor, original_max_position_embeddings=original, **settings)
        same(Yarn(factor, original, **settings), want, width, base)


def test_ramps_in_float64_are_those_of_plain_python() -> None:
    """What float32 parity cannot show: the float64 frequencies of both ramps, one at a time."""
    width, base, factor, original = 64, 10000.0, 40.0, 4096
    yarn = ours(Yarn(factor, original, truncate=False), width, base, dtype=torch.float64).tolist()
    llama = ours(Llama3(factor, 1.0, 4.0, original), width, base, dtype=torch.float64).tolist()
    # Yarn: the column c turns base^(-2c/width) * original / 2pi times; solve for 32 turns and for 1 turn
    start, end = (width / 2 * math.log(original / (2 * math.pi * turns), base) for turns in (32, 1))
    for c in range(width // 2):
        plain = base ** (-2 * c / width)
        slow = min(max((c - start) / (end - start), 0.0), 1.0)
        assert yarn[c] == pytest.approx(plain * (1 - slow) + plain / factor * slow, rel=1e-12)
        wavelength = 2 * math.pi / plain
        if wavelength < original / 4:
            want = plain
        elif wavelength > original / 1:
            want = plain / factor
        else:
            keep = (original / wavelength - 1) / (4 - 1)
            want = (1 - keep) * plain / factor + keep * plain
        assert llama[c] == pytest.approx(want, rel=1e-12)


def test_yarns_attention_factor_is_the_papers() -> None:
    assert Yarn(16.0, 4096).attention_scaling == pytest.approx(0.1 * math.log(16) + 1)
    assert Yarn(1.0, 4096).attention_scaling == 1.0


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("low", "high", "original"), [(1.0, 4.0, 8192), (2.0, 32.0, 1024)])
def test_llama3(width: int, base: float, low: float, high: float, original: int) -> None:
    settings = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
    want = theirs("llama3", width, base, factor=8.0, **settings)
    same(Llama3(8.0, low, high, original), want, width, base)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("length", [1, 4096, 4097, 131072])
@pytest.mark.parametrize("attention_factor", [None, 1.25])
@pytest.mark.parametrize("factor", [1.0, 32.0])
def test_longrope(width: int, base: float, length: int, attention_factor: float | None, factor: float) -> None:
    short = [1.0 + 0.01 * i for i in range(width // 2)]
    long = [1.0 + 0.9 * i for i in range(width // 2)]
    settings = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 4096}
    if attention_factor is not None:
        settings["attention_factor"] = attention_factor
    want = theirs("longrope", width, base, length=length, factor=factor, **settings)
    same(LongRope(short, long, 4096, factor, attention_factor), want, width, base, length)


@pytest.mark.parametrize("scaling", [DynamicNtk(4.0, 64), LongRope([1.0] * 4, [3.0] * 4, 64, 4.0)])
def test_a_tensor_of_lengths_gives_each_its_own_frequencies(scaling: Scaling) -> None:
    lengths = [10, 64, 65, 300]
    got = ours(scaling, 8, 10000.0, torch.tensor(lengths, dtype=torch.float32)[:, None])
    for row, length in zip(got, lengths, strict=True):
        torch.testing.assert_close(row, ours(scaling, 8, 10000.0, length), rtol=1e-6, atol=0)


def test_scalings_are_frozen_values() -> None:
    assert Linear(2.0) == Linear(2.0)
    assert hash(Yarn(2.0, 64)) == hash(Yarn(2.0, 64))
    assert LongRope([1], [2], 64, 4.0) == LongRope((1.0,), (2.0,), 64, 4.0)
    assert (
        repr(LongRope([1], [2], 64, 4.0))
        == "LongRope(short=<1>, long=<1>, original=64, factor=4.0, attention_scaling=1.1547)"
    )
    with pytest.raises(AttributeError):
        Linear(2.0).factor = 3.0  # type: ignore[misc]


def test_errors() -> None:
    with pytest.raises(
        WhenceError,
        match=r"^Linear\(factor=\.\.\.\) got 0\.5, but .*; pass the new length divided by the trained length\.$",
    ):
        Linear(0.5)
    with pytest.raises(WhenceError, match=r"^DynamicNtk\(original=\.\.\.\) got 0"):
        DynamicNtk(2.0, 0)
    with pytest.raises(WhenceError, match=r"^DynamicNtk got rotary_dim 2, but .*; use rotary_dim=4"):
        ours(DynamicNtk(2.0, 64), 2, 10000.0, 128)
    with pytest.raises(
        WhenceError,
        match=r"^Yarn\(beta_fast=\.\.\.\) got 1, but .*; use beta_fast=32 and",
    ):
        Yarn(2.0, 64, beta_fast=1, beta_slow=32)
    with pytest.raises(
        WhenceError,
        match=r"^Llama3\(high=\.\.\.\) got 4, but .*; use low=1 and high=4, as",
    ):
        Llama3(8.0, 4, 4)
    with pytest.raises(
        WhenceError,
        match=r"^LongRope got 2 short and 1 long divisors, but .*; pass rotary_dim / 2",
    ):
        LongRope([1, 1], [1], 64, 2.0)
    with pytest.raises(
        WhenceError,
        match=r"^LongRope got rotary_dim 8, but .*; pass rotary_dim / 2 numbers\.$",
    ):
        ours(LongRope([1, 1], [1, 1], 64, 2.0), 8, 10000.0, 128)
