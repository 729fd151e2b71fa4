"""The table of a sweep: every try of every arm on validation data, and the chosen ones."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.arm_style import ArmStyle
from whence.report.comparison.units import Units
from whence.report.comparison.verdicts import join_names
from whence.report.formatting import format_number
from whence.report.html_page import scrollable


def sweep_section(sweep: Mapping[str, Any], units: Units, styles: Mapping[str, ArmStyle]) -> str:
    """A row for each combination of settings and a column for each arm, from the record of a sweep."""
    settings = list(sweep["settings"])
    arms = list(dict.fromkeys(one["arm"] for one in sweep["tries"]))
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for one in sweep["tries"]:
        combination = tuple(str(one["settings"][name]) for name in settings)
        rows.setdefault(combination, {})[one["arm"]] = _cell(one, units)
    head = "".join(f'<th scope="col" class="text">{html.escape(name)}</th>' for name in settings)
    head += "".join(
        f'<th scope="col">{styles[arm].swatch() if arm in styles else ""}{html.escape(arm)}</th>' for arm in arms
    )
    body = "".join(
        "<tr>"
        + f'<th scope="row" class="text">{html.escape(combination[0])}</th>'  # one alone stays in view when scrolled
        + "".join(f'<td class="text">{html.escape(value)}</td>' for value in combination[1:])
        + "".join(cells[arm] for arm in arms)
        + "</tr>"
        for combination, cells in rows.items()
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    title = f"Choice of {' and '.join(settings)}"
    note = f'<p class="small">{html.escape(_describe(sweep, units, arms))}</p>'
    return f"<h3>{html.escape(title)}</h3>{note}{scrollable(table, title)}"


def _cell(one: Mapping[str, Any], units: Units) -> str:
    if one["mean"] is None:
        return "<td class=n>no value</td>"
    value = format_number(one["mean"] * units.value_factor, units.decimals)
    return f"<td class=n><strong>✓ {value}</strong></td>" if one["chosen"] else f"<td class=n>{value}</td>"


def _describe(sweep: Mapping[str, Any], units: Units, arms: list[str]) -> str:
    """The number of tries, what chose, when test data were evaluated, and choices at the end of the tried values."""
    count, seeds = sweep["tries_per_arm"], len(sweep["seeds"])
    each = "one seed" if seeds == 1 else f"{seeds} seeds"
    mean = "" if seeds == 1 else ", mean of the seeds"
    sentences = [
        f"{units.label[0].upper()}{units.label[1:]} on {sweep['split']} data{mean}. ✓ marks the choice of each arm; a try that failed or diverged has no value.",
        f"{count} tries of each arm, with the same budget and {each} each. No try evaluated test data; only the "
        "comparison does, with the chosen settings and other seeds.",
    ]
    for name, values in sweep["settings"].items():
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(values) < 2 or len(numbers) < len(values):
            continue
        for end, word in ((min(numbers), "smallest"), (max(numbers), "largest")):
            chosen = [one["arm"] for one in sweep["tries"] if one["chosen"] and one["settings"][name] == end]
            if chosen:
                who = "every arm" if len(chosen) == len(arms) > 1 else join_names(chosen)
                sentences.append(
                    f"The {word} value of {name} was chosen for {who}; values beyond {end:g} may do better."
                )
    return " ".join(sentences)
