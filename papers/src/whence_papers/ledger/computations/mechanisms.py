"""Mechanisms as the sources describe them: the power prior, rotary position, ALiBi, sinusoids, and order under masks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from whence.attention import Attention, KVCache, attend
from whence.models import ModelSpec, build
from whence.position import Alibi, Kerple, PowerPrior, Rotary, Sinusoidal, StableMask, T5Bias
from whence.position.sinusoidal import sinusoid
from whence.position.t5 import bucket


def prior_start(alpha: float, beta: float, length: int, near: int) -> dict[str, Any]:
    """Weight on the nearest of equal keys, and the difference of the prior from ALiBi of slope alpha."""
    distance = torch.arange(length, dtype=torch.float64)
    prior = PowerPrior(alpha=alpha, beta=beta, learnable=False).double().bias(distance, None)
    alibi = Alibi(1, slope=[alpha]).double().bias(distance, None)[0]
    weights = torch.softmax(prior, -1)
    return {
        "share_of_nearest": float(weights[:near].sum()),
        "difference_from_alibi": float((prior - alibi).abs().max()),
    }


def prior_family(alphas: list[float], betas: list[float], length: int) -> dict[str, Any]:
    """Largest difference of the prior from KERPLE's power form with r1 = alpha^beta and r2 = beta, and from ALiBi at beta = 1.

    Differences are relative to the largest bias.
    """
    distance = torch.arange(length, dtype=torch.float64)
    differences: dict[str, list[float]] = {"kerple": [], "alibi": []}
    for alpha in alphas:
        for beta in betas:
            prior = PowerPrior(alpha=alpha, beta=beta, learnable=False).double().bias(distance, None)
            other = Kerple(1, form="power", r1=alpha**beta, r2=beta, learnable=False).double().bias(distance, None)[0]
            differences["kerple"].append(float((prior - other).abs().max() / prior.abs().max()))
            if beta == 1.0:
                alibi = Alibi(1, slope=[alpha]).double().bias(distance, None)[0]
                differences["alibi"].append(float((prior - alibi).abs().max() / prior.abs().max()))
    return {f"relative_difference_from_{name}": max(values) for name, values in differences.items()}


def prior_gradients(alpha: float, betas: list[float], length: int) -> dict[str, Any]:
    """Number of non-finite gradients of the printed formula, by a power and by a logarithm, and of our implementation."""
    counts = {"not_finite_by_power": 0, "not_finite_by_logarithm": 0, "not_finite_of_ours": 0}
    distance = torch.arange(length, dtype=torch.float64)
    for beta in betas:
        for name, formula in (
            ("not_finite_by_power", lambda a, b: -((a * distance).abs() ** b)),
            ("not_finite_by_logarithm", lambda a, b: -torch.exp(b * torch.log((a * distance).abs()))),
        ):
            a, b = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (alpha, beta))
            grads = torch.autograd.grad(formula(a, b).sum(), (a, b))
            counts[name] += sum(not bool(g.isfinite()) for g in grads)
        ours = PowerPrior(alpha=alpha, beta=beta, learnable=True).double()
        grads = torch.autograd.grad(ours.bias(distance, None).sum(), list(ours.parameters()))
        counts["not_finite_of_ours"] += sum(not bool(g.isfinite().all()) for g in grads)
    return counts


def prior_built(embed_dim: int, heads: int, length: int, seed: int) -> dict[str, Any]:
    """The prior with rotary position: one pass compared with cached decoding, and its gradients."""
    torch.manual_seed(seed)
    position = Rotary() + PowerPrior(heads, alpha=0.1)
    layer = Attention(embed_dim, heads=heads, position=position, causal=True, backend="reference").double()
    x = torch.randn(2, length, embed_dim, dtype=torch.float64)
    whole = layer(x)
    cache = KVCache()
    with torch.no_grad():
        steps = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(length)], 1)
    whole.sum().backward()
    learned = [p.grad for name, p in layer.named_parameters() if "alpha" in name or "beta" in name]
    return {
        "largest_difference": float((whole.detach() - steps).abs().max()),
        "parameters_with_gradient": sum(g is not None and bool((g != 0).any()) for g in learned),
        "words": "Built here with rotary position and a cache.",
    }


def _rotate(x: Tensor, position: int) -> Tensor:
    """Rotate one vector with ``whence.Rotary``."""
    at = torch.tensor([[position]])
    rotated, _ = Rotary().rotate(x[None, None, None], x[None, None, None], at, at)
    return rotated[0, 0, 0]


def relative_scores(embed_dim: int, shift: int, seed: int) -> dict[str, Any]:
    """Change of a score when both positions shift: after rotation, and by the printed product without conjugate."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(embed_dim, dtype=torch.float64, generator=generator) for _ in range(2))
    scores = [float(_rotate(q, i) @ _rotate(k, j)) for i, j in ((9, 2), (9 + shift, 2 + shift))]
    angles = torch.tensor(10000.0, dtype=torch.float64) ** (
        -torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    )
    pairs = [torch.view_as_complex(x.reshape(-1, 2).contiguous()) for x in (q, k)]

    def product(i: int, j: int, conjugate: bool) -> float:
        first, second = (x * torch.exp(1j * place * angles) for x, place in zip(pairs, (i, j), strict=True))
        return float(((first.conj() if conjugate else first) * second).sum().real)

    return {
        "change_of_score": abs(scores[1] - scores[0]),
        "change_as_printed": abs(product(9 + shift, 2 + shift, False) - product(9, 2, False)),
        "change_with_conjugate": abs(product(9 + shift, 2 + shift, True) - product(9, 2, True)),
    }


def first_angle(embed_dim: int, base: float) -> dict[str, Any]:
    """Angle of the first pair per step: by the printed formula, whose index begins at 1, and as published."""
    x = torch.zeros(embed_dim, dtype=torch.float64)
    x[0] = 1.0
    rotated = _rotate(x, 1)
    own = float(torch.acos(rotated[0].clamp(-1, 1)))
    return {"printed": base ** (-2 / embed_dim), "own": own, "difference": abs(own - base ** (-2 / embed_dim))}


def waves(embed_dim: int, longest: int) -> dict[str, Any]:
    """Score of two equal vectors by distance: number of rises, and the means over near and far distances."""
    distance = torch.arange(longest, dtype=torch.float64)
    angles = 10000.0 ** (-torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim)
    curve = torch.cos(distance[:, None] * angles).mean(1)
    tenth = longest // 10
    return {
        "rises": int((curve.diff() > 0).sum()),
        "largest_beyond_zero": float(curve[1:].max()),
        "near_minus_far": float(curve[:tenth].mean() - curve[-tenth:].mean()),
    }


def scaled_positions(embed_dim: int, ratio: float, seed: int) -> dict[str, Any]:
    """Positions divided by a ratio compared with angles divided by it."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(embed_dim // 2, dtype=torch.complex128, generator=generator) for _ in range(2))
    angles = 10000.0 ** (-torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim)

    def score(distance: float, turn: Tensor) -> float:
        return float((q.conj() * k * torch.exp(-1j * distance * turn)).sum().real)

    apart = [abs(score(d / ratio, angles) - score(float(d), angles / ratio)) for d in range(64)]
    return {"largest_difference": max(apart)}


def mean_distance(slope: float, length: int) -> float:
    """Mean attention distance of the last query over equal keys with a bias of -slope * distance."""
    distance = torch.arange(length, dtype=torch.float64)
    return float(torch.softmax(-slope * distance, 0) @ distance)


def slope_signs(slope: float, length: int) -> dict[str, Any]:
    """Mean attention distance without a bias, and with a positive and a negative slope."""
    none, positive, negative = (mean_distance(s, length) for s in (0.0, slope, -slope))
    return {
        "mean_distance_without": none,
        "mean_distance_positive": positive,
        "mean_distance_negative": negative,
        "negative_minus_without": negative - none,
    }


def scales(factors: list[float], heads: int, length: int) -> dict[str, Any]:
    """Mean attention distance at each scale, and how often a larger scale reaches at least as far."""
    distances = []
    for factor in factors:
        own = Alibi(heads, scale=factor).double()
        distance = torch.arange(length, dtype=torch.float64)
        distances.append((torch.softmax(own.bias(distance, None), -1) @ distance).mean().item())
    ordered = [distances[place] for place in sorted(range(len(factors)), key=factors.__getitem__)]
    return {
        "farther_at_larger_scale": sum(b >= a for a, b in pairwise(ordered)),
        **{f"mean_distance_at_{factor:g}": one for factor, one in zip(factors, distances, strict=True)},
    }


def learned_slopes(heads: int) -> dict[str, Any]:
    """Number of parameters of ALiBi as published, and the deviation of its bias from linear."""
    own = Alibi(heads)
    bias = own.bias(torch.arange(64.0), None)
    return {
        "learned_numbers": sum(p.numel() for p in own.parameters()),
        "bend": float(bias.diff(dim=-1).diff(dim=-1).abs().max()),
    }


def sinusoids(embed_dim: int, length: int) -> dict[str, Any]:
    """The printed formula compared with ``whence.Sinusoidal`` value by value."""
    own = sinusoid(torch.arange(length, dtype=torch.float64), embed_dim)
    off = 0.0
    for place in range(length):
        for pair in range(embed_dim // 2):
            angle = place / 10000 ** (2 * pair / embed_dim)
            for column, printed in ((2 * pair, math.sin(angle)), (2 * pair + 1, math.cos(angle))):
                off = max(off, abs(float(own[place, column]) - printed))
    return {"largest_difference": off}


def order_without_position(length: int, embed_dim: int, seed: int) -> dict[str, Any]:
    """Change of a token's output when two earlier tokens swap: bidirectional and causal attention.

    Two layers of attention with a residual, the last token fixed. One causal layer alone is invariant to the order of the past.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 1, length, embed_dim, dtype=torch.float64, generator=generator) / 2
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
    """Number of queries that see the first, the middle and the last key under a causal mask."""
    queries = torch.ones(length, length).tril().sum(0)
    return {"see_first": int(queries[0]), "see_middle": int(queries[length // 2]), "see_last": int(queries[-1])}


def no_look_ahead(tokens: int, seed: int) -> dict[str, Any]:
    """Change of earlier predictions of a decoder when its last token changes."""
    model_spec = ModelSpec("decoder", vocab_size=50, embed_dim=32, ffn_dim=50, layers=2, dropout=0.0)
    model = build(model_spec, lambda layer: Sinusoidal(model_spec.embed_dim), seed=seed).eval()
    text = torch.randint(50, (1, tokens), generator=torch.Generator().manual_seed(seed))
    other = text.clone()
    other[0, -1] = (other[0, -1] + 1) % 50
    with torch.no_grad():
        change = (model(text) - model(other))[0].abs().amax(-1)
    return {"change_before": float(change[:-1].max()), "change_at_the_end": float(change[-1])}


def stable_rows(heads: int, context: int) -> dict[str, Any]:
    """Row sums of StableMask over equal keys: number of falls, first and last sum."""
    position = StableMask(heads, context=context, gamma=0.0625).double()
    same = torch.zeros(1, heads, context, 4, dtype=torch.float64)
    _, weights = attend(
        same, same, same, position=position, causal=True, backend="reference", return_weights=True
    )  # fmt: skip
    sums = weights[0, 0].sum(-1)
    return {"falling_rows": int((sums.diff() < 0).sum()), "first_sum": float(sums[0]), "last_sum": float(sums[-1])}


def t5_numbers(longest: int, buckets: int) -> dict[str, Any]:
    """Number of values that T5 learns for ``longest`` distances."""
    shared = bucket(torch.arange(longest), buckets=buckets).unique().numel()
    return {"distances": longest, "numbers": shared, "learned": T5Bias(1, buckets=buckets).table.numel()}


def additive_calibration(documents: int, seed: int) -> dict[str, Any]:
    """Relevance as attention minus that of a dummy at the same position, under the additive model, after a softmax."""
    generator = torch.Generator().manual_seed(seed)
    relevance, bias = (torch.rand(documents, dtype=torch.float64, generator=generator) for _ in range(2))
    calibrated = (relevance + bias) - (0.3 + bias)  # the dummy has a nonzero relevance
    weights = torch.softmax(calibrated, 0), torch.softmax(relevance, 0)
    return {"largest_error_of_weights": float((weights[0] - weights[1]).abs().max()),
            "error_of_relevance": float((calibrated - relevance).abs().max())}  # fmt: skip


def decomposition(samples: int, length: int, seed: int) -> dict[str, Any]:
    """Hidden states as their mean over samples plus a residual: error of the sum, and the mean of the residual."""
    hidden = torch.randn(samples, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    by_position = hidden.mean(0)
    rest = hidden - by_position
    return {
        "largest_miss": float((by_position + rest - hidden).abs().max()),
        "largest_mean_of_rest": float(rest.mean(0).abs().max()),
    }


COMPUTATIONS = (
    prior_start, prior_family, prior_gradients, prior_built, relative_scores, first_angle, waves, scaled_positions, slope_signs,
    scales, learned_slopes, sinusoids, order_without_position, who_sees, no_look_ahead, stable_rows, t5_numbers,
    additive_calibration, decomposition,
)  # fmt: skip
