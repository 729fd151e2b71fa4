"""What each layer's position says of its own numbers, before training and after."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.numbers import NOTHING
from whence.report.comparison.style import Look
from whence.report.comparison.tables import scrolling


def learned(study: dict[str, Any], looks: Mapping[str, Look]) -> str:
    """The positions' own numbers before and after training, a row for each layer."""
    rows, without = [], []
    for arm in study["arms"]:
        before, after = arm["numbers"].get("before") or {}, arm["numbers"].get("after") or {}
        layers = [layer for layer in dict.fromkeys([*before, *after]) if before.get(layer) or after.get(layer)]
        if not layers:
            without.append(arm["name"])
            continue
        for index, layer in enumerate(layers):
            first = ""
            if index == 0:
                name = f'{looks[arm["name"]].swatch()}<span class="armname">{html.escape(arm["name"])}</span>'
                first = f'<th scope="rowgroup" rowspan="{len(layers)}" class="text">{name}</th>'
            cells = "".join(_text_cell(side.get(layer), before.get(layer)) for side in (before, after))
            rows.append(
                f'<tr{" class=first" if first else ""}>{first}<td class="text layer">{html.escape(place_of(str(layer)))}</td>{cells}</tr>'
            )
    told = f'<p class="small">Without position numbers: {html.escape(", ".join(without))}.</p>' if without else ""
    if not rows:
        return told or '<p class="small">No arm has position numbers.</p>'
    heads = "".join(f'<th scope="col" class="text">{name}</th>' for name in ("arm", "layer", "before", "after"))
    table = f'<table class="learned"><caption>Position numbers before and after training.</caption><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return scrolling(table, "Position numbers before and after training") + told


def place_of(module: str) -> str:
    """Where in a model a module is, in a reader's words where the module is one of a numbered layer.

    >>> place_of("body.layers.2.attention.position"), place_of("body.at_input"), place_of("pointer")
    ('layer 3', 'input', 'pointer')
    >>> place_of("body.layers.0.attention.position.members.1")
    'layer 1, part 2'
    """
    numbered = re.fullmatch(r"(?:.*\.)?layers\.(\d+)\.attention\.position(?:\.members\.(\d+))?", module)
    if numbered:
        part = "" if numbered[2] is None else f", part {int(numbered[2]) + 1}"
        return f"layer {int(numbered[1]) + 1}{part}"
    return "input" if module.endswith("at_input") or ".at_input." in module else module


def _text_cell(text: Any, before: Any) -> str:
    same = text is not None and text == before
    return f'<td class="text"><code{" class=same" if same else ""}>{html.escape(str(text)) if text else NOTHING}</code></td>'
