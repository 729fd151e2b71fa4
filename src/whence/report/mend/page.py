"""The page of one trial: curves before and after, the table of cures, attention to the gold, and how it was run."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from whence.probe.identity import describe_intervention
from whence.report.formatting import NO_VALUE, format_number, format_signed, is_finite_number
from whence.report.html_page import definition_list, provenance_section, render_page
from whence.report.item_verdicts import describe_further_items
from whence.report.mend import charts
from whence.report.mend.published_figures import published_figures
from whence.report.mend.sentences import (
    describe_rule,
    describe_verdict,
    few_items,
    trial_answer,
)
from whence.report.probe.figures import NO_FIGURES, chart_html, has_figures
from whence.report.probe.model_terms import describe_source, model_details
from whence.report.probe.tables import table

SHOWN = 3  # cures beside the untouched model in the charts at the top


def page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page about a trial, from the findings of ``whence.mend.judgement``."""
    study = {"name": "the plan", "task": "trial", "hash": findings["hash"], "spec": findings["plan"],
             "ran": findings["ran"]}  # fmt: skip
    sections = [part(findings) for part in (_curves, _table, _attention)]
    sections.append(provenance_section({**findings, "studies": [study]}))
    return render_page(findings["title"], "\n".join(sections), findings["when"])


def _curves(findings: dict[str, Any]) -> str:
    shown = findings["cures"][:SHOWN]
    cards = "".join(
        _figure(
            task["name"],
            chart_html(charts.cure_curves(findings, task, shown, "curves")),
            f"{task['about']} {describe_source(task)}",
        )
        for task in findings["tasks"]
    )
    note = few_items(findings)
    every = "".join(
        f'<h3>{html.escape(cure["title"])}</h3><div class="figures">'
        + "".join(
            _figure(task["name"], chart_html(charts.cure_curves(findings, task, [cure], cure["label"])), "")
            for task in findings["tasks"]
        )
        + "</div>"
        for cure in findings["cures"]
    )
    first = {0: "", 1: " and the first cure of the table below"}.get(
        len(shown), f" and the first {len(shown)} cures of the table below"
    )
    which = f"The curves are of the untouched model, which is the model without a cure{',' if first else ''}{first}. The gold is the text with the answer; its slot is its place among the texts of the prompt."
    random = "random" in findings["model"]
    return (
        '<section class="verdict" aria-labelledby="curves"><h2 id="curves">Does a cure help?</h2>'
        f'<p class="question">{html.escape(trial_answer(findings))}</p>'
        + (f'<p class="warning small">{html.escape(note)}</p>' if note else "")
        + ("<p>The weights are random: this page shows that all parts run, and nothing else.</p>" if random else "")
        + ("" if has_figures() else f'<p class="warning">{html.escape(NO_FIGURES)}</p>')
        + _missing(findings)
        + model_details(findings["model"], findings["identity"])
        + f"<p>{which}</p>"
        + f'<div class="figures">{cards}</div>'
        + (f"<details><summary>Every cure</summary>{every}</details>" if every else "")
        + "</section>"
    )


def _missing(findings: dict[str, Any]) -> str:
    if not findings["missing"]:
        return ""
    return (
        f'<p class="warning">Not measured yet: {html.escape("; ".join(findings["missing"]))}. Run the same command to '
        "resume.</p>"
    )


HEAD = (
    "cure", "verdict", "difference, points", "interval", "average, %", "worst position, %", "gap, points",
    "further items to decide",
)  # fmt: skip
COST_HEAD = (
    "cure", "tokens read", "time to read", "time per token", "memory", "perplexity", "at the best position, points",
)  # fmt: skip


def verdict_rows(findings: dict[str, Any]) -> list[list[str]]:
    """The rows of the table of verdicts; the untouched model comes first."""
    rows = [["untouched", NO_VALUE, NO_VALUE, NO_VALUE, *_shares(findings["untouched"]), NO_VALUE]]
    return rows + [
        [
            cure["display_name"],
            describe_verdict(cure),
            *_difference(cure["contrast"]),
            *_shares(cure),
            describe_further_items(cure),
        ]
        for cure in findings["cures"]
    ]


def cost_rows(findings: dict[str, Any]) -> list[list[str]]:
    """The rows of the table of costs and harm."""
    return [
        [
            cure["display_name"],
            *(
                _ratio(cure["ratios"][name])
                for name in ("tokens_read", "prompt_seconds", "token_seconds", "peak_bytes")
            ),
            _perplexity(cure["perplexity"]),
            _at_best(cure["at_best"]),
        ]
        for cure in findings["cures"]
    ]


def _table(findings: dict[str, Any]) -> str:
    verdicts = "Accuracy on the judging half of the items, with intervals in parentheses."
    costs = "Cost and harm: ratios to the untouched model in the same run (1 is no change); in the last column, points of accuracy."
    settings = definition_list(
        [
            (
                cure["title"],
                f"<code>{html.escape(describe_intervention(cure['chosen']))}</code>"
                + (f" ({html.escape(cure['paper'])})" if cure["paper"] else ""),
            )
            for cure in findings["cures"]
        ]
    )
    return _section(
        "cures",
        "What does each cure do, and what does it cost?",
        table(verdicts, HEAD, verdict_rows(findings))
        + f'<p class="small">{html.escape(describe_rule(findings))}</p>'
        + (table(costs, COST_HEAD, cost_rows(findings)) if findings["cures"] else "")
        + '<p class="small">Tokens read: all tokens that enter the model until the choices of a prompt are scored. Time to '
        "read: until the first token, with the time in which a cure rewrites the prompt. Memory: the peak while the prompt is "
        "read, the model included. Perplexity: of the second half of plain texts, after the first half. At the best position: "
        "the change at the slot where the untouched model is best.</p>"
        + published_figures(findings)
        + (f"<details><summary>Settings and papers</summary>{settings}</details>" if findings["cures"] else "")
        + _unavailable(findings["unavailable"]),
    )


def _unavailable(cures: Sequence[dict[str, Any]]) -> str:
    if not cures:
        return ""
    rows = [(cure["title"], html.escape(cure["reason"])) for cure in cures]
    return f"<h3>Could not be applied</h3>{definition_list(rows)}"


def _attention(findings: dict[str, Any]) -> str:
    shown = findings["cures"][:SHOWN]
    drawn = [(task, charts.gold_attention(findings, task, shown)) for task in findings["tasks"]]
    cards = "".join(_figure(task["name"], chart_html(chart), "") for task, chart in drawn if chart is not None)
    effects = [(cure["title"], charts.effect_curves(cure)) for cure in findings["cures"]]
    drawn_effects = "".join(_figure(title, chart_html(chart), "") for title, chart in effects if chart is not None)
    if not cards and not drawn_effects:
        return ""
    gold = (
        "<p>The share of the answering token’s attention that goes to the gold as it moves, averaged over layers and heads.</p>"
        f'<div class="figures">{cards}</div>'
        if cards
        else ""
    )
    settings = (
        "<h3>What the setting of a cure does to attention</h3><p>The answering token’s attention to a token of each slot, "
        "averaged over prompts of the search half, heads and the layers that the cure changes. Scale 1 changes nothing.</p>"
        f'<div class="figures">{drawn_effects}</div>'
        if drawn_effects
        else ""
    )
    return _section("why", "Does attention follow the gold?", gold + settings)


def _shares(summary: dict[str, Any]) -> list[str]:
    return [
        f"{format_number(100 * one['mean'], 0)} ({format_number(100 * one['low'], 0)} to {format_number(100 * one['high'], 0)})"
        for one in (summary["average"], summary["worst"], summary["gap"])
    ]


def _difference(contrast: dict[str, Any]) -> tuple[str, str]:
    """The estimate and its interval."""
    if contrast["estimate"] is None:
        return NO_VALUE, NO_VALUE
    interval = contrast["interval"]
    ends = (
        NO_VALUE if interval is None else f"{format_signed(interval['low'], 1)} to {format_signed(interval['high'], 1)}"
    )
    return format_signed(contrast["estimate"], 1), ends


def _ratio(value: float | None) -> str:
    return format_number(value, 2) if is_finite_number(value) else NO_VALUE


def _perplexity(perplexity: dict[str, Any] | None) -> str:
    return NO_VALUE if perplexity is None or "ratio" not in perplexity else format_number(perplexity["ratio"], 3)


def _at_best(change: dict[str, Any] | None) -> str:
    if change is None:
        return NO_VALUE
    return (
        f"{format_signed(100 * change['mean'], 0)} ({format_signed(100 * change['low'], 0)} to "
        f"{format_signed(100 * change['high'], 0)})"
    )


def _section(name: str, title: str, content: str) -> str:
    return (
        f'<section class="study" aria-labelledby="{name}"><h2 id="{name}">{html.escape(title)}</h2>{content}</section>'
    )


def _figure(title: str, chart: str, caption: str) -> str:
    under = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="figure"><h3>{html.escape(title)}</h3>{chart}{under}</figure>'
