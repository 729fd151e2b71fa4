"""The verdict of each study in plain words, before anything else on the page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.chart import shortened
from whence.report.comparison.forest import forest
from whence.report.comparison.numbers import number
from whence.report.comparison.style import Look, baseline_of
from whence.report.comparison.units import diverged_words, units

KINDS = (("better than", "better", "▲"), ("worse than", "worse", "▼"))
NO_CLAIM = ("open", "○")
SHOWN = 6  # verdicts before the rest of them are folded away
NAMED = 8  # arms with one verdict that are still named one by one
LETTERS = 28


def verdicts(studies: list[dict[str, Any]], looks: Mapping[str, Look]) -> str:
    """One card a study: a headline, then the comparison's own words, arms with the same words together."""
    cards = "".join(
        f'<article class="card"><p class="kicker"><a href="#study-{index}">{html.escape(study["name"])}</a></p>'
        f"<h3>{html.escape(headline(study))}</h3>{_picture(study, looks)}{_told(study, looks)}</article>"
        for index, study in enumerate(studies)
    )
    return f'<section class="verdict" aria-labelledby="verdict"><h2 id="verdict">The verdict</h2><div class="cards">{cards}</div></section>'


def _picture(study: dict[str, Any], looks: Mapping[str, Look]) -> str:
    found = _grouped(study["comparison"]) if study.get("comparison") else []
    chart = forest(study, units(study), looks, {name for kind, names, _ in found if kind != "open" for name in names})
    if not chart:
        return ""
    unit = "points" if study["metric"] == "accuracy" else study["metric"]
    hollow = " Hollow: no claim." if any(kind == "open" for kind, _, _ in found) else ""
    name = shortened(study["comparison"]["baseline"], LETTERS)
    caption = f"Difference to {name} in {unit}, with corrected intervals.{hollow}"
    return f'<figure class="forest">{chart}<figcaption>{html.escape(caption)}</figcaption></figure>'


def headline(study: dict[str, Any]) -> str:
    """What can be said in one line. It counts the comparison's verdicts and makes none of its own."""
    comparison = study.get("comparison")
    if not comparison:
        return _alone(study) or "No comparison was made."
    baseline, found = comparison["baseline"], _grouped(comparison)
    better = [name for kind, names, _ in found if kind == "better" for name in names]
    worse = [name for kind, names, _ in found if kind == "worse" for name in names]
    open_ = sum(len(names) for kind, names, _ in found if kind == "open")
    said = []
    total = len(comparison["arms"])
    if better:
        said.append(f"{_subject(better, total)} better than {shortened(baseline, LETTERS)}")
    if worse:
        said.append(f"{_subject(worse, total)} worse{'' if better else f' than {shortened(baseline, LETTERS)}'}")
    if not said:
        return "Nothing can be claimed." if open_ != 1 else "No difference can be claimed."
    if open_:
        said.append(f"nothing can be claimed of {'one other arm' if open_ == 1 else f'{open_} other arms'}")
    return "; ".join(said) + "."


def _alone(study: dict[str, Any]) -> str:
    """What the only arm of a study reached; empty where there are more, or it reached nothing."""
    arm = study["arms"][0]
    if len(study["arms"]) > 1 or not arm.get("summary"):
        return ""
    shown = units(study)
    value = number(arm["summary"]["mean"] * shown.value_factor, shown.places)
    said = f"{value}\u00a0% accuracy" if study["metric"] == "accuracy" else f"{study['metric']} {value}"
    return f"{shortened(arm['name'], LETTERS)}: {said} on {study['split']}."


def _sure(study: dict[str, Any]) -> str:
    """How sure the mean of a single arm is."""
    found, shown = study["arms"][0]["summary"], units(study)
    seeds = f"{found['n']} seed{'' if found['n'] == 1 else 's'}"
    if not found["interval"]:
        return f"The mean of {seeds}"
    low, high = (number(found["interval"][end] * shown.value_factor, shown.places) for end in ("low", "high"))
    return f"The mean of {seeds}; its {100 * found['interval']['level']:g} % interval is {low} to {high}"


def kind_of(verdict: str) -> tuple[str, str]:
    """Which way a verdict goes, and the sign for it: its first words say so."""
    return next(((kind, sign) for start, kind, sign in KINDS if verdict.startswith(start)), NO_CLAIM)


def _told(study: dict[str, Any], looks: Mapping[str, Look]) -> str:
    comparison, parts = study.get("comparison"), []
    if comparison:
        for kind, names, verdict in _grouped(comparison):
            sign = kind_of(verdict)[1]
            keys = ", ".join(
                f'<b class="named">{looks[n].swatch() if n in looks else ""}{html.escape(n)}</b>' for n in names
            )
            if len(names) > NAMED:
                keys = f"<b>{'All' if len(names) == len(comparison['arms']) else 'Other'} {len(names)} arms</b>"
            # p and its number stay on one line
            words = html.escape(verdict).replace("p &lt; ", "p&nbsp;&lt;&nbsp;").replace("p = ", "p&nbsp;=&nbsp;")
            parts.append(f'<li class="{kind}"><span class="sign" aria-hidden="true">{sign}</span>{keys}: {words}.</li>')
    else:
        why = f"Why: {study.get('why_no_comparison') or 'no reason was recorded'}"
        if _alone(study):
            why = f"{_sure(study)}. Nothing is compared: there is one arm only"
        parts.append(f'<li class="open"><span class="sign" aria-hidden="true">○</span>{html.escape(why)}.</li>')
    for arm in study["arms"]:
        lost = diverged_words(arm)
        if lost:
            parts.append(
                f'<li class="lost"><span class="sign" aria-hidden="true">×</span><b>{html.escape(arm["name"])}</b>: '
                f"{html.escape(lost)}.</li>"
            )
    missing = [
        a["name"] for a in study["arms"] if comparison and a["name"] not in comparison["arms"] and not a["diverged"]
    ]
    missing = [name for name in missing if name != baseline_of(study)]
    if missing:
        parts.append(
            f'<li class="open"><span class="sign" aria-hidden="true">○</span>{html.escape(_listed(missing))}: not compared.</li>'
        )
    decides = f'<p class="small">Decided by {html.escape(comparison["decides"])}.</p>' if comparison else ""
    more = ""
    if len(parts) > SHOWN + 1:
        more = f"<details><summary>{len(parts) - SHOWN} more</summary><ul>{''.join(parts[SHOWN:])}</ul></details>"
        parts = parts[:SHOWN]
    return f"<ul>{''.join(parts)}</ul>{more}{decides}"


def _grouped(comparison: dict[str, Any]) -> list[tuple[str, list[str], str]]:
    """(kind, arms, verdict): better ones first, then worse, then open, large differences first; equal words once."""
    groups: dict[str, list[str]] = {}
    for name, arm in sorted(comparison["arms"].items(), key=lambda item: -abs(item[1]["difference"])):
        groups.setdefault(arm["verdict"], []).append(name)
    order = {"better": 0, "worse": 1, "open": 2}
    found = [(kind_of(verdict)[0], names, verdict) for verdict, names in groups.items()]
    return sorted(found, key=lambda group: order[group[0]])


def _subject(names: list[str], total: int) -> str:
    if len(names) == total and total > 2:
        return f"All {total} arms are"
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'}"


def _listed(names: list[str]) -> str:
    names = [shortened(name, LETTERS) for name in names]
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
