"""Drawings as HTML: a line chart, a heatmap, words shaded by their weights, and arcs over words.

Every drawing scales to the width of its column and has a text for screen readers. Texts of the user are escaped.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.report.comparison.svg import Scale, distance_scale, linear_scale, svg_element
from whence.report.formatting import format_tick

#: widths by extent, so that texts have about the same size everywhere
WIDTHS = {"": 360, "half": 520, "wide": 680, "full": 960}
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 290, 50, 14, 32, 46
MAX_NAMES = 8  # more heads than these are named at the ends of the list only
ARC_WIDTH, ARC_HEIGHT = 900, 190
SMALLEST_WEIGHT = 1e-3  # of a map of weights, whose scale is logarithmic
#: weights below this share of the largest are not drawn as arcs
SMALLEST_ARC = 0.04


@dataclass(frozen=True)
class Curve:
    """One line: its name in the legend, and its points. A value that is not finite is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool = False


def head_curves(x: Tensor, values: Tensor, shared: bool) -> list[Curve]:
    """A curve for each row of ``values`` ``[H, n]``, from dark to light; one if all heads are the same."""
    rows = values[:1] if shared else values
    colors = sample_colors(len(rows))
    names = ["every head"] if shared else [f"head {head}" for head in range(len(rows))]
    return [Curve(name, x.tolist(), row.tolist(), color) for name, row, color in zip(names, rows, colors, strict=True)]


def sample_colors(count: int) -> list[str]:
    """Colors from dark to light that are also readable in grayscale."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.85 * index / max(1, count - 1))) for index in range(count)]


def line_chart(
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    log_distance: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    extent: str = "",
    x_ends: Sequence[float] = (),
    y_ends: Sequence[float] = (),
) -> str:
    """A figure with a title, a legend and lines.

    Args:
        log_distance: a logarithmic axis of distances, if none is negative.
        marks: vertical lines with a text.
        extent: "", "half", "wide" or "full": 2, 3, 4 or all of the 6 columns of the panels.
        x_ends, y_ends: values that the axes include too, for example those of another chart.
    """
    width = WIDTHS[extent]
    finite = [*(value for curve in curves for value in curve.y if math.isfinite(value)), *y_ends] or [0.0]
    if max(finite) - min(finite) < 1e-9:
        finite = [finite[0] - 1, finite[0] + 1]  # a flat line: do not magnify rounding errors
    xs = [*(value for curve in curves for value in curve.x), *x_ends] or [0.0, 1.0]
    x: Scale
    if log_distance and min(xs) >= 0:
        x = distance_scale([int(value) for value in xs], LEFT, width - RIGHT)
    else:
        x = linear_scale(xs, LEFT, width - RIGHT, max_ticks=8 if width > 400 else 5)
        x = Scale(float, min(xs), max(xs), LEFT, width - RIGHT, tuple(t for t in x.ticks if min(xs) <= t[0] <= max(xs)))
    y = linear_scale(finite, HEIGHT - BOTTOM, TOP)
    parts = [_axes(x, y, x_label)]
    for at, text in marks:
        parts.append(f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"></line>')
        anchor = "end" if x(at) > width * 0.7 else "start"
        shift = -6 if anchor == "end" else 6
        parts.append(
            f'<text class="tick" x="{x(at) + shift:.1f}" y="{TOP + 10}" text-anchor="{anchor}">{html.escape(text)}</text>'
        )
    parts += [_line(curve, x, y) for curve in curves]
    parts.append(f'<text class="tick" x="2" y="14">{html.escape(y_label)}</text>')
    described = f"{title}: {y_label} by {x_label}. " + " ".join(_describe(curve) for curve in curves[:MAX_NAMES])
    chart = svg_element("".join(parts), described, width, HEIGHT)
    return _figure(title, _legend(curves) + chart, extent)


def _describe(curve: Curve) -> str:
    points = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    if not points:
        return f"{curve.name} has no value."
    (x0, y0), (x1, y1) = points[0], points[-1]
    return f"{curve.name} is {y0 + 0.0:.3g} at {x0:g} and {y1 + 0.0:.3g} at {x1:g}."  # no negative zero


def _legend(curves: Sequence[Curve]) -> str:
    if len(curves) <= MAX_NAMES:
        shown: list[Curve | None] = list(curves)
    else:
        shown = [*curves[:3], None, *curves[-2:]]
    items = [
        "<li>…</li>"
        if curve is None
        else f'<li><span class="swatch{" dashed" if curve.dashed else ""}" style="--c:{curve.color}"></span>{html.escape(curve.name)}</li>'
        for curve in shown
    ]
    return f'<ul class="legend" aria-hidden="true">{"".join(items)}</ul>'


def _axes(x: Scale, y: Scale, x_label: str) -> str:
    parts = []
    for value, text in y.ticks:
        zero = " zero" if value == 0 else ""
        parts.append(
            f'<line class="grid{zero}" x1="{x.start:g}" x2="{x.end:g}" y1="{y(value):.1f}" y2="{y(value):.1f}"></line>'
        )
        parts.append(f'<text class="tick" x="{x.start - 7:g}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in x.ticks:
        parts.append(f'<text class="tick" x="{x(value):.1f}" y="{y.start + 18:g}" text-anchor="middle">{text}</text>')
    middle = (x.start + x.end) / 2
    parts.append(
        f'<text class="tick" x="{middle:g}" y="{HEIGHT - 5}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    return "".join(parts)


def _line(curve: Curve, x: Scale, y: Scale) -> str:
    steps, command = [], "M"
    for px, py in zip(curve.x, curve.y, strict=True):
        if math.isfinite(py):
            steps.append(f"{command}{x(px):.1f} {y(py):.1f}")
            command = "L"
        else:
            command = "M"
    dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
    title = f"<title>{html.escape(curve.name)}</title>"
    return f'<path class="curve" style="stroke:{curve.color}" d="{"".join(steps)}"{dash}>{title}</path>'


def heatmap(
    title: str,
    values: Tensor,
    label: str,
    *,
    weights: bool = False,
    rows: str = "query",
    columns: str = "key",
    ends: Sequence[float] = (),
) -> str:
    """A matrix as an image with a color bar, rows down. NaN is gray.

    Args:
        weights: attention weights, drawn on a logarithmic scale from 0.001 to 1.
        ends: values that the colors include too, for example those of another map.
    """
    from matplotlib import colormaps

    finite = torch.cat((values[values.isfinite()].double(), torch.tensor(ends, dtype=torch.float64)))
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if weights:
        colors, low, high = colormaps["cividis"], SMALLEST_WEIGHT, 1.0
    elif high - low < 1e-9:
        colors, low, high = colormaps["PuOr"], low - 1, high + 1
    elif low < 0 < high and min(-low, high) > 0.05 * max(-low, high):
        limit = max(-low, high)
        colors, low, high = colormaps["PuOr"], -limit, limit
    else:
        colors = colormaps["viridis"]
    scaled = values.double()
    shades = 1 - scaled.clamp(min=low).log() / math.log(low) if weights else (scaled - low) / (high - low)
    ramp = torch.linspace(0, 1, 64)[None]
    described = f"{title}: {label}, {values.shape[0]} {rows} rows by {values.shape[1]} {columns} columns, from {low:.3g} to {high:.3g}."
    picture = f'<img class="map" src="{_png(shades, colors)}" alt="{html.escape(described)}">'
    first, last = (0.0 if abs(end) < 1e-6 * (high - low) else float(f"{end:.2g}") for end in (low, high))
    bar = (
        f'<div class="bar"><span>{format_tick(first)}</span><img src="{_png(ramp, colors)}" alt="">'
        f'<span>{format_tick(last)}</span><span class="what">{html.escape(label)}</span></div>'
    )
    axes = f'<div class="axes"><span>↓ {html.escape(rows)}</span><span>{html.escape(columns)} →</span></div>'
    return _figure(title, axes + picture + bar)


def _png(shades: Tensor, colors: Any) -> str:
    """Values from 0 to 1 as an image with 255 colors; NaN is gray."""
    from PIL import Image

    count = 255
    palette = (torch.from_numpy(colors(torch.linspace(0, 1, count).numpy()))[:, :3] * 255).round().byte()
    entries = torch.cat((palette, torch.full((1, 3), 230, dtype=torch.uint8)))
    index = (shades.clamp(0, 1) * (count - 1)).round().nan_to_num(count).byte()
    image = Image.fromarray(index.numpy())
    image.putpalette(entries.flatten().tolist())
    buffer = io.BytesIO()
    image.save(buffer, format="png", compress_level=3)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def shaded_words(title: str, words: Sequence[str], weights: Sequence[float], query: int) -> str:
    """Words with a background as strong as their weight; the query is outlined. Weights of 0 have none."""
    largest = max(weights, default=0.0) or 1.0
    items = [
        f'<li class="word{" query" if index == query else ""}" style="--w:{math.sqrt(max(weight, 0.0) / largest):.3f}" '
        f'title="{html.escape(word)}: {100 * weight:.1f} %">{html.escape(word) or "␣"}'
        f'<span class="sr"> {100 * weight:.1f} %</span></li>'
        for index, (word, weight) in enumerate(zip(words, weights, strict=True))
    ]
    return _figure(title, f'<ol class="words">{"".join(items)}</ol>')


def arcs(title: str, words: Sequence[str], weights: Sequence[float], query: int) -> str:
    """Arcs from one query to the keys it attends to, over a line of all tokens; the width is the weight."""
    count = max(len(words), 2)
    base = ARC_HEIGHT - 26
    step = (ARC_WIDTH - 20) / (count - 1)
    at = [10 + step * index for index in range(len(words))]
    largest = max(weights, default=0.0) or 1.0
    parts = [f'<line class="axis" x1="10" x2="{ARC_WIDTH - 10}" y1="{base}" y2="{base}"></line>']
    for index, weight in enumerate(weights):
        share = weight / largest
        if share < SMALLEST_ARC:
            continue
        width, tip = 0.8 + 5.2 * share, f"<title>{html.escape(words[index])}: {100 * weight:.1f} %</title>"
        if index == query:
            parts.append(
                f'<circle class="arc dot" cx="{at[index]:.1f}" cy="{base}" r="{2 + 4 * share:.1f}">{tip}</circle>'
            )
            continue
        radius = abs(at[query] - at[index]) / 2
        height = min(radius, base - 6)
        sweep = 1 if index < query else 0
        parts.append(
            f'<path class="arc" style="stroke-width:{width:.2f};opacity:{0.25 + 0.7 * share:.2f}" '
            f'd="M{at[index]:.1f} {base}A{radius:.1f} {height:.1f} 0 0 {sweep} {at[query]:.1f} {base}">{tip}</path>'
        )
    parts.append(f'<circle class="querydot" cx="{at[query]:.1f}" cy="{base}" r="4"></circle>')
    # names of the strongest keys, where they do not overlap
    placed: list[tuple[float, float]] = []
    for index in sorted({query, *range(len(words))}, key=lambda index: (index != query, -weights[index])):
        if index != query and weights[index] < SMALLEST_ARC * largest:
            break
        text = words[index].strip() or "␣"
        text = text if len(text) <= 14 else text[:13] + "…"
        half = 4.2 * len(text) + 5
        middle = min(max(at[index], half), ARC_WIDTH - half)
        if all(middle + half < left or middle - half > right for left, right in placed):
            placed.append((middle - half, middle + half))
            name = "tick query" if index == query else "tick"
            parts.append(
                f'<text class="{name}" x="{middle:.1f}" y="{base + 19}" text-anchor="middle">{html.escape(text)}</text>'
            )
    top = sorted(range(len(words)), key=lambda index: -weights[index])[:5]
    described = f"{title}: " + ", ".join(
        f"{words[index].strip() or 'space'} {100 * weights[index]:.0f} %" for index in top
    )
    return _figure(title, f'<div class="arcs">{svg_element("".join(parts), described, ARC_WIDTH, ARC_HEIGHT)}</div>')


def tiles(*facts: tuple[str, str]) -> str:
    """Numbers in large type with what they are."""
    cells = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="tiles">{cells}</dl>'


def bars(title: str, rows: Sequence[tuple[str, float, float | None]], names: tuple[str, str]) -> str:
    """Horizontal bars of probabilities. Each row has a label, a share, and the same share in another condition."""
    body = "".join(
        f'<tr><th scope="row"><code>{html.escape(label)}</code></th><td>{_bar(share, "")}</td>'
        + ("" if other is None else f"<td>{_bar(other, 'other')}</td>")
        + "</tr>"
        for label, share, other in rows
    )
    second = any(other is not None for _, _, other in rows)
    head = f'<thead><tr><td></td><th scope="col">{html.escape(names[0])}</th>' + (
        f'<th scope="col">{html.escape(names[1])}</th></tr></thead>' if second else "</tr></thead>"
    )
    return _figure(title, f'<table class="bars">{head}<tbody>{body}</tbody></table>')


def _bar(share: float, css_class: str) -> str:
    return f'<span class="share {css_class}" style="--w:{100 * share:.1f}%"></span><span class="percent">{_percent(share)}</span>'


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 else f"{100 * share:.2g} %"


def progress(text: str, done: int, total: int) -> str:
    """How far some work has come."""
    name = html.escape(text)
    bar = f'<progress max="{total}" value="{done}" aria-label="{name}"></progress>' if done else ""
    return f'<p class="note working" role="status">{bar}{name}…</p>'


def problem(text: str) -> str:
    """An error as a sentence."""
    return f'<p class="problem" role="alert">{html.escape(text)}</p>'


def note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _figure(title: str, content: str, extent: str = "") -> str:
    return (
        f'<figure class="{f"drawing {extent}".strip()}"><figcaption>{html.escape(title)}</figcaption>{content}</figure>'
    )
