"""How strongly the channels of the hidden states depend on position, by layer.

A survey of Yu et al. 2024 (arXiv 2406.02536) says that some channels are monotone in position from the first layer on, and
more so in higher layers. The residual stream itself grows with depth, so the values of a channel cannot show this. The
measure here is the share of a channel's variance over texts and positions that position explains, beyond chance.

Channels are selected in one half of the texts and measured in the other, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe.arrays.channels import direction, positional_channels, roughness

SKIPPED = 0.1  # the first tokens, where attention sinks are, as a share of the tokens
BLOCKS = 20  # a curve is averaged to so many points before it is ranked
POINTS = 48  # and to so many before it is stored
MOST = 10  # channels that are measured in the other half of the texts
DRAWN_LAYERS = 5


@dataclass(frozen=True)
class ChannelVariance:
    """The mean of every channel at every position, and the shares of its variance."""

    texts: int
    means: Tensor  # [layers, tokens, channels], over texts
    position: Tensor  # [layers, channels]: sum of squares due to position, minus its expectation by chance
    total: Tensor  # [layers, channels]: sum of squares around the mean of the channel

    @property
    def shares(self) -> Tensor:
        """The share of position in each channel, ``[layers, channels]``; 0 for a constant channel."""
        constant = self.total <= 0
        return (self.position / self.total.masked_fill(constant, 1.0)).masked_fill(constant, 0.0)


def split_variance(texts: Iterable[Tensor]) -> ChannelVariance:
    """Decompose each channel into position, context and residual; texts are states ``[layers, tokens, channels]``.

    The same decomposition as ``geometry.decompose``, for every channel alone and without storing the states of all texts.
    The first tenth of the tokens is left out.
    """
    count, sums, squares = 0, None, None
    contexts = []
    for states in texts:
        states = states.double().cpu()
        later = states[:, _skipped(states.shape[1]) :]
        sums = states if sums is None else sums + states
        squares = later.square().sum(1) if squares is None else squares + later.square().sum(1)
        contexts.append(later.mean(1))
        count += 1
    if sums is None or squares is None or count < 2:
        raise usage_error(
            "split_variance(texts)", f"{count} texts", "the noise is estimated from two or more", "pass more texts"
        )
    means = sums / count
    later = means[:, _skipped(means.shape[1]) :]
    tokens, mean = later.shape[1], later.mean(1)
    total = (squares - count * tokens * mean.square()).clamp_min(0)
    position = count * (later - mean[:, None]).square().sum(1)
    context = tokens * (torch.stack(contexts) - mean).square().sum(0)
    residual = (total - position - context).clamp_min(0)
    negligible = total <= 1e-12 * squares  # rounding of a constant channel
    position = (position - residual / (count - 1)).masked_fill(negligible, 0.0)
    return ChannelVariance(count, means, position, total.masked_fill(negligible, 0.0))


def measure_growth(halves: Sequence[ChannelVariance], seed: int = 0) -> dict[str, Any]:
    """Measure by layer how strongly channels depend on position, from the two halves of the texts.

    Returns:
        ``layers``: for each layer the mean ``share`` over channels, the ``pooled_share`` of all channels together, the
        number of channels with a ``monotone`` cubic fit, in order and ``by_chance``, in shuffled order, and
        ``held_out``, the rank correlation with position of the smoothest of them in the other half of the texts.
        ``selected``: for each half, the channels that are monotone in many layers and by layer their mean share in the
        other half. ``strongest``: the curve of the channel with the largest share in any layer.
    """
    first, second = halves
    both = (first.means + second.means) / 2
    order = torch.randperm(both.shape[1], generator=torch.Generator().manual_seed(seed))
    layers = []
    for layer in range(both.shape[0]):
        held_out = [
            value for pair in ((first, second), (second, first)) if (value := _follow(*pair, layer)) is not None
        ]
        layers.append(
            {
                "share": _round(sum(float(half.shares[layer].mean()) for half in halves) / 2),
                "pooled_share": _round(
                    sum(
                        float(half.position[layer].sum() / half.total[layer].sum().clamp_min(1e-300)) for half in halves
                    )
                    / 2
                ),
                "monotone": int((direction(both[layer], "cubic") != 0).sum()),
                "by_chance": int((direction(both[layer, order], "cubic") != 0).sum()),
                "held_out": _round(sum(held_out) / len(held_out)) if held_out else None,
            }
        )
    selected = [_measure_selected(*pair) for pair in ((first, second), (second, first))]
    return {
        "hidden_size": both.shape[-1],
        "layers": layers,
        "selected": selected,
        "strongest": _describe_strongest(first, second),
    }


def block_means(curves: Tensor, blocks: int) -> Tensor:
    """Curves ``[tokens, ...]`` without their beginning, averaged to ``blocks`` points; fewer if there are fewer tokens."""
    later = curves[_skipped(curves.shape[0]) :]
    return torch.stack([part.mean(0) for part in later.tensor_split(min(blocks, len(later)))])


def rank_correlations(curves: Tensor) -> Tensor:
    """Spearman's correlation with position of the block means of curves ``[tokens, channels]``, ``[channels]``."""
    ranks = block_means(curves, BLOCKS).argsort(0).argsort(0).double()
    here = torch.arange(len(ranks), dtype=torch.float64)[:, None].expand_as(ranks)
    ranks, here = ranks - ranks.mean(0), here - here.mean(0)
    return (ranks * here).sum(0) / (ranks.norm(dim=0) * here.norm(dim=0))


def _follow(choosing: ChannelVariance, judging: ChannelVariance, layer: int) -> float | None:
    """The mean rank correlation, in the other half, of the smoothest channels that are monotone in this layer."""
    signs = direction(choosing.means[layer], "cubic")
    monotone = torch.nonzero(signs).flatten()
    if not len(monotone):
        return None
    smooth = roughness(choosing.means[layer][:, monotone]).argsort()[:MOST]
    chosen = monotone[smooth]
    return float((rank_correlations(judging.means[layer][:, chosen]) * signs[chosen]).mean())


def _measure_selected(choosing: ChannelVariance, judging: ChannelVariance) -> dict[str, Any]:
    channels = [one.channel for one in positional_channels(choosing.means, "cubic", MOST)]
    return {"channels": channels, "share": _rounded(judging.shares[:, channels].mean(1)) if channels else []}


def _describe_strongest(choosing: ChannelVariance, judging: ChannelVariance) -> dict[str, Any] | None:
    """The positional channel with the largest share in any layer; its numbers are from the other half of the texts."""
    channels = [one.channel for one in positional_channels(choosing.means, "cubic", None)]
    if not channels:
        return None
    channel = channels[int(choosing.shares[:, channels].amax(0).argmax())]
    count = judging.means.shape[0]
    drawn = sorted(
        {round(1 + index * (count - 2) / (DRAWN_LAYERS - 1)) for index in range(DRAWN_LAYERS)} & set(range(count))
    )
    curves = judging.means[:, :, channel].T
    return {
        "channel": channel,
        "share": _rounded(judging.shares[:, channel]),
        "rank_correlation": _rounded(rank_correlations(curves)),
        "positions": _rounded(block_means(torch.arange(len(curves), dtype=torch.float64), POINTS)),
        "curves": {str(layer): _rounded(block_means(curves[:, layer], POINTS)) for layer in drawn},
    }


def _skipped(tokens: int) -> int:
    return max(1, round(SKIPPED * tokens))


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _rounded(values: Tensor) -> list[float]:
    return [_round(value) for value in values.tolist()]
