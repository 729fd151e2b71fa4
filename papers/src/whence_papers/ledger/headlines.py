"""Headline figures of papers about positional bias and its cures, beside ours from the committed records."""

from __future__ import annotations

from collections.abc import Sequence

from whence.mend.catalogue import CURES
from whence.mend.published import HEADLINES, STATISTICS, Headline
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.mend_records import UnavailableCure, find_trials, load_pairs, measure_change
from whence_papers.ledger.probe_records import load_answers

#: title of each model and the beginning of its name in the records
MODELS = {"SmolLM2-135M": "smollm2", "Gemma 3 270M": "gemma"}
NO_TRIAL = "no trial yet"


def headline_rows(folders: LedgerFolders) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table."""
    head = ["cure", "paper", "its measure", "published", "our measure", *MODELS]
    rows = []
    for one in HEADLINES:
        title = CURES[one.cure].title if one.cure in CURES else one.cure or "none"
        ours = [describe_ours(folders, one, model) for model in MODELS.values()]
        rows.append([title, one.paper, one.measure, one.published, describe_measure(folders, one), *ours])
    return head, rows


def describe_measure(folders: LedgerFolders, headline: Headline) -> str:
    """What is measured here, with the tasks of the trials."""
    labels = {
        spec.label
        for model in MODELS.values()
        for _, plan, _ in find_trials(folders, model)
        for spec in plan.tasks
        if headline.covers(spec.label)
    }
    return f"{headline.ours} ({', '.join(sorted(labels))})" if labels else headline.ours


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
