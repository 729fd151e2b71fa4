"""The worked examples and rules of the pointer: softmax of printed scores, scattering, masking, positions from the end."""

from __future__ import annotations

from typing import Any

import torch

from whence.position import Recency


def softmax_example(scores: list[float], printed: list[float]) -> dict[str, Any]:
    """The softmax of printed scores compared with the printed weights."""
    own = torch.softmax(torch.tensor(scores, dtype=torch.float64), 0)
    off = (own - torch.tensor(printed, dtype=torch.float64)).abs()
    return {
        "largest_error": float(off.max()),
        "printed_sum": sum(printed),
        "weights": own.tolist(),
        "words": f"The softmax is {' '.join(f'{w:.3f}' for w in own.tolist())}.",
    }


def scaled_scores(
    raw: list[float], embed_dim: int, bias: list[float], scaled: list[float], final: list[float]
) -> dict[str, Any]:
    """Raw scores divided by sqrt(embed_dim), and with the bias, compared with the printed ones."""
    own = [score / embed_dim**0.5 for score in raw]
    both = [score + added for score, added in zip(own, bias, strict=True)]
    return {
        "scaled_error": max(abs(a - b) for a, b in zip(own, scaled, strict=True)),
        "final_error": max(abs(a - b) for a, b in zip(both, final, strict=True)),
    }


def scattered(places: list[int], weights: list[float], place: int) -> dict[str, Any]:
    """Weights summed by place, and the sum of one place."""
    total = torch.zeros(max(places) + 1, dtype=torch.float64)
    total.scatter_add_(0, torch.tensor(places), torch.tensor(weights, dtype=torch.float64))
    return {"of_place": float(total[place]), "sum": float(total.sum()), "largest_place": int(total.argmax())}


def scattered_scores(places: list[int], scores: list[float], place: int) -> dict[str, Any]:
    """The same from scores, through their softmax."""
    return scattered(places, torch.softmax(torch.tensor(scores, dtype=torch.float64), 0).tolist(), place)


def reasons(places: list[int], content: list[float], bias: list[float], place: int) -> dict[str, Any]:
    """Contributions of repetition, bias and content to a place's probability.

    Each is removed alone: only one of the visits counted, the bias at zero, the content at zero.
    """

    def share(own: list[float], added: list[float]) -> float:
        return scattered_scores(places, [a + b for a, b in zip(own, added, strict=True)], place)["of_place"]

    nothing = [0.0] * len(places)
    both = share(content, bias)
    weights = torch.softmax(torch.tensor(content, dtype=torch.float64) + torch.tensor(bias, dtype=torch.float64), 0)
    once = max(float(w) for w, p in zip(weights, places, strict=True) if p == place)
    return {
        "by_repetition": both - once,
        "by_bias": both - share(content, nothing),
        "by_content": both - share(nothing, bias),
        "probability": both,
    }


def masking(length: int, real: int, rows: int, seed: int) -> dict[str, Any]:
    """Softmax, zeroing and renormalization compared with minus infinity before the softmax."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(rows, length, dtype=torch.float64, generator=generator)
    mask = torch.arange(length) < real
    renormalised = torch.softmax(scores, -1) * mask
    renormalised = renormalised / renormalised.sum(-1, keepdim=True)
    hidden = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
    extreme = torch.tensor([0.0, 200.0])  # in float32 such a large padded score leaves no mass to renormalize
    mass = float((torch.softmax(extreme, 0) * torch.tensor([1.0, 0.0])).sum())
    return {
        "largest_difference": float((renormalised - hidden).abs().max()),
        "mass_left_where_padding_scores_high": mass,
        "words": "They differ only where padding scores so high that nothing is left to renormalise.",
    }


def from_the_end(length: int, padded: int, positions: int) -> dict[str, Any]:
    """The index clamp(length - position, 0, positions - 1) of each visit and of padding, and of ``whence.Recency``."""
    index = (length - torch.arange(padded)).clamp(0, positions - 1)
    own = Recency(positions)
    with torch.no_grad():
        own.table.copy_(torch.arange(positions, dtype=torch.float32))
        same = own.bias(torch.arange(length - 1, -1, -1, dtype=torch.float32), None)
    visits = index[:length].tolist()
    return {
        "index_of_last_visit": visits[-1],
        "index_of_first_visit": visits[0],
        "visits_with_index_zero": visits.count(0),
        "index_of_padding": int(index[length:].max()) if padded > length else 0,
        "difference_from_recency": float((same - index[:length]).abs().max()),
    }


def linearity(embed_dim: int, seed: int) -> dict[str, Any]:
    """Deviation of the score of two keys' mean from the mean of their scores: dot product and additive."""
    torch_state = torch.Generator().manual_seed(seed)
    draw = [torch.randn(embed_dim, embed_dim, dtype=torch.float64, generator=torch_state) for _ in range(2)]
    a, b, q, v = (torch.randn(embed_dim, dtype=torch.float64, generator=torch_state) for _ in range(4))

    def dot(key: torch.Tensor) -> float:
        return float((draw[0] @ q + v) @ (draw[1] @ key + v)) / embed_dim**0.5

    def additive(key: torch.Tensor) -> float:
        return float(v @ torch.tanh(draw[0] @ q + draw[1] @ key))

    return {
        "dot_product_off": abs(dot((a + b) / 2) - (dot(a) + dot(b)) / 2),
        "additive_off": abs(additive((a + b) / 2) - (additive(a) + additive(b)) / 2),
    }


def pointwise_convolution(embed_dim: int, length: int, seed: int) -> dict[str, Any]:
    """A 1 x 1 convolution over a sequence compared with the product of each state and the matrix."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(2, length, embed_dim, dtype=torch.float64, generator=generator)
    matrix = torch.randn(embed_dim, embed_dim, dtype=torch.float64, generator=generator)
    across = torch.conv2d(
        states.mT[..., None], matrix.T[..., None, None]
    )  # channels first, the sequence along one side
    return {"largest_difference": float((across[..., 0].mT - states @ matrix).abs().max())}


def ablation(with_it: float, without: float, items: int) -> dict[str, Any]:
    """Difference of two accuracies in percent, of one run each, and the half interval of one accuracy."""
    from whence.statistics import proportion

    one = proportion(round(with_it * items / 100), items)
    return {"gain": with_it - without, "half_interval_of_one": 50 * (one.interval.high - one.interval.low)}


COMPUTATIONS = (
    softmax_example, scaled_scores, scattered, scattered_scores, reasons, masking, from_the_end, linearity,
    pointwise_convolution, ablation,
)  # fmt: skip
