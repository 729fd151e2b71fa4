"""Statistics for few seeds and many arms: summaries, tests, corrections and verdicts.

scipy, from the extra ``lab``, is imported when a distribution is first needed.
"""

from whence.statistics.comparison import ArmComparison, Comparison, bonferroni, compare, holm
from whence.statistics.paired_comparison import AnalysisPlan, Contrast, PairedComparison, compare_paired
from whence.statistics.permutation import (
    PermutationResult,
    permutation_test,
    sign_flip_test,
    smallest_p,
    smallest_paired_p,
)
from whence.statistics.samples import Interval, Proportion, Summary, cluster_proportion, proportion, summary
from whence.statistics.two_samples import Difference, EffectSize, cohen_d, paired_t, welch

__all__ = [
    "AnalysisPlan", "ArmComparison", "Comparison", "Contrast", "Difference", "EffectSize", "Interval", "PairedComparison",
    "PermutationResult", "Proportion", "Summary", "bonferroni", "cluster_proportion", "cohen_d", "compare",
    "compare_paired", "holm", "paired_t", "permutation_test", "proportion",
    "sign_flip_test", "smallest_p", "smallest_paired_p", "summary", "welch",
]  # fmt: skip
