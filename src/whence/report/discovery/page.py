"""The page of one discovery: the answer, each kind of head, the mechanism, the comparison, and how it was run."""

from __future__ import annotations

import html
from typing import Any

from whence.report.comparison import line_charts, tables
from whence.report.comparison.arm_style import assign_styles, render_legend
from whence.report.comparison.page import claims_section
from whence.report.comparison.units import choose_units
from whence.report.comparison.verdicts import verdict_section
from whence.report.discovery.charts import head_chart
from whence.report.discovery.sentences import (
    answer,
    describe_challenger,
    describe_smoothness,
    label_head,
    warn_unlearned,
)
from whence.report.formatting import format_number
from whence.report.html_page import provenance_section, render_page
from whence.report.probe.tables import table

STYLE = """.band { fill: var(--c); opacity: .16; } .small-multiples { display: grid; gap: .8rem 1.6rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.formula { overflow-wrap: anywhere; } .ranking { min-width: 0; } .ranking tbody th { white-space: normal; }"""
NO_EFFECT = "no effect"
HOOKS = {"bias": "Added to the score", "scale": "Multiplied with the score"}


def page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page about a discovery.

    Args:
        findings: ``record`` of ``whence.discover.discovery``, ``studies`` of the comparison as ``whence.lab.results`` collects them
            (empty before it ran), ``title``, ``when``, ``command`` and ``mechanism``, the path of the file.
    """
    record, studies = findings["record"], findings["studies"]
    sections = [_answer(findings)]
    sections += [_hook(hook, curves, record) for hook, curves in record["hooks"].items()]
    tables_study = {
        "name": record["spec"]["name"], "task": record["spec"]["task"], "hash": record["hash"], "spec": record["spec"],
        "ran": [{"environment": record["environment"], "runs": len(record["seeds"]), "started": record["started"]}],
    }  # fmt: skip
    sections += [_mechanism(findings), *_comparison(studies)]
    sections.append(provenance_section({**findings, "studies": [tables_study, *studies]}))
    return render_page(findings["title"], "\n".join(sections), findings["when"], style=STYLE)


def _answer(findings: dict[str, Any]) -> str:
    record = findings["record"]
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in answer(record))
    warning = warn_unlearned(record)
    warned = f'<p class="warning">{html.escape(warning)}</p>' if warning else ""
    return (
        '<section class="verdict" aria-labelledby="answer"><h2 id="answer">Which formula did the heads learn?</h2>'
        f'{warned}<ul class="formula">{lines}</ul><p>{html.escape(describe_smoothness(record))}</p></section>'
    )


def _hook(hook: str, curves: dict[str, Any], record: dict[str, Any]) -> str:
    kinds = "".join(_kind(hook, curves, kind, record) for kind in curves["kinds"])
    return (
        f'<section aria-labelledby="{hook}"><h2 id="{hook}">{HOOKS[hook]}: the {hook}</h2>'
        f'<p class="small">Black: mean of {len(record["seeds"])} seeds, thin lines: each seed, band: two standard errors of the '
        "mean. What softmax cannot see is removed: the mean over distances of a bias, and the level of a scale.</p>"
        f"{kinds}</section>"
    )


def _kind(hook: str, curves: dict[str, Any], kind: dict[str, Any], record: dict[str, Any]) -> str:
    heads = record["heads"] if record["layers"] > 1 else None
    chart = head_chart(
        hook, curves, kind, kind["strongest"], f"{hook}, {label_head(kind['strongest'], heads)}", challenger=True
    )
    others = "".join(
        f'<figure class="figure">{head_chart(hook, curves, kind, head, f"{hook}, {label_head(head, heads)}", small=True)}</figure>'
        for head in kind["heads"]
        if head != kind["strongest"]
    )
    more = (
        f'<details><summary>The other heads of this kind</summary><div class="small-multiples">{others}</div></details>'
        if others
        else ""
    )
    formula = kind["formula"]
    if others and kind["name"] != NO_EFFECT:
        formula += f" in {label_head(kind['strongest'], heads)}, the strongest; each head has its own amplitude"
    return (
        f"<h3>{html.escape(kind['name'].capitalize())}</h3><p>{html.escape(kind['label'].capitalize())}.</p>"
        f'<div class="figures"><figure class="figure">{chart}<figcaption class="formula">{html.escape(formula)}</figcaption></figure>'
        f'<div class="ranking">{_ranking(kind)}{_challenger(kind)}</div></div>{more}'
    )


def _ranking(kind: dict[str, Any]) -> str:
    rows = [
        [
            f"{number + 1}. {one['name']}",
            format_number(one["bits"], 1),
            format_number(one["held_out"], 2),
            "not established" if not one.get("established", True) else "yes" if one["predicts"] else "no",
        ]
        for number, one in enumerate(kind["ranking"])
    ]
    caption = (
        "Ranking: the shortest description among the formulas whose error on held-out distances of held-out seeds is near the smallest: not "
        "above it beyond the spread over seeds, which is wide for few seeds. An effect is not established if it changes no weight by 1 %, or if "
        "seeds do not agree on it."
    )
    return table(caption, ("formula", "bits", "held-out error", "near the smallest"), rows)


def _challenger(kind: dict[str, Any]) -> str:
    text = describe_challenger(kind)
    return f'<p class="small formula">{html.escape(text)}</p>' if text else ""


def _mechanism(findings: dict[str, Any]) -> str:
    return (
        '<section aria-labelledby="mechanism"><h2 id="mechanism">The mechanism as a file</h2>'
        f"<p><code>{html.escape(findings['mechanism'])}</code> passes <code>whence.check</code>. Its numbers are initial values; amplitudes and smooth parameters are learnable.</p>"
        f"<pre><code>{html.escape(findings['record']['mechanism'])}</code></pre></section>"
    )


def _comparison(studies: list[dict[str, Any]]) -> list[str]:
    """The sections of the comparison, from the findings that ``whence compare`` reports too."""
    if not studies:
        return ['<section><h2>The comparison</h2><p class="warning">It has not run yet.</p></section>']
    styles = assign_styles(studies)
    parts = [claims_section(studies), verdict_section(studies, styles)]
    for index, study in enumerate(studies):
        units = choose_units(study)
        chart = line_charts.length_chart(study, units, styles) if index == 0 else ""
        figure = f'<div class="figures"><figure class="figure">{chart}</figure></div>' if chart else ""
        lengths = tables.lengths_table(study, units) if index == 0 and len(study["lengths"]) > 1 else ""
        legend = render_legend(study["arms"], styles) if index == 0 else ""
        parts.append(
            f'<section class="study" id="study-{index}"><h2>{html.escape(study["question"])}</h2>{tables.results_table(study, units, styles)}'
            f"{legend}{figure}{lengths}</section>"
        )
    return parts
