"""The page of one probe: accuracy by slot, attention, hidden states, causes, hypotheses, and how it was run.

Each section begins with one sentence that answers its title.
"""

from __future__ import annotations

import html
from typing import Any

from whence.errors import usage_error
from whence.report.html_page import provenance_section, render_page
from whence.report.probe import charts, explanation_charts, growth_charts, tables
from whence.report.probe.figures import NO_FIGURES, chart_html, emphasis_parts, has_figures
from whence.report.probe.model_terms import describe_source, model_details
from whence.report.probe.sentences import (
    ablation_answer,
    attention_answer,
    causes_answer,
    describe_decision_rule,
    describe_emphasis,
    describe_numbers,
    few_items_note,
    format_count,
    geometry_answer,
    growth_answer,
    headline,
    section_answer,
)

CURVES = "Does the position of the answer matter?"
ALIKE = " All alike: every slot holds the same words, so only position differs."
REGIONS = {
    "sink": "share to the first token",
    "primacy": "share to the beginning",
    "recency": "share to the end",
}


def page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page about a probe, from the findings of ``whence.probe.findings``."""
    if not findings.get("tasks"):
        raise usage_error("page(findings)", "no tasks", "a probe has at least one", "run a probe first")
    study = {"name": "the plan", "task": "probe", "hash": findings["hash"], "spec": findings["plan"],
             "ran": findings["ran"]}  # fmt: skip
    sections = [part(findings) for part in (_curves, _capture_error, _attention, _hidden_states, _causes)]
    sections.append(provenance_section({**findings, "studies": [study]}))
    return render_page(findings["title"], "\n".join(sections), findings["when"])


def _curves(findings: dict[str, Any]) -> str:
    decision = findings["decision"]
    random = " Its weights are random: this page shows that all parts run, and nothing else."
    cards = "".join(
        f'<figure class="figure"><p class="kicker">{html.escape(task["name"])}</p><h3>{html.escape(headline(task))}</h3>'
        f"{_few(task['items'])}{chart_html(charts.gold_curve(task))}"
        f"<figcaption>{html.escape(' '.join(filter(None, (task['about'], describe_numbers(task), describe_source(task)))))}</figcaption></figure>"
        for task in findings["tasks"]
    )
    return (
        f'<section class="verdict" aria-labelledby="curves"><h2 id="curves">{CURVES}</h2>'
        f"{_answer(section_answer(findings))}{_incomplete_tasks(findings)}{_no_figures()}"
        f"{model_details(findings['model'], findings['identity'])}"
        f"{f'<p>{random}</p>' if 'random' in findings['model'] else ''}"
        f'<div class="figures">{cards}{_lengths(findings["tasks"])}</div>{tables.curves(findings["tasks"])}'
        f'<p class="small">{html.escape(describe_decision_rule(decision))}</p></section>'
    )


def _answer(sentence: str) -> str:
    """The one sentence that answers a section."""
    return f'<p class="question">{html.escape(sentence)}</p>'


def _few(items: int, what: str = "items per slot") -> str:
    note = few_items_note(items, what)
    return f'<p class="warning small">{html.escape(note)}</p>' if note else ""


def _no_figures() -> str:
    return "" if has_figures() else f'<p class="warning">{html.escape(NO_FIGURES)}</p>'


def _incomplete_tasks(findings: dict[str, Any]) -> str:
    if not findings["missing"]:
        return ""
    return f'<p class="warning">Incomplete and left out: {html.escape("; ".join(findings["missing"]))}. They count as tests.</p>'


def _lengths(tasks: list[dict[str, Any]]) -> str:
    """For each kind of task that was measured at several lengths, all its curves in one figure."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for task in tasks:
        kinds.setdefault(task["kind"], []).append(task)
    return "".join(
        _figure(
            f"{kind}: by depth and length",
            chart_html(charts.depth_by_length(kind, same_kind)),
            "The same curves, one row for each number of slots.",
        )
        for kind, same_kind in kinds.items()
        if len(same_kind) > 1
    )


def _capture_error(findings: dict[str, Any]) -> str:
    """Why a page has curves alone: a family that cannot be captured, or an endpoint."""
    reason = findings["model"].get("capture_error")
    if not reason:
        return ""
    sentence = f"Explanations are left out; only the curves are measured. The reason: {reason}"
    return _section(
        "capture_error", "Where does it come from?", _answer(sentence if sentence.endswith(".") else f"{sentence}.")
    )


def _attention(findings: dict[str, Any]) -> str:
    by_task = findings["explanation"]["attention"]
    if not by_task:
        return ""
    content_free = findings["explanation"].get("content-free") or {}
    tasks = {task["task"]: task for task in findings["tasks"]}
    figures = "".join(
        _figure(tasks[name]["name"],
                chart_html(explanation_charts.slot_attention(name, tasks[name]["name"], part, content_free.get(name))),
                "Means over layers and heads; thin lines are single heads." + (ALIKE if content_free.get(name) else ""),
                _few(_captured_items(findings, tasks[name])))
        for name, part in by_task.items()
    )  # fmt: skip
    name, first = next(iter(by_task.items()))
    title = tasks[name]["name"]
    heads = {title: first["regions"][region] for region, title in REGIONS.items()}
    heads["difference between slots due to position"] = first["shares"]["position"]
    grids = "".join(
        f'<figure class="figure">{_grid(f"head-{index}", rows, title, first)}</figure>'
        for index, (title, rows) in enumerate(heads.items())
    )
    distance = findings["explanation"].get("distance")
    distance_figure = (
        _figure(
            "By distance",
            chart_html(explanation_charts.attention_by_distance(distance)),
            "Mean over all queries of plain texts. One position: all tokens have the same position, so only the mask "
            "separates near from far.",
        )
        if distance
        else ""
    )
    return _section(
        "attention", "Where does the answering token look?",
        f"{_answer(attention_answer(title, first))}"
        f'<div class="figures">{figures}{distance_figure}</div>'
        f"<h3>Every head</h3><p>Task: {html.escape(title)}. The first three grids divide each row of attention; beginning and "
        "end are a tenth of the tokens each. The last grid is the share of the differences between slots that position "
        "explains in the model: position + relevance of the gold + rest. With few items, the content of a slot counts as "
        f'position.</p>{_few(_captured_items(findings, tasks[name]))}<div class="figures">{grids}</div>'
        + _gold_by_head(title, first),
    )  # fmt: skip


def _captured_items(findings: dict[str, Any], task: dict[str, Any]) -> int:
    """The items whose attention was recorded."""
    return min(findings["plan"]["attention_items"], task["items"])


def _gold_by_head(name: str, attention: dict[str, Any]) -> str:
    """Which heads attend to the gold in its first, middle and last slot: a grid for each."""
    gold, places = attention["gold"], attention["gold_slots"]
    most = max(value for layer in gold for head in layer for value in head)
    if not most > 0:
        return ""
    selected = sorted({0, len(places) // 2, len(places) - 1})
    grids = "".join(
        f'<figure class="figure">{_grid(f"gold-{at}", rows, f"the gold in slot {places[at] + 1}", attention)}</figure>'
        for at in selected
        for rows in [[[head[at] / most for head in layer] for layer in gold]]
    )
    return (
        f"<h3>Heads that attend to the gold</h3><p>Task: {html.escape(name)}. Attention to the gold relative to the largest value "
        f'of any head in any slot ({1000 * most:.3g} thousandths per token).</p><div class="figures">{grids}</div>'
    )


def _grid(name: str, rows: list[list[float]], title: str, attention: dict[str, Any]) -> str:
    return chart_html(explanation_charts.head_grid(name, rows, title, attention.get("layers")))


def _hidden_states(findings: dict[str, Any]) -> str:
    geometry, channels = (findings["explanation"].get(name) for name in ("geometry", "channels"))
    if not geometry or not channels:
        return ""
    share = chart_html(explanation_charts.position_variance(geometry))
    norms = chart_html(explanation_charts.vector_lengths(geometry))
    curve = chart_html(explanation_charts.positional_channel(channels)) if "curve" in channels else ""
    counts = chart_html(explanation_charts.channel_counts(channels))
    return _section(
        "inside", "How much of the hidden states is position?",
        _answer(geometry_answer(geometry))
        + '<div class="figures">'
        + _figure("Variance explained by position", share,
                  "Decomposition into mean, position, context and residual over plain texts; the share expected by chance "
                  "is subtracted.")
        + _figure("Positional vectors", norms,
                  "Moving: the mean over texts at each position, minus its mean over positions. Content: the rest of each text.")
        + _figure("The smoothest channel", curve, "Mean over random texts, without the first tenth of the tokens.")
        + _figure("Monotone channels by fit", counts, "Channels that pass each fit, in order and with the tokens shuffled.")
        + f"</div>{tables.channels(channels)}"
        '<p class="small">A fit that finds as many channels in a shuffled order as in the true order is no evidence.</p>'
        + _growth(findings["explanation"].get("growth"))
        + tables.scores(geometry["scores"])
        + f"<details><summary>Every layer in numbers</summary>{tables.layers(geometry)}"
        + f'<p class="small">{html.escape(tables.BOTH_HALVES)}</p></details>',
    )  # fmt: skip


def _growth(part: dict[str, Any] | None) -> str:
    """How strongly channels depend on position, by layer; empty for older records."""
    if not part:
        return ""
    strongest = growth_charts.strongest_channel(part)
    curve = (
        _figure("The strongest channel", chart_html(strongest), "Its mean over texts that did not select it.")
        if strongest
        else ""
    )
    return (
        f"<h3>Does position grow from layer to layer?</h3><p>{html.escape(growth_answer(part))}</p>"
        '<div class="figures">'
        + _figure("Share of position by layer", chart_html(growth_charts.share_by_layer(part)),
                  "Channels that are monotone in many layers of one half of the random texts, measured in the other half; the "
                  "share expected by chance is subtracted. One position for all tokens: no encoding, so only the mask "
                  "carries order.")
        + _figure("Monotone channels by layer", chart_html(growth_charts.monotone_by_layer(part)),
                  "Channels whose cubic fit rises or falls throughout, in order and with the tokens shuffled.")
        + f"{curve}</div>"
    )  # fmt: skip


def _causes(findings: dict[str, Any]) -> str:
    explanation = findings["explanation"]
    arms = explanation.get("mask-or-encoding")
    if not arms:
        return ""
    return _section(
        "causes", "Is it the mask, or the encoding?",
        f"{_answer(causes_answer(arms))}"
        f'<div class="figures">{_figure("Variance explained by position", chart_html(explanation_charts.mask_or_encoding(arms)), "")}</div>'
        f"{tables.arms(arms)}"
        '<p class="small">Mask alone: all positions are equal, so only the causal mask carries order. Encoding alone: no key '
        "is masked. Neither: nothing carries order, and the share is zero up to noise. Descriptive; no test is made.</p>"
        + _ablation(findings)
        + _emphasis(explanation),
    )  # fmt: skip


def _emphasis(explanation: dict[str, Any]) -> str:
    """How a slot's answer changed when its attention weight, or its score, was multiplied."""
    parts = emphasis_parts(explanation)
    if not parts:
        return ""
    chart = _figure("Before and after", chart_html(explanation_charts.slot_emphasis(parts)), "")
    text = f'<div class="figures">{chart}</div>' + "".join(
        f"<p>{html.escape(describe_emphasis(part['summary']))}</p>{tables.emphasis(part)}" for part in parts.values()
    )
    return _collapsible(
        "Does the answer follow the attention?", text, min(part["items"] for part in parts.values()), "items"
    )


def _ablation(findings: dict[str, Any]) -> str:
    """The curves with parts of the positional vectors removed from the input of attention."""
    result = findings["explanation"].get("ablation")
    task = next((one for one in findings["tasks"] if result and one["task"] == result["task"]), None)
    if not result or not task:
        return ""
    share, gold = (chart_html(explanation_charts.ablation(result, name)) for name in ("probability", "gold_attention"))
    about = (
        f"{task['name']}, {format_count(result['items'], 'item')} per slot; vectors from {result['texts']} plain texts of "
        f"{result['tokens']} tokens."
    )
    text = (
        f"<p>{html.escape(ablation_answer(result))}</p>"
        "<p>The input of attention in every layer is the sum of a positional vector (the mean over texts) and the content of the "
        "text. Moving is the part of the vector that differs between positions. The first four tokens are not changed, because "
        "attention sinks are there. Shuffled is the control: it removes the moving part of another position. An arm with no larger effect than this one "
        "shows noise.</p>"
        f'<div class="figures">{_figure("The answer", share, about)}{_figure("Attention to the gold", gold, about)}</div>'
    )
    return _collapsible("Does the curve depend on positional vectors?", text, result["items"])


def _collapsible(title: str, content: str, items: int, what: str = "items per slot") -> str:
    """A part of a section; with too few items it is collapsed, with a note."""
    if not few_items_note(items, what):
        return f"<h3>{html.escape(title)}</h3>{content}"
    summary = f'{html.escape(title)} <span class="warning">{html.escape(few_items_note(items, what))}</span>'
    return f"<details><summary>{summary}</summary>{content}</details>"


def _section(name: str, title: str, content: str) -> str:
    return (
        f'<section class="study" aria-labelledby="{name}"><h2 id="{name}">{html.escape(title)}</h2>{content}</section>'
    )


def _figure(title: str, chart: str, caption: str, mark: str = "") -> str:
    if not chart:
        return ""
    under = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="figure"><h3>{html.escape(title)}</h3>{mark}{chart}{under}</figure>'
