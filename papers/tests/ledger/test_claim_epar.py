"""The computations of EPAR's claims against another way: loops, the printed formulas, numpy or scipy."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from witnesses import close, softmax, witness


def enhanced(x, beta, gamma, alpha=1.0):
    return alpha * (1 + gamma * math.exp(-beta * x)) / (1 + gamma)


def test_retention_by_the_printed_formulas():
    figures = witness("retention")(2.0, 1.5, 0.5)
    close(figures["basic_percent"], 100 * math.exp(-1))
    close(figures["enhanced_percent"], 100 * enhanced(0.5, 2.0, 1.5))
    figures = witness("retention_reading")(2.8, 78.0, 28.3, 4.2, 0.5)
    beta, gamma = figures["beta_for_basic"], figures["gamma_for_both_percentages"]
    close((math.exp(-beta), enhanced(1.0, beta, gamma)), (0.028, 0.78))
    close(figures["enhanced_percent_with_that_beta"], 100 * enhanced(1.0, beta, 0.5))
    assert round(figures["enhanced_percent_with_that_beta"], 1) == 67.6 and round(beta, 2) == 3.58
    close(witness("basic_at_the_end")(1.0, 100)["smallest_factor"], math.exp(-0.99))


def test_statements_of_the_theory():
    state = witness("epar_statement")
    assert state("bound", 1.0, 0.5)["misses_by"] == 0
    for score, rises in ((-1.0, True), (1.0, False)):  # the counter-example, by hand
        weights = softmax([score * enhanced(d / 128, 1.0, 0.5) for d in range(128)])
        assert (weights[-1] > weights[0]) is rises
    figures = state("attention_monotonicity", 1.0, 0.5)
    assert figures["misses_by"] > 0 and figures["scores_at_or_above_0_where_it_rises"] == 0
    weights = softmax([enhanced(d / 128, 1.0, 0.5) for d in range(128)])
    close(state("bound_of_the_attention", 1.0, 0.5)["misses_by"], 1 / 1.5 - min(weights))


def test_a_gamma_that_is_not_handed_on_changes_nothing():
    figures = witness("gamma_as_wired")(["alpha", "beta"], [0.5, 4.0], 100)
    assert figures["largest_change_with_gamma"] == 0 and figures["gamma_in_effect"] == 1.5
    decay = math.exp(-2.0 * 99 / 100)
    by_hand = (1 + 0.5 * decay) / 1.5 - (1 + 4 * decay) / 5
    assert figures["largest_change_if_passed_on"] == pytest.approx(by_hand, rel=1e-12)
    handed_on = witness("gamma_as_wired")(["alpha", "beta", "gamma"], [0.5, 4.0], 100)
    assert handed_on["largest_change_with_gamma"] == figures["largest_change_if_passed_on"] > 0


def test_alpha_length_scale_and_memory():
    figures = witness("strength")([0.5, 2.0], 1.0, 0.5)
    assert figures["change_of_near_over_far"] < 1e-12 and figures["factor_without_decay"] == 2.0
    figures = witness("growing_length")(1.0, 0.5, 128)
    close(
        figures["largest_change"], max(abs(enhanced(d / 129, 1, 0.5) - enhanced(d / 128, 1, 0.5)) for d in range(128))
    )
    assert figures["changed_distances"] == 127
    figures = witness("defaults")(
        {"a": {"alpha": 1.0, "beta": 1.0, "gamma": 0.5}, "b": {"alpha": 1.0, "beta": 2.0, "gamma": 1.5}}
    )
    assert (
        figures["quantities_that_differ"] == 2
        and "follows a;" in figures["words"]
        and "CODE_DEFAULTS is b" in figures["words"]
    )
    assert witness("scale_of_code")(768, 12)["formula"] == 8.0
    matrix, weights = torch.empty(1024, 1024, device="meta"), torch.empty(110_000_000, device="meta")
    share = 100 * matrix.nbytes / (4 * weights.nbytes)
    close(witness("matrix_memory")(110e6, [1024])["matrix_percent_1024"], share)


def test_doubled_vectors_by_loops():
    figures = witness("doubled_vectors")(1.0, 0.5, 6, 4, 0)
    assert figures["largest_difference"] < 1e-14
    draw_inputs = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 6, 4, dtype=torch.float64, generator=draw_inputs)[0, 0].tolist() for _ in range(2))
    for i, j in itertools.product(range(6), range(6)):
        if j <= i:
            score = enhanced((i - j) / 6, 1.0, 0.5) * sum(a * b for a, b in zip(q[i], k[j], strict=True))
            u, w = math.exp(-i / 6), math.exp(j / 6)
            by_vectors = sum(a * b / 1.5 + 0.5 / 1.5 * (u * a) * (w * b) for a, b in zip(q[i], k[j], strict=True))
            close(score, by_vectors)


def test_row_weights_and_added_positions():
    figures = witness("row_weights")(8, 50, 1)
    assert figures["rows_reordered"] == 0 and figures["rows_reordered_by_key_weights"] > 25
    assert figures["difference_from_temperature"] < 1e-14
    figures = witness("added_positions")(64, 16, 10, 0)
    assert figures["change_of_shaw"] == 0.0 and figures["change_as_printed"] > 0.01


def test_optimal_position_against_scipy():
    from whence_papers.ledger.computations.epar import draw_inputs

    settings = {"beta": 1.0, "gamma": 0.5, "length": 32, "embed_dim": 16, "runs": 4, "experiments": 2}
    figures = witness("optimal_position")("random", **settings)
    importance, q, k = (x.numpy() for x in draw_inputs("random", 32, 16, 4, 1))
    agreed, ranked = [], []
    for run in range(4):
        apart = np.abs(np.arange(32)[:, None] - np.arange(32)) / 32
        scores = q[run] @ k[run].T / 4 * (1 + 0.5 * np.exp(-apart)) / 1.5
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        value = weights @ importance[run]
        best, guess = value.argmax(), importance[run].argmax()
        agreed.append((1 - (value[best] - value[guess]) / value[best] + 1 - abs(best - guess) / 32) / 2)
        ranked.append(scipy.stats.spearmanr(value, importance[run]).statistic)
        assert importance[run].min() <= value.min() and value.max() <= importance[run].max()
        assert (weights.mean(1) * importance[run]).argmax() == guess
    close(figures["consistency_enhanced"][1], np.mean(agreed))
    close(figures["ranking_enhanced"][1], np.mean(ranked))
    assert witness("proposition")(1.0, 0.5, 32, 16, 4)["misses_by"] == 0
    assert witness("prediction")(1.0, 0.5, 32, 16, 4)["runs_that_differ"] == 0


def test_the_random_parts_of_an_experiment_have_independent_seeds(monkeypatch):
    from whence_papers.epar import theory
    from whence_papers.ledger.computations.epar import draw_inputs

    seeds, heads = [], []
    for name in ("make_pattern", "make_vectors", "random_position_vectors", "project_untrained"):
        original = getattr(theory, name)

        def draw(*given, original=original, name=name, **options):
            place = 1 if name == "project_untrained" else 2
            seeds.append(given[place])
            heads.append(name == "project_untrained")
            return original(*given, **options)

        monkeypatch.setattr(theory, name, draw)
    draw_inputs("clustered", 16, 4, 3, 0)
    assert sum(heads) == 1 and len(seeds) == len(set(seeds)) == 4  # one head for three runs
    draw_inputs("clustered", 16, 4, 3, 0, redraw=True)
    assert sum(heads) == 4 and len(set(seeds)) == 4 + 6  # three further heads, and the same sequences


def test_the_rank_of_the_factor():
    matrix = np.array([[(1 + 0.5 * math.exp(-abs(i - j) / 6)) / 1.5 for j in range(6)] for i in range(6)])
    figures = witness("factor_rank")(1.0, 0.5, 6)
    assert figures["rank_both_ways"] == np.linalg.matrix_rank(matrix, tol=1e-10) == 6
    assert figures["rank_of_the_causal_extension"] == 2
