"""The numbers behind the figure: a mechanism's effect on fixed content.

All content is one direction per head, multiplied by a level per token. With levels of 1, every score is exactly 1
before position acts, so the plot shows the effect of position alone. The example pattern has higher levels at a few
keys. A mechanism that reads the layer input receives one of its own, random and the same in all panels.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.attention.arguments import Arguments
from whence.attention.attend import attend
from whence.attention.clock import run_clock
from whence.attention.layout import Layout, resolve_layout
from whence.attention.module import without_embedding
from whence.position import evaluate
from whence.position.base import Position
from whence.position.hook_types import Rows
from whence.position.rotary import Rotary
from whence.position.rotary_scaling import LongRope


@dataclass(frozen=True)
class PlotInputs:
    """A frozen copy of a mechanism and the content it is applied to."""

    position: Position
    heads: int
    length: int
    causal: bool  # whether the mechanism is defined for keys at or before the query only
    direction: Tensor  # [H, D]; its score with itself is 1
    levels: Tensor  # [T], the keys' scores in the example pattern without a mechanism
    steps: Tensor | None = None  # [1, H, T], of a mechanism with a clock
    q_input: Tensor | None = None  # [1, T, embed_dim], of a mechanism that reads the layer input

    @property
    def by_distance(self) -> bool:
        """Whether the effect is the same at every pair of one distance."""
        return self.position.relative and self.steps is None and self.q_input is None

    def content(self, levels: Tensor) -> Tensor:
        """The direction times ``levels`` ``[T]``, after the mechanism's input embedding: ``[1, H, T, D]``."""
        x = (levels[:, None] * self.direction.flatten())[None]
        positions = torch.arange(self.length)[None]
        for part in self.position.at_input():
            x = part.embed(x, positions)
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def layout(self) -> Layout:
        """Tokens at 0, 1, 2, ...; causal if the mechanism is."""
        x = self.direction[None, :, None, :].expand(-1, -1, self.length, -1)
        return resolve_layout(Arguments(x, x, x, causal=self.causal))


@dataclass(frozen=True)
class Effect:
    """A number for each query and key: ``[H or 1, T, S]``, NaN where a query does not see a key."""

    values: Tensor
    label: str
    neutral: float = 0.0  # the value that changes nothing

    @property
    def shared(self) -> bool:
        """Whether all heads have the same values."""
        return bool(torch.allclose(self.values, self.values[:1], rtol=1e-9, atol=1e-12, equal_nan=True))

    @property
    def median_head(self) -> int:
        """The head with the median standard deviation of its values; 0 if all are the same."""
        if self.shared:
            return 0
        spread = self.values.nan_to_num(0.0).flatten(1).std(1)
        return int(spread.argsort()[len(spread) // 2])


def build_plot_inputs(
    position: Position, length: int, heads: int | None, head_dim: int | None, seed: int
) -> PlotInputs:
    frozen = copy.deepcopy(position).double().cpu().eval().requires_grad_(False)
    heads, head_dim = _infer_sizes(frozen, heads, head_dim)
    for part in frozen.at_input():
        length = min(length, getattr(part, "max_length", length))
    generator = torch.Generator().manual_seed(seed)
    # drawn before the signs, so that levels do not depend on the number of heads
    levels = 1 + 0.4 * torch.randn(length, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, (heads, head_dim), generator=generator).double() * 2 - 1
    # one high key in each quarter: both halves hold two, so none stands out in a mean by distance
    levels[[length * eighth // 8 for eighth in (1, 3, 5, 7)]] = 4.0
    # entries of head_dim ** -1/4: with the scale head_dim ** -1/2 the score of the direction with itself is 1
    steps = q_input = None
    if position.reads_input or "clock" in position.effects:
        embed_dim = next((n for part in frozen.parts if (n := getattr(part, "embed_dim", None))), heads * head_dim)
        x = torch.randn(1, length, embed_dim, generator=generator, dtype=torch.float64)
        steps, q_input = evaluate.evaluate_clock(frozen, x, heads), x if position.reads_input else None
    return PlotInputs(frozen, heads, length, position.causal_only, signs * head_dim**-0.25, levels, steps, q_input)


def _infer_sizes(position: Position, heads: int | None, head_dim: int | None) -> tuple[int, int]:
    """Numbers of heads and head dimension that suit all parts, where the caller passes none."""
    heads = position.heads if heads is None else heads
    distance = torch.arange(3, dtype=torch.float64)
    for part in position.parts:
        length = {None: None, "context": part.context, "query": distance + 1, "sequence": 3}[part.length]
        for hook in part.effects & {"score_scale", "bias", "sink"} if heads is None else ():
            output = getattr(part, hook)(distance, length)
            heads = len(output) if getattr(output, "ndim", 0) == 2 else heads
        if head_dim is None:
            head_dim = getattr(part, "head_dim", None)
    for part in position.at_input():
        embed_dim = getattr(part, "embed_dim", None)
        if embed_dim is not None:
            divisor = next(n for n in (4, 3, 2, 1) if embed_dim % n == 0)
            heads = heads or (embed_dim // head_dim if head_dim else divisor)
            head_dim = head_dim or embed_dim // heads
    for part in position.parts if head_dim is None else ():
        if isinstance(part, Rotary):  # LongRoPE's factors fix head_dim; a partial rotation needs at least rotary_dim
            longrope = part.scaling if isinstance(part.scaling, LongRope) else None
            head_dim = 2 * len(longrope.short) if longrope is not None else max(64, part.rotary_dim or 0)
    return heads or 4, head_dim or 16


def compute_effect(inputs: PlotInputs) -> Effect:
    """The factor, the bias or the resulting logit of a score of 1, whichever describes the mechanism."""
    layout, hooks = inputs.layout(), inputs.position.effects
    distance = layout.distance().double()
    score_scale = evaluate.evaluate(inputs.position, "score_scale", distance, inputs.heads, layout.length_of)
    bias = evaluate.evaluate(inputs.position, "bias", distance, inputs.heads, layout.length_of)
    if inputs.steps is not None:
        accumulated = run_clock(inputs.steps, layout, torch.float64).bias(torch.float64).transpose(0, 1)
        bias = accumulated if bias is None else bias + accumulated
    if not hooks & {"score_scale", "bias", "clock"} or hooks & {"embed", "rotate", "content_bias"}:
        values, label = _compute_logits(inputs, layout, score_scale, bias) - 1, "change of the logit\nfor equal content"
    elif score_scale is None:
        assert bias is not None
        values, label = bias, "added to the logit"
    elif bias is None:
        values, label = score_scale, "factor on the score"
    else:
        values, label = score_scale + bias, "logit of a score of 1"
    values = values[:, 0]
    neutral = 0.0 if score_scale is None or label.startswith("change") else 1.0
    return Effect(values.masked_fill(~(layout.visible()[:, 0] & values.isfinite()), torch.nan), label, neutral)


def _compute_logits(inputs: PlotInputs, layout: Layout, score_scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """Logits ``[H, 1, T, S]`` of scores of 1. ``attend`` returns weights after the softmax, not logits."""
    x = inputs.content(torch.ones_like(inputs.levels))
    positions = layout.q_positions, layout.k_positions
    q, k = inputs.position.rotate(x, x, *positions)
    scale = x.shape[-1] ** -0.5
    logits = scores = scale * (q @ k.mT)
    if "content_bias" in inputs.position.effects:
        rows = Rows(q, k, scores, *positions, layout.visible(), scale, x, x, q_input=inputs.q_input)
        logits = logits + inputs.position.content_bias(rows)
    logits = logits.transpose(0, 1) * (1 if score_scale is None else score_scale)
    return logits if bias is None else logits + bias


def compute_attention(inputs: PlotInputs) -> tuple[Tensor, Tensor]:
    """Causal attention weights of the example pattern: without the mechanism ``[T, S]``, with it ``[H, T, S]``."""
    ones = torch.ones_like(inputs.levels)
    score = torch.full((inputs.length, inputs.length), -torch.inf, dtype=torch.float64).triu(1) + inputs.levels
    value_dim = max(getattr(part, "value_dim", 1) for part in inputs.position.parts)
    values = torch.zeros(1, inputs.heads, inputs.length, value_dim, dtype=torch.float64)
    _, weights = attend(
        inputs.content(ones), inputs.content(inputs.levels), values, position=without_embedding(inputs.position),
        clock=inputs.steps, q_input=inputs.q_input, causal=True, backend="reference", return_weights=True,
    )  # fmt: skip
    return torch.softmax(score, -1), weights[0]


def compute_weight_ratio(without: Tensor, weights: Tensor) -> Tensor:
    """Attention weights with the mechanism over those without it, at each distance: ``[H, T // 2]``.

    The distances are those that every query of the second half sees. The mean over these queries is geometric, because
    an arithmetic one is dominated by the few keys with large scores.
    """
    length = len(without)
    half = length // 2
    queries, distance = torch.arange(half, length)[:, None], torch.arange(half)
    return (weights / without)[:, queries, queries - distance].log().mean(1).exp()


@dataclass(frozen=True)
class SinkEffect:
    """What a sink does to each query. A logit of minus infinity is NaN."""

    logit: Tensor  # [H, T]
    share: Tensor  # [H, T], of attention, if all scores are 0

    @property
    def key_share(self) -> Effect:
        """What the sink leaves to the keys."""
        length = self.share.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares = (1 - self.share)[:, :, None].expand(-1, -1, length)
        return Effect(shares.masked_fill(later, torch.nan), "factor on the weight", 1.0)


def compute_sink(inputs: PlotInputs) -> SinkEffect:
    """The effect of the mechanism's sink."""
    layout = inputs.layout()
    positions = layout.q_positions.double()[..., None]
    output = evaluate.evaluate(inputs.position, "sink", positions, inputs.heads, layout.length_of)
    assert output is not None
    logit = output[:, 0, :, 0]
    share = torch.sigmoid(logit - torch.log(torch.arange(inputs.length) + 1.0))
    return SinkEffect(logit.masked_fill(logit.isinf(), torch.nan), share)
