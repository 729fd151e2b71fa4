"""Attention over distance: where it decreases and where not, and the identity with doubled vectors."""

import math

import numpy as np
import pytest
import torch

from whence import attend
from whence.errors import WhenceError
from whence_papers.epar.theory import (
    CODE_DEFAULTS,
    Setting,
    attention_monotonicity,
    double_head_dim,
    doubling_identity,
    factor_ranks,
    monotonicity_of_random_content,
    reversal_region,
    weights_by_distance,
)

SETTINGS = (Setting(), Setting().basic(), CODE_DEFAULTS, Setting(1.7, 7.3, 2.2), Setting(1.0, 30.0, 0.5, "basic"))


def qkv(batch=2, heads=3, tokens=50, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, batch, heads, tokens, width, dtype=torch.float64, generator=generator)


def test_weights_by_distance_by_hand():
    scores = [[1.0, -2.0, 0.5]]
    got = weights_by_distance(torch.tensor(scores), Setting(0.9, 2.0, 1.5), length=10, temperature=0.7)[0].numpy()
    logits = [s * 0.9 * (1 + 1.5 * math.exp(-2.0 * d / 10)) / 2.5 / 0.7 for d, s in enumerate(scores[0])]
    np.testing.assert_allclose(got, np.exp(logits) / np.exp(logits).sum(), rtol=1e-13)


@pytest.mark.parametrize("setting", SETTINGS[:4])
def test_attention_rises_with_distance_exactly_below_zero(setting):
    check = attention_monotonicity(setting)
    assert not check.holds and check.counter_example["score"] < 0
    assert check.counter_example["weight far"] > check.counter_example["weight near"]
    assert check.numbers["scores at or above 0 where it rises"] == check.numbers["scores below 0 where it falls"] == 0
    assert attention_monotonicity(setting, scores=torch.linspace(0, 6, 50)).holds


def test_the_counter_example_by_hand():
    """Score -2, five keys: plain arithmetic shows the farthest key with the largest weight."""
    f = [(1 + 0.5 * math.exp(-d / 5)) / 1.5 for d in range(5)]
    e = [math.exp(-2 * x) for x in f]
    got = weights_by_distance(torch.full((1, 5), -2.0), Setting(), length=5)[0].tolist()
    assert got == pytest.approx([x / sum(e) for x in e]) and got == sorted(got) and got[4] > got[0]


def test_random_content_fails_half_of_the_time():
    check = monotonicity_of_random_content(Setting())
    assert check.numbers["share of scores where it rises"] == pytest.approx(0.5, abs=0.05)
    assert "random queries" in check.where and check.counter_example["score"] < 0


@pytest.mark.parametrize("setting", SETTINGS[:4])
def test_the_region_is_bounded_by_a_line(setting):
    scores = torch.linspace(-3, 3, 42)
    region = reversal_region(setting, 4, 100, scores)
    assert region.disagreements == 0 and region.boundary > 1
    on_diagonal = region.fails.diagonal()
    assert torch.equal(on_diagonal, scores < 0)  # equal scores: the far key wins exactly below 0
    assert 0 < int(region.fails.sum()) < region.fails.numel()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("tokens, length", ((1, 8), (50, 64), (90, 30)))
def test_causal_epar_is_attention_over_doubled_vectors(setting, tokens, length):
    check = doubling_identity(*qkv(tokens=tokens), setting, length)
    assert check.holds, str(check)
    assert check.violation < 1e-12
    assert check.numbers["width of a doubled one"] == (16 if setting.form == "basic" else 32)


def test_the_doubled_vectors_themselves():
    q, k, _ = qkv(tokens=7)
    q2, k2 = double_head_dim(q, k, Setting(0.8, 2.0, 1.5), 9)
    d = torch.arange(7)[:, None] - torch.arange(7)
    effect = 0.8 * (1 + 1.5 * torch.exp(-2.0 * d.double() / 9)) / 2.5
    torch.testing.assert_close((q2 @ k2.mT).tril(), ((q @ k.mT) * effect).tril(), rtol=1e-13, atol=1e-13)


def test_it_also_carries_gradients():
    q, k, v = (x.clone().requires_grad_() for x in qkv(tokens=20))
    setting = Setting()
    one = attend(q, k, v, position=setting.position(20), causal=True, backend="reference").square().sum()
    two = (
        attend(*double_head_dim(q, k, setting, 20), v, causal=True, scale=16**-0.5, backend="reference").square().sum()
    )
    for a, b in zip(torch.autograd.grad(one, (q, k, v)), torch.autograd.grad(two, (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_without_causality_there_is_no_identity():
    q, k, v = qkv(tokens=20)
    setting = Setting(beta=3.0)
    one = attend(q, k, v, position=setting.position(20), backend="reference")
    two = attend(*double_head_dim(q, k, setting, 20), v, scale=16**-0.5, backend="reference")
    assert float((one - two).abs().max()) > 0.1
    ranks = factor_ranks(setting, 20)
    assert not ranks.holds and ranks.counter_example["rank"] == 20
    assert ranks.numbers["rank of the causal extension"] == 2
    assert ranks.numbers["extension against factor on the causal half"] < 1e-14
    assert factor_ranks(setting.basic(), 20).numbers["rank of the causal extension"] == 1
    assert factor_ranks(Setting(beta=0.0), 20).holds


def test_usage_errors():
    with pytest.raises(WhenceError, match=r"near, far.*5 and 5"):
        reversal_region(Setting(), 5, 5, torch.ones(2))
    with pytest.raises(WhenceError, match=r"q, k.*\(1, 3, 2\) and \(1, 4, 2\)"):
        double_head_dim(torch.ones(1, 3, 2), torch.ones(1, 4, 2), Setting(), 4)
