"""``show``: one figure of what a mechanism does, over distance, over queries and keys, and to an attention pattern.

All content is one direction a head, times a level for each token. Levels of 1 make every score exactly 1 before
position acts, so that what is drawn is position's doing alone; the pattern's levels make a few keys matter.
"""

from __future__ import annotations

import copy
import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.attention.attend import attend
from whence.attention.layout import Layout, resolve
from whence.attention.module import inner
from whence.errors import missing_extra, refusal
from whence.position.base import Position, Rows
from whence.position.grid import evaluate
from whence.position.rotary import Rotary, oscillation
from whence.position.rotary_scaling import DynamicNtk, Linear, Llama3, LongRope, Yarn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES, WIDTH_INCHES, HEADER_INCHES = 3.1, 11.0, 0.62
LONGEST = 4096  # the farthest distance at which rotary's oscillation is drawn
NEARLY_FLAT = 0.1  # a logit that moves less than this moves a weight by about a tenth at most
LEAST_SHOWN = 1e-3  # weights below look like this one
DASHES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)))


@dataclass(frozen=True)
class Stage:
    """A frozen copy of a mechanism in front of fixed content."""

    position: Position
    heads: int
    length: int
    causal: bool  # whether the mechanism is defined for keys at or before the query only
    direction: Tensor  # [H, D]; its score with itself is 1
    levels: Tensor  # [T], what the keys of the pattern score without a mechanism

    def content(self, levels: Tensor) -> Tensor:
        """The direction at so many levels, with what acts on embeddings applied: ``[1, H, T, D]``."""
        x = (levels[:, None] * self.direction.flatten())[None]
        places = torch.arange(self.length)[None]
        for part in self.position.at_input():
            x = part.embed(x, places)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def layout(self) -> Layout:
        """Tokens at 0, 1, 2, ...; each sees those the mechanism is defined for."""
        x = self.direction[None, :, None, :].expand(-1, -1, self.length, -1)
        return resolve(
            x, x, causal=self.causal, window=None, q_positions=None, k_positions=None, lengths=None, padding=None,
            documents=None, needs_positions=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """A number for each query and key: ``[H or 1, T, S]``, NaN where a query does not see a key."""

    values: Tensor
    label: str

    @property
    def shared(self) -> bool:
        """Whether all heads do the same."""
        return bool(torch.allclose(self.values, self.values[:1], rtol=1e-9, atol=1e-12, equal_nan=True))

    @property
    def head(self) -> int:
        """The head to look at closely: the one in the middle by how much it varies."""
        if self.shared:
            return 0
        spread = self.values.nan_to_num(0.0).flatten(1).std(1)
        return int(spread.argsort()[len(spread) // 2])


def show(
    position: Position, *, length: int = 128, heads: int | None = None, head_width: int | None = None, seed: int = 0
) -> Figure:
    """Draw a mechanism: its effect over distance and over queries and keys, and fixed content with and without it.

    The module, the random state and matplotlib's settings stay as they are. Save it with ``figure.savefig(path)``.

    Args:
        position: the mechanism, or a sum of several.
        length: tokens drawn; fewer where a learned table ends before.
        heads: query heads; by default those the mechanism is made for, else 4.
        head_width: width of a head; by default what the mechanism is made for, else 64 for rotary and 16 for others.
        seed: of the content.

    >>> from whence import Alibi
    >>> show(Alibi(4), length=16).axes[0].get_ylabel()
    'added to the logit'
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("whence.show", "plot", "matplotlib") from error
    if not isinstance(position, Position):
        got = type(position).__name__
        raise refusal("show(position)", got, "position is a whence.Position", "subclass whence.Position")
    if not isinstance(length, int) or length < 8:
        raise refusal("show(length=...)", repr(length), "length is a whole number of at least 8", "try length=128")

    with torch.no_grad():
        stage = _stage(position, length, heads, head_width, seed)
        only_sink = position.effects == {"sink"}
        rotaries = [part for part in stage.position.parts if isinstance(part, Rotary)]
        rows = 2 + ("sink" in position.effects and not only_sink) + len(rotaries)
        height = ROW_INCHES * rows + HEADER_INCHES
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained", facecolor="white")
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - HEADER_INCHES / height), hspace=0.06, wspace=0.04)
        _header(figure, position, height)
        grid = iter(figure.add_gridspec(rows, 6)[row, :] for row in range(rows))
        effect = _effect(stage)
        if not only_sink:
            _draw_effect(_panels(figure, next(grid), 4, 2), stage, effect)
        if "sink" in position.effects:
            effect = _draw_sink(_panels(figure, next(grid), 2, 2, 2), stage, effect if not only_sink else None)
        _draw_pattern(_panels(figure, next(grid), 2, 2, 2), stage, effect)
        for rotary in rotaries:
            _draw_oscillation(_panels(figure, next(grid), 3, 3), rotary, stage.direction.shape[1])
        for letter, axes in zip("abcdefghijklmnop", (a for a in figure.axes if a.get_label() != "<colorbar>")):
            axes.set_title(f"{letter}  {axes.get_title(loc='left')}", loc="left", fontsize=9, fontweight="bold")
    return figure


# --- what is drawn ---------------------------------------------------------------------------------------------------
def _stage(position: Position, length: int, heads: int | None, head_width: int | None, seed: int) -> Stage:
    heads, head_width = _sizes(position, heads, head_width)
    tables = [part.max_length for part in position.at_input() if hasattr(part, "max_length")]
    length = min(length, *tables) if tables else length
    own = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (heads, head_width), generator=own).double() * 2 - 1
    levels = 1 + 0.4 * torch.randn(length, generator=own, dtype=torch.float64)
    # one key that matters in each quarter: any half of the tokens holds two, so none shows in a mean by distance
    levels[[length * eighth // 8 for eighth in (1, 3, 5, 7)]] = 4.0
    frozen = copy.deepcopy(position).double().cpu().eval().requires_grad_(False)
    # entries of width ** -1/4: with the scale width ** -1/2 the score of the direction with itself is 1
    return Stage(frozen, heads, length, position.causal_only, signs * head_width**-0.25, levels)


def _sizes(position: Position, heads: int | None, head_width: int | None) -> tuple[int, int]:
    """Heads and head width that suit all parts, where the caller names none."""
    heads = position.heads if heads is None else heads
    probe = torch.arange(3, dtype=torch.float64)
    for part in position.parts:
        length = {None: None, "context": part.context, "query": probe + 1, "sequence": 3}[part.length]
        for hook in part.effects & {"factor", "bias", "sink"} if heads is None else ():
            answer = getattr(part, hook)(probe, length)
            heads = len(answer) if answer.ndim == 2 else heads
        if head_width is None:
            head_width = getattr(part, "head_width", None)
    for part in position.at_input():
        width = getattr(part, "width", None)
        if width is not None:
            heads = heads or (width // head_width if head_width else next(n for n in (4, 3, 2, 1) if width % n == 0))
            head_width = head_width or width // heads
    for part in position.parts if head_width is None else ():
        if isinstance(part, Rotary):  # a searched scaling is for one width, a partial rotation for at least its own
            head_width = 2 * len(part.scaling.short) if isinstance(part.scaling, LongRope) else max(64, part.width or 0)
    return heads or 4, head_width or 16


def _effect(stage: Stage) -> Effect:
    layout, hooks = stage.layout(), stage.position.effects
    distance = layout.distance().double()
    factor = evaluate(stage.position, "factor", distance, stage.heads, layout.length_of)
    bias = evaluate(stage.position, "bias", distance, stage.heads, layout.length_of)
    if not hooks & {"factor", "bias"} or hooks & {"embed", "rotate", "content"}:
        values, label = _logits(stage, layout, factor, bias) - 1, "change of the logit\nfor the same content"
    elif factor is not None and bias is not None:
        values, label = factor + bias, "logit of a score of 1"
    elif factor is not None:
        values, label = factor, "factor on the score"
    else:
        values, label = bias, "added to the logit"
    values = values[:, 0]
    return Effect(values.masked_fill(~(layout.visible() & values.isfinite()), torch.nan), label)


def _logits(stage: Stage, layout: Layout, factor: Tensor | None, bias: Tensor | None) -> Tensor:
    """Logits ``[H, 1, T, S]`` of scores of 1; attend itself only hands out what the softmax makes of them."""
    x = stage.content(torch.ones_like(stage.levels))
    places = layout.q_positions, layout.k_positions
    q, k = stage.position.rotate(x, x, *places)
    scale = x.shape[-1] ** -0.5
    logits = scores = scale * (q @ k.mT)
    if "content" in stage.position.effects:
        logits = logits + stage.position.content(Rows(q, k, scores, *places, layout.visible()[:, None], scale))
    logits = logits.transpose(0, 1) * (1 if factor is None else factor)
    return logits if bias is None else logits + bias


def _weights(stage: Stage) -> tuple[Tensor, Tensor]:
    """Causal attention over the pattern without the mechanism ``[T, S]`` and with it ``[H, T, S]``."""
    ones = torch.ones_like(stage.levels)
    score = torch.full((stage.length, stage.length), -torch.inf, dtype=torch.float64).triu(1) + stage.levels
    value_width = next((part.value_width for part in stage.position.parts if hasattr(part, "value_width")), 1)
    values = torch.zeros(1, stage.heads, stage.length, value_width, dtype=torch.float64)
    _, weights = attend(
        stage.content(ones), stage.content(stage.levels), values, position=inner(stage.position), causal=True,
        backend="reference", return_weights=True,
    )  # fmt: skip
    return torch.softmax(score, -1), weights[0]


# --- how it is drawn -------------------------------------------------------------------------------------------------
def _header(figure: Figure, position: Position, height: float) -> None:
    name = " + ".join(type(part).__name__ for part in position.parts)
    line = textwrap.shorten(repr(position), 150, placeholder=" ...")
    figure.suptitle(name, x=0.012, y=1 - 0.08 / height, ha="left", va="top", fontsize=14, fontweight="bold")
    figure.text(0.012, 1 - 0.37 / height, line, ha="left", va="top", fontsize=8, family="monospace", color="0.3")


def _panels(figure: Figure, row: Any, *widths: int) -> list[Axes]:
    inside, panels, start = row.subgridspec(1, 6), [], 0
    for width in widths:
        axes = figure.add_subplot(inside[0, start : start + width])
        axes.tick_params(which="both", labelsize=8, length=3)
        axes.spines[["top", "right"]].set_visible(False)
        panels.append(axes)
        start += width
    return panels


def _label(axes: Axes, title: str, x: str, y: str, note: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_title(note, loc="right", fontsize=7, color="0.35", style="italic")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)


def _lines(axes: Axes, x: Tensor, by_head: Tensor, shared: bool) -> None:
    """One line a head, dark to light; one for all where they agree. The legend stands beside the data."""
    from matplotlib import colormaps

    rows = by_head[:1] if shared else by_head
    shades = colormaps["viridis"]([0.85 * head / max(1, len(rows) - 1) for head in range(len(rows))])
    named = {round(n * (len(rows) - 1) / 7) for n in range(8)}  # a legend of more than eight tells no one anything
    for head, row in enumerate(rows):
        name = ("every head" if shared else f"head {head}") if head in named else None
        axes.plot(x, row, color=shades[head], linewidth=1.4, label=name)
    if float(rows.nan_to_num(0.0).amax() - rows.nan_to_num(0.0).amin()) < 1e-9 and axes.get_yscale() == "linear":
        axes.set_ylim(float(rows[0, 0]) - 1, float(rows[0, 0]) + 1)  # flat: keep rounding from looking like a shape
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=7, frameon=False, handlelength=2.2)


def _map(axes: list[Axes], values: list[Tensor], label: str, **colours: Any) -> None:
    """Queries down, keys across, light grey where a query does not see a key; one colour bar for all."""
    for panel, shown in zip(axes, values, strict=True):
        panel.set_facecolor("0.9")
        image = panel.imshow(shown, interpolation="nearest", **colours)
    bar = axes[0].figure.colorbar(image, ax=axes, shrink=0.86, pad=0.015, aspect=24)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(which="both", labelsize=7, length=2)
    bar.outline.set_visible(False)


def _colours(values: Tensor) -> dict[str, Any]:
    """A map centred at zero for numbers of both signs, else one from dark to light."""
    known = values[values.isfinite()]
    low, high = float(known.min()), float(known.max())
    size = max(-low, high)
    if high - low < 1e-9:
        return {"cmap": "PuOr", "vmin": low - 1, "vmax": high + 1}
    if low < -0.05 * size and high > 0.05 * size:
        return {"cmap": "PuOr", "vmin": -size, "vmax": size}
    return {"cmap": "viridis", "vmin": low, "vmax": high}


def _draw_effect(panels: list[Axes], stage: Stage, effect: Effect) -> None:
    query = stage.length - 1 if stage.causal else stage.length // 2
    # from near to far: keys counted backwards from the query
    distance, curves = query - torch.arange(stage.length).flip(0), effect.values[:, query].flip(-1)
    if not stage.causal:
        panels[0].axvline(0, color="0.8", linewidth=0.8)
    _lines(panels[0], distance, curves, effect.shared)
    where = "" if stage.position.relative else f", for the query at {query}"
    x = "distance to the key" + ("" if stage.causal else ", negative for later keys") + f" (tokens){where}"
    _label(panels[0], "over distance", x, effect.label, _note(stage, curves))
    values = effect.values[effect.head]
    _map(panels[1:], [values], effect.label.replace("\n", " "), **_colours(values))
    _label(panels[1], f"by query and key, {_which(effect)}", "key (token)", "query (token)")


def _note(stage: Stage, curves: Tensor) -> str:
    """What a reader must know before taking a curve for the mechanism's last word."""
    if stage.position.effects <= {"values"}:
        return "acts on values only" if stage.position.effects else "no effect"
    if next(stage.position.parameters(), None) is None:
        return ""
    known = curves[curves.isfinite()]
    flat = float(known.max() - known.min()) < NEARLY_FLAT
    return "learnable; nearly flat, as initialised" if flat else "learnable; present values"


def _which(effect: Effect) -> str:
    return "every head" if effect.shared else f"head {effect.head}"


def _draw_sink(panels: list[Axes], stage: Stage, effect: Effect | None) -> Effect:
    """The extra logit, the share it takes, and what it leaves; returns the effect whose head the pattern shows."""
    layout = stage.layout()
    places = layout.q_positions.double()[..., None]
    logit = evaluate(stage.position, "sink", places, stage.heads, layout.length_of)[:, 0, :, 0]
    at = torch.arange(stage.length)
    share = torch.sigmoid(logit - torch.log(at + 1.0))
    left = (1 - share)[:, :, None].expand(-1, -1, stage.length)
    left = Effect(left.masked_fill(at > at[:, None], torch.nan), "factor on the weight")
    note = "learnable; present values" if next(stage.position.parameters(), None) is not None else ""
    _lines(panels[0], at, logit.masked_fill(logit.isinf(), torch.nan), left.shared)
    _label(panels[0], "the sink's logit", "query (token)", "extra logit in the row", note)
    _lines(panels[1], at, share, left.shared)
    panels[1].set_ylim(0, max(0.05, 1.08 * float(share.max())))
    _label(panels[1], "its share, all scores 0", "query (token)", "share of attention")
    panels[0].get_legend().remove()  # its neighbour shows the same
    head = left.head if effect is None else min(effect.head, len(left.values) - 1)
    _map(panels[2:], [left.values[head]], left.label, cmap="viridis", vmin=0, vmax=1)
    _label(panels[2], f"what it leaves, {'every head' if left.shared else f'head {head}'}", "key (token)", "query (token)")
    return left if effect is None else effect


def _draw_pattern(panels: list[Axes], stage: Stage, effect: Effect) -> None:
    from matplotlib.colors import LogNorm

    without, weights = _weights(stage)
    hidden = torch.ones(stage.length, stage.length, dtype=torch.bool).triu(1)
    shown = [weight.masked_fill(hidden, torch.nan).clamp(min=LEAST_SHOWN) for weight in (without, weights[effect.head])]
    # the logarithm keeps later rows visible beside the first ones, which have few keys to share among
    _map(panels[:2], shown, "attention weight", cmap="cividis", norm=LogNorm(LEAST_SHOWN, 1))
    _label(panels[0], "fixed content, without it", "key (token)", "query (token)")
    _label(panels[1], f"with it, {_which(effect)}", "key (token)", "query (token)")

    half = stage.length // 2  # the later half of the queries all see these distances
    queries, distance = torch.arange(half, stage.length)[:, None], torch.arange(half)
    plain, moved = (x[..., queries, queries - distance].mean(-2) for x in (without, weights))
    ratio = moved / plain
    shared = bool(torch.allclose(ratio, ratio[:1], rtol=1e-9, atol=1e-12))
    if float(ratio.amax() / ratio.amin()) > 8:
        panels[2].set_yscale("log")
        panels[2].set_ylim(max(1e-4, 0.6 * float(ratio.amin())), 1.6 * max(1.0, float(ratio.amax())))
    panels[2].axhline(1, color="black", linewidth=1, linestyle="--", label="without it")
    _lines(panels[2], distance, ratio, shared)
    _label(panels[2], "mean by distance", "distance to the key (tokens)", "weight with it / without it")


def _draw_oscillation(panels: list[Axes], rotary: Rotary, head_width: int) -> None:
    """How far the score of equal vectors survives the turning, and how the base and a scaling move that."""
    every = torch.arange(1, LONGEST + 1, dtype=torch.float64)
    places = torch.logspace(0, math.log2(LONGEST) - 0.2, 160, base=2.0, dtype=torch.float64).round().unique()

    def trend(rotary: Rotary) -> Tensor:
        """The mean over distances within a tenth; beyond a hundred tokens single ones are noise to the eye."""
        near = ((every - places[:, None]).abs() <= 0.1 * places[:, None] + 0.5).double()
        return near @ oscillation(rotary, every, head_width) / near.sum(1)

    pairs, base, original = rotary.turning(head_width) // 2, rotary.base, LONGEST // 4
    plain = {"base": base, "width": rotary.width}
    growing = tuple(4.0 ** (pair / max(1, pairs - 1)) for pair in range(pairs))
    bases = {f"base $10^{n}$": Rotary(base=10.0**n, width=rotary.width) for n in (4, 5, 6)}
    scalings = {
        "linear": Rotary(scaling=Linear(4.0), **plain),
        "dynamic NTK": Rotary(scaling=DynamicNtk(4.0, original), context=LONGEST, **plain),
        "YaRN": Rotary(scaling=Yarn(4.0, original), **plain),
        "Llama 3": Rotary(scaling=Llama3(4.0, original=original), **plain),
        "LongRoPE": Rotary(scaling=LongRope((1.0,) * pairs, growing, original, 4.0), context=LONGEST, **plain),
    }
    from matplotlib import colormaps

    for panel, others, title in (
        (panels[0], bases, "rotary's oscillation, and other bases"),
        (panels[1], scalings, f"and stretched 4 times, from {original} to {LONGEST} tokens"),
    ):
        panel.set_xscale("log", base=2)
        panel.axhline(0, color="0.8", linewidth=0.8)
        panel.plot(every, oscillation(rotary, every, head_width), color="0.85", linewidth=0.6, label="this one,\neach distance")
        panel.plot(places, trend(rotary), color="black", linewidth=2.4, label="this one")
        shades = colormaps["viridis"]([0.15 + 0.7 * n / (len(others) - 1) for n in range(len(others))])
        for shade, dash, (name, other) in zip(shades, DASHES, others.items()):
            panel.plot(places, trend(other), color=shade, linestyle=dash, linewidth=1.3, label=name)
        _legend(panel)
        _label(panel, title, "distance (tokens)", "mean cosine, times\nany attention factor")
