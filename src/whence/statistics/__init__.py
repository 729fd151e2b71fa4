"""Statistics for few seeds and many arms: summaries, tests, corrections and verdicts.

scipy, from the extra ``lab``, is imported when a distribution is first needed.
"""

from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.contrasts import Contrast
from whence.statistics.corrections import bonferroni, holm
from whence.statistics.item_comparison import compare_items
from whence.statistics.paired_comparison import PairedComparison, compare_paired
from whence.statistics.samples import Interval, Proportion, Summary, cluster_proportion, proportion, summary
from whence.statistics.two_samples import Difference, EffectSize, cohen_d, paired_t, welch

__all__ = [
    "AnalysisPlan", "Contrast", "Difference", "EffectSize", "Interval", "PairedComparison", "Proportion", "Summary",
    "bonferroni", "cluster_proportion", "cohen_d", "compare_items", "compare_paired", "holm", "paired_t", "proportion", "summary", "welch",
]  # fmt: skip
