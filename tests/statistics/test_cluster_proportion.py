"""A share over groups: against resampled groups, and the ways it cannot be had."""

import numpy
import pytest

from whence import WhenceError
from whence.statistics import cluster_proportion, proportion, summary


def drawn(groups=60, seed=0):
    """Groups of very different sizes, each with a share of its own."""
    random = numpy.random.default_rng(seed)
    subject = random.integers(5, 200, groups)
    right = random.binomial(subject, random.beta(4, 4, groups))
    return right, subject


def test_the_interval_is_that_of_resampled_groups():
    right, subject = drawn()
    result = cluster_proportion(right.tolist(), subject.tolist())
    random = numpy.random.default_rng(1)
    rows = random.integers(0, len(subject), (20_000, len(subject)))
    shares = right[rows].sum(1) / subject[rows].sum(1)
    assert result.mean == pytest.approx(right.sum() / subject.sum())
    assert result.interval.low == pytest.approx(numpy.quantile(shares, 0.025), abs=0.006)
    assert result.interval.high == pytest.approx(numpy.quantile(shares, 0.975), abs=0.006)
    # questions of one group are alike: taken for independent they would claim far too much
    alone = proportion(int(right.sum()), int(subject.sum())).interval
    assert result.interval.high - result.interval.low > 3 * (alone.high - alone.low)


def test_it_covers_what_it_says():
    """Of many samples of groups from one world about 95 in 100 intervals hold the world's share."""
    world_right, world_asked = drawn(50_000, seed=2)
    share = world_right.sum() / world_asked.sum()
    random = numpy.random.default_rng(3)
    hits = 0
    for _ in range(1000):
        rows = random.integers(0, len(world_asked), 45)
        hits += share in cluster_proportion(world_right[rows].tolist(), world_asked[rows].tolist()).interval
    assert 0.93 < hits / 1000 < 0.965


def test_groups_of_one_size_are_a_mean():
    right = [3.0, 7.0, 4.0, 9.0, 2.5]
    result, plain = cluster_proportion(right, [10.0] * 5), summary([value / 10 for value in right])
    assert result.mean == pytest.approx(plain.mean) and result.deviation == pytest.approx(plain.deviation)
    assert result.interval.low == pytest.approx(plain.interval.low)


def test_what_has_no_interval_and_what_is_refused():
    assert cluster_proportion([3], [4]).interval is None
    assert "same share" in cluster_proportion([3, 6], [4, 8]).note
    for right, subject in (([1, 2], [3]), ([1, 0], [2, 0])):
        with pytest.raises(WhenceError, match="trials"):
            cluster_proportion(right, subject)


def test_groups_with_one_share_keep_their_number_and_their_share():
    result = cluster_proportion([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (result.n, result.mean, result.deviation, result.interval) == (3, 0.5, 0.0, None)
