"""The page of the distance profiles of a pretrained model: families, and the curve of every head."""

from __future__ import annotations

import html
import time
from typing import Any

from whence.report.discovery.charts import head_chart
from whence.report.formatting import format_number
from whence.report.html_page import provenance_section, render_page
from whence.report.probe.tables import table

STYLE = """.band { fill: var(--c); opacity: .16; } .small-multiples { display: grid; gap: .8rem 1.6rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
section + section { margin-top: 2.2rem; }"""
SHOWN = 3  # heads of a family beside its name; the others are collapsed


def profile_lines(record: dict[str, Any]) -> list[str]:
    """The families with the number of their heads, for a terminal.

    >>> profile_lines({"families": {"power law": 2, "bump": 1}, "heads": [0, 0, 0], "plan": {"model": "m", "texts": 5, "tokens": 512}})
    ['Distance profile of 3 heads of m, 5 texts of 512 tokens:', '  power law: 2 heads', '  bump: 1 head']
    """
    plan = record["plan"]
    title = f"Distance profile of {len(record['heads'])} heads of {plan['model']}, {plan['texts']} texts of {plan['tokens']} tokens:"
    return [title, *(f"  {name}: {n} head{'' if n == 1 else 's'}" for name, n in record["families"].items())]


def page(record: dict[str, Any]) -> str:
    """One self-contained HTML page, from the record of ``whence discover --model``."""
    plan = record["plan"]
    families = [_family(name, record) for name in record["families"]]
    rows = []
    for name, count in record["families"].items():
        own = [one for one in record["heads"] if one["name"] == name]
        layers = sorted({one["layer"] for one in own})
        explained = sorted(one["explained"] for one in own)[len(own) // 2]
        rows.append(
            [
                name,
                str(count),
                str(layers[0]) if layers[0] == layers[-1] else f"{layers[0]} to {layers[-1]}",
                format_number(explained, 3),
            ]
        )
    caption = "The formula of the logarithm of the mean attention by distance, for each head."
    answer = (
        '<section aria-labelledby="families"><h2 id="families">Which curve does attention follow?</h2>'
        + table(caption, ("family", "heads", "layers", "median share of variance explained"), rows)
        + f'<p class="small">{plan["texts"]} texts of {plan["tokens"]} tokens from {html.escape(plan["source"])}. Weights of the first key are left '
        "out. Black: mean of the texts, thin lines: each text, band: two standard errors. The level is removed.</p></section>"
    )
    study = {
        "name": "the plan", "task": "profiles", "hash": record["hash"], "spec": plan,
        "ran": [{"environment": record["environment"], "runs": plan["texts"], "started": record["started"]}],
    }  # fmt: skip
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    findings = {"studies": [study], "command": record["command"] or "whence discover", "when": when,
                "environment": record["environment"]}  # fmt: skip
    content = "\n".join([answer, *families, provenance_section(findings)])
    return render_page(f"Attention by distance in {plan['model']}", content, when, style=STYLE)


def _family(name: str, record: dict[str, Any]) -> str:
    own = [number for number, one in enumerate(record["heads"]) if one["name"] == name]
    own.sort(key=lambda number: -record["heads"][number]["explained"])
    first, rest = own[:SHOWN], own[SHOWN:]
    charts = "".join(_chart(record, number) for number in first)
    listed = "".join(
        f"<li>layer {one['layer']}, head {one['head']}: {html.escape(one['formula'])}</li>"
        for one in (record["heads"][number] for number in rest)
    )
    more = f"<details><summary>{len(rest)} more</summary><ul>{listed}</ul></details>" if rest else ""
    return (
        f'<section><h2>{html.escape(name.capitalize())}</h2><div class="small-multiples">{charts}</div>{more}</section>'
    )


def _chart(record: dict[str, Any], number: int) -> str:
    one = record["heads"][number]
    kind = {"heads": [number], "name": one["name"], "fitted": {"distances": record["fine"], "values": [one["fitted"]]}}
    title = f"layer {one['layer']}, head {one['head']}: log weight"
    chart = head_chart("log weight", record, kind, number, title, small=True)
    return f'<figure class="figure">{chart}<figcaption>{html.escape(one["formula"])}</figcaption></figure>'
