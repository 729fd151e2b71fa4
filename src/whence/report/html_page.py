"""What all HTML reports share: the self-contained page, tables, definition lists, and the section on provenance."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

# The content security policy makes the browser block every request, so the page stays self-contained.
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header><h1>$title</h1></header>
<main>
$content
</main>
<footer><p class="small">Written by whence, $when. This report is self-contained and loads nothing from a network.</p></footer>
<div id="tooltip" role="presentation" hidden></div>
<script>$script</script>
</body>
</html>
""")


def render_page(
    title: str, content: str, when: str, scripts: Sequence[str] = ("legend.js",), *, style: str = "", script: str = ""
) -> str:
    """A self-contained HTML page.

    Args:
        title: plain text.
        content: HTML of the page's sections.
        when: date and time of writing, as plain text.
        scripts: names of the scripts in ``assets``.
        style: CSS of this page, after the shared style sheet.
        script: JavaScript of this page, after the scripts.
    """
    return PAGE.substitute(
        title=html.escape(title),
        style=read_asset("style.css") + style,
        content=content,
        when=html.escape(when),
        script="".join(read_asset(name) for name in scripts) + script,
    )


def read_asset(name: str) -> str:
    """The text of a style sheet or script of the reports."""
    return files("whence.report").joinpath("assets", name).read_text("utf-8")


def scrollable(table: str, label: str) -> str:
    """A table in its own scrolling frame, which the keyboard can reach. A wide table never widens the page."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(label)}">{table}</div>'


def definition_list(rows: Sequence[tuple[str, str]]) -> str:
    """Terms as plain text with their descriptions as HTML."""
    return "<dl>" + "".join(f"<dt>{html.escape(term)}</dt><dd>{text}</dd>" for term, text in rows) + "</dl>"


def provenance_section(findings: dict[str, Any]) -> str:
    """The command, the environments the records were made in, and the specification of each study."""
    specifications = "".join(
        f"<details><summary>{html.escape(study['name'])}: task {html.escape(study['task'])}, specification "
        f"<code>{html.escape(study['hash'])}</code></summary><pre><code>{_format_json(study['spec'])}</code></pre></details>"
        for study in findings["studies"]
    )
    return (
        '<section aria-labelledby="reproduce"><h2 id="reproduce">How to reproduce</h2>'
        f"<pre><code>{html.escape(findings['command'])}</code></pre>{_environments(findings['studies'])}"
        f'<p class="small">This page was written from the records on {html.escape(findings["when"])}, at commit '
        f"{_commit(findings.get('environment') or {})}.</p>"
        "<h3>Specifications</h3><p>Everything that determines the results. The hash of this text names the records.</p>"
        f"{specifications}</section>"
    )


def _environments(studies: list[dict[str, Any]]) -> str:
    """Each environment that records were made in, with the number of runs of each study."""
    groups: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for study in studies:
        for batch in study["ran"]:
            row = {"name": study["name"], **batch}
            same = [rows for environment, rows in groups if environment == batch["environment"]]
            if same:
                same[0].append(row)
            else:
                groups.append((batch["environment"], [row]))
    return "".join(_environment(environment, rows) for environment, rows in groups)


def _environment(environment: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in (environment.get("packages") or {}).items())
    versions = f"Python {environment.get('python', 'not recorded')}" + (f", {packages}" if packages else "")
    runs = "; ".join(f"{row['runs']} of {row['name']}" for row in rows)
    return definition_list(
        [
            ("runs", html.escape(runs)),
            ("first started", html.escape(min(str(row["started"]) for row in rows))),
            ("commit", _commit(environment)),
            ("source hash", _source_hash(environment, rows[0].get("provenance"))),
            ("versions", html.escape(versions)),
            ("machine", html.escape(_machine(environment))),
        ]
    )


def _source_hash(environment: dict[str, Any], provenance: dict[str, Any] | None) -> str:
    """The hash of the sources that ran and, where it is known, whether they are those of the commit, or of which others."""
    facts = provenance or {}
    note = ", <span>matches the commit</span>" if facts.get("source_matches_commit") else ""
    if facts.get("source_matches_commit") is False:
        others = facts.get("sources")
        text = "other sources made these runs"
        if others:
            files = [f"{name} of {commit[:12]}" for name, commit in others.get("files", {}).items()]
            text = f"the sources are those of {others['commit'][:12]}" + (f" with {', '.join(files)}" if files else "")
        note = f', <span class="warning">differs from the commit: {html.escape(text)}</span>'
    return f"<code>{html.escape(str(environment.get('source_hash') or 'not recorded'))}</code>{note}"


def _commit(environment: dict[str, Any]) -> str:
    changed = environment.get("uncommitted_changes")
    words = "uncommitted changes not recorded"
    if changed is not None:
        words = "with uncommitted changes" if changed else "without uncommitted changes"
    css_class = ' class="warning"' if changed else ""
    return (
        f"<code>{html.escape(str(environment.get('commit') or 'not recorded'))}</code>, <span{css_class}>{words}</span>"
    )


def _machine(environment: dict[str, Any]) -> str:
    machine = environment.get("machine") or {}
    parts = [str(machine[key]) for key in ("accelerator", "processor", "architecture") if machine.get(key)]
    if machine.get("cores"):
        parts.append(f"{machine['cores']} cores")
    return ", ".join([*parts, *([str(environment["system"])] if environment.get("system") else [])]) or "not recorded"


def _format_json(data: Any) -> str:
    return html.escape(json.dumps(data, indent=2, ensure_ascii=False))
