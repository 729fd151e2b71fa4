"""The tables of numbers: results against the baseline, and values at every length."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from whence.report.comparison.chart import shortened
from whence.report.comparison.numbers import NOTHING, interval, mean, number, probability, seconds, signed, whole
from whence.report.comparison.style import Look
from whence.report.comparison.units import Units, best_first, values_of
from whence.report.comparison.verdicts import kind_of


def results(study: dict[str, Any], units: Units, looks: Mapping[str, Look]) -> str:
    """Each arm with its mean, its difference to the baseline, the tests of it, what it cost, and the seeds it lost."""
    comparison, lost = study.get("comparison"), any(arm["diverged"] for arm in study["arms"])
    groups = [(f"{units.label} on {study['split']}", ["mean", _own_level(study), "seeds"])]
    if comparison:
        level = f"{100 * comparison['level']:g}% interval"
        unit = "points" if units.label.startswith("accuracy") else "difference"
        groups = [
            (groups[0][0], ["mean", level]),
            (f"difference to {shortened(comparison['baseline'], 24)}", [unit, _corrected_level(comparison)]),
            ("p", ["corrected", "permuted", "its floor"]),
            ("effect", ["Hedges’ g"]),
        ]
    groups += [("cost", ["parameters", "seconds a run"]), *([("lost", ["diverged seeds"])] if lost else [])]
    above = "".join(
        f'<th colspan="{len(under)}" scope="colgroup"><span>{html.escape(name)}</span></th>' for name, under in groups
    )
    below = "".join(f'<th scope="col">{html.escape(name)}</th>' for _, under in groups for name in under)
    head = f'<tr><td></td>{above}</tr><tr><th scope="col" class="text">arm</th>{below}</tr>'
    rows = "".join(_result_row(arm, study, units, looks, lost) for arm in best_first(study))
    told = "Results of each arm, the best first"
    table = f'<table class="results"><caption>{told}.</caption><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return scrolling(table, told) + f'<p class="small">{html.escape(_notes(comparison, lost))}</p>'


def _result_row(arm: dict[str, Any], study: dict[str, Any], units: Units, looks: Mapping[str, Look], lost: bool) -> str:
    comparison, name, places = study.get("comparison"), arm["name"], units.places
    values, kind = values_of(study, name, study["split"], units.value_factor), ""
    first = number(mean(values.values()), places) if values else ("diverged" if arm["diverged"] else NOTHING)
    own = (arm.get("summary") or {}).get("interval")
    cells = [first, interval(_scaled(own, units.value_factor), places), str(len(values))]
    if comparison:
        cells = [first, *_against_baseline(name, comparison, units)]
        kind = kind_of(comparison["arms"][name]["verdict"])[0] if name in comparison["arms"] else ""
    cells += [whole(arm["parameters"]), seconds(arm["wall_seconds"])]
    if lost:
        cells.append(", ".join(f"seed {gone['seed']} at step {gone['step']:,}" for gone in arm["diverged"]) or "none")
    words = ("baseline", "diverged", "none", NOTHING)
    row = "".join(f'<td class="{"word" if cell in words else "n"}">{html.escape(cell)}</td>' for cell in cells)
    look = looks[name]
    told = f'{look.swatch()}<span class="armname" title="{html.escape(arm["position"])}">{html.escape(name)}</span>'
    return f'<tr class="{kind}" data-arm="{look.place}"><th scope="row" class="text">{told}</th>{row}</tr>'


def _against_baseline(name: str, comparison: dict[str, Any], units: Units) -> list[str]:
    """The seven cells that the comparison fills; dashes where it has nothing to say of an arm."""
    factor, places = units.comparison_factor, units.places
    if name == comparison["baseline"]:
        own = interval(_scaled(comparison["baseline_summary"]["interval"], factor), places)
        return [own, "baseline", *[NOTHING] * 5]
    found = comparison["arms"].get(name)
    if found is None:
        return [NOTHING] * 7
    return [
        interval(_scaled(found["summary"]["interval"], factor), places),
        signed(found["difference"] * factor, places),
        interval(_scaled(found["corrected_interval"], factor), places),
        probability(found["corrected_p"]),
        probability(found["permutation"]["p"]),
        probability(found["smallest_p"]),
        number(found["effect"]["g"], 1) if found["effect"] else NOTHING,
    ]


def _notes(comparison: dict[str, Any] | None, lost: bool) -> str:
    ending = "" if lost else "No seed diverged."
    if not comparison:
        return f"Nothing was tested. The interval is of the mean over seeds; a dash: not defined. {ending}"
    alpha, m = round(1 - comparison["level"], 15), comparison["m"]
    return (
        f"The interval of a difference and the first p are corrected for {m} comparison{'' if m == 1 else 's'} (Bonferroni); "
        "the p of the permutation test is not. Its floor is the least it can be with so many seeds: above "
        f"{alpha:g} / {m} nothing is claimed, whatever the other p. A dash: not defined. {ending}"
    )


def every_length(study: dict[str, Any], units: Units) -> str:
    """Means at every length, folded away: the chart above shows them, this says them.

    Where all parts have one length there is no such chart, and the table stands open.
    """
    one_length = len(set(study["lengths"].values())) == 1
    splits = sorted(study["lengths"].items(), key=lambda item: item[1])
    head = "".join(
        f'<th scope="col">{html.escape(split)}<br><span class="unit">{n} tokens</span></th>' for split, n in splits
    )
    rows = []
    for arm in best_first(study):
        found = [values_of(study, arm["name"], split, units.value_factor) for split, _ in splits]
        cells = "".join(_seeds_cell(row, units.places) for row in found)
        rows.append(
            f'<tr><th scope="row" class="text"><span class="armname">{html.escape(arm["name"])}</span></th>{cells}</tr>'
        )
    table = (
        f"<table><caption>Mean of the seeds, and each seed below it: {html.escape(units.label)}.</caption>"
        f'<thead><tr><th scope="col" class="text">arm</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    told = "Every value on every part" if one_length else "Every value at every length"
    opened = " open" if one_length else ""
    return f"<details{opened}><summary>{told}</summary>{scrolling(table, told)}</details>"


def _seeds_cell(row: Mapping[str, float], places: int) -> str:
    if not row:
        return f'<td class="n">{NOTHING}</td>'
    seeds = " ".join(number(value, places) for value in row.values())
    return f'<td class="n">{number(mean(row.values()), places)}<br><span class="unit">{seeds}</span></td>'


def scrolling(table: str, told: str) -> str:
    """A wide table scrolls in its own frame, which the keyboard can reach, so that the page itself never does."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(told)}">{table}</div>'


def definitions(rows: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{html.escape(term)}</dt><dd>{told}</dd>" for term, told in rows) + "</dl>"


def _scaled(ends: dict[str, Any] | None, factor: float) -> dict[str, Any] | None:
    return None if ends is None else {**ends, "low": ends["low"] * factor, "high": ends["high"] * factor}


def _own_level(study: dict[str, Any]) -> str:
    ends = [(arm.get("summary") or {}).get("interval") for arm in study["arms"]]
    return next((f"{100 * one['level']:g}% interval" for one in ends if one), "interval")


def _corrected_level(comparison: dict[str, Any] | None) -> str:
    for arm in (comparison or {}).get("arms", {}).values():
        if arm["corrected_interval"]:
            return f"{100 * arm['corrected_interval']['level']:.4g}% interval"
    return "interval"
