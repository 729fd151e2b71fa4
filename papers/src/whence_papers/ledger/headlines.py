"""Headline figures of papers about positional bias and its cures, beside ours from the committed records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whence.mend.catalogue import CURES
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.mend_records import STATISTICS, UnavailableCure, load_pairs, measure_change
from whence_papers.ledger.probe_records import load_answers

#: title of each model and the beginning of its name in the records
MODELS = {"SmolLM2-135M": "smollm2", "Gemma 3 270M": "gemma"}
NO_TRIAL = "no trial yet"


@dataclass(frozen=True)
class Headline:
    """A published figure without and with a cure, and what of ours comes nearest to it."""

    cure: str  # its name in the catalogue of cures; empty for the untouched model
    paper: str
    measure: str  # of the paper
    published: str
    ours: str  # what is measured here
    tasks: tuple[str, ...] = ()  # beginnings of labels; all tasks if empty
    statistic: str = "average"  # one of STATISTICS


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
    Headline("in2", IN2, "probing tasks, average", "47.3 → 85.9", "all tasks, average"),
    Headline("in2", IN2, "probing tasks, gap", "56.2 → 13.9", "all tasks, gap", statistic="gap"),
)  # fmt: skip


def headline_rows(folders: LedgerFolders) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table."""
    head = ["cure", "paper", "its measure", "published", "our measure", *MODELS]
    rows = []
    for one in HEADLINES:
        title = CURES[one.cure].title if one.cure in CURES else one.cure or "none"
        ours = [describe_ours(folders, one, model) for model in MODELS.values()]
        rows.append([title, one.paper, one.measure, one.published, one.ours, *ours])
    return head, rows


def describe_ours(folders: LedgerFolders, headline: Headline, model: str) -> str:
    """Our figure, in percent or points: before → after, with the interval of the change."""
    if not headline.cure:
        return describe_untouched(folders, model, headline.tasks)
    try:
        change = measure_change(load_pairs(folders, model, headline.cure, headline.tasks or None))
    except UnavailableCure:
        return "not applicable"
    except MissingEvidence:
        return NO_TRIAL
    before, after, low, high = (
        change[f"{headline.statistic}_{part}"] for part in ("before", "after", "change_low", "change_high")
    )
    return f"{before:.1f} → {after:.1f} ({low:+.1f} to {high:+.1f})"


def describe_untouched(folders: LedgerFolders, model: str, tasks: Sequence[str]) -> str:
    """Accuracy without a cure at the first, the middle and the last slot: of any trial, else of the probe of 20 documents."""
    for cure in CURES:
        try:
            pairs = load_pairs(folders, model, cure, tasks)
        except MissingEvidence:
            continue
        change = measure_change(pairs)
        return ", ".join(f"{change[f'{name}_before']:.1f}" for name in ("first", "middle", "last"))
    try:
        means = 100 * load_answers(folders, model, "documents-of-20", "likelihood")[0].mean(0)
    except MissingEvidence:
        return NO_TRIAL
    return ", ".join(f"{float(STATISTICS[name](means)):.1f}" for name in ("first", "middle", "last"))
