"""Geometry of hidden states: decomposition into parts, rank and frequencies of the positional part, positional vectors.

``decompose`` splits states ``[contexts, tokens, hidden_size]`` of one layer into mean + position + context + residual (Song
& Zhong 2023, arXiv 2310.04861). The texts have one length. The first token is left out, because it is a sink whose norm
would be most of the variance. ``signal_rank`` and ``in_both_halves`` separate the positional part from the noise of few
texts.

``positional_vectors`` splits states ``[samples, layers, tokens, hidden_size]`` into the mean over samples at each position
and the rest (Dong et al. 2024, arXiv 2405.18009). The texts have one length and no padding, all with or all without a
special first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import require_package, usage_error

#: share of the sum of squares that the counted directions explain
ENERGY = 0.95


@dataclass(frozen=True)
class Decomposition:
    """h[c, t] = mean + position[t] + context[c] + residual[c, t]; the mean of the last three along each of their axes is 0."""

    mean: Tensor  # [hidden_size]
    position: Tensor  # [tokens, hidden_size]
    context: Tensor  # [contexts, hidden_size]
    residual: Tensor  # [contexts, tokens, hidden_size]

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the sum of squares around the mean; they sum to 1 because the parts are orthogonal."""
        contexts, tokens = self.residual.shape[:2]
        squares = {
            "position": contexts * float(self.position.square().sum()),
            "context": tokens * float(self.context.square().sum()),
            "residual": float(self.residual.square().sum()),
        }
        total = sum(squares.values()) or 1.0
        return {name: value / total for name, value in squares.items()}

    @property
    def position_beyond_chance(self) -> float:
        """The share of position minus its expectation without any effect of position, which is the noise of few texts.

        The residual of independent contexts adds residual / (contexts - 1) to the positional sum of squares. Without an
        effect of position the result is around 0 and may be negative.
        """
        contexts = self.residual.shape[0]
        squares = contexts * float(self.position.square().sum()), float(self.residual.square().sum())
        total = squares[0] + squares[1] + self.residual.shape[1] * float(self.context.square().sum())
        return (squares[0] - squares[1] / (contexts - 1)) / (total or 1.0)


def decompose(states: Tensor) -> Decomposition:
    """Two-way decomposition by means, in float64."""
    if states.dim() != 3 or min(states.shape[:2]) < 2:
        raise usage_error(
            "decompose",
            f"shape {tuple(states.shape)}",
            "it takes [contexts, tokens, hidden_size] with two or more contexts and tokens",
            "stack several texts of one length",
        )
    states = states.double()
    mean = states.mean((0, 1))
    position, context = states.mean(0) - mean, states.mean(1) - mean
    return Decomposition(mean, position, context, states - mean - position - context[:, None])


def spectrum(part: Tensor) -> Tensor:
    """The singular values of a part, the largest first."""
    return torch.linalg.svdvals(part.double())


def stable_rank(values: Tensor) -> float:
    """The sum of squares over the largest square: 1 for a single direction, n for n equal ones.

    >>> stable_rank(torch.tensor([3.0, 3.0, 0.0]))
    2.0
    """
    largest = float(values[0]) ** 2
    return float(values.square().sum()) / largest if largest else 0.0


def rank(values: Tensor, energy: float = ENERGY) -> int:
    """The smallest number of directions that explain the share ``energy`` of the sum of squares.

    >>> rank(torch.tensor([10.0, 1.0, 0.1])), rank(torch.tensor([1.0, 1.0, 1.0]))
    (1, 3)
    """
    energies = values.double().square().cumsum(0)
    return int((energies < energy * energies[-1] * (1 - 1e-12)).sum()) + 1


def frequencies(position: Tensor) -> Tensor:
    """The share of each frequency in the positional part along the text (DCT-II), ``[tokens]``."""
    energy = by_frequency(position).square().sum(1)
    return energy / energy.sum().clamp_min(torch.finfo(torch.float64).tiny)


def by_frequency(position: Tensor) -> Tensor:
    """The positional part as frequencies (DCT-II), ``[tokens, hidden_size]``."""
    fft = require_package("scipy.fft", "whence.probe.arrays.geometry", "lab")
    coefficients = fft.dct(position.double().cpu().numpy(), type=2, axis=0, norm="ortho")
    return torch.from_numpy(coefficients)


def incoherence(parts: Decomposition) -> dict[str, float]:
    """The mean and the largest |cosine| between the positional and the context vectors."""
    unit = torch.nn.functional.normalize
    cosines = (unit(parts.position, dim=-1) @ unit(parts.context, dim=-1).T).abs()
    return {"mean": float(cosines.mean()), "largest": float(cosines.max())}


def relative_norm(parts: Decomposition) -> float:
    """The root mean square of the positional part relative to that of the centered states."""
    contexts = parts.residual.shape[0]
    squares = (
        contexts * parts.position.square().sum(),
        (parts.position + parts.context[:, None] + parts.residual).square().sum(),
    )
    return float((squares[0] / squares[1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt())


def without_outliers(states: Tensor, times: float = 10.0) -> tuple[Tensor, list[int]]:
    """The states without channels whose deviation exceeds ``times`` the median, and the indices of those channels.

    In some models a few channels are hundreds of times larger than all others and would dominate every measure.
    """
    deviation = states.double().flatten(0, 1).std(0)
    is_outlier = deviation > times * deviation.median()
    return states[..., ~is_outlier], torch.nonzero(is_outlier).flatten().tolist()


def score_parts(parts: Decomposition, queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """The scores of one head, before rotation, split by the parts of query and key: ``[contexts, tokens, tokens]`` each.

    The states must be the input of the projections, after the norm: only then is every step linear, and the four parts
    and the part of the mean add up to the scores.

    Args:
        queries: the rows of the head in the query projection, ``[head_dim, hidden_size]``.
        keys: the rows in the key projection.
    """
    position = parts.position.expand(parts.residual.shape)
    content = parts.context[:, None] + parts.residual
    mean = parts.mean.expand(parts.residual.shape)
    q, k = queries.double(), keys.double()
    scale = q.shape[0] ** -0.5

    def scores_between(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("ctd,csd->cts", left @ q.T, right @ k.T) * scale

    whole_q, whole_k = mean + position + content, mean + position + content
    return {
        "position-position": scores_between(position, position),
        "position-content": scores_between(position, content),
        "content-position": scores_between(content, position),
        "content-content": scores_between(content, content),
        "mean": scores_between(mean, whole_k) + scores_between(whole_q, mean) - scores_between(mean, mean),
    }


def score_shares(split: dict[str, Tensor]) -> dict[str, float]:
    """Shares of the parts in the variance of scores within a row, over the keys that a query attends to.

    A constant in a row does not change its softmax, so each row is centered first. The part of the mean is included. Parts
    may be correlated, so the shares are relative to the sum of the squares of the parts.
    """
    tokens = next(iter(split.values())).shape[-1]
    mask = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    squares = {}
    for name, scores in split.items():
        mean = (scores * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
        squares[name] = float(((scores - mean) * mask).square().sum())
    total = sum(squares.values()) or 1.0
    return {name: value / total for name, value in squares.items()}


#: the largest number of directions that may be signal
MOST = 20
OPTIMAL_SLOPE = -4.0


def threshold(values: Tensor, shape: tuple[int, int], most: int = MOST) -> float:
    """Threshold between signal and noise in singular values (ScreeNOT: Donoho, Gavish, Romanov 2020, arXiv 2009.12297).

    Values above it are signal. It is the hard threshold with the least squared error for noise of any spectrum. The
    spectrum is estimated from the values: the largest ``most``, which may be signal, are replaced by a continuation of the
    others. For white noise it is the known constant, 4 / sqrt(3) times its size for a square matrix.
    """
    ordered = values.double().sort(descending=True).values[: min(shape)]
    if most < 1 or len(ordered) < 2 * most + 1:
        raise usage_error(
            "threshold",
            f"{len(ordered)} values and most={most}",
            "it needs more than twice as many values as most",
            "lower most",
        )
    first, step = ordered[most], ordered[most] - ordered[2 * most]
    place = torch.arange(most, dtype=torch.float64, device=ordered.device) / most
    noise = torch.cat([first + step * (1 - place ** (2 / 3)) / (2 ** (2 / 3) - 1), ordered[most:]])
    ratio = min(shape) / max(shape)

    def slope(at: float) -> float:
        """The slope of the product of the two transforms of the noise on logarithmic axes."""
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
    """The number of singular values of a matrix of that shape above its noise; at most ``most``, fewer for small matrices."""
    most = min(most, (min(shape) - 1) // 2)
    return min(most, int((values.double() > threshold(values, shape, most)).sum()))


def in_both_halves(
    states: Tensor, low: int, energy: float = ENERGY, splits: int = 2, draws: int = 19, seed: int = 0
) -> dict[str, float] | None:
    """The rank of position and the share of its lowest frequencies, estimated from two halves of the contexts.

    A mean over few texts contains their noise, which has full rank and all frequencies. The noise of two halves is
    independent, so the products of their positional parts do not contain it on average. Directions come from one half and
    energies from the products of both, averaged over random splits, with the halves exchanged. The estimate is unbiased, so
    a product may be negative where there is mostly noise. The share of the low frequencies then exceeds 1, which means all
    of it within noise. It is not cut off at 1, which would bias it. None if position is no more than chance (p above 0.05):
    p is the share of random circular shifts of the texts that agree at least as well as the texts themselves.
    """
    centered = states.double() - states.double().mean(1, keepdim=True)
    contexts, tokens = centered.shape[:2]
    generator = torch.Generator().manual_seed(seed)
    agreement = float(centered.sum(0).square().sum())
    by_chance = 0
    for _ in range(draws):
        shifts = torch.randint(tokens, (contexts,), generator=generator).tolist()
        shifted = sum(text.roll(shift, 0) for text, shift in zip(centered, shifts, strict=True))
        by_chance += float(shifted.square().sum()) >= agreement
    if contexts < 2 or (1 + by_chance) / (1 + draws) > 0.05:
        return None
    energies, lowest = torch.zeros(centered.shape[2], dtype=torch.float64, device=centered.device), 0.0
    for _ in range(splits):
        order = torch.randperm(contexts, generator=generator)
        one, two = (centered[part].mean(0) for part in (order[: contexts // 2], order[contexts // 2 :]))
        for first, second in ((one, two), (two, one)):
            directions = torch.linalg.eigh(first.T @ first).eigenvectors.flip(-1)
            energies += ((first @ directions) * (second @ directions)).sum(0)
        lowest += 2 * float((by_frequency(one) * by_frequency(two))[:low].sum())
    whole = float(energies.sum())
    if whole <= 0:
        return None
    enough = (energies.cumsum(0) >= energy * whole).nonzero()
    return {"rank": int(enough[0]) + 1, "low_frequencies": lowest / whole}


#: the first tokens are sinks and are not changed when positional vectors are replaced
NUM_UNCHANGED = 4


@dataclass(frozen=True)
class PositionalVectors:
    """h = vector + content, and vector = base + moving."""

    vector: Tensor  # p [layers, tokens, hidden_size]: the mean over samples
    base: Tensor  # u [layers, 1, hidden_size]: its mean over tokens
    moving: Tensor  # m = p - u
    content: Tensor  # cs [samples, layers, tokens, hidden_size]


def positional_vectors(states: Tensor) -> PositionalVectors:
    if states.dim() != 4 or states.shape[0] < 2:
        raise usage_error(
            "positional_vectors",
            f"shape {tuple(states.shape)}",
            "it takes [samples, layers, tokens, hidden_size] with two or more samples",
            "stack several texts of one length",
        )
    vector = states.double().mean(0)
    base = vector.mean(1, keepdim=True)
    return PositionalVectors(vector, base, vector - base, states.double() - vector)


def remove_part(states: Tensor, vectors: PositionalVectors, part: str) -> Tensor:
    """The states without one part: ``vector``, ``moving`` or ``content``."""
    parts = {"vector": vectors.vector, "moving": vectors.moving, "content": vectors.content}
    if part not in parts:
        raise usage_error("remove_part(part)", repr(part), f"the parts are {', '.join(parts)}", "choose one of them")
    return states.double() - parts[part]


def replace_positional_vectors(
    states: Tensor, vector: Tensor, ratio: float = 1.0, strength: float = 1.0, num_unchanged: int = NUM_UNCHANGED
) -> Tensor:
    """The states of one layer, ``[..., tokens, hidden_size]``, with stretched positional vectors instead of the original ones.

    A token at t gets ``strength`` times the vector of t / ratio, so that a text of ratio times the length uses the
    positions of training. ``ratio=1, strength=1`` changes nothing.
    """
    if not ratio > 0:
        raise usage_error(
            "replace_positional_vectors(ratio=...)",
            f"{ratio}",
            "positions are stretched by a number above 0",
            "pass 2, for example",
        )
    tokens = states.shape[-2]
    at = (torch.arange(tokens, dtype=torch.float64, device=vector.device) / ratio).clamp(max=vector.shape[0] - 1)
    low = at.floor().long()
    high = (low + 1).clamp(max=vector.shape[0] - 1)
    part = (at - low)[:, None]
    vector = vector.double()
    stretched = vector[low] * (1 - part) + vector[high] * part
    changed = states.double() - vector[:tokens] + strength * stretched
    changed[..., :num_unchanged, :] = states[..., :num_unchanged, :].double()
    return changed


def nearest_inside(vector: Tensor, window: int) -> Tensor:
    """For each position beyond a window, the largest cosine to a position inside it, ``[tokens - window]``, in one layer."""
    unit = torch.nn.functional.normalize(vector.double(), dim=-1)
    if not 0 < window < len(unit):
        raise usage_error("nearest_inside", f"window {window}", f"there are {len(unit)} positions", "take fewer")
    return (unit[window:] @ unit[:window].T).amax(-1)
