"""The power prior -|alpha d|^beta: what it is at its start, whether it can learn, and whether it can be built."""

from __future__ import annotations

from typing import Any

import torch

from whence.attention import Attention, KVCache
from whence.position import Alibi, PowerPrior, Rotary


def prior_start(alpha: float, beta: float, length: int, near: int) -> dict[str, Any]:
    """The share of the weight on the nearest keys among equal ones, and how far the prior is from ALiBi of slope alpha."""
    distance = torch.arange(length, dtype=torch.float64)
    prior = PowerPrior(alpha=alpha, beta=beta, learnable=False).double().bias(distance, None)
    alibi = Alibi(1, slope=[alpha]).double().bias(distance, None)[0]
    weights = torch.softmax(prior, -1)
    return {
        "share_of_nearest": float(weights[:near].sum()),
        "difference_from_alibi": float((prior - alibi).abs().max()),
    }


def prior_gradients(alpha: float, betas: list[float], length: int) -> dict[str, Any]:
    """Gradients of the formula as it is printed, by a power and by a logarithm, that are not finite; and of ours."""
    found = {"not_finite_by_power": 0, "not_finite_by_logarithm": 0, "not_finite_of_ours": 0}
    distance = torch.arange(length, dtype=torch.float64)
    for beta in betas:
        for name, formula in (
            ("not_finite_by_power", lambda a, b: -((a * distance).abs() ** b)),
            ("not_finite_by_logarithm", lambda a, b: -torch.exp(b * torch.log((a * distance).abs()))),
        ):
            a, b = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (alpha, beta))
            grads = torch.autograd.grad(formula(a, b).sum(), (a, b))
            found[name] += sum(not bool(g.isfinite()) for g in grads)
        ours = PowerPrior(alpha=alpha, beta=beta, learnable=True).double()
        grads = torch.autograd.grad(ours.bias(distance, None).sum(), list(ours.parameters()))
        found["not_finite_of_ours"] += sum(not bool(g.isfinite().all()) for g in grads)
    return found


def prior_built(embed_dim: int, heads: int, length: int, seed: int) -> dict[str, Any]:
    """The prior together with rotary position: one pass, beside token by token from a cache, and its gradients."""
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


COMPUTATIONS = (prior_start, prior_gradients, prior_built)
