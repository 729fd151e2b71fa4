"""Sums, shares and series of the ledger against another way: plain Python, fractions or scipy."""

import math
from fractions import Fraction

import numpy as np
import scipy.stats
from witnesses import close, witness

from whence_papers.ledger.computations import COMPUTATIONS


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
