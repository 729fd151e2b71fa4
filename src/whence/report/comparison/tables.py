"""Tables of a study: results against the baseline, values at every length, learned parameters, a task's own tables."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from whence.report.comparison.arm_style import ArmStyle
from whence.report.comparison.svg import shorten
from whence.report.comparison.units import (
    Units,
    difference_unit,
    is_ratio,
    list_failures,
    reverse_ratio,
    sort_best_first,
    values_of,
)
from whence.report.comparison.verdicts import SYMBOLS, describe_rule
from whence.report.formatting import (
    NO_VALUE,
    format_count,
    format_interval,
    format_number,
    format_p,
    format_seconds,
    format_signed,
)
from whence.report.html_page import scrollable


def results_table(study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle]) -> str:
    """Each arm with its mean, its difference to the baseline, the tests, its cost and its failed seeds."""
    comparison, any_failed = study.get("comparison"), any(list_failures(arm) for arm in study["arms"])
    metric = f"{units.label} on {study['split']}"
    groups = [(metric, ["mean", _interval_header(study), "seeds"])]
    if comparison:
        unit = difference_unit(study) or "difference"
        groups = [
            (metric, ["mean", f"{100 * comparison['level']:g}% interval"]),
            (f"difference to {shorten(comparison['baseline'], 24)}", [unit, _corrected_interval_header(comparison)]),
            ("verdict", ["corrected p", "effect size g", "seeds", "seeds needed"]),
        ]
    groups += [
        ("cost", ["parameters", "seconds per run"]),
        *([("failures", ["failed seeds"])] if any_failed else []),
    ]
    above = "".join(
        f'<th colspan="{len(columns)}" scope="colgroup"><span>{html.escape(name)}</span></th>'
        for name, columns in groups
    )
    below = "".join(f'<th scope="col">{html.escape(name)}</th>' for _, columns in groups for name in columns)
    head = f'<tr><td></td>{above}</tr><tr><th scope="col" class="text">arm</th>{below}</tr>'
    rows = "".join(_results_row(arm, study, units, styles, any_failed) for arm in sort_best_first(study))
    label = "Results per arm, best first"
    table = f'<table class="results"><caption>{label}.</caption><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return (
        scrollable(table, label)
        + f'<p class="small">{html.escape(_results_note(comparison, any_failed, units.by_ratio, study.get("compared_with", ())))}</p>'
    )


def _results_row(
    arm: dict[str, Any], study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle], any_failed: bool
) -> str:
    comparison, name, decimals = study.get("comparison"), arm["name"], units.decimals
    values, kind = values_of(study, name, study["split"], units.value_factor), ""
    first = format_number(units.average(values.values()), decimals) if values else _state_without_value(arm)
    interval = (arm.get("summary") or {}).get("interval")
    cells = [first, format_interval(_mean_interval(interval, units.value_factor, units), decimals), str(len(values))]
    if comparison:
        cells = [first, *_comparison_cells(name, comparison, units)]
        kind = comparison["arms"][name]["kind"] if name in comparison["arms"] else ""
    cells += [format_count(arm["parameters"]), format_seconds(arm["wall_seconds"])]
    if any_failed:
        failures = [f"seed {one['seed']} diverged at step {one['step']:,}" for one in arm["diverged"]]
        failures += [f"seed {one['seed']} failed" for one in arm["failed"]]
        cells.append(", ".join(failures) or "none")
    words = ("baseline", "diverged", "failed", "none", NO_VALUE)
    row = "".join(f'<td class="{"word" if cell in words else "n"}">{html.escape(cell)}</td>' for cell in cells)
    style = styles[name]
    label = f'{style.swatch()}<span class="armname" title="{html.escape(arm["position"])}">{html.escape(name)}</span>'
    return f'<tr class="{kind}" data-arm="{style.index}"><th scope="row" class="text">{label}</th>{row}</tr>'


def _state_without_value(arm: dict[str, Any]) -> str:
    """What stands in place of the mean of an arm without a value."""
    return "failed" if arm["failed"] else "diverged" if arm["diverged"] else NO_VALUE


def _comparison_cells(name: str, comparison: dict[str, Any], units: Units) -> list[str]:
    """The seven cells from the comparison; dashes for an arm that was not compared."""
    factor, decimals = units.comparison_factor, units.decimals
    if name == comparison["baseline"]:
        own = comparison["baseline_summary"]
        interval = format_interval(_mean_interval(own["interval"], factor, units), decimals)
        return [interval, "baseline", *[NO_VALUE] * 3, str(own["n"]), NO_VALUE]
    result = comparison["arms"].get(name)
    if result is None:
        return [NO_VALUE] * 7
    return [
        format_interval(_mean_interval(result["summary"]["interval"], factor, units), decimals),
        format_signed(result["difference"] * factor, units.difference_decimals),
        format_interval(_scale_interval(result["corrected_interval"], factor), units.difference_decimals),
        NO_VALUE if result["corrected_p"] is None else format_p(result["corrected_p"]),
        format_number(result["effect"]["g"], 1) if result["effect"] and result["effect"]["g"] is not None else NO_VALUE,
        str(result["seeds"]),
        NO_VALUE if result["seeds_needed"] is None else f"about {result['seeds_needed']} more",
    ]


def _results_note(comparison: dict[str, Any] | None, any_failed: bool, geometric: bool, others: Sequence[str]) -> str:
    ending = f"{NO_VALUE} means n/a (baseline, too few seeds or no variance)." + (
        "" if any_failed else " No seed failed or diverged."
    )
    if not comparison:
        kind = "geometric mean" if geometric else "mean"
        return f"No test was made. The interval is of the {kind} over seeds. {ending}"
    return (
        f"{describe_rule(comparison, others)} Seeds needed: further seeds that would probably decide if the true difference is the "
        f"one seen. {ending}"
    )


def pairs_table(study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle]) -> str:
    """Every two arms: the difference of the row to the column with its verdict; empty if only the baseline was compared."""
    comparison = study.get("comparison")
    if not comparison or not comparison["others"]:
        return ""
    factor, names = units.comparison_factor, [arm["name"] for arm in sort_best_first(study)]
    cells: dict[tuple[str, str], tuple[float, str]] = {}
    for name, arm in comparison["arms"].items():
        cells[name, comparison["baseline"]] = (arm["difference"], arm["kind"])
    for other in comparison["others"]:
        if other["estimate"] is not None:
            cells[other["first"], other["second"]] = (other["estimate"], other["verdict"])
    opposite = {"better": "worse", "worse": "better"}
    ratio = is_ratio(comparison)
    cells |= {
        (b, a): (reverse_ratio(difference) if ratio else -difference, opposite.get(kind, kind))
        for (a, b), (difference, kind) in cells.items()
    }
    rows = []
    for first in names:
        row = ""
        for second in names:
            difference, kind = cells.get((first, second), (None, ""))
            text = (
                NO_VALUE
                if difference is None
                else f"{format_signed(difference * factor, units.difference_decimals)} {SYMBOLS[kind]}"
            )
            row += f'<td class="n">{"" if first == second else html.escape(text)}</td>'
        label = f'{styles[first].swatch()}<span class="armname">{html.escape(first)}</span>'
        rows.append(f'<tr><th scope="row" class="text">{label}</th>{row}</tr>')
    head = "".join(f'<th scope="col">{html.escape(shorten(name, 16))}</th>' for name in names)
    label = f"Differences of every two arms, row {'over column in %' if ratio else 'minus column'}"
    legend = ", ".join(f"{symbol} {kind}" for kind, symbol in SYMBOLS.items())
    table = (
        f'<table><caption>{label}.</caption><thead><tr><th scope="col" class="text">arm</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return scrollable(table, label) + f'<p class="small">{legend}.</p>'


def lengths_table(study: dict[str, Any], units: Units) -> str:
    """Means and seeds at every length, collapsed below the chart; expanded if there is no chart by length."""
    one_length = len(set(study["lengths"].values())) == 1
    splits = sorted(study["lengths"].items(), key=lambda item: item[1])
    head = "".join(
        f'<th scope="col">{html.escape(split)}<br><span class="unit">{n} tokens</span></th>' for split, n in splits
    )
    rows = []
    for arm in sort_best_first(study):
        values = [values_of(study, arm["name"], split, units.value_factor) for split, _ in splits]
        cells = "".join(_seeds_cell(row, units) for row in values)
        name = f'<span class="armname">{html.escape(arm["name"])}</span>'
        rows.append(f'<tr><th scope="row" class="text">{name}</th>{cells}</tr>')
    table = (
        f"<table><caption>Mean of the seeds, with each seed below: {html.escape(units.label)}.</caption>"
        f'<thead><tr><th scope="col" class="text">arm</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    label = "All values by split" if one_length else "All values by length"
    return f"<details{' open' if one_length else ''}><summary>{label}</summary>{scrollable(table, label)}</details>"


def _seeds_cell(values: Mapping[str, float], units: Units) -> str:
    if not values:
        return f'<td class="n">{NO_VALUE}</td>'
    seeds = " ".join(format_number(value, units.decimals) for value in values.values())
    return f'<td class="n">{format_number(units.average(values.values()), units.decimals)}<br><span class="unit">{seeds}</span></td>'


def parameters_table(study: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    """The parameters of each layer's position mechanism, before and after training."""
    rows, without = [], []
    for arm in study["arms"]:
        before, after = arm["numbers"].get("before") or {}, arm["numbers"].get("after") or {}
        modules = [module for module in dict.fromkeys([*before, *after]) if before.get(module) or after.get(module)]
        if not modules:
            without.append(arm["name"])
            continue
        for index, module in enumerate(modules):
            arm_cell = ""
            if index == 0:
                name = f'{styles[arm["name"]].swatch()}<span class="armname">{html.escape(arm["name"])}</span>'
                arm_cell = f'<th scope="rowgroup" rowspan="{len(modules)}" class="text">{name}</th>'
            cells = "".join(_parameter_cell(side.get(module), before.get(module)) for side in (before, after))
            module_cell = f'<td class="text layer">{html.escape(name_module(str(module)))}</td>'
            rows.append(f"<tr{' class=first' if arm_cell else ''}>{arm_cell}{module_cell}{cells}</tr>")
    note = f'<p class="small">No position parameters: {html.escape(", ".join(without))}.</p>' if without else ""
    if not rows:
        return '<p class="small">No arm has position parameters.</p>'
    head = "".join(f'<th scope="col" class="text">{name}</th>' for name in ("arm", "layer", "before", "after"))
    label = "Position parameters before and after training"
    table = (
        f'<table class="learned"><caption>{label}.</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return scrollable(table, label) + note


def name_module(module: str) -> str:
    """A module's place in the model, with layers counted from 1.

    >>> name_module("body.layers.2.attention.position"), name_module("body.at_input"), name_module("pointer")
    ('layer 3', 'input', 'pointer')
    >>> name_module("body.layers.0.attention.position.members.1")
    'layer 1, part 2'
    """
    numbered = re.fullmatch(r"(?:.*\.)?layers\.(\d+)\.attention\.position(?:\.members\.(\d+))?", module)
    if numbered:
        part = "" if numbered[2] is None else f", part {int(numbered[2]) + 1}"
        return f"layer {int(numbered[1]) + 1}{part}"
    return "input" if module.endswith("at_input") or ".at_input." in module else module


def _parameter_cell(text: Any, before: Any) -> str:
    same = text is not None and text == before
    content = html.escape(str(text)) if text else NO_VALUE
    return f'<td class="text"><code{" class=same" if same else ""}>{content}</code></td>'


def panel_table(panel: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    """A table that the task supplies: a header, and rows that begin with the name of an arm or of an untrained rule.

    With ``text`` the cells are texts, not numbers. ``group`` is the name of the rows that begin a group.
    """
    texts, group = panel.get("text", False), panel.get("group")
    head = "".join(
        f'<th scope="col"{"" if index and not texts else " class=text"}>{html.escape(name)}</th>'
        for index, name in enumerate(panel["head"])
    )
    rows = []
    for name, *cells in panel["rows"]:
        swatch = styles[name].swatch() if name in styles else ""  # an untrained rule has no style
        label = f'<th scope="row" class="text">{swatch}<span class="armname">{html.escape(name)}</span></th>'
        own = "".join(f"<td class={'text' if texts else 'n'}>{html.escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr{' class=first' if name == group else ''}>{label}{own}</tr>")
    table = (
        f"<table{' class=texts' if texts else ''}><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
    # the note is outside the table: on a phone a caption would scroll with it
    note = f'<p class="small">{html.escape(panel["note"])}</p>'
    return f"<h3>{html.escape(panel['title'])}</h3>{note}{scrollable(table, panel['title'])}"


def _scale_interval(interval: dict[str, Any] | None, factor: float) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {**interval, "low": interval["low"] * factor, "high": interval["high"] * factor}


def _mean_interval(interval: dict[str, Any] | None, factor: float, units: Units) -> dict[str, Any] | None:
    """The interval of a mean. That of a percentage ends at 0 and 100: the t-interval of two seeds can go far beyond."""
    scaled = _scale_interval(interval, factor)
    if scaled is None or not units.is_percent:
        return scaled
    return {**scaled, "low": max(scaled["low"], 0.0), "high": min(scaled["high"], 100.0)}


def _interval_header(study: dict[str, Any]) -> str:
    intervals = [(arm.get("summary") or {}).get("interval") for arm in study["arms"]]
    return next((f"{100 * one['level']:g}% interval" for one in intervals if one), "interval")


def _corrected_interval_header(comparison: dict[str, Any]) -> str:
    for arm in comparison["arms"].values():
        if arm["corrected_interval"]:
            return f"{100 * arm['corrected_interval']['level']:.4g}% interval"
    return "interval"
