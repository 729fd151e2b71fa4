"""The page: how the claims came out, then each source claim by claim, then the rules by which it was judged."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from string import Template
from typing import Any

from whence.errors import usage_error
from whence.report.html_page import definition_list, read_asset, scrollable

SIGNS = {"reproduced": "✓", "not reproduced": "✗", "arithmetic wrong": "≠", "not testable here": "–", "open": "○"}

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>What the sources claim</title>
<style>$style</style>
</head>
<body>
<header><h1>What the sources claim, and what is found</h1>
<p>Verdicts are computed from records when this page is made. What cannot be tested here says why, and what is open says what
it waits for. Open a claim to see how it is tested, what the source says, what was found and which record shows it.</p></header>
<main>
$overview
$sources
$rules
</main>
<footer><p class="small">Made by whence, $when. This page holds all it shows and asks for nothing from a network.</p></footer>
<script>$script</script>
</body>
</html>
""")


def page(found: dict[str, Any]) -> str:
    """One self-contained HTML page of claims.

    Args:
        found: plain JSON, as ``whence_papers.ledger.findings`` makes it, with ``command``, ``when`` and ``environment``.
    """
    if not found["sources"]:
        raise usage_error(
            "page(found)", "no claims", "a page is about at least one", "ask for other sources or verdicts"
        )
    shared = read_asset("style.css")
    own = files("whence_papers.ledger")
    return PAGE.substitute(
        style=shared + own.joinpath("ledger.css").read_text("utf-8"),
        script=own.joinpath("filter.js").read_text("utf-8"),
        overview=_overview(found),
        sources="".join(_source(source) for source in found["sources"]),
        rules=_rules(found),
        when=html.escape(found["when"]),
    )


def _overview(found: dict[str, Any]) -> str:
    """Counts by source and verdict; the heads of the columns show one verdict alone."""
    present = [name for name in SIGNS if found["counts"][name]]
    head = "".join(
        f'<th scope="col"><button class="key {_kind(name)}" data-verdict="{name}" aria-pressed="false">'
        f'<span class="mark" aria-hidden="true">{SIGNS[name]}</span><span>{name}</span></button></th>'
        for name in present
    )
    rows = []
    for source in found["sources"]:
        counts = {name: sum(claim["verdict"] == name for claim in source["claims"]) for name in present}
        cells = "".join(f'<td class="n">{counts[name] or ""}</td>' for name in present)
        rows.append(
            f'<tr><th scope="row" class="text"><a href="#{source["name"]}">{source["number"]} {html.escape(source["name"])}'
            f'</a></th>{cells}<td class="bar">{_bar(counts)}</td></tr>'
        )
    total = "".join(f'<td class="n"><b>{found["counts"][name]}</b></td>' for name in present)
    table = (
        '<table class="overview">'
        f'<thead><tr><th scope="col" class="text">source</th>{head}<th scope="col" class="text">share</th></tr></thead>'
        f'<tbody>{"".join(rows)}<tr><th scope="row" class="text"><b>all {sum(found["counts"].values())}</b></th>{total}'
        f'<td class="bar">{_bar({name: found["counts"][name] for name in present})}</td></tr></tbody></table>'
    )
    told = '<p class="small">Claims by source and verdict. A verdict’s button shows its claims alone.</p>'
    return f'<section class="verdict">{told}{scrollable(table, "Claims by source and verdict")}</section>'


def _bar(counts: dict[str, int]) -> str:
    """Shares as one bar; what it says stands in the cells beside it."""
    total, at, parts = sum(counts.values()), 0.0, []
    for name, number in counts.items():
        width = 100 * number / total
        parts.append(
            f'<rect class="{_kind(name)}" x="{at:.2f}" y="0" width="{max(0.0, width - 0.6):.2f}" height="10"/>'
        )
        at += width
    return (
        f'<svg class="shares" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _source(source: dict[str, Any]) -> str:
    claims = "".join(_claim(claim) for claim in source["claims"])
    return f"""<section class="study" id="{html.escape(source["name"])}">
<p class="kicker">source {html.escape(source["number"])} · {html.escape(source["kind"])} · {len(source["claims"])} claims</p>
<h2>{html.escape(source["title"])}</h2>
<div class="claims">{claims}</div>
</section>
"""


def _claim(claim: dict[str, Any]) -> str:
    rows = [("where", html.escape(claim["where"])), ("tested by", html.escape(claim["how"]))]
    if claim["record"]:
        rows.append(("record", f"<code>{html.escape(claim['record'])}</code>"))
    if claim.get("sources"):
        rows.append(("sources", html.escape(claim["sources"])))
    raw = {key: claim[key] for key in ("given", "found") if claim[key]}
    folded = ""
    if raw:
        told = html.escape(json.dumps(raw, indent=1, ensure_ascii=False))
        folded = f"<details><summary>All figures</summary><pre><code>{told}</code></pre></details>"
    return f"""<details class="claim {_kind(claim["verdict"])}" id="{html.escape(claim["id"])}" data-verdict="{claim["verdict"]}">
<summary><span class="verdict-word"><span class="mark" aria-hidden="true">{SIGNS[claim["verdict"]]}</span> {claim["verdict"]}</span>
<span class="what">{html.escape(claim["claim"])}<span class="why">{html.escape(claim["because"])}</span></span></summary>
<div class="inside">{_checks(claim["checks"])}{definition_list(rows)}<p class="small"><code>{html.escape(claim["id"])}</code></p>{folded}</div>
</details>
"""


def _checks(checks: list[dict[str, Any]]) -> str:
    if not checks:
        return ""
    words = {True: "agrees", False: "does not agree", None: "not found yet"}
    rows = []
    for one in checks:
        kind = {True: "better", False: "worse", None: ""}[one["agrees"]]
        told = words[one["agrees"]] + (f": {one['note']}" if one["note"] else "")
        cells = (one["says"], one["found"] or "–", told)
        rows.append(
            f'<tr class="{kind}">' + "".join(f'<td class="text">{html.escape(c)}</td>' for c in cells) + "</tr>"
        )
    head = '<th scope="col" class="text">the source says</th><th scope="col" class="text">found here</th><th scope="col"></th>'
    return scrollable(
        f"<table class='checks'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>", "Checks"
    )


def _rules(found: dict[str, Any]) -> str:
    rows = [(name, html.escape(text)) for name, text in found["rules"].items()]
    place = found["environment"]
    again = [
        ("command", f"<code>{html.escape(found['command'])}</code>"),
        ("commit", f"<code>{html.escape(str(place.get('commit') or 'not recorded'))}</code>"),
        ("sources", f"<code>{html.escape(str(place.get('source_hash')))}</code>"),
    ]
    return (
        '<section aria-labelledby="rules"><h2 id="rules">The rules</h2>'
        f"{definition_list(rows)}<h3>How to make this page again</h3>{definition_list(again)}</section>"
    )


def _kind(verdict: str) -> str:
    """A verdict as the name of a class."""
    return "v-" + verdict.replace(" ", "-")
