"""The number of further seeds that would probably decide a contrast."""

from __future__ import annotations

from statistics import NormalDist

from whence.statistics.moderated_t import Reference, from_normal

POWER = 0.8  # with which the seeds still needed would decide
MOST_SEEDS = 1000  # beyond it no number of further seeds is named


def count_further_seeds(
    size: float, count: int, freedom: float, level: float, family: int, reference: Reference
) -> int | None:
    """Further seeds after which a contrast is decided with a probability of about ``POWER``; None: more than ``MOST_SEEDS``.

    Args:
        size: the true difference, or the room within the margin, in standard deviations of one paired difference.
        count: seeds there are.
        freedom: degrees of freedom of the contrast with these seeds.
        level: error rate of the look that decides.
        family: number of contrasts.
        reference: of the seeds there are. Its critical value is extrapolated: the excess over that of known variances
            falls with the degrees of freedom.
    """
    limit = NormalDist().inv_cdf(1 - (1 - (1 - level) ** (1 / family)) / 2)
    excess = 0.0 if reference.exact else max(0.0, reference.critical_z(level) - limit)
    surplus = NormalDist().inv_cdf(POWER)
    for total in range(count + 1, MOST_SEEDS + 1):
        freedom_then = freedom + total - count
        if reference.exact:
            critical = reference.critical_t(level, freedom_then)
        else:
            critical = from_normal(limit + excess * (count - 1) / (total - 1), freedom_then)
        if size * total**0.5 >= critical + surplus:
            return total - count
    return None
