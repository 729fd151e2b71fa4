"""What of the positional part is more than the noise of few texts."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.probe.arrays.geometry import ENERGY, by_frequency

#: directions that may be more than noise
MOST = 20
OPTIMAL_SLOPE = -4.0


def threshold(values: Tensor, shape: tuple[int, int], most: int = MOST) -> float:
    """Where noise ends among the singular values of a matrix (ScreeNOT: Donoho, Gavish, Romanov 2020, arXiv 2009.12297).

    Values above it are signal. It is the hard threshold with the least squared error for noise of any spectrum, which is
    read from the values themselves: the largest ``most``, which may be signal, are replaced by a continuation of the
    others. For white noise it is the known constant, 4 / sqrt(3) times its size for a square matrix.
    """
    found = values.double().sort(descending=True).values[: min(shape)]
    if most < 1 or len(found) < 2 * most + 1:
        raise usage_error(
            "threshold", f"{len(found)} values and most={most}", "there are more than twice as many", "lower most"
        )
    first, step = found[most], found[most] - found[2 * most]
    place = torch.arange(most, dtype=torch.float64, device=found.device) / most
    noise = torch.cat([first + step * (1 - place ** (2 / 3)) / (2 ** (2 / 3) - 1), found[most:]])
    ratio = min(shape) / max(shape)

    def slope(at: float) -> float:
        """How fast the product of the two transforms of the noise falls, on logarithmic axes."""
        near = at**2 - noise**2
        one, one_falls = float((at / near).mean()), float(-((at**2 + noise**2) / near**2).mean())
        two, two_falls = ratio * one + (1 - ratio) / at, ratio * one_falls - (1 - ratio) / at**2
        return at * (one_falls / one + two_falls / two)

    low = float(noise[0])
    if low == 0:
        return 0.0
    high = 2 * low
    while slope(high) < OPTIMAL_SLOPE:
        high *= 2
    low *= 1 + 1e-12
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < OPTIMAL_SLOPE else (low, middle)
    return high


def signal_rank(values: Tensor, shape: tuple[int, int], most: int = MOST) -> int:
    """How many singular values of a matrix of that shape stand out of its noise; at most ``most``, fewer for small ones."""
    most = min(most, (min(shape) - 1) // 2)
    return min(most, int((values.double() > threshold(values, shape, most)).sum()))


def in_both_halves(
    states: Tensor, low: int, energy: float = ENERGY, splits: int = 2, draws: int = 19, seed: int = 0
) -> dict[str, float] | None:
    """The rank of position, and the share of its lowest frequencies, as two halves of the contexts have it in common.

    A mean over few texts keeps their noise, which has every rank and every frequency. What the positional parts of two
    halves have in common has none of it: the noise of one knows nothing of that of the other. Directions are those of one
    half, energies the products of both, averaged over some ways to halve them, with the halves changing places. Right on
    average, a product may lie below zero where there is little but noise: the share of the low frequencies is then
    more than 1, which is all of it within the noise. Cut off at 1 it would be biased, so it is not. None
    where position is no more than chance (p above 0.05): where texts turned in a circle, each by a number of its own,
    agree as well as they do as they stand.
    """
    own = states.double() - states.double().mean(1, keepdim=True)
    contexts, tokens = own.shape[:2]
    drawn = torch.Generator().manual_seed(seed)
    agreement = float(own.sum(0).square().sum())
    by_chance = 0
    for _ in range(draws):
        turns = torch.randint(tokens, (contexts,), generator=drawn).tolist()
        turned = sum(text.roll(turn, 0) for text, turn in zip(own, turns, strict=True))
        by_chance += float(turned.square().sum()) >= agreement
    if contexts < 2 or (1 + by_chance) / (1 + draws) > 0.05:
        return None
    held, lowest = torch.zeros(own.shape[2], dtype=torch.float64, device=own.device), 0.0
    for _ in range(splits):
        order = torch.randperm(contexts, generator=drawn)
        one, two = (own[part].mean(0) for part in (order[: contexts // 2], order[contexts // 2 :]))
        for first, second in ((one, two), (two, one)):
            directions = torch.linalg.eigh(first.T @ first).eigenvectors.flip(-1)
            held += ((first @ directions) * (second @ directions)).sum(0)
        lowest += 2 * float((by_frequency(one) * by_frequency(two))[:low].sum())
    whole = float(held.sum())
    if whole <= 0:
        return None
    enough = (held.cumsum(0) >= energy * whole).nonzero()
    return {"rank": int(enough[0]) + 1, "low_frequencies": lowest / whole}
