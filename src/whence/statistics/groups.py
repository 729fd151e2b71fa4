"""A share over groups that answer together, such as the questions of one person: the groups are the sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

from whence.errors import usage_error
from whence.statistics.samples import Summary, checked, checked_level, rounding, t_interval


def share_over_groups(right: Sequence[float], asked: Sequence[float], level: float = 0.95) -> Summary:
    """All that was right over all that was asked, with an interval that speaks of other groups of the same kind.

    Questions of one group are alike, so that so many questions say less than as many of different groups would. The share
    is a ratio of two sums over groups; its error is that of the sums' residuals ``right - share * asked`` (the linearised
    variance of a ratio), with a t-interval of as many degrees of freedom as groups less one.

    Args:
        right: for each group what was right, whole or as a mean over several runs.
        asked: for each group what was asked, above 0.

    >>> short = share_over_groups([9, 1, 5], [10, 10, 10])
    >>> short.mean, round(short.interval.low, 3), round(short.interval.high, 3)
    (0.5, -0.494, 1.494)
    >>> round(share_over_groups([9, 1, 5] * 8, [10, 10, 10] * 8).interval.low, 3)
    0.359
    """
    right, asked = checked("share_over_groups(right)", right), checked("share_over_groups(asked)", asked)
    checked_level("share_over_groups(level=...)", level)
    if len(right) != len(asked) or min(asked) <= 0:
        got = f"{len(right)} and {len(asked)} numbers, the least asked {min(asked):g}"
        raise usage_error("share_over_groups", got, "every group was asked something", "give both counts of each group")
    n, total = len(asked), math.fsum(asked)
    share = math.fsum(right) / total
    if n == 1:
        return Summary(n, share, None, None, "one group has no deviation and no interval")
    residuals = [own - share * many for own, many in zip(right, asked, strict=True)]
    spread = math.hypot(*residuals) / (n - 1) ** 0.5
    if spread <= rounding(right):
        return Summary(n, share, 0.0, None, f"all {n} groups have the same share, and an interval needs a spread")
    error = spread * n**0.5 / total
    return Summary(n, share, error * n**0.5, t_interval("whence.statistics", share, error, n - 1, level))
