"""Importance, value, the best position and agreement with it, against loops, scipy and cases done by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from whence.errors import WhenceError
from whence_papers.epar.theory import (
    PATTERNS,
    Setting,
    attention_weights,
    chance_consistency,
    consistency,
    distance_consistency,
    importance,
    make_pattern,
    make_vectors,
    maximum_benefit,
    position_value,
    prediction_ignores_attention,
    project_untrained,
    random_position_vectors,
    ranks,
    source_prediction,
    spearman,
    value_is_convex_combination,
)


def head(rows=3, length=40, width=16, setting=None, seed=0):
    x = torch.randn(rows, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, k = project_untrained(x + random_position_vectors(length, width, seed + 1), seed + 2)
    return attention_weights(q, k, (setting or Setting()).position(length))[:, 0]


def test_value_is_the_sum_it_says():
    weights, info = head(), make_pattern("random", 40, 1, rows=3)
    value = position_value(weights, info)
    by_hand = [[sum(float(weights[b, i, j] * info[b, j]) for j in range(40)) for i in range(40)] for b in range(3)]
    torch.testing.assert_close(value, torch.tensor(by_hand, dtype=torch.float64), rtol=1e-13, atol=0)


def test_the_head_is_what_the_source_describes():
    """softmax((q.k / sqrt d) * alpha (1 + gamma exp(-beta |i - j| / L)) / (1 + gamma) / temperature), both ways."""
    x = torch.randn(1, 12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k = project_untrained(x, 3)
    got = attention_weights(q, k, Setting(0.7, 2.3, 1.1).position(12), temperature=0.6)[0, 0]
    d = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    logits = (q[0] @ k[0].T).numpy() / math.sqrt(8) * 0.7 * (1 + 1.1 * np.exp(-2.3 * d / 12)) / 2.1 / 0.6
    want = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_every_position_of_a_tie_is_named():
    best = maximum_benefit(torch.tensor([1.0, 5.0, 4.0, 5.0, 5.0 * (1 + 1e-15)], dtype=torch.float64))
    assert best.positions == (1, 3, 4) and best.tied and best.margin == pytest.approx(1.0)
    alone = maximum_benefit(torch.tensor([2.0, 3.0]))
    assert alone.positions == (1,) and not alone.tied and alone.margin == 1
    assert maximum_benefit(torch.zeros(3)).positions == (0, 1, 2) and maximum_benefit(torch.zeros(3)).margin == math.inf
    # equal attention everywhere: nothing distinguishes a position
    even = position_value(torch.full((4, 4), 0.25, dtype=torch.float64), make_pattern("random", 4, 0)[0])
    assert maximum_benefit(even).positions == (0, 1, 2, 3)


def test_value_is_a_mean_and_says_where_it_is_not():
    weights, info = head(), make_pattern("sparse", 40, 2, rows=3)
    good = value_is_convex_combination(weights, info)
    assert good.holds and good.checked == 120 and good.counter_example is None
    assert good.numbers["largest V over largest importance"] < 1
    broken = weights.clone()
    broken[1, 7] *= 50
    bad = value_is_convex_combination(broken, info)
    assert not bad.holds and bad.counter_example["row"] == 47 and bad.numbers["rows differ from sum 1 by"] > 1


@pytest.mark.parametrize("name", PATTERNS)
def test_the_sources_prediction_ignores_attention(name):
    """Whatever the attention is, it predicts a position of the largest importance."""
    for seed, setting in enumerate((Setting(), Setting(beta=7.0).basic())):
        weights, info = head(8, 64, setting=setting, seed=seed), make_pattern(name, 64, 5, rows=8)
        assert prediction_ignores_attention(weights, info).holds
    leaking = weights * torch.linspace(1, 9, 64, dtype=torch.float64)[:, None]  # rows that do not sum to 1
    if name != "sparse":
        assert not prediction_ignores_attention(leaking, info).holds
    assert source_prediction(weights, info).shape == (8,)


def test_consistency_by_hand():
    value = torch.tensor([2.0, 8.0, 4.0, 6.0])
    got = consistency(value, 3)
    assert got.value_part == 1 - 2 / 8 and got.position_part == 1 - 2 / 4 and got.both == (0.75 + 0.5) / 2
    assert consistency(value, 1).both == 1 and distance_consistency(value, 0) == 0.75
    tied = torch.tensor([8.0, 1.0, 1.0, 8.0])
    assert consistency(tied, 3).both == 1 and distance_consistency(tied, 2) == 0.75  # to the nearest of the best


def test_a_guess_is_already_consistent():
    """Chance by the exact mean over all guesses, against a draw of many; it is far above one half."""
    value = position_value(head(1, 64)[0], make_pattern("random", 64, 3)[0])
    exact = chance_consistency(value)
    drawn = torch.randint(64, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    assert exact.both == pytest.approx(np.mean([consistency(value, p).both for p in drawn]), abs=0.02)
    assert exact.both > 0.7


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=40))
def test_spearman_is_scipys_with_ties(pairs):
    a, b = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    got = float(spearman(a, b))
    if len(set(a.tolist())) == 1 or len(set(b.tolist())) == 1:
        assert math.isnan(got)
        return
    assert got == pytest.approx(stats.spearmanr(a.numpy(), b.numpy()).statistic, abs=1e-12)
    np.testing.assert_array_equal(ranks(a).numpy(), stats.rankdata(a.numpy()))


def test_spearman_row_by_row():
    a, b = torch.randn(2, 3, 5, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    got = spearman(a, b)
    assert got.shape == (3, 5)
    want = [[stats.spearmanr(a[i, j], b[i, j]).statistic for j in range(5)] for i in range(3)]
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(name):
    first, again, other = (make_pattern(name, 128, seed, rows=50) for seed in (7, 7, 8))
    assert first.dtype == torch.float64 and first.shape == (50, 128)
    assert torch.equal(first, again) and (name == "structured") == torch.equal(first, other)
    assert (first.amin(-1) == 0).all() and (first.amax(-1) == 1).all()
    assert make_pattern(name, 3, 0).shape == (1, 3) and torch.isfinite(make_pattern(name, 1, 0)).all()


def test_what_makes_each_pattern():
    wave = make_pattern("structured", 128, 0)[0]
    assert int(wave.argmax()) == 32 and int(wave.argmin()) == 96
    assert ((make_pattern("sparse", 128, 0, rows=20) > 0).sum(-1) == 12).all()
    blocks = make_pattern("clustered", 128, 0, rows=20).unflatten(-1, (8, 16))
    assert (blocks == blocks[..., :1]).all() and all(len(row.unique()) == 8 for row in blocks)
    assert make_pattern("random", 128, 0, rows=200).mean() == pytest.approx(0.5, abs=0.02)
    assert "dense" in PATTERNS and PATTERNS["dense"](3, 50, torch.Generator()).min() >= 0.7


def test_vector_norms_are_the_importances():
    info = make_pattern("random", 33, 4, rows=2)
    torch.testing.assert_close(importance(make_vectors(info, 9, 0)), info, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    "call, text",
    (
        (lambda: make_pattern("odd", 8, 0), r"name.*'odd'.*random, structured"),
        (lambda: make_pattern("dense", 0, 0), r"length=0, rows=1"),
        (lambda: position_value(torch.ones(2, 3), torch.ones(4)), r"importance.*\(2, 3\) and \(4,\)"),
        (lambda: maximum_benefit(torch.ones(2, 2)), r"value.*\(2, 2\).*\[L\]"),
        (lambda: maximum_benefit(torch.tensor([1.0, math.nan])), "value.*not finite"),
        (lambda: consistency(torch.zeros(4), 0), r"value.*0\.0.*above 0"),
        (lambda: consistency(torch.ones(4), 4), r"predicted.*4 for 4 positions.*0 to 3"),
        (lambda: spearman(torch.ones(4), torch.ones(5)), r"spearman\(a, b\).*\(4,\) and \(5,\)"),
    ),
)
def test_usage_errors(call, text):
    with pytest.raises(WhenceError, match=text):
        call()
