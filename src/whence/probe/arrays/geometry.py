"""Hidden states as mean + position + context + residual (Song & Zhong 2023, arXiv 2310.04861).

All functions take states ``[contexts, tokens, width]`` of one layer, from texts of one length, the first token left out
(it is a sink with a norm of its own, and would be most of the variance).

What of the positional part is more than the noise of few texts.

Decomposed positional vectors (Dong et al. 2024, arXiv 2405.18009): what hidden states have in common at a position.

All functions take states ``[samples, layers, tokens, width]`` of texts of one length, all with or all without a first
token of their own, and no padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import require_package, usage_error

#: how much of the sum of squares the counted directions hold together
ENERGY = 0.95


@dataclass(frozen=True)
class Parts:
    """h[c, t] = mean + position[t] + context[c] + residual[c, t]; the last three have no mean along any axis of theirs."""

    mean: Tensor  # [width]
    position: Tensor  # [tokens, width]
    context: Tensor  # [contexts, width]
    residual: Tensor  # [contexts, tokens, width]

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
        """The share of position less what it would be if position did nothing: a mean over few texts keeps their noise.

        The residual of contexts that know nothing of each other leaves residual / (contexts - 1) in the positional sum
        of squares. Around 0, and also below it, where there is nothing but that.
        """
        contexts = self.residual.shape[0]
        squares = contexts * float(self.position.square().sum()), float(self.residual.square().sum())
        total = squares[0] + squares[1] + self.residual.shape[1] * float(self.context.square().sum())
        return (squares[0] - squares[1] / (contexts - 1)) / (total or 1.0)


def decompose(states: Tensor) -> Parts:
    """The two-way decomposition by means, in float64."""
    if states.dim() != 3 or min(states.shape[:2]) < 2:
        raise usage_error(
            "decompose",
            f"shape {tuple(states.shape)}",
            "it takes [contexts, tokens, width] with two or more contexts and tokens",
            "stack several texts of one length",
        )
    states = states.double()
    mean = states.mean((0, 1))
    position, context = states.mean(0) - mean, states.mean(1) - mean
    return Parts(mean, position, context, states - mean - position - context[:, None])


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
    """The fewest directions that hold so much of the sum of squares.

    >>> rank(torch.tensor([10.0, 1.0, 0.1])), rank(torch.tensor([1.0, 1.0, 1.0]))
    (1, 3)
    """
    held = values.double().square().cumsum(0)
    return int((held < energy * held[-1] * (1 - 1e-12)).sum()) + 1


def frequencies(position: Tensor) -> Tensor:
    """The share of each frequency in how the positional part changes along the text (DCT-II), ``[tokens]``."""
    energy = by_frequency(position).square().sum(1)
    return energy / energy.sum().clamp_min(torch.finfo(torch.float64).tiny)


def by_frequency(position: Tensor) -> Tensor:
    """The positional part turned into frequencies (DCT-II), ``[tokens, width]``."""
    fft = require_package("scipy.fft", "whence.probe.arrays.geometry", "lab")
    made = fft.dct(position.double().cpu().numpy(), type=2, axis=0, norm="ortho")
    return torch.from_numpy(made)


def incoherence(parts: Parts) -> dict[str, float]:
    """How far position and context keep out of each other's way: the mean and the largest |cosine| between them."""
    unit = torch.nn.functional.normalize
    cosines = (unit(parts.position, dim=-1) @ unit(parts.context, dim=-1).T).abs()
    return {"mean": float(cosines.mean()), "largest": float(cosines.max())}


def relative_norm(parts: Parts) -> float:
    """The length of the positional part beside that of what is not the mean, both as root mean squares."""
    contexts = parts.residual.shape[0]
    squares = (
        contexts * parts.position.square().sum(),
        (parts.position + parts.context[:, None] + parts.residual).square().sum(),
    )
    return float((squares[0] / squares[1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt())


def without_outliers(states: Tensor, times: float = 10.0) -> tuple[Tensor, list[int]]:
    """The states without the channels whose spread is so many times the median one's, and which those were.

    A few channels of some models are hundreds of times larger than all others and would be every figure here.
    """
    spread = states.double().flatten(0, 1).std(0)
    out = spread > times * spread.median()
    return states[..., ~out], torch.nonzero(out).flatten().tolist()


def score_parts(parts: Parts, queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """One head's scores, before rotation, split by what meets what: ``[contexts, tokens, tokens]`` each.

    The states decomposed must be what enters the projections, after the norm: only then is every step linear and do the
    four parts, with the one of the mean, add up to the scores.

    Args:
        queries: the head's rows of the query projection, ``[head width, width]``.
        keys: those of the key projection.
    """
    position = parts.position.expand(parts.residual.shape)
    content = parts.context[:, None] + parts.residual
    mean = parts.mean.expand(parts.residual.shape)
    q, k = queries.double(), keys.double()
    scale = q.shape[0] ** -0.5

    def met(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("ctd,csd->cts", left @ q.T, right @ k.T) * scale

    whole_q, whole_k = mean + position + content, mean + position + content
    return {
        "position-position": met(position, position),
        "position-content": met(position, content),
        "content-position": met(content, position),
        "content-content": met(content, content),
        "mean": met(mean, whole_k) + met(whole_q, mean) - met(mean, mean),
    }


def score_shares(split: dict[str, Tensor]) -> dict[str, float]:
    """Shares of the four parts in how scores differ within a row, over the keys a query sees.

    What is the same for a whole row does not change its softmax, so each row is centred first; the mean's part is
    counted with them. Parts may lean on or against each other, so the shares are of the sum of their own squares.
    """
    tokens = next(iter(split.values())).shape[-1]
    seen = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    squares = {}
    for name, scores in split.items():
        centre = (scores * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        squares[name] = float(((scores - centre) * seen).square().sum())
    total = sum(squares.values()) or 1.0
    return {name: value / total for name, value in squares.items()}


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


#: the first tokens are sinks, and stay as they are when positional vectors are replaced
NUM_UNCHANGED = 4


@dataclass(frozen=True)
class PositionalVectors:
    """h = vector + content, and vector = base + moving."""

    vector: Tensor  # p [layers, tokens, width]: the mean over samples
    base: Tensor  # u [layers, 1, width]: its mean over tokens
    moving: Tensor  # m = p - u
    content: Tensor  # cs [samples, layers, tokens, width]


def positional_vectors(states: Tensor) -> PositionalVectors:
    if states.dim() != 4 or states.shape[0] < 2:
        raise usage_error(
            "positional_vectors",
            f"shape {tuple(states.shape)}",
            "it takes [samples, layers, tokens, width] with two or more samples",
            "stack several texts of one length",
        )
    vector = states.double().mean(0)
    base = vector.mean(1, keepdim=True)
    return PositionalVectors(vector, base, vector - base, states.double() - vector)


def remove_part(states: Tensor, found: PositionalVectors, part: str) -> Tensor:
    """The states with one part taken out: ``vector``, ``moving`` or ``content``."""
    taken = {"vector": found.vector, "moving": found.moving, "content": found.content}
    if part not in taken:
        raise usage_error("without", repr(part), f"the parts are {', '.join(taken)}", "take one of them")
    return states.double() - taken[part]


def replace_positional_vectors(states: Tensor, vector: Tensor, ratio: float = 1.0, strength: float = 1.0, kept: int = NUM_UNCHANGED) -> Tensor:
    """The states of one layer, ``[..., tokens, width]``, with stretched positional vectors in place of their own.

    A token at t gets ``strength`` times the vector of t / ratio, so that a text of ratio times the length runs through
    the positions that were trained. ``ratio=1, strength=1`` changes nothing.
    """
    if not ratio > 0:
        raise usage_error("replaced", f"ratio={ratio}", "positions are stretched by a number above 0", "try 2")
    tokens = states.shape[-2]
    at = (torch.arange(tokens, dtype=torch.float64, device=vector.device) / ratio).clamp(max=vector.shape[0] - 1)
    low = at.floor().long()
    high = (low + 1).clamp(max=vector.shape[0] - 1)
    part = (at - low)[:, None]
    vector = vector.double()
    stretched = vector[low] * (1 - part) + vector[high] * part
    changed = states.double() - vector[:tokens] + strength * stretched
    changed[..., :kept, :] = states[..., :kept, :].double()
    return changed


def nearest_inside(vector: Tensor, window: int) -> Tensor:
    """For each position beyond a window, the largest cosine to any position inside, ``[tokens - window]``, of one layer."""
    unit = torch.nn.functional.normalize(vector.double(), dim=-1)
    if not 0 < window < len(unit):
        raise usage_error("nearest_inside", f"window {window}", f"there are {len(unit)} positions", "take fewer")
    return (unit[window:] @ unit[:window].T).amax(-1)
