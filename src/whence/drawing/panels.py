"""The panels of a figure: the effect over distance and by query and key, a sink, and a pattern with and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.drawing.ink import colours_for, heat_map, label, lines
from whence.drawing.stage import Effect, Stage, pattern_weights
from whence.position.evaluate import evaluate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEARLY_FLAT = 0.3  # a logit that moves less than this changes a weight by less than about a third
LEAST_SHOWN = 1e-3  # weights below look like this one


def draw_effect(panels: list[Axes], stage: Stage, effect: Effect) -> None:
    query = stage.length - 1 if stage.causal else stage.length // 2
    # from near to far: keys counted backwards from the query
    distance, curves = query - torch.arange(stage.length).flip(0), effect.values[:, query].flip(-1)
    if not stage.causal:
        panels[0].axvline(0, color="0.8", linewidth=0.8)
    lines(panels[0], distance, curves, effect.shared)
    where = "" if stage.position.relative else f", for the query at {query}"
    x = "distance to the key" + ("" if stage.causal else ", negative for later keys") + f" (tokens){where}"
    label(panels[0], "over distance", x, effect.label, _note(stage, curves))
    values = effect.values[effect.head]
    heat_map(panels[1:], [values], effect.label.replace("\n", " "), **colours_for(values))
    label(panels[1], f"by query and key, {_which(effect, effect.head)}", "key (token)", "query (token)")


def _note(stage: Stage, curves: Tensor) -> str:
    """What a reader must know before taking a curve for the mechanism's last word."""
    if stage.position.effects <= {"value_bias"}:
        return "acts on values only" if stage.position.effects else "no effect"
    if not _learns(stage, sink=False):
        return ""
    known = curves[curves.isfinite()]
    flat = "score_scale" not in stage.position.effects and float(known.max() - known.min()) < NEARLY_FLAT
    return "learnable; nearly flat, as initialised" if flat else "learnable; present values"


def _learns(stage: Stage, sink: bool) -> bool:
    """Whether what is drawn has parameters: those of the sink, or those of everything else."""
    parts = [part for part in stage.position.parts if (part.effects == {"sink"}) == sink]
    return any(True for part in parts for _ in part.parameters())


def _which(effect: Effect, head: int) -> str:
    return "every head" if effect.shared else f"head {head}"


def draw_sink(panels: list[Axes], stage: Stage, effect: Effect | None) -> Effect:
    """The extra logit, the share it takes, and what it leaves; returns the effect whose head the pattern shows."""
    layout = stage.layout()
    places = layout.q_positions.double()[..., None]
    answer = evaluate(stage.position, "sink", places, stage.heads, layout.length_of)
    assert answer is not None
    logit, at = answer[:, 0, :, 0], torch.arange(stage.length)
    share = torch.sigmoid(logit - torch.log(at + 1.0))
    kept = (1 - share)[:, :, None].expand(-1, -1, stage.length).masked_fill(at > at[:, None], torch.nan)
    left = Effect(kept, "factor on the weight")
    note = "learnable; present values" if _learns(stage, sink=True) else ""
    lines(panels[0], at, logit.masked_fill(logit.isinf(), torch.nan), left.shared, legend=False)
    label(panels[0], "the sink's logit", "query (token)", "extra logit in the row", note)
    lines(panels[1], at, share, left.shared)
    panels[1].set_ylim(0, max(0.05, 1.08 * float(share.max())))
    label(panels[1], "its share, all scores 0", "query (token)", "share of attention")
    head = left.head if effect is None or left.shared else effect.head
    heat_map(panels[2:], [kept[head]], left.label, cmap="viridis", vmin=0, vmax=1)
    label(panels[2], f"what it leaves, {_which(left, head)}", "key (token)", "query (token)")
    return left if effect is None else effect


def draw_pattern(panels: list[Axes], stage: Stage, effect: Effect) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    without, weights = pattern_weights(stage)
    hidden = torch.ones(stage.length, stage.length, dtype=torch.bool).triu(1)
    shown = [weight.masked_fill(hidden, torch.nan).clamp(min=LEAST_SHOWN) for weight in (without, weights[effect.head])]
    # the logarithm keeps later rows visible beside the first ones, which have few keys to share among
    heat_map(panels[:2], shown, "attention weight", cmap="cividis", norm=LogNorm(LEAST_SHOWN, 1))
    label(panels[0], "fixed content, without it", "key (token)", "query (token)")
    which = _which(Effect(weights, ""), effect.head)
    label(panels[1], f"with it, {which}", "key (token)", "query (token)")

    half = stage.length // 2  # the later half of the queries all see these distances
    queries, distance = torch.arange(half, stage.length)[:, None], torch.arange(half)
    # the geometric mean: in an arithmetic one the few keys that matter would drown the rest
    ratio = (weights / without)[:, queries, queries - distance].log().mean(1).exp()
    low, high = min(0.95, float(ratio.amin())), max(1.05, float(ratio.amax()))
    if low * 20 < high:
        panels[2].set_yscale("log")
        panels[2].set_ylim(max(1e-4, 0.6 * low), 1.6 * high)
        panels[2].yaxis.set_major_locator(LogLocator(subs=(1, 3) if high < 1000 * low else (1,)))
        panels[2].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panels[2].yaxis.set_minor_formatter(NullFormatter())
    panels[2].axhline(1, color="black", linewidth=1, linestyle="--", label="without it")
    lines(panels[2], distance, ratio, bool(torch.allclose(ratio, ratio[:1], rtol=1e-9, atol=1e-12)))
    if panels[2].get_yscale() == "linear":
        panels[2].set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    label(panels[2], "typical change by distance", "distance to the key (tokens)", "weight with it / without it")
