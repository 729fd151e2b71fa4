"""The documentation's page for each source: what was reproduced, from the judged ledger (written by ``papers_table.py``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from whence_papers import FOLDER
from whence_papers.ledger.claims import SIGNS
from whence_papers.ledger.formulas import plain_quote

#: figures of docs/ that show results of a source, with their captions
FIGURES = {
    "epar": {"epar_when.png": "EPAR beside other positions, by task, noise and length"},
    "prior": {
        "prior.png": "A Qwen-style model of 20M parameters with the prior, beside other positions: loss, length, learned alpha and beta",
        "prior_134m.png": "The model of 134M parameters with rotary position, with and without the prior, one seed each",
    },
    "survey": {
        "probe.png": "SmolLM2-135M-Instruct: accuracy by the position of the answer",
        "probe-why.png": "What the curve depends on, in ten panels",
        "growth.png": "Positional channels of the hidden states, layer by layer",
        "trough.png": "A fact in SmolLM2 at every distance: attention to it follows the oscillation of rotary position, its answer does not",
    },
    "pointer": {"next_location.png": "Learned bias over the distance to the last visit, for each arm"},
    "speeches": {
        "speeches.png": "Training and test scores over time, beside the tables of the source",
        "speeches-maps.png": "Attention maps of the sentences that the source draws, at every s",
    },
}
#: trials of cures are made by a tool that runs a command for each of them
STORED_COMMANDS = " runs all trials, on a GPU; each record holds the `whence mend` command that makes it again"
MEANINGS = {
    "reproduced": "The records agree with the claim.",
    "not reproduced": "The records contradict the claim.",
    "undecided": "The records allow both.",
    "equivalent": "The arms certainly differ by less than the margin.",
    "arithmetic wrong": "The numbers that the source prints do not agree with each other.",
    "not testable": "What a test needs is not given or not available, or no arm of the record beats a simple rule.",
    "open": "A command exists that would test the claim; its record is not committed.",
}


def source_page(source: dict[str, Any], command_for: Callable[[dict[str, Any]], str]) -> str:
    """The page of one source: the number of claims by verdict, figures, and every claim with what was found."""
    claims = source["claims"]
    groups = {verdict: [one for one in claims if one["verdict"] == verdict] for verdict in SIGNS}
    groups = {verdict: group for verdict, group in groups.items() if group}
    lines = [
        f"# {source['title']}",
        "",
        f"{_sentence(source['kind'])} {len(claims)} claims. `whence claims --source {source['name']}` lists them in a terminal.",
        "",
    ]
    lines += ["| verdict | claims | of these, by definition | meaning |", "|---|---|---|---|"]
    for verdict, group in groups.items():
        by_definition = sum(claim["by_definition"] for claim in group)
        link = f"[{SIGNS[verdict]} {verdict}](#{verdict.replace(' ', '-')})"
        lines.append(f"| {link} | {len(group)} | {by_definition} | {MEANINGS[verdict]} |")
    lines.append("")
    for name, caption in FIGURES.get(source["name"], {}).items():
        lines += [f"![{caption}](../{name})", "", f"*{caption}.*", ""]
    for verdict, group in groups.items():
        lines += [f"## {_sentence(verdict).rstrip('.')}", ""]
        for claim in group:
            lines += [*_claim(claim, source["name"], command_for(claim)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _claim(claim: dict[str, Any], source: str, command: str) -> list[str]:
    name = claim["id"].removeprefix(f"{source}-")
    lines = [f"### {name}", "", _escape(claim["claim"]), ""]
    if claim["quote"]:
        lines += [
            f"> {_keep_bold(_escape(plain_quote(claim['quote'])))}",
            ">",
            f"> *{_escape(claim['where'])}*",
            "",
        ]
    lines += [f"- **Found:** {_escape(_sentence(claim['reason']))}"]
    lines += [f"- **Test:** {_escape(claim['how'])}"]
    if claim["by_definition"]:
        lines.append("- The claim holds or fails by definition; it is counted apart.")
    if command:
        records = re.split(r", | and ", claim["record"].replace(f"{FOLDER.as_posix()}/", "")) if claim["record"] else []
        lines.append(f"- **Run:** `{command}`{STORED_COMMANDS if 'mend_trials' in command else ''}")
        if records:
            lines.append(f"- **Record{'s' if len(records) > 1 else ''}:** " + ", ".join(f"`{one}`" for one in records))
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _escape(text: str) -> str:
    r"""Text of a source with the characters that Markdown would read as markup escaped.

    >>> print(_escape("**4.7%** of a|b <x> $h_i$"))
    \*\*4.7%\*\* of a|b &lt;x> $h\_i$
    """
    return re.sub(r"([\\*_`\[\]#])", r"\\\1", text).replace("<", "&lt;")


def _keep_bold(escaped: str) -> str:
    r"""Escaped text in which pairs of double stars are bold again, as in the source.

    >>> print(_keep_bold(_escape("**4.7%** of 2**3")))
    **4.7%** of 2\*\*3
    """
    return re.sub(r"\\\*\\\*(?=\S)(.+?)(?<=\S)\\\*\\\*", r"**\1**", escaped)
