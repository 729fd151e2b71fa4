"""Channels of the residual stream that follow position (Yu et al. 2024, arXiv 2406.02536).

A channel is positional when its mean over many texts is monotone and smooth along the text, in many layers. Whether it is
monotone depends on the fit through its noise. There are three fits: a cubic, as in the official code; a moving mean, as in
the text of the paper; and segmented least squares, as in a survey of it. Where they differ, the claim depends on the fit.

Curves are ``[tokens, channels]``; lengths to leave out are shares of the tokens (the official 300 of 1000 is 0.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from whence.errors import require_package, usage_error

FITS = ("cubic", "segmented", "window")
LEFT_OUT = {"cubic": 0.3, "segmented": 0.03, "window": 0.03}
SMOOTH_LEFT_OUT = 0.2
WINDOW = 0.1
SAVGOL = (10, 3)
POINTS = 48  # a curve is averaged to so many points before the segments are searched, which takes quadratic time
PENALTY = 3.0  # of each segment, in units of the noise variance times the logarithm of the number of points


@dataclass(frozen=True)
class Channel:
    """A positional channel: its direction, the layers in which it is monotone, and its lowest roughness over layers."""

    channel: int
    direction: int
    layers: tuple[int, ...]
    roughness: float


def fit_curves(curves: Tensor, fit: str) -> Tensor:
    """The fit through each curve, without its beginning and scaled to 0..1."""
    if fit not in FITS:
        raise usage_error("fit_curves(fit)", f"fit={fit!r}", f"the fits are {', '.join(FITS)}", "choose one of them")
    tokens = curves.shape[0]
    rest = _unit(curves[round(LEFT_OUT[fit] * tokens) :].double())
    if len(rest) < 8:
        raise usage_error(
            "fit_curves(curves)", f"{tokens} tokens", "a trend needs at least a dozen", "use longer texts"
        )
    if fit == "cubic":
        at = torch.linspace(-1, 1, len(rest), dtype=torch.float64)
        powers = at[:, None] ** torch.arange(4)
        return powers @ torch.linalg.lstsq(powers, rest).solution
    if fit == "window":
        window = max(2, round(WINDOW * tokens))
        sums = torch.cat([torch.zeros_like(rest[:1]), rest.cumsum(0)])
        return (sums[window:] - sums[:-window]) / window
    return _fit_segments(rest)


def direction(curves: Tensor, fit: str) -> Tensor:
    """+1 where the fit rises throughout, -1 where it falls throughout, 0 where it does neither: ``[channels]``."""
    fitted = fit_curves(curves, fit)
    steps = fitted.diff(dim=0)
    tolerance = 1e-9 * (
        fitted.amax(0) - fitted.amin(0)
    )  # rounding does not break monotonicity, and a flat curve has no direction
    moves = fitted.amax(0) - fitted.amin(0) > 1e-9
    rises = (steps >= -tolerance).all(0) & moves
    falls = (steps <= tolerance).all(0) & moves
    return rises.long() - falls.long()


def roughness(curves: Tensor) -> Tensor:
    """The sum of squared second differences of each curve, scaled to 0..1 and lightly smoothed: ``[channels]``."""
    rest = _unit(curves[round(SMOOTH_LEFT_OUT * len(curves)) :].double())
    if len(rest) < 2 * SAVGOL[0] + 3:
        raise usage_error("roughness", f"{len(curves)} tokens", "the smoother needs more", "use longer texts")
    signal = require_package("scipy.signal", "whence.probe.arrays.channels", "lab")
    smooth = torch.from_numpy(signal.savgol_filter(rest.numpy(), *SAVGOL, axis=0))
    # a window of even length shifts the curve by half a token, except for the ends, which are fitted separately: each
    # joint would be a kink
    half = SAVGOL[0] // 2
    return smooth[half:-half].diff(n=2, dim=0).square().sum(0)


def positional_channels(
    means: Tensor,
    fit: str = "cubic",
    most: int | None = 10,
    layers: Sequence[int] | None = None,
    min_layers: int | None = None,
) -> list[Channel]:
    """The channels that are monotone in more than a quarter of the examined layers, the smoothest first.

    Args:
        means: hidden states averaged over texts, ``[layers, tokens, channels]``.
        most: the number to return; None for all.
        layers: by default all but the first two and the last two; with four layers or fewer, all but the first.
        min_layers: a channel must be monotone in more layers than so many. By default a quarter of the examined layers; the
            official code takes a quarter of all layers of the model, which is stricter by one in many models.
    """
    count = means.shape[0]
    selected_layers = (
        list(layers) if layers is not None else list(range(2, count - 2)) if count > 4 else list(range(1, count)) or [0]
    )
    fewest = len(selected_layers) // 4 if min_layers is None else min_layers
    directions = torch.stack([direction(means[layer], fit) for layer in selected_layers])
    rough = torch.stack([roughness(means[layer]) for layer in selected_layers])
    selected = []
    for channel in range(means.shape[-1]):
        sign = 1 if int(directions[:, channel].sum()) >= 0 else -1
        agree = torch.nonzero(directions[:, channel] == sign).flatten()
        if len(agree) > fewest:
            selected.append(
                Channel(
                    channel, sign, tuple(selected_layers[i] for i in agree.tolist()), float(rough[agree, channel].min())
                )
            )
    selected.sort(key=lambda one: one.roughness)
    return selected if most is None else selected[:most]


def by_chance(means: Tensor, fit: str, seed: int = 0) -> int:
    """The number of channels that pass when the tokens are in a random order, the same for all layers.

    A straight line through noise is monotone too, so a count is meaningful only in comparison with this number.
    """
    order = torch.randperm(means.shape[1], generator=torch.Generator().manual_seed(seed))
    return len(positional_channels(means[:, order], fit, most=None))


def _unit(curves: Tensor) -> Tensor:
    """Each curve scaled to 0..1; a constant one becomes 0."""
    low, high = curves.amin(0), curves.amax(0)
    return (curves - low) / torch.where(high > low, high - low, torch.ones_like(high))


def _fit_segments(curves: Tensor) -> Tensor:
    """Piecewise linear fit with free breaks: the least sum of squares plus a penalty for each piece, by dynamic programming."""
    points = min(POINTS, len(curves))
    edges = [round(i * len(curves) / points) for i in range(points + 1)]
    means = torch.stack([curves[a:b].mean(0) for a, b in pairwise(edges)])
    at = torch.arange(points, dtype=torch.float64)
    # cumulative sums, so that the cost of any piece is a few differences
    sums = [torch.cat([torch.zeros_like(means[:1]), part.cumsum(0)])
            for part in (means, at[:, None] * means, means.square())]  # fmt: skip
    noise = (means.diff(dim=0).square().mean(0) / 2).clamp_min(1e-12)
    price = PENALTY * noise * torch.tensor(float(points)).log()
    channels = means.shape[1]
    best = torch.zeros(points + 1, channels, dtype=torch.float64)
    begin = torch.zeros(points + 1, channels, dtype=torch.long)
    for end in range(1, points + 1):
        first = torch.arange(end)
        cost = best[:end] + _piece_cost(sums, first, end) + price
        best[end], begin[end] = cost.min(0)
    fitted = torch.empty_like(means)
    ends = torch.full((channels,), points)
    while bool((ends > 0).any()):
        for end in ends.unique().tolist():
            if end == 0:
                continue
            selected = torch.nonzero(ends == end).flatten()
            for start in begin[end, selected].unique().tolist():
                which = selected[begin[end, selected] == start]
                fitted[start:end, which] = _line(at[start:end], means[start:end, which])
                ends[which] = start
    return fitted


def _piece_cost(sums: list[Tensor], first: Tensor, end: int) -> Tensor:
    """The squared error of a straight line through the points from each of ``first`` to ``end``: ``[len(first), channels]``."""
    count = (end - first).double()[:, None]
    y, xy, yy = (part[end] - part[first] for part in sums)
    middle = (first + end - 1).double()[:, None] / 2
    variance = count * (count.square() - 1) / 12
    covariance = xy - middle * y
    slope_gain = torch.where(variance > 0, covariance.square() / variance.clamp_min(1), torch.zeros_like(covariance))
    return (yy - y.square() / count - slope_gain).clamp_min(0)


def _line(at: Tensor, values: Tensor) -> Tensor:
    centered = at - at.mean()
    variance = centered.square().sum()
    slope = (centered[:, None] * values).sum(0) / variance if variance > 0 else torch.zeros_like(values[0])
    return values.mean(0) + centered[:, None] * slope
