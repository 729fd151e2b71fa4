"""The gallery: a figure of every mechanism, on one self-contained HTML page.

    python -m whence.report.gallery --out build/gallery.html

Figures are embedded as base64 PNG.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from string import Template

import torch

from whence import position as p
from whence import records
from whence.plotting import show
from whence.position.base import Position
from whence.position.catalogue import CATALOGUE, Entry

HEADS, HEAD_DIM = 4, 16
DPI = 100

COMPOSITIONS: tuple[Entry, ...] = (
    Entry(
        "Rotary + Epar",
        lambda h, d: p.Rotary() + p.Epar(h, beta=[0.5, 1.0, 2.0, 4.0] if h == 4 else 1.0, form="basic", context=64),
        "rotary rotates queries and keys, then the factor multiplies their score and damps the oscillation at large distances",
        "two mechanisms in one expression: Rotary() + Epar(...)",
    ),
    Entry(
        "Alibi + Sink",
        lambda h, d: p.Alibi(h) + p.Sink(h, value=[2.0, 1.0, 0.0, -1.0] if h == 4 else 0.0, learnable=False),
        "a penalty on distance, and one extra logit per row that receives attention and has no value",
        "a bias and an extra logit use different hooks, so they compose",
    ),
)

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --faint: #5a616b; --page: #ffffff; --line: #dde1e6; --link: #1a5fb4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e9; --faint: #a3abb5; --page: #16181b; --line: #343a41; --link: #8ab8f5; } }
body { margin: 0 auto; max-width: 1080px; padding: 2rem 1.2rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .5rem; } h2 { font-size: 1.3rem; margin: 0 0 .2rem; }
h2.part { font-size: 1.5rem; margin-top: 3rem; } p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--link); } .idea { font-size: 1.05rem; } .source { color: var(--faint); font-size: .9rem; }
nav ol { columns: 3 14rem; padding-left: 1.6rem; } article { border-top: 1px solid var(--line); margin-top: 2.2rem;
  padding-top: 1.4rem; } code { font: .85rem/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: .6rem 0; padding: .5rem .7rem; border: 1px solid var(--line); border-radius: 6px; }
.figure { overflow-x: auto; } img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; max-width: 50rem; }
dt { font-weight: 600; } dd { margin: 0; }
@media (max-width: 600px) { h1 { line-height: 1.2; } img { width: 760px; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>whence: what position does to attention</title>
<style>$style</style>
</head>
<body>
<header>
<h1>What position does to attention</h1>
<p>Attention by itself is invariant to the order of tokens. Each mechanism below adds position in its own way: it changes
the input embedding, rotates queries and keys, scales scores, adds a bias, or adds one logit to every row. All
figures use the same content, so two figures differ only by the mechanism.</p>
<dl>
<dt>Effect over distance</dt><dd>What happens to a score of 1 at each distance between query and key. One line per head,
from dark to light; a single line if all heads are the same.</dd>
<dt>Effect by query and key</dt><dd>The same number for each pair, for one head. Gray: the query does not see the
key.</dd>
<dt>Attention</dt><dd>Causal attention over $length tokens, four of which have high scores (the bright columns), without
and with the mechanism. The last panel is the ratio of both at each distance, as a geometric mean over queries. If the
four keys lose weight, all others gain.</dd>
</dl>
<p>Learnable mechanisms are shown as initialized, with $heads heads. Some are flat until they are trained.</p>
</header>
<nav aria-label="Contents">
<ol>
$contents
</ol>
</nav>
<main>
$mechanisms
<h2 class="part" id="composition">Composition</h2>
<p>Mechanisms compose: <code>a + b</code> is a mechanism, too. Embeddings and rotations are applied in turn, factors
multiply, and biases and content terms add. Sinks are joined: each takes its own share of a row.</p>
$compositions
</main>
</body>
</html>
""")

ARTICLE = Template("""<article id="$anchor">
<h2>$name</h2>
<p class="idea">$idea</p>
<p class="source">$source</p>
<pre><code>$code</code></pre>
<div class="figure" tabindex="0" role="region" aria-label="$name"><img src="data:image/png;base64,$png" width="$width" height="$height" loading="lazy" alt="$alt"></div>
</article>
""")


@dataclass(frozen=True)
class EmbeddedFigure:
    png: bytes
    width: int
    height: int
    alt: str


def write_gallery(
    path: str | os.PathLike[str],
    *,
    entries: Iterable[Entry] = CATALOGUE,
    length: int = 128,
    jobs: int = 1,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Write figures of mechanisms to one self-contained HTML page. An existing page is replaced atomically.

    Args:
        path: the HTML file; missing folders are created.
        entries: the mechanisms. Default: the whole catalogue. A section on composition follows them.
        length: number of tokens in each figure.
        jobs: number of processes that draw. More than one needs entries of the catalogue.
        progress: called before each figure with the number done, the total, and the name of the next.
    """
    entries = tuple(entries)
    drawn, articles = (*entries, *COMPOSITIONS), []
    with ExitStack() as stack:
        rendered: Iterable[str] = (_render_article(entry, length) for entry in drawn)
        if jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")))
            rendered = pool.map(_render_named, [entry.name for entry in drawn], repeat(length))
        results = iter(rendered)
        for done, entry in enumerate(drawn):
            if progress is not None:
                progress(done, len(drawn), entry.name)
            articles.append(next(results))
    contents = [f'<li><a href="#{_anchor(entry.name)}">{html.escape(entry.name)}</a></li>' for entry in entries]
    page = PAGE.substitute(
        style=STYLE,
        length=length,
        heads=HEADS,
        contents="\n".join((*contents, '<li><a href="#composition">Composition</a></li>')),
        mechanisms="".join(articles[: len(entries)]),
        compositions="".join(articles[len(entries) :]),
    )
    records.write_text(Path(path), page)
    return Path(path)


def _render_named(name: str, length: int) -> str:
    """The article of an entry of the catalogue; entries themselves cannot be sent to another process."""
    torch.set_num_threads(1)
    return _render_article(next(entry for entry in (*CATALOGUE, *COMPOSITIONS) if entry.name == name), length)


def _render_article(entry: Entry, length: int) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the page is deterministic
        position = entry.make(HEADS, HEAD_DIM)
    figure = _plot(position, entry.name, length)
    texts = {"name": entry.name, "idea": entry.idea, "source": entry.source, "code": repr(position)}
    return ARTICLE.substitute(
        {key: html.escape(text) for key, text in texts.items()},
        anchor=_anchor(entry.name),
        png=base64.b64encode(figure.png).decode("ascii"),
        width=figure.width,
        height=figure.height,
        alt=html.escape(figure.alt, quote=True),
    )


def _plot(position: Position, name: str, length: int) -> EmbeddedFigure:
    figure = show(position, length=length)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    titles = [axes.get_title(loc="left").replace("  ", ", ") for axes in panels]
    contents = [axes.get_ylabel().replace("\n", " ") if axes.lines else "heatmap" for axes in panels]
    listed = "; ".join(f"{title} ({content})" for title, content in zip(titles, contents, strict=True))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    width, height = (round(inches * DPI) for inches in figure.get_size_inches())
    return EmbeddedFigure(buffer.getvalue(), width, height, f"{name} in {len(panels)} panels: {listed}.")


def _anchor(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m whence.report.gallery",
        description="Write a self-contained HTML page with a figure of every mechanism.",
        epilog="example: python -m whence.report.gallery --out build/gallery.html",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/gallery.html"), help="Output file (default: %(default)s)."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Processes that draw (default: %(default)s).")
    options = parser.parse_args(arguments)
    start, end = time.monotonic(), "\r" if sys.stderr.isatty() else "\n"

    def progress(done: int, total: int, name: str) -> None:
        left = f", about {(time.monotonic() - start) / done * (total - done):.0f} s left" if done else ""
        print(f"{f'[{done + 1}/{total}] {name}{left}':<72}", end=end, file=sys.stderr, flush=True)

    path = write_gallery(options.out, jobs=options.jobs, progress=progress)
    print(f"{'done':<72}", file=sys.stderr)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
