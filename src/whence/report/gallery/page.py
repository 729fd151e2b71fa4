"""The page of the gallery: texts, sliders, empty panels and the packed tables, in one self-contained HTML file."""

from __future__ import annotations

import base64
import html
import json
import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import Tensor

from whence import __version__, records
from whence.errors import WhenceError
from whence.position.catalogue import CATALOGUE, Entry
from whence.report.gallery.exhibits import COMPOSITIONS, HEADS, LENGTH, Exhibit, Slider, make_exhibit
from whence.report.gallery.tables import DRAWN, SHORTEST_AXIS, TOLERANCE, GridTables, compute_tables
from whence.report.html_page import definition_list, read_asset, render_page

MAX_BYTES = 1_500_000  # a page that opens at once, also as a part of a documentation site
#: the largest level of a table by its bytes: 14 bits place a curve, and read it to three digits on most axes
TOP_LEVELS = {1: 2**8 - 1, 2: 2**14 - 1}
COARSE = 20  # a table whose range is more than so many times that of the default needs two bytes
TITLE = "What position does to attention"

INTRODUCTION = Template("""<p>Attention by itself is invariant to the order of tokens. Each mechanism below adds position in
its own way: it changes the input embedding, rotates queries and keys, scales scores, adds a bias, or adds one logit to
every row. All panels use the same content, so two panels differ only by the mechanism. Move the sliders to change the
arguments of its constructor.</p>
$terms
<p>Learnable mechanisms are shown as initialized, with $heads heads. Some are flat until they are trained.</p>
<ul class="heads" aria-label="Lines of the heads">$lines<li>gray, dashed: the default</li></ul>
<p class="small">Python computed the panels at a grid of settings. Between these settings the page interpolates; each
slider adds an error of about $tolerance of an axis at most.</p>
<noscript><p class="warning">The panels and sliders need JavaScript.</p></noscript>
<nav aria-label="Contents"><ol>$contents</ol></nav>
""")

COMPOSITION = """<h2 class="part" id="composition">Composition</h2>
<p>Mechanisms compose: <code>a + b</code> is a mechanism, too. Embeddings and rotations are applied in turn, factors
multiply, and biases and content terms add. Sinks are joined: each takes its own share of a row.</p>
"""

ARTICLE = Template("""<article class="exhibit" id="$anchor" aria-labelledby="$anchor-name">
<h3 id="$anchor-name">$name</h3>
<p class="idea">$idea</p>
<p class="source small">$source</p>
<pre><code>$code</code></pre>
$sliders
<p class="failure warning" hidden>This browser cannot read the tables of this page.</p>
<div class="row$five">$panels</div>
<script type="application/json">$data</script>
</article>
""")

SLIDER = Template("""<div class="slider"><label for="$id">$name$note</label><output for="$id">$value</output>
<input type="range" id="$id" min="0" max="$last" step="1" value="$start"></div>""")

CURVE = Template("""<figure class="curve" data-table="$table" data-first="$first" data-x="$x" data-scale="$scale" data-reference="$reference">
<h4>$title <span>$note</span></h4>
<svg viewBox="0 0 340 230" role="img" tabindex="0" aria-label="$alt"></svg>
<p class="axes">across: $across</p><p class="readout" aria-live="polite"></p></figure>""")

MAP = Template("""<figure class="$css"><h4>$title <span>$note</span></h4>
<canvas class="map" role="img" aria-label="$alt"></canvas><canvas class="bar" aria-hidden="true"></canvas>
<p class="scale"><span></span><span></span></p><p class="axes">across: key, down: query</p></figure>""")


def write_gallery(
    path: str | os.PathLike[str],
    *,
    entries: Iterable[Entry] = CATALOGUE,
    compositions: Sequence[Exhibit] = COMPOSITIONS,
    jobs: int = 1,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Write mechanisms with sliders to one self-contained HTML page. An existing page is replaced atomically.

    Args:
        path: the HTML file; missing folders are created.
        entries: the mechanisms. Default: the whole catalogue.
        compositions: what the section on composition shows; it is left out if this is empty.
        jobs: number of processes that evaluate. More than one needs entries of the catalogue.
        progress: called before each mechanism with the number done, the total, and the name of the next.
    """
    exhibits = tuple(map(make_exhibit, entries))
    drawn, articles = (*exhibits, *compositions), []
    with ExitStack() as stack:
        rendered: Iterable[str] = (render_article(compute_tables(exhibit)) for exhibit in drawn)
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")))
            rendered = pool.map(_render_named, [exhibit.entry.name for exhibit in drawn])
        results = iter(rendered)
        for done, exhibit in enumerate(drawn):
            if progress is not None:
                progress(done, len(drawn), exhibit.entry.name)
            articles.append(next(results))
    page = render_page(
        TITLE,
        _render_introduction(exhibits, bool(compositions))
        + "".join(articles[: len(exhibits)])
        + (COMPOSITION if compositions else "")
        + "".join(articles[len(exhibits) :]),
        f"version {__version__}",
        scripts=("gallery.js",),
        style=read_asset("gallery.css"),
    )
    if len(page.encode()) > MAX_BYTES:
        raise WhenceError(
            f"The gallery has {len(page.encode()):,} bytes, more than {MAX_BYTES:,}; give sliders a smaller range in "
            "report/gallery/exhibits.py."
        )
    records.write_text(Path(path), page)
    return Path(path)


def _render_named(name: str) -> str:
    """The article of a built-in exhibit; exhibits themselves cannot be sent to another process."""
    torch.set_num_threads(1)
    built_in = (*map(make_exhibit, CATALOGUE), *COMPOSITIONS)
    return render_article(compute_tables(next(one for one in built_in if one.entry.name == name)))


def _render_introduction(exhibits: Sequence[Exhibit], has_compositions: bool) -> str:
    names = [exhibit.entry.name for exhibit in exhibits]
    contents = [f'<li><a href="#{_anchor(name)}">{html.escape(name)}</a></li>' for name in names]
    contents += ['<li><a href="#composition">Composition</a></li>'] * has_compositions
    lines = "".join(
        f'<li><svg viewBox="0 0 34 10" aria-hidden="true"><path class="head head{head}" d="M1 5H33"/></svg>head {head}</li>'
        for head in range(HEADS)
    )
    terms = definition_list(
        [
            (
                "Effect over distance",
                "What happens to a score of 1 at each distance between query and key. One line per head; a single line if "
                "all heads are the same. Point at a chart, or focus it and use the arrow keys, to read numbers.",
            ),
            (
                "Effect by query and key",
                "The same number for each pair, for one head. Gray: the query does not see the key.",
            ),
            (
                "Attention",
                f"Causal attention over {LENGTH} tokens, four of which have high scores, with the mechanism. NoPosition "
                "shows it without one.",
            ),
            (
                "Change by distance",
                "Weights with the mechanism divided by those without it, as a geometric mean over queries. If the four "
                "keys lose weight, all others gain.",
            ),
        ]
    )
    return INTRODUCTION.substitute(
        terms=terms, heads=HEADS, lines=lines, tolerance=f"{100 * TOLERANCE:g} %", contents="".join(contents)
    )


def render_article(grid: GridTables) -> str:
    """One mechanism: text, sliders, panels and data."""
    exhibit, entry = grid.exhibit, grid.exhibit.entry
    anchor = _anchor(entry.name)
    code = exhibit.write_code(exhibit.start) if exhibit.sliders else repr(exhibit.build(()))
    texts = {"name": entry.name, "idea": entry.idea, "source": entry.source, "code": code}
    panels = _render_panels(grid)
    return ARTICLE.substitute(
        {key: html.escape(text) for key, text in texts.items()},
        anchor=anchor,
        sliders=_render_sliders(exhibit, anchor),
        five=" five" if len(panels) == 5 else "",
        panels="".join(panels),
        data=json.dumps(pack_tables(grid), separators=(",", ":")).replace("</", "<\\/"),
    )


def _render_sliders(exhibit: Exhibit, anchor: str) -> str:
    if not exhibit.sliders:
        return ""
    sliders = [
        SLIDER.substitute(
            id=f"{anchor}-{slider.name}",
            name=html.escape(slider.name),
            note=' <span class="small">times the default of each head</span>' if slider.per_head else "",
            value=slider.write_stop(slider.start),
            last=len(slider.stops) - 1,
            start=slider.start,
        )
        for slider in exhibit.sliders
    ]
    return (
        f'<div class="settings">{"".join(sliders)}<button type="button" class="reset" disabled>Defaults</button></div>'
    )


def _render_panels(grid: GridTables) -> list[str]:
    name = html.escape(grid.exhibit.entry.name, quote=True)
    head = "every head" if grid.head is None else f"head {grid.head}"
    panels = []
    if "effect" in grid.tables:
        later = "" if grid.causal else ", negative for later keys"
        which = "" if grid.query is None else f", for the query at {grid.query}"
        panels.append(
            CURVE.substitute(
                table="effect", first=grid.first_distance, x="distance", scale="linear", reference="",
                title="Effect over distance", note=html.escape(grid.label), across=f"distance in tokens{later}{which}",
                alt=f"{name}: effect over distance, {html.escape(grid.label)}. Arrow keys read numbers.",
            )
        )  # fmt: skip
    if "sink" in grid.tables:
        panels.append(
            CURVE.substitute(
                table="sink", first=0, x="query", scale="linear", reference="", title="Share of the sink",
                note="if all scores are 0", across="query", alt=f"{name}: share of the sink by query. Arrow keys read numbers.",
            )
        )  # fmt: skip
    title = "Effect by query and key" if "effect" in grid.tables else "Share of the keys"
    panels.append(MAP.substitute(css="matrix", title=title, note=head, alt=f"{name}: heatmap, {title}, {head}"))
    panels.append(
        MAP.substitute(
            css="attention", title="Attention", note=head, alt=f"{name}: heatmap of attention weights, {head}"
        )
    )
    panels.append(
        CURVE.substitute(
            table="ratio", first=0, x="distance", scale="log10", reference="0", title="Change by distance",
            note="weight with / without position", across="distance in tokens",
            alt=f"{name}: weight with position divided by weight without, by distance. Arrow keys read numbers.",
        )
    )  # fmt: skip
    return panels


def pack_tables(grid: GridTables) -> dict[str, Any]:
    """What the script of the page reads: the sliders, and the tables as compressed levels."""
    tables, stream = {}, []
    for name, table in grid.tables.items():
        width = 1 if name in ("matrix", "attention") and not _is_coarse(grid, table) else 2  # colors need fewer levels
        low, step, levels = quantize(table.flatten(1), TOP_LEVELS[width])
        rows, columns = (table.shape[1], table.shape[2]) if table.ndim == 3 else (1, table.shape[1])
        tables[name] = {
            "rows": rows, "columns": columns, "bytes": width, "low": low, "step": step, "top": TOP_LEVELS[width],
            "drawn": DRAWN.get(name, (-1e30, 1e30)), "shortest": SHORTEST_AXIS[name],
        }  # fmt: skip
        # neighbouring settings are similar, and so are the differences of neighbouring points: theirs compress best
        difference = torch.diff(levels, dim=0, prepend=torch.zeros_like(levels[:1]))
        difference = torch.diff(difference, dim=1, prepend=torch.zeros_like(difference[:, :1])) % 256**width
        stream += [bytes((difference // 256**place % 256).flatten().tolist()) for place in reversed(range(width))]
    return {
        "code": grid.exhibit.expression,
        "sliders": [
            {
                "name": slider.name,
                "start": slider.start,
                "knots": knots,
                "values": [slider.write_stop(stop) for stop in range(len(slider.stops))],
                **_write_arguments(slider),
            }
            for slider, knots in zip(grid.exhibit.sliders, grid.knots, strict=True)
        ],
        "length": LENGTH,
        "first": grid.first_distance,
        "causal": grid.causal,
        "head": grid.head,
        "tables": tables,
        "data": base64.b64encode(zlib.compress(b"".join(stream), 9)).decode("ascii"),
    }


def _is_coarse(grid: GridTables, table: Tensor) -> bool:
    """Whether one byte would leave the default few colors, because other settings reach much further."""
    start = [knots.index(stop) for knots, stop in zip(grid.knots, grid.exhibit.start, strict=True)]
    default = table.reshape(*map(len, grid.knots), -1)[tuple(start)]
    return bool(default.max() - default.min() < (table.max() - table.min()) / COARSE)


def _write_arguments(slider: Slider) -> dict[str, list[str]]:
    """The arguments of the constructor at the stops, where they are not the values themselves."""
    arguments = {stop: slider.write_argument(stop) for stop in range(len(slider.stops))}
    same = all(slider.write_stop(stop) == argument for stop, argument in arguments.items())
    return {} if same else {"arguments": list(arguments.values())}


def quantize(table: Tensor, top: int) -> tuple[float, float, Tensor]:
    """A table as whole numbers from 0 to ``top``, with the value of 0 and the difference of neighbouring levels."""
    low = float(table.min())
    step = (float(table.max()) - low) / top or 1.0
    return low, step, ((table - low) / step).round().long()


def _anchor(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
