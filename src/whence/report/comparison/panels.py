"""What a task brings to its report beside the comparison: plain tables, and lines over some quantity of its own."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.chart import BOTTOM, HEIGHT, LEFT, TOP, Series, lines, right_edge
from whence.report.comparison.numbers import mean
from whence.report.comparison.scales import linear
from whence.report.comparison.style import Look
from whence.report.comparison.tables import scrolling


def render_panels(study: dict[str, Any], looks: Mapping[str, Look]) -> str:
    """All further panels of a study's task, in their order."""
    return "".join(
        _table(one, looks) if one["kind"] == "table" else _lines(one, looks) for one in study.get("panels") or []
    )


def _table(one: dict[str, Any], looks: Mapping[str, Look]) -> str:
    head = "".join(
        f'<th scope="col"{"" if at else " class=text"}>{html.escape(name)}</th>' for at, name in enumerate(one["head"])
    )
    rows = []
    for name, *cells in one["rows"]:
        swatch = looks[name].swatch() if name in looks else ""  # a rule that was not trained has none
        own = f'<th scope="row" class="text">{swatch}<span class="armname">{html.escape(name)}</span></th>'
        rows.append(f"<tr>{own}{''.join(f'<td class=n>{html.escape(cell)}</td>' for cell in cells)}</tr>")
    title, note = html.escape(one["title"]), html.escape(one["note"])
    table = f"<table><caption>{note}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<h3>{title}</h3>{scrolling(table, one['title'])}"


def _lines(one: dict[str, Any], looks: Mapping[str, Look]) -> str:
    series = []
    for arm, seeds in one["lines"].items():
        at: dict[float, list[float]] = {}
        for points in seeds.values():
            for x, y in points:
                at.setdefault(x, []).append(y)
        thick = [(x, mean(values)) for x, values in sorted(at.items())]
        thin = [[(x, y) for x, y in points] for points in seeds.values()] if len(seeds) > 1 else []
        series.append(Series(looks[arm], thin, thick))
    every = [y for s in series for row in (s.thick, *s.thin) for _, y in row]
    across = linear([x for s in series for x, _ in s.thick], LEFT, right_edge(series))
    chart = lines(series, across, linear(every, HEIGHT - BOTTOM, TOP), one["x"], one["y"], one["title"])
    title, note = html.escape(one["title"]), html.escape(one["note"])
    return f'<div class="figures"><figure class="figure"><h3>{title}</h3>{chart}<figcaption>{note}</figcaption></figure></div>'
