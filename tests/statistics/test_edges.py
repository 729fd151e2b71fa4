"""Numbers at the edge of a rule, and defaults: places where one step more or less would not show elsewhere."""

import pytest

from whence.statistics import comparison
from whence.statistics.comparison import compare
from whence.statistics.permutation import permutation_test, sign_flip_test
from whence.statistics.samples import cluster_proportion

MANY = [float(7 * i % 23) for i in range(14)]
OTHERS = [float(5 * i % 19) + 1 for i in range(14)]


@pytest.mark.parametrize("test", [permutation_test, sign_flip_test])
def test_the_default_seed_of_drawn_permutations_is_zero(test):
    few = {"most": 10, "draws": 200}
    assert test(MANY, OTHERS, **few) == test(MANY, OTHERS, **few, seed=0) != test(MANY, OTHERS, **few, seed=1)


def test_a_comparison_draws_by_the_seed_it_is_given():
    arms = {"none": MANY, "new": OTHERS}
    drawn = [compare(arms, "none", 1, True, seed=seed).arms["new"].permutation for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] == compare(arms, "none", 1, True).arms["new"].permutation != drawn[2]
    assert drawn[0] == permutation_test(OTHERS, MANY, seed=0)


def test_the_fewest_seeds_that_could_claim_something():
    """Two each can reach 1/3, three 1/10, four 1/35; two pairs 1/2, six 1/32."""
    output = {
        level: compare({"a": [1.0], "b": [2.0]}, "a", 1, True, level).arms["b"].verdict for level in (0.6, 0.9, 0.95)
    }
    assert "2 per arm" in output[0.6] and "3 per arm" in output[0.9] and "4 per arm" in output[0.95]
    pairs = compare({"a": [1.0], "b": [2.0]}, "a", 1, True, 0.4, paired=True).arms["b"].verdict
    assert "2 paired seeds" in pairs


def test_p_in_words_at_its_smallest():
    assert comparison._format_p(0.0001, 0.05) == "= 0.0001" and comparison._format_p(0.00009, 0.05) == "< 0.0001"


def test_sums_count_as_equal_within_the_rounding_of_the_values_and_no_more():
    """About 2**20 a difference of 2**-27 is real: it is half of what the rounding of the deviations' size would forgive."""
    large, step = 2.0**20, 2.0**-27
    a, b = [large + 1, large + 1], [large + 1 - step, large - 3 + step]
    assert permutation_test(a, b).p == pytest.approx(1 / 3)


def test_groups_with_one_share_keep_their_number_and_their_share():
    result = cluster_proportion([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (result.n, result.mean, result.deviation, result.interval) == (3, 0.5, 0.0, None)
