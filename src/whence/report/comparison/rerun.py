"""What was run and how to run it again."""

from __future__ import annotations

import html
import json
from typing import Any

from whence.report.comparison.tables import definitions


def rerun(findings: dict[str, Any]) -> str:
    """The commands, where the records were made, and each study's whole specification."""
    studies = "".join(
        f"<details><summary>{html.escape(study['name'])}: task {html.escape(study['task'])}, specification "
        f"<code>{html.escape(study['hash'])}</code></summary><pre><code>{_json(study['spec'])}</code></pre></details>"
        for study in findings["studies"]
    )
    written = findings.get("environment") or {}
    return (
        '<section aria-labelledby="again"><h2 id="again">What was run, and how to run it again</h2>'
        f"<pre><code>{html.escape(findings['command'])}</code></pre>{''.join(_places(findings['studies']))}"
        f'<p class="small">This page was written from the records on {html.escape(findings["when"])}, with commit '
        f"{_commit(written)}.</p>"
        "<h3>Specifications</h3><p>All that decides the results; the hash is of this text, and names the records.</p>"
        f"{studies}</section>"
    )


def _places(studies: list[dict[str, Any]]) -> list[str]:
    """Each environment in which records were made, with the studies whose records they are."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for study in studies:
        for made in study["ran"]:
            told = {"name": study["name"], **made}
            same = [rows for place, rows in found if place == made["environment"]]
            if same:
                same[0].append(told)
            else:
                found.append((made["environment"], [told]))
    return [_place(place, rows) for place, rows in found]


def _place(place: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in (place.get("packages") or {}).items())
    versions = f"Python {place.get('python', 'not recorded')}" + (f", {packages}" if packages else "")
    runs = "; ".join(f"{row['runs']} of {row['name']}" for row in rows)
    return definitions(
        [
            ("runs", html.escape(runs)),
            ("first begun", html.escape(min(str(row["started"]) for row in rows))),
            ("commit", _commit(place)),
            ("source hash", _source_hash(place, rows[0].get("provenance"))),
            ("versions", html.escape(versions)),
            ("machine", html.escape(_machine(place))),
        ]
    )


def _source_hash(place: dict[str, Any], provenance: dict[str, Any] | None) -> str:
    """The hash of the sources that ran and, where it is known, whether they are those of the commit."""
    matches = (provenance or {}).get("source_matches_commit")
    note = ""
    if matches is not None:
        words = "the hash of the commit's sources"
        note = f", {words}" if matches else f', <span class="warning">not {words}, which did not make these runs</span>'
    return f"<code>{html.escape(str(place.get('source_hash') or 'not recorded'))}</code>{note}"


def _commit(place: dict[str, Any]) -> str:
    changed = place.get("uncommitted_changes")
    words = "whether there were uncommitted changes is not known"
    if changed is not None:
        words = "with uncommitted changes" if changed else "without uncommitted changes"
    kind = ' class="warning"' if changed else ""
    return f"<code>{html.escape(str(place.get('commit') or 'not recorded'))}</code>, <span{kind}>{words}</span>"


def _machine(place: dict[str, Any]) -> str:
    machine = place.get("machine") or {}
    parts = [str(machine[key]) for key in ("accelerator", "processor", "architecture") if machine.get(key)]
    if machine.get("cores"):
        parts.append(f"{machine['cores']} cores")
    return ", ".join([*parts, *([str(place["system"])] if place.get("system") else [])]) or "not recorded"


def _json(data: Any) -> str:
    return html.escape(json.dumps(data, indent=2, ensure_ascii=False))
