"""The pages of benchmarks: scores with intervals for one model, differences with verdicts for two."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from whence.report.bench.interval_chart import Interval, interval_chart
from whence.report.bench.sentences import (
    compare_answer,
    describe_difference,
    describe_p,
    describe_rule,
    format_score,
    name_metric,
    name_task,
    summarize,
)
from whence.report.formatting import format_count, format_number, format_seconds
from whence.report.html_page import definition_list, provenance_section, render_page
from whence.report.item_verdicts import describe_further_items
from whence.report.probe.model_terms import describe_model, identity_terms, model_details
from whence.report.probe.tables import table

HEAD = ("task", "metric", "score (95% interval)", "items", "shortened prompts", "seconds")
COMPARISON_HEAD = (
    "task", "verdict", "metric", "before", "after", "difference (interval)", "p", "items", "better, worse items",
    "further items to decide",
)  # fmt: skip
TEXT_COLUMNS = ("verdict", "metric")


def page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page from ``whence.bench.findings.collect_findings``."""
    study = {"name": "the plan", "task": "benchmarks", "hash": findings["hash"], "spec": findings["plan"],
             "ran": findings["ran"]}  # fmt: skip
    settings = findings["plan"]["settings"]
    random = "random" in findings["model"]
    sections = [
        '<section class="verdict" aria-labelledby="scores"><h2 id="scores">How well does the model do?</h2>'
        f'<p class="question">{html.escape(summarize(findings))}</p>'
        + ("<p>The weights are random: this page shows that all parts run, and nothing else.</p>" if random else "")
        + _limits(settings)
        + model_details(findings["model"], findings["plan"]["identity"])
        + "".join(_scores_chart(findings, unit) for unit in ("%", ""))
        + "</section>",
        _section(
            "tasks",
            "All scores",
            table("Intervals are for new items of the same kind.", HEAD, score_rows(findings), TEXT_COLUMNS)
            + '<p class="small">Wilson’s interval where an item is right or wrong, else a bootstrap over items.'
            " Shortened prompts lost their middle to fit into the model.</p>"
            + _older(findings["older"])
            + _files(findings["tasks"]),
        ),
        provenance_section({**findings, "studies": [study]}),
    ]
    return render_page(findings["title"], "\n".join(sections), findings["when"])


def _limits(settings: dict[str, Any]) -> str:
    """A warning if the settings make scores incomparable with published ones."""
    if settings["max_new_tokens"] is None:
        return ""
    return (
        f'<p class="warning">At most {settings["max_length"]} tokens of a prompt and {settings["max_new_tokens"]} new '
        "tokens: these scores cannot be compared with published ones.</p>"
    )


def score_rows(findings: dict[str, Any]) -> list[list[str]]:
    """A row for every metric of every task."""
    rows = []
    for task in findings["tasks"]:
        for number, metric in enumerate(task["metrics"]):
            last = [format_count(task["shortened"]), format_seconds(task["seconds"])] if number == 0 else ["", ""]
            name = name_task(task) if number == 0 else ""
            rows.append(
                [name, name_metric(metric["metric"]), format_score(metric), format_count(metric["items"]), *last]
            )
    return rows


def _scores_chart(findings: dict[str, Any], unit: str) -> str:
    rows = [
        Interval(f"{name_task(task)}, {name_metric(metric['metric'])}", metric["score"], metric["interval"])
        for task in findings["tasks"]
        for metric in task["metrics"]
        if metric["unit"] == unit and (metric["decides"] or not unit)
    ]
    if not rows:
        return ""
    title = "Deciding metric of each task (%)" if unit else "Other scores"
    return f'<figure class="forest"><h3>{title}</h3>{interval_chart(rows, title)}</figure>'


def _older(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f"<details><summary>Earlier versions of {len(names)} task records, not shown: their files, settings or code were "
        f"others</summary><p>{html.escape('; '.join(names))}</p></details>"
    )


def _files(tasks: Sequence[dict[str, Any]]) -> str:
    rows = [
        (name_task(task), "<br>".join(f"<code>{html.escape(name)}</code> SHA-256 <code>{digest[:12]}</code>"
                                      for name, digest in task["files"].items()) or "data of the harness")
        for task in tasks
    ]  # fmt: skip
    return f"<details><summary>Files</summary>{definition_list(rows)}</details>"


def comparison_page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page from ``whence.bench.findings.compare_benchmarks``."""
    studies = [
        {"name": name, "task": "benchmarks", "hash": side["hash"], "spec": side["plan"], "ran": side["ran"]}
        for name, side in zip(findings["names"], findings["sides"], strict=True)
    ]
    models = [
        (label, html.escape(describe_model(side["model"])) + " · " + "; ".join(
            f"{term}: {words}" for term, words in identity_terms(side["plan"]["identity"])
            if term in ("weights", "attached", "intervention", "precision")))
        for label, side in zip(("before", "after"), findings["sides"], strict=True)
    ]  # fmt: skip
    rows = [
        Interval(
            f"{name_task(task)}, {name_metric(task['metric'])}",
            task["contrast"]["estimate"],
            None
            if task["contrast"]["interval"] is None
            else [task["contrast"]["interval"][end] for end in ("low", "high")],
        )
        for task in findings["tasks"]
        if task["contrast"]["estimate"] is not None
    ]
    chart = interval_chart(rows, "Difference after minus before, points", zero=True, margin=findings["margin"])
    other = sum(task["other_prompts"] for task in findings["tasks"])
    warning = (
        f'<p class="warning">{other} prompts differ between the two models, because they were shortened or formatted in '
        "another way.</p>"
        if other
        else ""
    )
    only = (
        f"<p>Only one of the two has run: {html.escape(', '.join(findings['only']))}.</p>" if findings["only"] else ""
    )
    random = any("random" in side["model"] for side in findings["sides"])
    sections = [
        '<section class="verdict" aria-labelledby="better"><h2 id="better">Which is better?</h2>'
        f'<p class="question">{html.escape(compare_answer(findings))}</p>{warning}{only}'
        + ("<p>The weights are random: this page shows that all parts run, and nothing else.</p>" if random else "")
        + definition_list(models)
        + f'<figure class="forest"><h3>Difference, after minus before (points)</h3>{chart}'
        f"<figcaption>Lines are intervals. Dashed: the margin of ±{findings['margin']:g} points.</figcaption></figure></section>",
        _section(
            "tasks",
            "Every task",
            table("Both models on the same items.", COMPARISON_HEAD, comparison_rows(findings), TEXT_COLUMNS)
            + f'<p class="small">{html.escape(describe_rule(findings))}</p>',
        ),
        provenance_section({**findings, "studies": studies}),
    ]
    return render_page(findings["title"], "\n".join(sections), findings["when"])


def comparison_rows(findings: dict[str, Any]) -> list[list[str]]:
    """A row for every task of a comparison."""
    return [
        [
            name_task(task),
            task["verdict"],
            name_metric(task["metric"]),
            *(f"{format_number(value, 1)}{task['unit']}" for value in task["means"]),
            describe_difference(task),
            describe_p(task),
            format_count(task["items"]),
            f"{task['better_items']}, {task['worse_items']}",
            describe_further_items(task),
        ]
        for task in findings["tasks"]
    ]


def _section(name: str, title: str, content: str) -> str:
    return (
        f'<section class="study" aria-labelledby="{name}"><h2 id="{name}">{html.escape(title)}</h2>{content}</section>'
    )
