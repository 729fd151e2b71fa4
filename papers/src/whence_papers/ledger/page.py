"""The HTML report of the claims: an overview, each source claim by claim, and the rules of the verdicts."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.records import RecordFolder
from whence.report.html_page import definition_list, render_page, scrollable
from whence_papers.ledger.claims import SIGNS
from whence_papers.ledger.formulas import plain_quote

INTRODUCTION = """<p>Verdicts are computed from records when this page is written. Claims that cannot be tested here state the reason, and
open claims state what is missing. Open a claim to see the words of the source, how it is tested, our result and its record.</p>
"""


def render_claims_page(ledger: dict[str, Any]) -> str:
    """One self-contained HTML page of claims.

    Args:
        ledger: plain JSON from ``whence_papers.ledger.judge_sources``, with ``command``, ``when`` and ``environment``.
    """
    if not ledger["sources"]:
        raise usage_error("ledger", "no claims", "a page needs at least one claim", "select other sources or verdicts")
    own = files("whence_papers.ledger")
    sources = "".join(_source(source) for source in ledger["sources"])
    return render_page(
        "Claims of the sources and verdicts",
        f"{INTRODUCTION}{_overview(ledger)}{sources}{_rules(ledger)}",
        ledger["when"],
        scripts=(),
        style=own.joinpath("ledger.css").read_text("utf-8"),
        script=own.joinpath("filter.js").read_text("utf-8"),
    )


def _overview(ledger: dict[str, Any]) -> str:
    """Counts by source and verdict. A column header filters the claims by its verdict.

    Claims that hold or fail by definition have a column of their own and are in no other.
    """
    present = [name for name in SIGNS if ledger["counts"][name] or ledger["identities"][name]]
    head = "".join(
        f'<th scope="col"><button class="key {_kind(name)}" data-verdict="{name}" aria-pressed="false">'
        f'<span class="mark" aria-hidden="true">{SIGNS[name]}</span><span>{name}</span></button></th>'
        for name in present
    )
    rows = []
    for source in ledger["sources"]:
        tested = [claim for claim in source["claims"] if not claim["by_definition"]]
        counts = {name: sum(claim["verdict"] == name for claim in tested) for name in present}
        apart = len(source["claims"]) - len(tested)
        cells = "".join(f'<td class="n">{number or ""}</td>' for number in (*counts.values(), apart))
        rows.append(
            f'<tr><th scope="row" class="text"><a href="#{source["name"]}">{source["number"]} {html.escape(source["name"])}'
            f'</a></th>{cells}<td class="bar">{_bar(counts)}</td></tr>'
        )
    apart = sum(ledger["identities"].values())
    every = sum(ledger["counts"].values()) + apart
    total = "".join(
        f'<td class="n"><b>{number}</b></td>' for number in (*(ledger["counts"][n] for n in present), apart)
    )
    table = (
        '<table class="overview">'
        f'<thead><tr><th scope="col" class="text">source</th>{head}<th scope="col">by definition</th><th scope="col" class="text">share</th></tr></thead>'
        f'<tbody>{"".join(rows)}<tr><th scope="row" class="text"><b>all {every}</b></th>{total}'
        f'<td class="bar">{_bar({name: ledger["counts"][name] for name in present})}</td></tr></tbody></table>'
    )
    text = (
        '<p class="small">Claims by source and verdict. Click a verdict to show only its claims. Claims that hold or fail by '
        "definition are counted apart.</p>"
    )
    return f'<section class="verdict">{text}{scrollable(table, "Claims by source and verdict")}</section>'


def _bar(counts: dict[str, int]) -> str:
    """Shares as a stacked bar, which repeats the numbers of the row."""
    total, at, parts = sum(counts.values()) or 1, 0.0, []
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
    rows = [("where", html.escape(claim["where"]))]
    if claim["repository"]:
        rows.append(("rests on", html.escape(claim["repository"])))
    rows.append(("tested by", html.escape(claim["how"])))
    if claim["record"]:
        rows.append(("record", f"<code>{html.escape(claim['record'])}</code>"))
    if claim.get("sources"):
        rows.append(("sources", html.escape(claim["sources"])))
    raw = {key: claim[key] for key in ("arguments", "figures") if claim[key]}
    folded = ""
    if raw:
        text = html.escape(json.dumps(raw, indent=1, ensure_ascii=False))
        folded = f"<details><summary>All figures</summary><pre><code>{text}</code></pre></details>"
    note = '<span class="note">by definition</span>' if claim["by_definition"] else ""
    return f"""<details class="claim {_kind(claim["verdict"])}" id="{html.escape(claim["id"])}" data-verdict="{claim["verdict"]}">
<summary><span class="verdict-word"><span class="mark" aria-hidden="true">{SIGNS[claim["verdict"]]}</span> {claim["verdict"]}{note}</span>
<span class="what">{html.escape(claim["claim"])}<span class="why">{html.escape(claim["reason"])}</span></span></summary>
<div class="inside"><blockquote>{html.escape(plain_quote(claim["quote"]))}</blockquote>{_checks(claim["checks"])}{definition_list(rows)}<p class="small"><code>{html.escape(claim["id"])}</code></p>{folded}</div>
</details>
"""


def _checks(checks: list[dict[str, Any]]) -> str:
    if not checks:
        return ""
    words = {True: "agrees", False: "does not agree", None: "no result yet"}
    rows = []
    for one in checks:
        kind = "" if one["state"] else {True: "better", False: "worse", None: ""}[one["agrees"]]
        text = (one["state"] or words[one["agrees"]]) + (f": {one['note']}" if one["note"] else "")
        cells = (one["statement"], one["result"] or "–", text)
        rows.append(
            f'<tr class="{kind}">' + "".join(f'<td class="text">{html.escape(c)}</td>' for c in cells) + "</tr>"
        )
    head = '<th scope="col" class="text">the source says</th><th scope="col" class="text">our result</th><th scope="col"></th>'
    return scrollable(
        f"<table class='checks'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>", "Checks"
    )


def _rules(ledger: dict[str, Any]) -> str:
    rows = [(name, html.escape(text)) for name, text in ledger["rules"].items()]
    place = ledger["environment"]
    again = [
        ("command", f"<code>{html.escape(ledger['command'])}</code>"),
        ("commit", f"<code>{html.escape(str(place.get('commit') or 'not recorded'))}</code>"),
        ("sources", f"<code>{html.escape(str(place.get('source_hash')))}</code>"),
    ]
    return (
        '<section aria-labelledby="rules"><h2 id="rules">The rules</h2>'
        f"{definition_list(rows)}<h3>How to regenerate this page</h3>{definition_list(again)}</section>"
    )


def _kind(verdict: str) -> str:
    """The CSS class of a verdict."""
    return "v-" + verdict.replace(" ", "-")


def add_provenance(rows: list[dict[str, Any]]) -> None:
    """Add ``sources`` to claims, a sentence about their records; claims that share records share it."""
    sentences: dict[str, str] = {}
    for row in rows:
        record = row["record"]
        if record not in sentences:
            sentences[record] = describe_sources(record)
        row["sources"] = sentences[record]


def describe_sources(record: str) -> str:
    """Say whether a claim's records were made by the sources of the commit they name, or of another one.

    ``record`` holds paths of folders or files, separated by commas or "and".
    """
    matches: list[bool | None] = []
    known = 0
    for text in re.split(r", | and ", record) if record else ():
        path = Path(text)
        folder, names = (
            (RecordFolder(path.parent), [path.name]) if path.suffix == ".json" else (RecordFolder(path), None)
        )
        for name in folder.names() if names is None else filter(folder.exists, names):
            provenance = folder.read(name).get("provenance") or {}
            matches.append(provenance.get("source_matches_commit"))
            known += "sources" in provenance
    recorded = [match for match in matches if match is not None]
    if not recorded:
        return ""
    if all(recorded):
        return "made by the sources of the commit that the record names"
    text = f"{recorded.count(False)} of {len(recorded)} records were made by other sources than those of the commit they name"
    return text + (f"; the commits of {known} of these are found and stored" if known else "")
