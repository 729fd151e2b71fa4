"""The verdict of each study in words, at the top of the page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from whence.report.comparison.arm_style import ArmStyle, baseline_name
from whence.report.comparison.dot_plots import forest_plot
from whence.report.comparison.svg import shorten
from whence.report.comparison.units import (
    PERCENT_METRICS,
    choose_units,
    describe_failures,
    is_ratio,
    name_metric,
    sort_best_first,
)
from whence.report.formatting import format_exact, format_number

SYMBOLS = {"better": "▲", "worse": "▼", "equivalent": "=", "undecided": "○"}
UNDECIDED = ("undecided", SYMBOLS["undecided"])
MAX_VERDICTS = 6  # further ones are collapsed
MAX_NAMED_ARMS = 8  # with the same verdict
MAX_NAME_CHARS = 28
MAX_LINE_CHARS = 100  # on a terminal


def verdict_section(studies: list[dict[str, Any]], styles: Mapping[str, ArmStyle]) -> str:
    """One card per study: a headline, the differences, and the verdicts of the comparison."""
    cards = "".join(
        f'<article class="card"><p class="kicker"><a href="#study-{index}">{html.escape(study["name"])}</a></p>'
        f"<h3>{html.escape(headline(study))}</h3>{_forest_figure(study, styles)}{_verdict_list(study, styles)}</article>"
        for index, study in enumerate(studies)
    )
    return (
        '<section class="verdict" aria-labelledby="verdict"><h2 id="verdict">Verdict</h2>'
        f'<div class="cards">{cards}</div></section>'
    )


def headline(study: dict[str, Any]) -> str:
    """The verdicts of the comparison in one line. If no arm is shown to beat a constant answer, that comes first."""
    return f"{constant_headline(study)} {_comparison_headline(study)} {_pairs_headline(study)}".strip()


def constant_headline(study: dict[str, Any]) -> str:
    """The sentence for a study in which no arm is shown to beat a constant answer; empty otherwise."""
    constant = study.get("constant")
    if not constant or constant["beaten_by"]:
        return ""
    verb = "is shown to beat" if constant.get("inconclusive") else "beats"
    return f"No arm {verb} a constant answer ({_describe_constant(study)})."


def _describe_constant(study: dict[str, Any]) -> str:
    """The best constant answer and its value."""
    units, constant = choose_units(study), study["constant"]
    percent = "\u00a0%" if study["metric"] in PERCENT_METRICS else ""
    return f"{constant['name']}: {format_exact(constant['value'] * units.value_factor, units.decimals)}{percent}"


def _constant_items(study: dict[str, Any]) -> list[str]:
    """Notes on the arms that are not shown to beat a constant answer, if some arms are; if none is, the headline says so."""
    constant = study.get("constant")
    if not constant or not constant["beaten_by"] or not constant["not_beaten_by"]:
        return []
    inconclusive = constant.get("inconclusive", [])
    others = [name for name in constant["not_beaten_by"] if name not in inconclusive]
    answer = f"a constant answer ({html.escape(_describe_constant(study))})."
    return [
        _item("lost", "×", f"{html.escape(join_names(names))} {one if len(names) == 1 else many} beat {answer}")
        for names, one, many in (
            (others, "does not", "do not"),
            (inconclusive, "is not shown to", "are not shown to"),
        )
        if names
    ]


def _comparison_headline(study: dict[str, Any]) -> str:
    comparison = study.get("comparison")
    if not comparison:
        return _single_arm_headline(study) or "No comparison was made."
    baseline, groups = shorten(comparison["baseline"], MAX_NAME_CHARS), _group_verdicts(comparison)
    by_kind = {kind: [name for own, names, _ in groups if own == kind for name in names] for kind in SYMBOLS}
    better, worse, equivalent = by_kind["better"], by_kind["worse"], by_kind["equivalent"]
    total, undecided = len(comparison["arms"]), len(by_kind["undecided"])
    clauses = []
    if better:
        clauses.append(f"{_subject(better, total)} better than {baseline}")
    if worse:
        clauses.append(f"{_subject(worse, total)} worse{'' if better else f' than {baseline}'}")
    if equivalent:
        clauses.append(f"{_subject(equivalent, total)} equivalent to {baseline}")
    if not clauses:
        return _undecided_headline(comparison, baseline)
    if undecided:
        clauses.append(f"{undecided} other arm{' is' if undecided == 1 else 's are'} undecided")
    return "; ".join(clauses) + "."


def _pairs_headline(study: dict[str, Any]) -> str:
    """How many pairs without the baseline are decided; empty if none is."""
    comparison = study.get("comparison") or {}
    decided, total = _count_pairs(comparison)
    if not decided:
        return ""
    baseline = shorten(comparison["baseline"], MAX_NAME_CHARS)
    return f"Pairs without {baseline}: {decided} of {total} {'is' if decided == 1 else 'are'} decided."


def _count_pairs(comparison: dict[str, Any]) -> tuple[int, int]:
    """The decided pairs without the baseline, and all of them."""
    others = comparison.get("others", [])
    return sum(other["verdict"] != "undecided" for other in others), len(others)


def _undecided_headline(comparison: dict[str, Any], baseline: str) -> str:
    """The headline of a study without a decided comparison: suggestive, or nothing seen."""
    seeds = f"{comparison['seeds']} seed{'' if comparison['seeds'] == 1 else 's'}"
    suggestive = [name for name, arm in comparison["arms"].items() if arm["suggestive"]]
    decided, pairs = _count_pairs(comparison)
    if not suggestive and decided:
        return f"No arm differs from {baseline} by more than chance with {seeds}."
    if not suggestive and pairs:
        return f"No pair of arms is decided with {seeds}."
    if not suggestive:
        return f"Nothing seen: no arm differs from {baseline} by more than chance with {seeds}."
    needed = [arm["seeds_needed"] for arm in comparison["arms"].values() if arm["suggestive"] and arm["seeds_needed"]]
    more = f"; about {min(needed)} more seeds would probably decide" if needed else ""
    verb = "differs" if len(suggestive) == 1 else "differ"
    return f"Suggestive: {join_names(suggestive)} {verb} from {baseline} with {seeds}, but not significantly{more}."


def verdict_lines(study: dict[str, Any]) -> list[str]:
    """The verdicts for a terminal: a headline, then one line per arm with its mean and verdict, best arm first."""
    units, comparison = choose_units(study), study.get("comparison")
    rows = []
    for arm in sort_best_first(study):
        value = format_number(arm["summary"]["mean"] * units.value_factor, units.decimals) if arm["summary"] else "-"
        if comparison and arm["name"] in comparison["arms"]:
            verdict = comparison["arms"][arm["name"]]["verdict"]
        else:
            verdict = "baseline" if arm["name"] == baseline_name(study) else "not compared"
        verdict = "; ".join(text for text in (verdict, describe_failures(arm)) if text)
        rows.append((shorten(arm["name"], MAX_NAME_CHARS), value, verdict))
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {name:{names}}  {value:>{values}}  {verdict}" for name, value, verdict in rows]
    title, constant = f"{study['name']}, {units.label} on {study['split']}:", constant_headline(study)
    compared = f"{_comparison_headline(study)} {_pairs_headline(study)}".strip()
    headlines = [title, constant, compared] if constant else [f"{title} {compared}"]
    return [shorten(line.replace("\u00a0", " "), MAX_LINE_CHARS) for line in (*headlines, *lines)]


def _forest_figure(study: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    groups = _group_verdicts(study["comparison"]) if study.get("comparison") else []
    significant = {name for kind, names, _ in groups if kind != "undecided" for name in names}
    chart = forest_plot(study, choose_units(study), styles, significant)
    if not chart:
        return ""
    ratio = is_ratio(study.get("comparison"))
    metric = name_metric(study["metric"])
    unit = "points" if study["metric"] in PERCENT_METRICS else f"% of {metric}" if ratio else metric
    hollow = " Hollow: not significant." if any(kind == "undecided" for kind, _, _ in groups) else ""
    baseline = shorten(study["comparison"]["baseline"], MAX_NAME_CHARS)
    margin = study["comparison"]["margin"]
    dashed = (
        ""
        if margin is None or 'class="margin"' not in chart
        else f" Dashed: the margin of {margin:g}{' %' if ratio else ''}."
    )
    caption = f"Difference to {baseline} in {unit}, with intervals corrected for multiple comparisons.{hollow}{dashed}"
    return f'<figure class="forest">{chart}<figcaption>{html.escape(caption)}</figcaption></figure>'


def _single_arm_headline(study: dict[str, Any]) -> str:
    """The mean of a study's only arm; empty if there are more arms or no mean."""
    arm = study["arms"][0]
    if len(study["arms"]) > 1 or not arm.get("summary"):
        return ""
    units = choose_units(study)
    value = format_number(arm["summary"]["mean"] * units.value_factor, units.decimals)
    metric = name_metric(study["metric"])
    metric = f"{value}\u00a0% {metric}" if study["metric"] in PERCENT_METRICS else f"{metric} {value}"
    return f"{shorten(arm['name'], MAX_NAME_CHARS)}: {metric} on {study['split']}."


def _single_arm_interval(study: dict[str, Any]) -> str:
    """The number of seeds and the interval of a study's only arm."""
    summary, units = study["arms"][0]["summary"], choose_units(study)
    seeds = f"{summary['n']} seed{'' if summary['n'] == 1 else 's'}"
    interval = summary["interval"]
    if not interval:
        return f"Mean of {seeds}"
    low, high = (format_number(interval[end] * units.value_factor, units.decimals) for end in ("low", "high"))
    return f"Mean of {seeds}; {100 * interval['level']:g} % interval {low} to {high}"


def _verdict_list(study: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    comparison = study.get("comparison")
    items = _constant_items(study)
    items += _verdict_items(comparison, styles) if comparison else [_no_comparison_item(study)]
    for arm in study["arms"]:
        failures = describe_failures(arm)
        if failures:
            items.append(_item("lost", "×", f"<b>{html.escape(arm['name'])}</b>: {html.escape(failures)}."))
    if comparison:
        compared = {*comparison["arms"], baseline_name(study)}
        missing = [arm["name"] for arm in study["arms"] if arm["name"] not in compared and not describe_failures(arm)]
        if missing:
            items.append(_item(*UNDECIDED, f"{html.escape(join_names(missing))}: not compared."))
    rule = (
        f'<p class="small">{html.escape(describe_rule(comparison, study.get("compared_with", ())))}</p>'
        if comparison
        else ""
    )
    if comparison and study["plan_change"]:
        rule = f"<p>{html.escape(study['plan_change'])}</p>{rule}"
    more = ""
    if len(items) > MAX_VERDICTS + 1:
        rest = items[MAX_VERDICTS:]
        more = f"<details><summary>{len(rest)} more</summary><ul>{''.join(rest)}</ul></details>"
        items = items[:MAX_VERDICTS]
    remarks = "".join(f"<p>{html.escape(text)}</p>" for text in study.get("remarks") or [])
    return f"<ul>{''.join(items)}</ul>{more}{remarks}{rule}"


def _verdict_items(comparison: dict[str, Any], styles: Mapping[str, ArmStyle]) -> list[str]:
    """One item per verdict; pairs without the baseline are counted, since a table has them all."""
    total = len(comparison["arms"])
    items = [
        _item(kind, SYMBOLS[kind], f"{_arm_labels(names, styles, total)} {_format_verdict(verdict)}.")
        for kind, names, verdict in _group_verdicts(comparison)
    ]
    decided, pairs = _count_pairs(comparison)
    if pairs:
        text = f"{decided} of the {pairs} pairs without {html.escape(comparison['baseline'])} are decided too."
        items.append(_item("undecided", "·", text))
    return items


def describe_rule(comparison: dict[str, Any], others: Sequence[str] = ()) -> str:
    """What decided, in one or two sentences. ``others`` are studies of another page whose comparisons belong to the family."""
    m, level = comparison["m"], f"{100 * comparison['level']:g} %"
    ratio = is_ratio(comparison)
    differences = "differences of logarithms, shown as ratios in %," if ratio else "differences"
    text = (
        f"Decided by paired {differences} over common seeds with moderated variances. Intervals hold together at {level} "
        f"for {m} comparison{'' if m == 1 else 's'}"
    )
    if others:
        text += f", those of this study and of {join_names([*others])}, which another page shows,"
    geometric = " Means are geometric." if ratio else ""
    if len(comparison["looks"]) > 1:
        text += f" and for looks after {', '.join(map(str, comparison['looks']))} seeds"
    margin = comparison["margin"]
    if margin is None:
        return (
            f"{text}. No margin was stated, so no arms are called equivalent: undecided does not mean equal.{geometric}"
        )
    if ratio:
        bound = f"{1 + margin / 100:g}"
        return f"{text}. Equivalent: a ratio certainly between 1 / {bound} and {bound}.{geometric}"
    return f"{text}. Equivalent: a difference certainly below {margin:g}."


def _arm_labels(names: list[str], styles: Mapping[str, ArmStyle], total: int) -> str:
    """The arms with their swatches and a colon; their number if they are many."""
    if len(names) > MAX_NAMED_ARMS:
        return f"<b>{'All' if len(names) == total else 'Other'} {len(names)} arms:</b>"
    return " ".join(
        f'<b class="named">{styles[name].swatch() if name in styles else ""}{html.escape(name)}{mark}</b>'
        for name, mark in zip(names, [","] * (len(names) - 1) + [":"], strict=True)
    )


def _format_verdict(text: str) -> str:
    """Escaped, without a line break between p and its value."""
    return html.escape(text).replace("p &lt; ", "p&nbsp;&lt;&nbsp;").replace("p = ", "p&nbsp;=&nbsp;")


def _no_comparison_item(study: dict[str, Any]) -> str:
    reason = f"Reason: {study.get('why_no_comparison') or 'not recorded'}"
    if _single_arm_headline(study):
        reason = f"{_single_arm_interval(study)}. No comparison: the study has one arm"
    return _item(*UNDECIDED, f"{html.escape(reason)}.")


def _item(kind: str, symbol: str, content: str) -> str:
    return f'<li class="{kind}"><span class="sign" aria-hidden="true">{symbol}</span>{content}</li>'


def _group_verdicts(comparison: dict[str, Any]) -> list[tuple[str, list[str], str]]:
    """(kind, arms, verdict) in the order of ``SYMBOLS``; large differences first; equal verdicts together."""
    by_verdict: dict[tuple[str, str], list[str]] = {}
    for name, arm in sorted(comparison["arms"].items(), key=lambda item: -abs(item[1]["difference"])):
        by_verdict.setdefault((arm["kind"], arm["verdict"]), []).append(name)
    order = list(SYMBOLS)
    groups = [(kind, names, verdict) for (kind, verdict), names in by_verdict.items()]
    return sorted(groups, key=lambda group: order.index(group[0]))


def _subject(names: list[str], total: int) -> str:
    if len(names) == total and total > 2:
        return f"All {total} arms are"
    return f"{join_names(names)} {'is' if len(names) == 1 else 'are'}"


def join_names(names: list[str]) -> str:
    names = [shorten(name, MAX_NAME_CHARS) for name in names]
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
