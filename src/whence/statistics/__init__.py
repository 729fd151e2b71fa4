"""Few seeds, many arms: summaries, tests, corrections and a verdict that claims no more than the seeds can carry.

Nothing here knows what was measured. scipy, of the extra ``lab``, is loaded when a distribution is first needed.
"""

from whence.statistics.comparison import Arm, Comparison, compare
from whence.statistics.corrections import bonferroni, holm
from whence.statistics.groups import share_over_groups
from whence.statistics.permutation import Rearrangement, paired, permutation, smallest_p, smallest_paired_p
from whence.statistics.samples import Interval, Proportion, Summary, proportion, summary
from whence.statistics.two_samples import Difference, Effect, cohen_d, paired_t, welch

__all__ = [
    "Arm", "Comparison", "Difference", "Effect", "Interval", "Proportion", "Rearrangement", "Summary",
    "bonferroni", "cohen_d", "compare", "holm", "paired", "paired_t", "permutation", "proportion",
    "share_over_groups", "smallest_p", "smallest_paired_p", "summary", "welch",
]  # fmt: skip
