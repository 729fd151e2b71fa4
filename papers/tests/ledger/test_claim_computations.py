"""Every computation of the ledger against another way: plain Python, fractions, scipy, or the definition itself."""

import cmath
import itertools
import math
import random
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from whence_papers.ledger.computations import COMPUTATIONS, spline


def witness(name):
    """A computation that is held against another way here."""
    return COMPUTATIONS[name]


def softmax(scores):
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]


def close(figures, expected, tolerance=1e-9):
    assert figures == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_improvement():
    cells = Fraction("23.5"), Fraction("22.8")
    close(
        witness("improvement")(23.5, 23.2, 22.8, True)["percent_of_baseline"],
        float(100 * (cells[0] - cells[1]) / cells[0]),
    )
    close(COMPUTATIONS["improvement"](0.439, 0.445, 0.462)["percent_of_baseline"], 100 * 23 / 439)
    figures = witness("improvement_range")([[29.1, 29.6], [0.831, 0.842]])
    close(figures["smallest_percent"], 100 * 11 / 831)
    close(figures["largest_percent"], 100 * 5 / 291)


def test_significance_from_cells():
    figures = witness("significance")({"a": [29.1, 0.3, 29.6, 0.2]}, 5, 5)
    by_scipy = scipy.stats.ttest_ind_from_stats(29.6, 0.2, 5, 29.1, 0.3, 5, equal_var=False).pvalue
    close(figures["largest_corrected_p"], 5 * by_scipy, 1e-6)


def test_sums_and_shares():
    assert witness("product")([500, 16, 32])["product"] == sum(sum(32 for _ in range(16)) for _ in range(500))
    close(COMPUTATIONS["product"]([640, 4.2e6], 134e6)["quotient"], 2688 / 134)
    assert witness("steps_of_epochs")(2092, 16, 15)["steps"] == 15 * len(range(0, 2092, 16))
    figures = witness("loss_gap")(5.13, 4.9266)
    close(1 + figures["more_perplexity_percent"] / 100, math.exp(5.13) / math.exp(4.9266))
    fit = [1.69, 406.4, 0.34, 410.7, 0.28]
    figures = witness("expected_loss")(4.9266, 134e6, 2.688e9, 640, {"fit": fit, "lower": [1.0, *fit[1:]]})
    close(figures["expected_loss"], 1.69 + 406.4 * math.exp(-0.34 * math.log(134e6)) + 410.7 * math.exp(-0.28 * math.log(2.688e9)))  # fmt: skip
    fewer = 2.688e9 * figures["tokens_percent"] / 100  # at these tokens the fit has the loss
    close(1.69 + 406.4 / 134e6**0.34 + 410.7 / fewer**0.28, 4.9266)
    figures = witness("quotient_range")(78.0, 1.0, 2.8, 0.1)
    tried = [a / b for a in np.linspace(77.5, 78.5, 11) for b in np.linspace(2.75, 2.85, 11)]
    close((figures["least"], figures["most"]), (min(tried), max(tried)))
    figures = witness("disagreement")({"a": {"x": 1.0, "y": 2.0}, "b": {"x": 1.5}, "c": {"y": 2.0}})
    assert figures["quantities_that_differ"] == 1 and figures["largest_difference"] == 0.5
    grid = np.linspace(-3, 3, 600001)
    inside = (grid >= -3) & (grid <= 0) & (grid >= -1) & (grid <= 0.5)
    close(witness("overlap")([-3.0, 0.0], [-1.0, 0.5])["shared_length"], inside.mean() * 6, 1e-4)
    assert witness("missing_words")(["The", "cat"], ["the", "dog"])["words_missing"] == 1


def test_series():
    series = [33.73, 44.13, 40.0, 47.2]
    figures = witness("falls")({"x": series})
    assert figures["x_falls"] == int((np.diff(series) < 0).sum()) and figures["x_rises"] == 2
    assert figures["x_largest_step"] == 1 + int(np.abs(np.diff(series)).argmax())
    figures = witness("gaps")({"a": [[5.0, 6.0, 4.0], [4.0, 4.0, 5.0]], "b": [[1.0, 1.0], [0.0, 0.5]]})
    assert figures["times_below_zero"] == 1 and figures["gaps_that_close"] == 2 and figures["a_last"] == -1.0
    assert figures["last_pair_minus_first"] == 1.5
    figures = witness("peak")([5, 10, 20], [1.0, 3.0, 2.0], 20)
    assert (figures["place"], figures["largest"], figures["value_there"], figures["ends_below_it"]) == (10, 3.0, 2.0, 1)


def test_possible_shares_by_trying_every_count():
    all_of_them = {f"{100 * k / 750:.2f}" for k in range(751)}
    printed = [84.93, 84.95, 33.33, 87.60, 12.34]
    expected = sum(f"{p:.2f}" not in all_of_them for p in printed)
    assert witness("possible_shares")(printed, 750)["impossible_percentages"] == expected == 2


def test_difference_of_two_shares():
    figures = witness("share_difference")(85.2, 87.6, 750)
    low, high = (scipy.stats.binomtest(k, 750).proportion_ci(method="wilson") for k in (639, 657))
    a, b = 639 / 750, 657 / 750
    close(figures["lowest_difference"], 100 * (b - a - math.hypot(b - high.low, low.high - a)), 1e-6)
    close(figures["highest_difference"], 100 * (b - a + math.hypot(high.high - b, a - low.low)), 1e-6)
    assert figures["items_apart"] == 18 and figures["smallest_p_of_one_run_each"] == 1.0
    half = witness("ablation")(51.43, 51.49, 3502)
    close(half["gain"], -0.06)
    wilson = scipy.stats.binomtest(1801, 3502).proportion_ci(method="wilson")
    close(half["half_interval_of_one"], 50 * (wilson.high - wilson.low), 1e-6)


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


def test_parameters_by_hand_and_by_torch():
    spec = {
        "kind": "encoder",
        "vocab_size": 50,
        "num_classes": 3,
        "embed_dim": 16,
        "heads": 2,
        "layers": 2,
        "ffn_dim": 20,
    }
    figures = witness("model_parameters")(spec)
    layer = 4 * (16 * 16 + 16) + (16 * 20 + 20) + (20 * 16 + 16) + 2 * 32
    assert figures["layers"] == 2 * layer == 2 * figures["layers_layer_0"]
    assert figures["total"] == 50 * 16 + 2 * layer + (16 * 20 + 20) + (20 * 3 + 3)
    by_torch = torch.nn.TransformerEncoderLayer(16, 2, 20)
    assert sum(p.numel() for p in by_torch.parameters()) == layer
    assert witness("position_parameters")(spec, "sinusoidal", "alibi") == {
        "more_parameters": 0,
        "learned_by_position": 0,
    }
    wide = {
        "kind": "decoder",
        "vocab_size": 10,
        "embed_dim": 768,
        "heads": 12,
        "layers": 12,
        "ffn_dim": 3072,
        "tie_embeddings": True,
    }
    layers = 12 * sum(p.numel() for p in torch.nn.TransformerEncoderLayer(768, 12, 3072, device="meta").parameters())
    figures = witness("vocabulary_for")(110e6, wide)
    assert figures["layers"] == layers and figures["vocabulary"] == pytest.approx((110e6 - layers - 2 * 768) / 768)
    assert witness("additive_attention")(512, 512, 256)["total"] == 512 * 512 + 512 * 256 + 512 + 512 == 394240
    figures = witness("pointer_attention")(64, 150)
    assert (figures["total_as_printed"], figures["total_of_code"]) == (8342, 8470)


class Counted(float):
    """A number that counts its multiplications."""

    made = 0

    def __mul__(self, other):
        Counted.made += 1
        return Counted(float(self) * float(other))

    def __add__(self, other):
        return Counted(float(self) + float(other))

    __radd__ = __add__


def test_multiplications_by_counting_them():
    keys, embed_dim = 10, 8

    def times(rows, columns):  # two matrices as lists of rows and of columns
        return [[sum(Counted(a) * b for a, b in zip(row, column, strict=True)) for column in columns] for row in rows]

    e, s, square = [[1.0] * embed_dim] * keys, [[1.0] * embed_dim], [[1.0] * embed_dim] * embed_dim
    counts = []
    Counted.made = 0
    projected, query = times(e, square), times(s, square)[0]
    times([[math.tanh(a + b) for a, b in zip(row, query, strict=True)] for row in projected], [[1.0] * embed_dim])
    counts.append(Counted.made / keys)
    Counted.made = 0
    times(times(s, square), times(e, square))
    counts.append(Counted.made / keys)
    figures = witness("multiplications")(embed_dim, embed_dim, embed_dim, embed_dim, keys)
    close((figures["additive"], figures["pointer"]), counts)
    both = witness("equal_widths")(embed_dim, 5, keys)
    close(both["additive_cost_over_pointer"], counts[0] / counts[1])
    assert both["more_numbers_of_additive"] == (2 * 64 + 16) - (2 * 64 + 5)


def test_pointers_by_loops():
    scores, places = [-0.28, -0.17, -0.02, 0.04, 0.28], [101, 205, 150, 312, 150]
    weights = softmax(scores)
    figures = witness("softmax_example")(scores, [0.12, 0.14, 0.16, 0.17, 0.41])
    close(figures["weights"], weights)
    close(figures["largest_error"], 0.41 - weights[4])
    close(witness("scattered_scores")(places, scores, 150)["of_place"], weights[2] + weights[4])
    figures = witness("scattered")(places, [0.1, 0.15, 0.2, 0.25, 0.3], 150)
    close((figures["of_place"], figures["sum"], figures["largest_place"]), (0.5, 1.0, 150))
    figures = witness("scaled_scores")([0.15, 0.65], 64, [-0.3, 0.2], [0.019, 0.081], [-0.28, 0.28])
    close((figures["scaled_error"], figures["final_error"]), (0.00025, 0.00125))
    content, bias = [0.0, 0.1, 0.2], [0.3, 0.2, 0.1]
    figures = witness("reasons")([1, 2, 1], content, bias, 1)
    whole = softmax([a + b for a, b in zip(content, bias, strict=True)])
    close(figures["by_repetition"], whole[0] + whole[2] - max(whole[0], whole[2]))
    close(figures["by_bias"], whole[0] + whole[2] - softmax(content)[0] - softmax(content)[2])
    close(figures["by_content"], whole[0] + whole[2] - softmax(bias)[0] - softmax(bias)[2])


def test_masks_indices_and_lines():
    assert witness("masking")(6, 4, 5, 0)["largest_difference"] < 1e-12
    visible = softmax([1.0, 2.0, 3.0])[:2]
    close([k / sum(visible) for k in visible], softmax([1.0, 2.0]))
    figures = witness("from_the_end")(5, 8, 150)
    indices = [min(max(5 - position, 0), 149) for position in range(8)]
    assert (figures["index_of_first_visit"], figures["index_of_last_visit"]) == (indices[0], indices[4]) == (5, 1)
    assert figures["index_of_padding"] == max(indices[5:]) == 0 and figures["visits_with_index_zero"] == 0
    figures = witness("linearity")(8, 0)
    assert figures["dot_product_off"] < 1e-12 and figures["additive_off"] > 0.01
    assert abs(math.tanh(1.0) - (math.tanh(0.0) + math.tanh(2.0)) / 2) > 0.2  # the reason


def test_a_convolution_of_one_place_is_a_product(monkeypatch):
    assert witness("pointwise_convolution")(4, 5, 0)["largest_difference"] < 1e-12
    turned = torch.conv2d
    monkeypatch.setattr(torch, "conv2d", lambda x, w: turned(x, w.transpose(0, 1)))
    assert witness("pointwise_convolution")(4, 5, 0)["largest_difference"] > 0.1


def test_prior():
    figures = witness("prior_start")(1.0, 1.0, 256, 3)
    close(figures["share_of_nearest"], (1 - math.exp(-3)) / (1 - math.exp(-256)))  # a geometric series
    assert figures["difference_from_alibi"] == 0
    figures = witness("prior_gradients")(1.0, [0.5, 1.0, 2.0], 4)
    assert figures["not_finite_of_ours"] == 0 and figures["not_finite_by_logarithm"] > 0
    figures = witness("prior_built")(16, 2, 5, 0)
    assert figures["largest_difference"] < 1e-12 and figures["parameters_with_gradient"] == 2


def test_rotary_with_complex_numbers():
    draw_inputs = random.Random(0)
    pairs = [
        (
            complex(draw_inputs.gauss(0, 1), draw_inputs.gauss(0, 1)),
            complex(draw_inputs.gauss(0, 1), draw_inputs.gauss(0, 1)),
        )
        for _ in range(4)
    ]
    angles = [10000 ** (-2 * k / 8) for k in range(4)]

    def score(i, j, conjugate):
        total = 0
        for (q, k), angle in zip(pairs, angles, strict=True):
            first, second = q * cmath.exp(1j * i * angle), k * cmath.exp(1j * j * angle)
            total += ((first.conjugate() if conjugate else first) * second).real
        return total

    assert abs(score(9, 2, True) - score(109, 102, True)) < 1e-12 < abs(score(9, 2, False) - score(109, 102, False))
    figures = witness("relative_scores")(64, 100, 0)
    assert (
        figures["change_of_score"] < 1e-9
        and figures["change_with_conjugate"] < 1e-9
        and figures["change_as_printed"] > 0.1
    )
    figures = witness("first_angle")(64, 10000.0)
    close((figures["own"], figures["printed"]), (1.0, math.exp(-2 / 64 * math.log(10000))), 1e-6)
    curve = [sum(math.cos(d * 10000 ** (-2 * k / 8)) for k in range(4)) / 4 for d in range(50)]
    figures = witness("waves")(8, 50)
    assert figures["rises"] == sum(b > a for a, b in itertools.pairwise(curve))
    close(figures["near_minus_far"], sum(curve[:5]) / 5 - sum(curve[-5:]) / 5)
    assert witness("scaled_positions")(16, 1.5, 0)["largest_difference"] < 1e-12


def test_order_and_masks():
    figures = witness("order_without_position")(6, 8, 0)
    assert figures["change_both_ways"] < 1e-12 and figures["change_causal"] > 1e-3
    figures = witness("who_sees")(10)
    seen = [sum(key <= query for query in range(10)) for key in range(10)]
    assert (figures["see_first"], figures["see_middle"], figures["see_last"]) == (seen[0], seen[5], seen[9])
    figures = witness("no_look_ahead")(6, 0)
    assert figures["change_before"] == 0 and figures["change_at_the_end"] > 0
    figures = witness("stable_rows")(1, 8)
    rows = [(i + 1) / (i + 1 + sum(math.exp(-0.0625 * t) for t in range(i + 1, 8))) for i in range(8)]
    close((figures["first_sum"], figures["last_sum"]), (rows[0], rows[-1]))
    assert figures["falling_rows"] == sum(b < a for a, b in itertools.pairwise(rows)) == 0
    figures = witness("t5_numbers")(128, 32)
    published = {d if d < 16 else min(31, 16 + int(16 * math.log(d / 16) / math.log(8) + 1e-12)) for d in range(128)}
    assert figures["numbers"] == len(published) == figures["learned"]
    assert witness("additive_calibration")(5, 0)["largest_error_of_weights"] < 1e-15
    figures = witness("decomposition")(5, 4, 0)
    assert figures["largest_miss"] < 1e-14 and figures["largest_mean_of_rest"] < 1e-14


def test_slopes():
    weights = softmax([-0.1 * d for d in range(20)])
    figures = witness("slope_signs")(0.1, 20)
    close(figures["mean_distance_positive"], sum(w * d for d, w in enumerate(weights)))
    close(figures["mean_distance_negative"], sum(w * (19 - d) for d, w in enumerate(weights)))  # mirrored
    close(figures["mean_distance_without"], 9.5)
    figures = witness("scales")([0.5, 2.0], 2, 16)
    by_hand = [sum(w * d for d, w in enumerate(softmax([-2.0 * s * d for d in range(16)]))) for s in (1 / 16, 1 / 256)]
    close(figures["mean_distance_at_2"], sum(by_hand) / 2, 1e-6)
    assert figures["farther_at_larger_scale"] == 0
    assert witness("learned_slopes")(2) == {"learned_numbers": 0, "bend": 0.0}
    assert witness("sinusoids")(8, 5)["largest_difference"] < 1e-12


def test_counts_of_the_speeches(tmp_path, monkeypatch):
    (tmp_path / "speeches").mkdir()
    words = tmp_path / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    from whence_papers.speeches import data

    count = witness("speeches_counts")
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    from whence_papers.ledger import MissingEvidence

    with pytest.raises(MissingEvidence, match="speeches' files"):
        count(32)
    words.mkdir(parents=True)
    (tmp_path / "speeches" / "train_CLS.tsv").write_text("0\ta b c\n1\tb c\n")
    (tmp_path / "speeches" / "test_CLS.tsv").write_text("0\ta b c\n1\tsomething else\n")
    (tmp_path / "speeches" / "train_LM.txt").write_text("c d\n")
    monkeypatch.setattr(data, "load_tokenizer", lambda subject: data.NltkTokenizer(str.split, "none"))
    figures = count(4)
    assert figures["vocabulary"] == len({"0", "1", "a", "b", "c", "d"}) + 2
    assert (figures["training_items"], figures["test_items"], figures["test_items_in_training"]) == (2, 2, 1)
    assert figures["padding_percent"] == 100 * 3 / 8


def test_spline_autoencoders():
    figures = witness("spline_reconstruction")(2, 4, 8, [3, 4])
    assert figures["change_of_shuffled"] < 1e-5  # a set has no order
    arms = [figures[name] for name in ("without_order", "with_bias", "with_positions")]
    assert len({value for arm in arms for value in arm}) == 6 and all(0.5 < value < 3 for arm in arms for value in arm)
    close(figures["times_learned_error"], [a / b for a, b in zip(arms[0], arms[2], strict=True)])
    assert spline.draw_waves(3, 8, torch.Generator().manual_seed(0)).shape == (3, 8, 2)
    model = spline.train_autoencoder("with_positions", 3, 1, 4, 8)
    x = torch.randn(2, 8, 2)
    assert (model.encode(x.flip(1)) - model.encode(x)).abs().max() > 1e-4
    assert "position" not in " ".join(dict(spline.train_autoencoder("without_order", 3, 1, 4, 8).named_parameters()))


def test_the_prior_is_kerple_s_power_form_by_hand():
    figures = witness("prior_family")([0.5], [1.0, 2.0], 8)
    by_hand = max(abs((0.5 * d) ** b - 0.5**b * d**b) for b in (1.0, 2.0) for d in range(8))
    assert figures["relative_difference_from_kerple"] <= by_hand + 1e-15
    assert figures["relative_difference_from_alibi"] == 0
    matrix = np.array([[(1 + 0.5 * math.exp(-abs(i - j) / 6)) / 1.5 for j in range(6)] for i in range(6)])
    figures = witness("factor_rank")(1.0, 0.5, 6)
    assert figures["rank_both_ways"] == np.linalg.matrix_rank(matrix, tol=1e-10) == 6
    assert figures["rank_of_the_causal_extension"] == 2


def test_every_computation_has_a_witness():
    named = set(re.findall(r'witness\("(\w+)"\)', Path(__file__).read_text()))
    assert set(COMPUTATIONS) == named
