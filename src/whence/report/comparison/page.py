"""The page: claims and verdicts first, then each study from its table to its attention maps, then how to reproduce it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.errors import usage_error
from whence.report.comparison import line_charts, tables
from whence.report.comparison.arm_style import ArmStyle, assign_styles, render_legend
from whence.report.comparison.attention_maps import map_viewer, pack_maps
from whence.report.comparison.baseline_lines import baseline_caption, loss_caption
from whence.report.comparison.data_facts import data_section, scores_table
from whence.report.comparison.dot_plots import seed_plot
from whence.report.comparison.sentences import claim_sentences, constant_warnings
from whence.report.comparison.sweep_table import sweep_section
from whence.report.comparison.units import choose_units
from whence.report.comparison.verdicts import verdict_section
from whence.report.html_page import provenance_section, render_page

MAX_CLAIMS = 8  # further ones are collapsed
MAX_ARMS = 9  # with more, the plot of the seeds is taller than the other charts, and lines are thin


def page(findings: dict[str, Any]) -> str:
    """The self-contained HTML report of a comparison.

    Args:
        findings: plain JSON, from ``whence.lab.results.findings``. The same findings give the same bytes.
    """
    studies = findings.get("studies")
    if not studies or not all(study["arms"] for study in studies):
        raise usage_error(
            "page(findings)",
            "no studies" if not studies else "a study without arms",
            "a report needs at least one study with one arm",
            "run a study first",
        )
    styles = assign_styles(studies)
    packed = pack_maps(studies)
    sections = [_study(index, study, styles, map_viewer(index, packed)) for index, study in enumerate(studies)]
    content = "\n".join(
        [claims_section(studies), verdict_section(studies, styles), *sections, provenance_section(findings)]
    )
    return render_page(findings["title"], content, findings["when"], scripts=("attention_maps.js", "legend.js"))


def claims_section(studies: list[dict[str, Any]]) -> str:
    """What the studies claim, one sentence each; empty without claims. Studies in which no arm is shown to beat a constant answer come first, as warnings."""
    sentences = [sentence for study in studies for sentence in claim_sentences(study)]
    if not sentences:
        return ""
    shown, rest = sentences[:MAX_CLAIMS], sentences[MAX_CLAIMS:]
    more = f"<details><summary>{len(rest)} more</summary>{_list(rest)}</details>" if rest else ""
    warnings = "".join(f'<p class="warning">{html.escape(line)}</p>' for line in constant_warnings(studies))
    title = '<h2 id="claims">Claims</h2>'
    return f'<section class="claims" aria-labelledby="claims">{warnings}{title}{_list(shown)}{more}</section>'


def _list(sentences: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _study(index: int, study: dict[str, Any], styles: Mapping[str, ArmStyle], viewer: str) -> str:
    units, num_arms = choose_units(study), len(study["arms"])
    arms_text = f"{num_arms} arm{'' if num_arms == 1 else 's'}"
    figures_class = "figures many" if num_arms > MAX_ARMS else "figures"
    paragraphs = [study["about"], *(study.get("problems") or [])]
    caption = "Thick: mean of the seeds. Thin: each seed."
    levels = baseline_caption(study, units)
    charts = [
        _figure(
            "Results per seed", seed_plot(study, units, styles), _seed_caption(study) + levels, num_arms > MAX_ARMS
        ),
        _figure(
            "Length extrapolation",
            line_charts.length_chart(study, units, styles),
            f"{caption} The vertical line marks the training length.{levels}",
        ),
        _figure("Training loss", line_charts.loss_chart(study, styles), caption + loss_caption(study)),
        _figure(
            f"Evaluation on {study['split']}", line_charts.evaluation_chart(study, units, styles), caption + levels
        ),
    ]
    by_distance = "".join(
        f'<figure class="figure">{chart}</figure>' for chart in line_charts.attention_by_distance_charts(study, styles)
    )
    if by_distance:
        by_distance = (
            '<h3>Attention by distance</h3><p class="small">Share of a query’s attention at each distance to the key, averaged over queries.</p>'
            f'<div class="{figures_class}">{by_distance}</div>'
        )
    return f"""<section class="study" id="study-{index}" aria-labelledby="study-{index}-name">
<p class="kicker">{html.escape(study["task"])} · {arms_text}{_describe_seeds(study)} · <code>{html.escape(study["hash"])}</code></p>
<h2 id="study-{index}-name">{html.escape(study["name"])}</h2>
<p class="question">{html.escape(study["question"])}</p>
{"".join(f'<p class="about">{html.escape(text)}</p>' for text in paragraphs if text)}
{data_section(study.get("data") or {})}
{tables.results_table(study, units, styles)}
{tables.pairs_table(study, units, styles)}
{scores_table(study, styles)}
{render_legend(study["arms"], styles)}
<div class="{figures_class}">{"".join(charts)}</div>
{tables.lengths_table(study, units) if len(study["lengths"]) > 1 else ""}
{sweep_section(study["sweep"], units, styles) if study.get("sweep") else ""}
{"".join(_panel(panel, styles) for panel in study.get("panels") or [])}
<h3>Attention maps</h3>
{viewer}
{by_distance}
<h3>Learned position parameters</h3>
{tables.parameters_table(study, styles)}
</section>
"""


def _describe_seeds(study: dict[str, Any]) -> str:
    """The number of trained seeds of the arms. Seeds that were planned and not needed do not count."""
    counts = [len({*arm["curves"], *(str(one["seed"]) for one in arm["diverged"])}) for arm in study["arms"]]
    fewest, most = min(counts), max(counts)
    if not most:
        return ""
    return f", {most if fewest == most else f'{fewest} to {most}'} seed{'' if most == 1 else 's'} each"


def _panel(panel: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    """A table or chart that the task supplies."""
    if panel["kind"] == "table":
        return tables.panel_table(panel, styles)
    chart = line_charts.panel_chart(panel, styles)
    return f'<div class="figures">{_figure(panel["title"], chart, panel["note"])}</div>'


def _figure(title: str, chart: str, caption: str, tall: bool = False) -> str:
    """A chart with its title and caption; empty if there is no chart."""
    if not chart:
        return ""
    return (
        f'<figure class="figure{" tall" if tall else ""}"><h3>{html.escape(title)}</h3>{chart}'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _seed_caption(study: dict[str, Any]) -> str:
    comparison = study.get("comparison")
    interval = ""
    if comparison and comparison["baseline_summary"]["n"] > 1:
        level = f"{100 * comparison['level']:g}%"
        interval = f" Bar: {level} interval of the mean; an arrow means that it continues beyond the axis."
    return f"Dot: one trained model. Vertical stroke: mean of the seeds.{interval}"
