"""The published figures of the cures of a trial, beside those of the trial."""

from __future__ import annotations

import html
from typing import Any

import torch

from whence.mend.published import HEADLINES, STATISTICS, Headline
from whence.report.formatting import format_number
from whence.report.html_page import definition_list

LARGE = "7 billion parameters or more"


def published_figures(findings: dict[str, Any]) -> str:
    """For each judged cure what its paper reports and what this trial finds, as HTML; empty if no paper reports anything."""
    rows = []
    for cure in findings["cures"]:
        lines = [
            f"{html.escape(one.measure)}: {html.escape(one.published)}. Here, {html.escape(ours)}."
            for one in HEADLINES
            if one.cure == cure["name"] and (ours := describe_trial(findings, cure, one))
        ]
        if lines:
            rows.append((cure["title"], "<br>".join(lines)))
    if not rows:
        return ""
    return (
        f"<h3>What the papers report</h3><p>Accuracy in % without → with the cure. {html.escape(describe_difference(findings))}"
        f"</p>{definition_list(rows)}"
    )


def describe_trial(findings: dict[str, Any], cure: dict[str, Any], headline: Headline) -> str:
    """The figure of a trial without and with a cure, as a mean over the tasks that come nearest; empty without such tasks."""
    tasks = [task for task in cure["curves"] if headline.covers(task)]
    if not tasks:
        return ""
    statistic = STATISTICS[headline.statistic]
    before, after = (
        sum(
            float(statistic(torch.tensor([point["mean"] for point in side["curves"][task]["points"]])))
            for task in tasks
        )
        / len(tasks)
        for side in (findings["untouched"], cure)
    )
    return f"{headline.ours}: {format_number(100 * before, 1)} → {format_number(100 * after, 1)}"


def describe_difference(findings: dict[str, Any]) -> str:
    """What differs between the papers and this trial, in words."""
    millions = (findings["model"].get("parameters") or 0) / 1e6
    size = f"this one has {millions:,.0f} million" if millions >= 1 else "this one is much smaller"
    return (
        f"The papers’ models have {LARGE}; {size}. They generate answers to the papers’ own questions. So compare the "
        "direction of a change and not its level."
    )
