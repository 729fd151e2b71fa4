"""What is drawn: a mechanism's effect on fixed content.

All content is one direction a head, times a level for each token. Levels of 1 make every score exactly 1 before
position acts, so that what is drawn is position's doing alone; the pattern's levels make a few keys matter.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.attention.arguments import Arguments
from whence.attention.attend import attend
from whence.attention.layout import Layout, resolve_layout
from whence.attention.module import without_embedding
from whence.position import evaluate
from whence.position.base import Position, Rows
from whence.position.rotary import Rotary
from whence.position.rotary_scaling import LongRope


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
        return resolve_layout(Arguments(x, x, x, causal=self.causal))


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


def set_stage(position: Position, length: int, heads: int | None, head_dim: int | None, seed: int) -> Stage:
    frozen = copy.deepcopy(position).double().cpu().eval().requires_grad_(False)
    heads, head_dim = _sizes(frozen, heads, head_dim)
    for part in frozen.at_input():
        length = min(length, getattr(part, "max_length", length))
    own = torch.Generator().manual_seed(seed)
    levels = 1 + 0.4 * torch.randn(length, generator=own, dtype=torch.float64)  # first: the same for all head counts
    signs = torch.randint(0, 2, (heads, head_dim), generator=own).double() * 2 - 1
    # one key that matters in each quarter: any half of the tokens holds two, so none shows in a mean by distance
    levels[[length * eighth // 8 for eighth in (1, 3, 5, 7)]] = 4.0
    # entries of width ** -1/4: with the scale width ** -1/2 the score of the direction with itself is 1
    return Stage(frozen, heads, length, position.causal_only, signs * head_dim**-0.25, levels)


def _sizes(position: Position, heads: int | None, head_dim: int | None) -> tuple[int, int]:
    """Heads and head width that suit all parts, where the caller names none."""
    heads = position.heads if heads is None else heads
    probe = torch.arange(3, dtype=torch.float64)
    for part in position.parts:
        length = {None: None, "context": part.context, "query": probe + 1, "sequence": 3}[part.length]
        for hook in part.effects & {"score_scale", "bias", "sink"} if heads is None else ():
            answer = getattr(part, hook)(probe, length)
            heads = len(answer) if getattr(answer, "ndim", 0) == 2 else heads
        if head_dim is None:
            head_dim = getattr(part, "head_dim", None)
    for part in position.at_input():
        embed_dim = getattr(part, "embed_dim", None)
        if embed_dim is not None:
            heads = heads or (
                embed_dim // head_dim if head_dim else next(n for n in (4, 3, 2, 1) if embed_dim % n == 0)
            )
            head_dim = head_dim or embed_dim // heads
    for part in position.parts if head_dim is None else ():
        if isinstance(part, Rotary):  # a searched scaling is for one width, a partial rotation for at least its own
            head_dim = (
                2 * len(part.scaling.short) if isinstance(part.scaling, LongRope) else max(64, part.rotary_dim or 0)
            )
    return heads or 4, head_dim or 16


def effect_of(stage: Stage) -> Effect:
    layout, hooks = stage.layout(), stage.position.effects
    distance = layout.distance().double()
    score_scale = evaluate.evaluate(stage.position, "score_scale", distance, stage.heads, layout.length_of)
    bias = evaluate.evaluate(stage.position, "bias", distance, stage.heads, layout.length_of)
    if not hooks & {"score_scale", "bias"} or hooks & {"embed", "rotate", "content_bias"}:
        values, label = _logits(stage, layout, score_scale, bias) - 1, "change of the logit\nfor the same content"
    elif score_scale is None:
        assert bias is not None
        values, label = bias, "added to the logit"
    elif bias is None:
        values, label = score_scale, "factor on the score"
    else:
        values, label = score_scale + bias, "logit of a score of 1"
    values = values[:, 0]
    return Effect(values.masked_fill(~(layout.visible()[:, 0] & values.isfinite()), torch.nan), label)


def _logits(stage: Stage, layout: Layout, score_scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """Logits ``[H, 1, T, S]`` of scores of 1; attend itself only hands out what the softmax makes of them."""
    x = stage.content(torch.ones_like(stage.levels))
    places = layout.q_positions, layout.k_positions
    q, k = stage.position.rotate(x, x, *places)
    scale = x.shape[-1] ** -0.5
    logits = scores = scale * (q @ k.mT)
    if "content_bias" in stage.position.effects:
        logits = logits + stage.position.content_bias(Rows(q, k, scores, *places, layout.visible(), scale))
    logits = logits.transpose(0, 1) * (1 if score_scale is None else score_scale)
    return logits if bias is None else logits + bias


def pattern_weights(stage: Stage) -> tuple[Tensor, Tensor]:
    """Causal attention over the pattern without the mechanism ``[T, S]`` and with it ``[H, T, S]``."""
    ones = torch.ones_like(stage.levels)
    score = torch.full((stage.length, stage.length), -torch.inf, dtype=torch.float64).triu(1) + stage.levels
    value_dim = max(getattr(part, "value_dim", 1) for part in stage.position.parts)
    values = torch.zeros(1, stage.heads, stage.length, value_dim, dtype=torch.float64)
    _, weights = attend(
        stage.content(ones), stage.content(stage.levels), values, position=without_embedding(stage.position), causal=True,
        backend="reference", return_weights=True,
    )  # fmt: skip
    return torch.softmax(score, -1), weights[0]
