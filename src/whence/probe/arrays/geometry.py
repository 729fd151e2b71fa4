"""Hidden states as mean + position + context + residual (Song & Zhong 2023, arXiv 2310.04861).

All functions take states ``[contexts, tokens, width]`` of one layer, from texts of one length, the first token left out
(it is a sink with a norm of its own, and would be most of the variance).
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
    fft = require_package("scipy.fft", "whence.probe.arrays.frequencies", "lab")
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
