"""The gallery: every mechanism drawn, on one page that needs nothing but itself.

    python -m whence.report.gallery --out build/gallery.html

Pictures are inside the page as base64, so it can be mailed, kept and opened without a network.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import torch

from whence import position as p
from whence import records
from whence.plotting import show
from whence.position.base import Position
from whence.position.catalogue import CATALOGUE, Entry

HEADS, HEAD_WIDTH = 4, 16
DPI = 100

COMPOSED: tuple[Entry, ...] = (
    Entry(
        "Rotary + Epar",
        lambda h, d: p.Rotary() + p.Epar(h, beta=[0.5, 1.0, 2.0, 4.0] if h == 4 else 1.0, form="basic", context=64),
        "rotary turns, then the factor multiplies the turned score: it bounds how far the oscillation reaches",
        "two mechanisms, one sign: Rotary() + Epar(...)",
    ),
    Entry(
        "Alibi + Sink",
        lambda h, d: p.Alibi(h) + p.Sink(h, value=[2.0, 1.0, 0.0, -1.0] if h == 4 else 0.0, learnable=False),
        "a penalty on distance, and one more logit in the row that takes attention and gives nothing",
        "a bias and an extra logit act in different places, so they add up",
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
img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; max-width: 50rem; }
dt { font-weight: 600; } dd { margin: 0; }
@media (max-width: 600px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
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
<p>Attention by itself does not know the order of tokens. Each mechanism below tells it, in its own way: it changes the
input, turns queries and keys, multiplies scores, adds to them, or takes a share of every row. The same content is put
before all of them, so whatever differs between two pictures is the mechanism.</p>
<dl>
<dt>Over distance</dt><dd>what a score of 1 meets when its key lies so many tokens before the query; a line for each
head, from dark to light, or one line where all heads agree.</dd>
<dt>By query and key</dt><dd>the same number for each pair, for one head. Grey: the query does not see the key.</dd>
<dt>Fixed content</dt><dd>causal attention over $length tokens of which four matter (the bright columns), without the
mechanism and with it, and by how much a weight typically changes at each distance (a geometric mean: it speaks for
the many ordinary keys, and all of them gain where the four lose).</dd>
</dl>
<p>Learnable mechanisms are drawn as they start, with $heads heads. Some start flat: what they will look like is
for training to say.</p>
</header>
<nav aria-label="Contents">
<ol>
$contents
</ol>
</nav>
<main>
$mechanisms
<h2 class="part" id="composition">Composition</h2>
<p>Mechanisms that act in different places act together: <code>a + b</code> is a mechanism too. Embeddings and rotations
chain, factors multiply, biases and content terms add; a row has one sink at most.</p>
$compositions
</main>
</body>
</html>
""")

ARTICLE = Template("""<article id="$anchor">
<h2>$name</h2>
<p class="idea">$idea</p>
<p class="source">$source</p>
<pre><code>$shown</code></pre>
<img src="data:image/png;base64,$picture" width="$width" height="$height" loading="lazy" alt="$alt">
</article>
""")


@dataclass(frozen=True)
class Picture:
    png: bytes
    width: int
    height: int
    alt: str


def gallery(
    path: str | os.PathLike[str],
    *,
    entries: Iterable[Entry] = CATALOGUE,
    length: int = 128,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Draw mechanisms into one self-contained page. An existing page is replaced once the new one is complete.

    Args:
        path: where the page goes; missing folders are made.
        entries: what to draw; every mechanism of whence by default. The section on composition follows them.
        length: tokens in each picture.
        progress: called before each picture with the number done, the number in all, and the name of the next.
    """
    entries = tuple(entries)
    total = len(entries) + len(COMPOSED)
    articles = []
    for done, entry in enumerate((*entries, *COMPOSED)):
        if progress is not None:
            progress(done, total, entry.name)
        articles.append(_article(entry, length))
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


def _article(entry: Entry, length: int) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the page is the same each time it is made
        position = entry.make(HEADS, HEAD_WIDTH)
    picture = _draw(position, entry.name, length)
    texts = {"name": entry.name, "idea": entry.idea, "source": entry.source, "shown": repr(position)}
    return ARTICLE.substitute(
        {key: html.escape(text) for key, text in texts.items()},
        anchor=_anchor(entry.name),
        picture=base64.b64encode(picture.png).decode("ascii"),
        width=picture.width,
        height=picture.height,
        alt=html.escape(picture.alt, quote=True),
    )


def _draw(position: Position, name: str, length: int) -> Picture:
    figure = show(position, length=length)
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    titles = [axes.get_title(loc="left").replace("  ", ", ") for axes in panels]
    shown = [axes.get_ylabel().replace("\n", " ") if axes.lines else "map" for axes in panels]
    told = "; ".join(f"{title} ({what})" for title, what in zip(titles, shown, strict=True))
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs={"optimize": True})
    width, height = (round(inches * DPI) for inches in figure.get_size_inches())
    return Picture(target.getvalue(), width, height, f"{name} in {len(panels)} panels: {told}.")


def _anchor(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m whence.report.gallery",
        description="Draw every mechanism of whence into one self-contained page.",
        epilog="example: python -m whence.report.gallery --out build/gallery.html",
    )
    parser.add_argument("--out", type=Path, default=Path("build/gallery.html"), help="the page (default: %(default)s)")
    out = parser.parse_args(arguments).out
    start, end = time.monotonic(), "\r" if sys.stderr.isatty() else "\n"

    def progress(done: int, total: int, name: str) -> None:
        left = f", about {(time.monotonic() - start) / done * (total - done):.0f} s left" if done else ""
        print(f"{f'[{done + 1}/{total}] {name}{left}':<72}", end=end, file=sys.stderr, flush=True)

    written = gallery(out, progress=progress)
    print(f"{'drawn':<72}", file=sys.stderr)
    print(f"{written} ({written.stat().st_size / 1e6:.1f} MB); open it in any browser")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
