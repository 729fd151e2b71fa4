"""A small picture of a mechanism as SVG: its effect over distance, a line for each head. Lines have the color of the text."""

from __future__ import annotations

import html

import torch
from torch import Tensor

from whence.attention.layout import Layout
from whence.plotting.effects import PlotInputs, build_plot_inputs, compute_effect
from whence.position.base import Position
from whence.position.evaluate import evaluate
from whence.report.comparison.svg import linear_scale

LENGTH = 101  # distances up to 100
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 170, 44, 12, 22, 34


def draw_curves(position: Position, name: str) -> str:
    """The effect of a mechanism on a score of 1 over distance; of a sink its logit over the query's position."""
    with torch.no_grad():
        inputs = build_plot_inputs(position, LENGTH, None, None, 0)
        if position.effects == {"sink"}:
            x, curves, label, axis = *_sink_logit(inputs), "extra logit in the row", "query (token)"
        else:
            effect = compute_effect(inputs)
            x, curves = torch.arange(inputs.length), effect.values[:, -1].flip(-1)
            label, axis = effect.label.replace("\n", " "), "distance to the key (tokens)"
            curves = curves[:1] if effect.shared else curves
    return render_svg(x, curves, label, axis, name)


def _sink_logit(inputs: PlotInputs) -> tuple[Tensor, Tensor]:
    layout: Layout = inputs.layout()
    output = evaluate(inputs.position, "sink", layout.q_positions.double()[..., None], inputs.heads, layout.length_of)
    assert output is not None
    return torch.arange(inputs.length), output[:, 0, :, 0]


def render_svg(x: Tensor, curves: Tensor, label: str, axis: str, name: str) -> str:
    """Lines ``[heads, n]`` over ``x`` ``[n]`` with two axes, in one line of SVG.

    >>> svg = render_svg(torch.arange(3), torch.tensor([[0.0, 1.0, 2.0]]), "bias", "distance", "A < B")
    >>> svg.count("<path"), "A &lt; B: bias" in svg, "\\n" in svg
    (1, True, False)
    """
    finite = curves[curves.isfinite()].tolist()
    across = linear_scale(x.tolist(), LEFT, WIDTH - RIGHT, max_ticks=5)
    up = linear_scale(finite or [0.0], HEIGHT - BOTTOM, TOP, max_ticks=4, include_zero=True)
    parts = [
        f'<svg class="mechanism" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(f"{name}: {label} over {axis}")}" '
        'font-size="10" fill="currentColor" xmlns="http://www.w3.org/2000/svg">',
        f'<text x="{LEFT}" y="12">{html.escape(label)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{html.escape(axis)}</text>',
    ]
    for value, text in up.ticks:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="currentColor" stroke-opacity="{0.5 if value == 0 else 0.15}"/>'
        )
        parts.append(f'<text x="{LEFT - 5}" y="{up(value) + 3.5:.1f}" text-anchor="end">{text}</text>')
    for value, text in across.ticks:
        parts.append(f'<text x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{text}</text>')
    for head, curve in enumerate(curves):
        points = [
            f"{across(a):.1f} {up(b):.1f}"
            for a, b in zip(x.tolist(), curve.tolist(), strict=True)
            if torch.isfinite(torch.tensor(b))
        ]
        opacity = 1 - 0.7 * head / max(1, len(curves) - 1) if len(curves) > 1 else 1
        parts.append(
            f'<path d="M{" L".join(points)}" fill="none" stroke="var(--md-accent-fg-color, currentColor)" stroke-width="2" stroke-opacity="{opacity:.2f}"/>'
        )
    return "".join([*parts, "</svg>"])
