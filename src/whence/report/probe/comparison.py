"""The page of two probes of the same items: both curves on the same axes, and their differences by slot."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from whence.probe.findings import NOT_SETTINGS, strongest
from whence.report.formatting import NO_VALUE, format_p
from whence.report.html_page import definition_list, provenance_section, render_page
from whence.report.probe.charts import slot_curves
from whence.report.probe.figures import NO_FIGURES, chart_html, has_figures
from whence.report.probe.model_terms import describe_model, describe_source, identity_terms
from whence.report.probe.sentences import (
    SCORES,
    SHORT,
    decimals,
    few_items_note,
    format_count,
    format_percent,
    format_points,
    measure_phrase,
    p_value,
)
from whence.report.probe.tables import table


def comparison_page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page from the findings of ``whence.probe.findings.compare_probes``."""
    first, second = findings["labels"]
    studies = [
        {"name": label, "task": "probe", "hash": side["hash"], "spec": side["plan"], "ran": side["ran"]}
        for label, side in zip(findings["labels"], findings["sides"], strict=True)
    ]
    sections = [
        f'<section class="verdict" aria-labelledby="better"><h2 id="better">Which is better, {html.escape(first)} or '
        f'{html.escape(second)}?</h2><p class="question">{html.escape(overall(findings))}</p>{_no_figures()}{_sides(findings)}</section>',
        *(_task(number, task, findings) for number, task in enumerate(findings["tasks"])),
        _settings(findings),
        provenance_section({**findings, "studies": studies}),
    ]
    return render_page(title(findings), "\n".join(sections), findings["when"])


def title(findings: dict[str, Any]) -> str:
    names = {side["model"]["name"] for side in findings["sides"]}
    pair = " and ".join(findings["labels"])
    return f"{pair}: accuracy by position" if len(names) > 1 else f"{names.pop()}, {pair}: accuracy by position"


def overall(findings: dict[str, Any]) -> str:
    """One sentence for all tasks."""
    significant = [task for task in findings["tasks"] if is_supported(task, findings)]
    total = format_count(len(findings["tasks"]), "task")
    if not significant:
        return (
            f"Undecided: none of {format_count(findings['decision']['tests'], 'difference')} in {total} is significant."
        )
    task = min(significant, key=lambda one: (_best(one)["p"], -abs(_best(one)["difference"])))
    return f"{len(significant)} of {total} differ, most clearly {task['name']}: {task_answer(task, findings)}"


def task_answer(task: dict[str, Any], findings: dict[str, Any]) -> str:
    """One sentence: which of the two is better with the gold in which slots."""
    first, second = findings["labels"]
    measure, best = _leading(task), _best(task)
    if not is_supported(task, findings):
        if all(cell["difference"] == 0 for one in task["measures"] for cell in one["slots"]):
            return "No difference: both have the same results in every slot."
        return f"Undecided: {_difference(measure, best, findings)}."
    alpha = findings["decision"]["alpha"]
    significant = [cell for cell in measure["slots"] if cell["p"] < alpha]
    slots_by_label = {
        label: [cell["slot"] + 1 for cell in significant if (cell["difference"] > 0) == (label == second)]
        for label in (second, first)
    }
    parts = [f"{label} is better with the gold in {_slots(slots)}" for label, slots in slots_by_label.items() if slots]
    if not parts:
        better = second if measure["mean"]["difference"] > 0 else first
        parts = [f"{better} is better on average over the slots, and no single slot is decided"]
    return f"{'; '.join(parts)} ({_difference(measure, best, findings)})."


def is_supported(task: dict[str, Any], findings: dict[str, Any]) -> bool:
    return bool(_best(task)["p"] < findings["decision"]["alpha"])


def _leading(task: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in task["measures"] if one["score"] == task["lead"])


def _best(task: dict[str, Any]) -> dict[str, Any]:
    return strongest(_leading(task))


def _difference(measure: dict[str, Any], cell: dict[str, Any], findings: dict[str, Any]) -> str:
    first, second = findings["labels"]
    condition = f"in slot {cell['slot'] + 1}" if "slot" in cell else "on average over the slots"
    better, worse = (second, first) if cell["difference"] > 0 else (first, second)
    return (
        f"{measure_phrase(measure['score'])} is {format_points(abs(cell['difference']))} points higher for {better} than for {worse} {condition}, "
        f"95% interval {_ends(cell, cell['difference'] < 0)}, {p_value(cell['p'])}"
    )


def _ends(cell: dict[str, Any], negate: bool = False) -> str:
    ends, places = cell["interval"], decimals(cell["difference"])
    if ends is None:
        return f"n/a ({cell['no_interval']})"
    low, high = (-ends["high"], -ends["low"]) if negate else (ends["low"], ends["high"])
    return f"{format_points(low, places)} to {format_points(high, places)}"


def _slots(slots: Sequence[int]) -> str:
    """
    >>> _slots([1]), _slots([1, 3, 6])
    ('slot 1', 'slots 1, 3 and 6')
    """
    if len(slots) == 1:
        return f"slot {slots[0]}"
    return f"slots {', '.join(map(str, slots[:-1]))} and {slots[-1]}"


def _no_figures() -> str:
    return "" if has_figures() else f'<p class="warning">{html.escape(NO_FIGURES)}</p>'


def _sides(findings: dict[str, Any]) -> str:
    cards = "".join(
        f'<article class="card"><h3>{html.escape(label)}</h3>'
        f"{definition_list([('model', html.escape(describe_model(side['model']))), *identity_terms(side['identity'])])}</article>"
        for label, side in zip(findings["labels"], findings["sides"], strict=True)
    )
    return f'<div class="cards">{cards}</div>'


def _task(number: int, task: dict[str, Any], findings: dict[str, Any]) -> str:
    few = few_items_note(task["items"])
    mark = f'<p class="warning small">{html.escape(few)}</p>' if few else ""
    ordered = sorted(task["measures"], key=lambda one: one["score"] != task["lead"])  # the leading measure first
    figures = "".join(_figure(task, one, findings["labels"]) for one in ordered)
    return (
        f'<section class="study" aria-labelledby="task-{number}"><h2 id="task-{number}">{html.escape(task["name"])}</h2>'
        f'<p class="question">{html.escape(task_answer(task, findings))}</p>{mark}'
        f"<p>{html.escape(task['about'])} {html.escape(format_count(task['items'], 'item'))} a slot. {html.escape(describe_source(task))}</p>"
        f'<div class="figures">{figures}</div>{_table(task, ordered, findings["labels"])}</section>'
    )


def _figure(task: dict[str, Any], measure: dict[str, Any], labels: Sequence[str]) -> str:
    words = SCORES[measure["score"]]
    named = list(zip(labels, measure["curves"], strict=True))
    levels = {} if measure["score"] == "generation" else {"chance": task["chance"]}
    description = f"{task['name']}: {words} of both by the slot of the gold"
    name = f"{task['task']}-{measure['score']}"
    chart = chart_html(slot_curves(name, named, task["slots"], levels, f"{words} (%)", description))
    return f'<figure class="figure"><h3>{html.escape(words[0].upper() + words[1:])}</h3>{chart}</figure>'


def _table(task: dict[str, Any], ordered: Sequence[dict[str, Any]], labels: Sequence[str]) -> str:
    rows = []
    for measure in ordered:
        one, other = measure["curves"]
        short = SHORT[measure["score"]]
        for cell, a, b in zip(measure["slots"], one["points"], other["points"], strict=True):
            rows.append(
                [
                    f"{short}, slot {cell['slot'] + 1}",
                    format_percent(a["mean"]),
                    format_percent(b["mean"]),
                    *_cells(cell),
                ]
            )
        rows.append(
            [
                f"{short}, mean",
                format_percent(one["average"]),
                format_percent(other["average"]),
                *_cells(measure["mean"]),
            ]
        )
    caption = f"Differences in points, {labels[1]} less {labels[0]}, paired by item."
    return table(caption, ["", *labels, "difference", "95% interval", "p"], rows)


def _cells(cell: dict[str, Any]) -> list[str]:
    plus = "+" if cell["difference"] > 0 else ""
    if cell["difference"] == 0 and cell["interval"] is None:
        return ["0", NO_VALUE, format_p(cell["p"])]
    return [f"{plus}{format_points(cell['difference'])}", _ends(cell), format_p(cell["p"])]


def _settings(findings: dict[str, Any]) -> str:
    """The settings of both plans side by side, and how the answers were decided."""
    one, other = (side["plan"] for side in findings["sides"])
    names = [name for name in {**one, **other} if name not in NOT_SETTINGS]
    names.sort(key=lambda name: one.get(name) == other.get(name))  # what differs first
    rows = [
        [name, _plain(one.get(name)), _plain(other.get(name)), "" if one.get(name) == other.get(name) else "differs"]
        for name in names
    ]
    decision = findings["decision"]
    left_out = (
        f" Left out, because only one probe has it: {', '.join(SCORES[one] for one in findings['left_out'])}."
        if findings["left_out"]
        else ""
    )
    text = (
        f"A positive difference is in favor of {findings['labels'][1]}. p: max-T permutation test with sign flips of whole items, over all "
        f"{format_count(decision['tests'], 'difference')} on this page (every slot and the mean over slots, for every measure and task). "
        f"A difference is supported at p < {decision['alpha']:g}. The intervals are simultaneous. Bars in the charts are the 95% intervals of each "
        f"curve alone. Tasks with fewer than {decision['few']} items per slot are marked. Slots count from 1.{left_out}"
    )
    return (
        '<section class="study" aria-labelledby="settings"><h2 id="settings">How it was measured and decided</h2>'
        f"<p>{html.escape(text)}</p>{table('Settings of both plans.', ['setting', *findings['labels'], ''], rows)}</section>"
    )


def _plain(value: Any) -> str:
    return NO_VALUE if value is None else str(value)
