"""Headline figures of papers about positional bias and its cures, to stand beside the figures of a trial.

They are accuracies of generated answers, mostly of models with 7 billion parameters or more, on the papers' own questions.
A trial on another model, other questions and other lengths can be compared in the direction of a change, not in its level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

#: of the mean accuracy at each slot
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "average": lambda means: means.mean(-1),
    "worst": lambda means: means.amin(-1),
    "gap": lambda means: means.amax(-1) - means.amin(-1),
    "first": lambda means: means[..., 0],
    "middle": lambda means: means[..., means.shape[-1] // 2],
    "last": lambda means: means[..., -1],
}


@dataclass(frozen=True)
class Headline:
    """A published figure without and with a cure, and what of a trial comes nearest to it.

    Args:
        cure: its name in the catalogue of cures; empty for a model without a cure.
        paper: authors, year and arXiv number.
        measure: what the paper measured.
        published: its figures, with the model where the source names one.
        ours: what a trial measures instead.
        tasks: beginnings of the labels of tasks; all tasks if empty.
        statistic: one of ``STATISTICS``.
    """

    cure: str
    paper: str
    measure: str
    published: str
    ours: str
    tasks: tuple[str, ...] = ()
    statistic: str = "average"

    def covers(self, task: str) -> bool:
        """Whether a task, by its label, is one of those that come nearest."""
        return not self.tasks or task.startswith(self.tasks)


SCALING, CALIBRATION = "Yu et al. 2024, arXiv 2406.02536", "Hsieh et al. 2024, arXiv 2406.16008"
MS_POE, IN2 = "Zhang et al. 2024, arXiv 2403.04797", "An et al. 2024, arXiv 2404.16811"
DOCUMENTS, KEY_VALUE = ("documents",), ("key-value",)

HEADLINES = (
    Headline(
        "", "Liu et al. 2023, arXiv 2307.03172", "20 documents, gold first, tenth, last",
        "GPT-3.5: 75.8, 53.8, 63.2", "documents: gold first, middle, last", DOCUMENTS,
    ),
    Headline(
        "scale-channel", SCALING, "20 documents, average", "Llama-2-7b: 31.3 → 40.6", "documents, average", DOCUMENTS
    ),
    Headline(
        "scale-channel", SCALING, "key-value, average",
        "Gemma 7b: 82.3 → 97.5; Qwen1.5-7b: 79.6 → 92.5; Llama-2-13b: 71.0 → 53.9", "key-value, average", KEY_VALUE,
    ),
    Headline(
        "calibration", CALIBRATION, "20 documents, gold in the middle", "Vicuna: 47.3 → 56.2", "documents, gold in the middle",
        DOCUMENTS, "middle",
    ),
    Headline(
        "calibration", CALIBRATION, "20 documents, gold first", "Vicuna: 71.9 → 66.4", "documents, gold first", DOCUMENTS, "first"
    ),
    Headline("ms-poe", MS_POE, "10 documents, average", "61.1 → 65.0", "documents, average", DOCUMENTS),
    Headline(
        "ms-poe", MS_POE, "key-value, by other authors", "collapses", "key-value, average", KEY_VALUE
    ),
    Headline(
        "pine", "Wang et al. 2024, arXiv 2407.01100", "RewardBench, reasoning", "Llama-3-8B: 65.3 → 73.4",
        "documents, average (another task)", DOCUMENTS,
    ),
    Headline("in2", IN2, "probing tasks, average", "Mistral-7B: 47.3 → 85.9", "all tasks, average"),
    Headline("in2", IN2, "probing tasks, gap", "Mistral-7B: 56.2 → 13.9", "all tasks, gap", statistic="gap"),
)  # fmt: skip
