"""The tables of docs/mending.md from the committed trials of cures: verdicts by task, and published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_tables import markdown
from mend_figure import by_length
from whence.mend.catalogue import CURES
from whence.mend.judgement import collect_trial
from whence.report.formatting import NO_VALUE, format_number, format_signed
from whence_papers import FOLDER
from whence_papers.ledger import LedgerFolders
from whence_papers.ledger.headlines import MODELS, headline_rows
from whence_papers.ledger.mend_records import find_trials

RESULTS = FOLDER / "results"
NO_TRIALS = "No trial is committed yet; `python tools/mend_trials.py run smollm2 gemma3` runs them on a GPU."
Trials = dict[str, dict[str, Any]]  # findings by the label of the task


def published_table(results: Path = RESULTS) -> str:
    """Published figures and ours."""
    return markdown(*headline_rows(LedgerFolders(results=results)))


def trial_tables(results: Path = RESULTS, models: Mapping[str, str] = MODELS) -> str:
    """A table for each model with trials: a row for each cure, a column for each task, then costs."""
    parts = []
    for title, name in models.items():
        trials = collect_trials(results, name)
        if trials:
            parts.append(f"{title}:\n\n{markdown(*trial_rows(trials))}")
    return "\n\n".join(parts) or NO_TRIALS


def collect_trials(results: Path, model: str) -> Trials:
    """The findings of the trials of a model, by task. A task of several trials counts in the one with the most items."""
    trials: Trials = {}
    for folder, plan, _ in find_trials(LedgerFolders(results=results), model):
        found = collect_trial(folder)
        for spec in plan.tasks:
            known = trials.get(spec.label)
            if known is None or count_items(known) < count_items(found):
                trials[spec.label] = found
    return trials


def count_items(found: dict[str, Any]) -> int:
    """The items that judged, of all tasks of a trial."""
    return max((cure["contrast"]["seeds"] for cure in found["cures"]), default=0)


def trial_rows(trials: Trials) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table of one model. Trials of several tasks are one column."""
    columns = {found["hash"]: found for _, found in sorted(trials.items(), key=lambda one: by_length(one[0]))}
    names = ["; ".join(task["name"] for task in found["tasks"]) for found in columns.values()]
    head = ["cure", *names, "time to read", "perplexity"]
    first = [f"{_percent(found, 'average')} (gap {_percent(found, 'gap')})" for found in columns.values()]
    rows = [["none: accuracy in %", *first, NO_VALUE, NO_VALUE]]
    for cure, kind in CURES.items():
        judged = [next((one for one in found["cures"] if one["name"] == cure), None) for found in columns.values()]
        if any(judged):
            costs = [
                _mean([one for one in judged if one], *path)
                for path in (("ratios", "prompt_seconds"), ("perplexity", "ratio"))
            ]
            cells = [_verdict(one, count_items(found)) for one, found in zip(judged, columns.values(), strict=True)]
            rows.append([kind.title, *cells, format_number(costs[0], 2), format_number(costs[1], 3)])
        elif any(cure == one["name"] for found in columns.values() for one in found["unavailable"]):
            rows.append([kind.title, *["not applicable"] * len(columns), NO_VALUE, NO_VALUE])
    return head, rows


def _percent(found: dict[str, Any], name: str) -> str:
    return format_number(100 * found["untouched"][name]["mean"], 1)


def _verdict(cure: dict[str, Any] | None, items: int) -> str:
    """The verdict with its interval, and the number of items if other cures of the trial have more."""
    if cure is None or cure["contrast"]["estimate"] is None:
        return NO_VALUE
    interval = cure["contrast"]["interval"]
    ends = "" if interval is None else f" ({format_signed(interval['low'], 1)} to {format_signed(interval['high'], 1)})"
    verdict = f"**{cure['verdict']}**" if cure["verdict"] in ("better", "worse") else cure["verdict"]
    own = cure["contrast"]["seeds"]
    fewer = f", {own} items" if own < items else ""
    return f"{verdict} {format_signed(cure['contrast']['estimate'], 1)}{ends}{fewer}"


def _mean(cures: list[dict[str, Any]], group: str, name: str) -> float | None:
    """The mean of a ratio over trials; None if no trial has it."""
    values = [value for one in cures if (value := (one[group] or {}).get(name)) is not None]
    return sum(values) / len(values) if values else None
