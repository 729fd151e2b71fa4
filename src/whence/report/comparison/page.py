"""The page: the verdict first, then each study from its table to its attention maps, then how to run it again."""

from __future__ import annotations

import html
from collections.abc import Mapping
from importlib.resources import files
from string import Template
from typing import Any

from whence.errors import usage_error
from whence.report.comparison import curves, learned, maps, tables
from whence.report.comparison.dots import dot_plot
from whence.report.comparison.panels import render_panels
from whence.report.comparison.rerun import rerun
from whence.report.comparison.style import Look, legend, looks
from whence.report.comparison.units import Units, units
from whence.report.comparison.verdicts import verdicts

TALL = 9  # arms beyond which the dots stand beside all other charts, and lines are thin

# the policy makes the browser itself refuse any request, so that "self-contained" cannot become untrue
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
$verdicts
$studies
$rerun
</main>
<footer><p class="small">Made by whence, $when. This page holds all it shows and asks for nothing from a network.</p></footer>
<div id="tooltip" role="presentation" hidden></div>
<script>$script</script>
</body>
</html>
""")


def page(findings: dict[str, Any]) -> str:
    """One self-contained HTML page about a comparison.

    Args:
        findings: plain JSON, as ``whence.lab.results.findings`` makes it; the same findings give the same bytes.
    """
    studies = findings.get("studies")
    if not studies or not all(study["arms"] for study in studies):
        raise usage_error(
            "page(findings)",
            "no studies" if not studies else "a study without arms",
            "a page is about at least one arm of one study",
            "run a study first",
        )
    known = looks(studies)
    packed, kept, given = maps.fitted(studies)
    sections = "".join(
        _study(index, study, units(study), known, _viewer(index, packed[index], known, kept, given))
        for index, study in enumerate(studies)
    )
    folder = files("whence.report.comparison")
    return PAGE.substitute(
        title=html.escape(findings["title"]),
        style=folder.joinpath("style.css").read_text("utf-8"),
        script="".join(folder.joinpath(name).read_text("utf-8") for name in ("maps.js", "legend.js")),
        verdicts=verdicts(studies, known),
        studies=sections,
        rerun=rerun(findings),
        when=html.escape(findings["when"]),
    )


def _study(index: int, study: dict[str, Any], shown: Units, known: Mapping[str, Look], viewer: str) -> str:
    about = f'<p class="about">{html.escape(study["about"])}</p>' if study["about"] else ""
    spec = study.get("spec") or {}
    seeds = spec.get("seeds") or []
    many = f", {len(seeds)} seed{'' if len(seeds) == 1 else 's'} each" if seeds else ""
    arms = f"{len(study['arms'])} arm{'' if len(study['arms']) == 1 else 's'}"
    charts = [
        _figure("Every seed", dot_plot(study, shown, known), _dots_caption(study), tall=len(study["arms"]) > TALL),
        _figure(
            "Beyond the trained length",
            curves.by_length(study, shown, known),
            "Thick: mean of the seeds; thin: each seed. The vertical line marks the length seen in training.",
        ),
        _figure("Training loss", curves.loss_curves(study, known), "Thick: mean of the seeds; thin: each seed."),
        _figure(
            f"Evaluation on {study['split']}",
            curves.evaluation_curves(study, shown, known),
            "Thick: mean of the seeds; thin: each seed.",
        ),
    ]
    mass = curves.mass_by_distance(study, known)
    masses = "".join(f'<figure class="figure">{chart}</figure>' for chart in mass)
    many_lines = " many" if len(study["arms"]) > TALL else ""
    far = '<p class="small">How much of a query’s attention lies so many tokens away, on average.</p>'
    return f"""<section class="study" id="study-{index}" aria-labelledby="study-{index}-name">
<p class="kicker">{html.escape(study["task"])} · {arms}{many} · <code>{html.escape(study["hash"])}</code></p>
<h2 id="study-{index}-name">{html.escape(study["name"])}</h2>
<p class="question">{html.escape(study["question"])}</p>
{about}
{"".join(f'<p class="about">{html.escape(said)}</p>' for said in study.get("problems") or [])}
{tables.results(study, shown, known)}
{legend(study["arms"], known)}
<div class="figures{many_lines}">{"".join(charts)}</div>
{tables.every_length(study, shown) if len(study["lengths"]) > 1 else ""}
{render_panels(study, known)}
<h3>Where it looks</h3>
{viewer}
{f'<h3>How far it looks</h3>{far}<div class="figures{many_lines}">{masses}</div>' if mass else ""}
<h3>What the positions learned</h3>
{learned.learned(study, known)}
</section>
"""


def _figure(title: str, chart: str, caption: str, tall: bool = False) -> str:
    """A chart with its title and caption; nothing where there was nothing to draw."""
    if not chart:
        return ""
    return (
        f'<figure class="figure{" tall" if tall else ""}"><h3>{html.escape(title)}</h3>{chart}'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _dots_caption(study: dict[str, Any]) -> str:
    comparison = study.get("comparison")
    whiskers = ""
    if comparison and comparison["baseline_summary"]["n"] > 1:
        level = f"{100 * comparison['level']:g}%"
        whiskers = f" The bar is the {level} interval of the mean; an arrow means that it goes on beyond the axis."
    return f"A dot is one trained model, the tall stroke their mean.{whiskers}"


def _viewer(index: int, packed: dict[str, Any] | None, known: Mapping[str, Look], kept: int, given: int) -> str:
    if packed is not None:
        return maps.viewer(index, packed, known, kept, given)
    why = (
        "The attention maps were too large for this page." if given and not kept else "No attention maps were recorded."
    )
    return f'<p class="small">{why}</p>'
