"""Order and masks: what attention knows of order without position, who sees whom, and parts that add up by definition."""

from __future__ import annotations

from typing import Any

import torch

from whence.attention import attend
from whence.models import ModelSpec, build
from whence.position import Sinusoidal, StableMask, T5Bias
from whence.position.t5 import bucket


def order_without_position(length: int, embed_dim: int, seed: int) -> dict[str, Any]:
    """How far a token's output moves when the tokens around it change places: looking both ways, and causally.

    Two layers of attention and a residual, the last token kept where it is: one causal layer alone is a set of the past.
    """
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 1, length, embed_dim, dtype=torch.float64, generator=drawn) / 2
    swapped = x[:, :, [1, 0, *range(2, length)]]

    def last(values: torch.Tensor, causal: bool) -> torch.Tensor:
        for _ in range(2):
            values = values + attend(values, values, values, causal=causal, backend="reference")
        return values[:, :, -1]

    return {
        "change_both_ways": float((last(x, False) - last(swapped, False)).abs().max()),
        "change_causal": float((last(x, True) - last(swapped, True)).abs().max()),
    }


def who_sees(length: int) -> dict[str, Any]:
    """How many queries see the first, the middle and the last key under a causal mask."""
    seen = torch.ones(length, length).tril().sum(0)
    return {"see_first": int(seen[0]), "see_middle": int(seen[length // 2]), "see_last": int(seen[-1])}


def no_look_ahead(tokens: int, seed: int) -> dict[str, Any]:
    """How far earlier predictions of a decoder move when its last token changes."""
    made = ModelSpec("decoder", vocab_size=50, embed_dim=32, ffn_dim=50, layers=2, dropout=0.0)
    model = build(made, lambda layer: Sinusoidal(made.embed_dim), seed=seed).eval()
    text = torch.randint(50, (1, tokens), generator=torch.Generator().manual_seed(seed))
    other = text.clone()
    other[0, -1] = (other[0, -1] + 1) % 50
    with torch.no_grad():
        change = (model(text) - model(other))[0].abs().amax(-1)
    return {"change_before": float(change[:-1].max()), "change_at_the_end": float(change[-1])}


def stable_rows(heads: int, context: int) -> dict[str, Any]:
    """Row sums of StableMask over equal keys: how often they fall from row to row, and the first and last of them."""
    position = StableMask(heads, context=context, gamma=0.0625).double()
    same = torch.zeros(1, heads, context, 4, dtype=torch.float64)
    _, weights = attend(
        same, same, same, position=position, causal=True, backend="reference", return_weights=True
    )  # fmt: skip
    sums = weights[0, 0].sum(-1)
    return {"falling_rows": int((sums.diff() < 0).sum()), "first_sum": float(sums[0]), "last_sum": float(sums[-1])}


def t5_numbers(longest: int, buckets: int) -> dict[str, Any]:
    """How many numbers T5 learns for so many distances."""
    shared = bucket(torch.arange(longest), buckets=buckets).unique().numel()
    return {"distances": longest, "numbers": shared, "learned": T5Bias(1, buckets=buckets).table.numel()}


def additive_calibration(documents: int, seed: int) -> dict[str, Any]:
    """Relevance from attention less that of a dummy at the same place, under the additive model, after a softmax."""
    drawn = torch.Generator().manual_seed(seed)
    relevance, bias = (torch.rand(documents, dtype=torch.float64, generator=drawn) for _ in range(2))
    found = (relevance + bias) - (0.3 + bias)  # the dummy has a relevance of its own
    weights = torch.softmax(found, 0), torch.softmax(relevance, 0)
    return {"largest_error_of_weights": float((weights[0] - weights[1]).abs().max()),
            "error_of_relevance": float((found - relevance).abs().max())}  # fmt: skip


def decomposition(samples: int, length: int, seed: int) -> dict[str, Any]:
    """Hidden states as their mean over samples and a rest: how far the parts miss the whole, and the rest's mean."""
    hidden = torch.randn(samples, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    by_position = hidden.mean(0)
    rest = hidden - by_position
    return {
        "largest_miss": float((by_position + rest - hidden).abs().max()),
        "largest_mean_of_rest": float(rest.mean(0).abs().max()),
    }


COMPUTATIONS = (
    order_without_position, who_sees, no_look_ahead, stable_rows, t5_numbers, additive_calibration, decomposition,
)  # fmt: skip
