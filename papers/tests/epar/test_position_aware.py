"""The source's position-aware attention, against its formula written out."""

import numpy as np
import pytest
import torch

from whence.errors import WhenceError
from whence_papers.epar.attention import position_aware_attention


def by_hand(layer, x, form, alpha, beta, gamma, temperature):
    """One head: softmax((q.k / sqrt d) * effect / temperature) v, every tensor as numpy."""
    parts = {n: (getattr(layer, n).weight.detach().numpy(), getattr(layer, n).bias.detach().numpy()) for n in
             ("queries", "keys", "values", "out")}  # fmt: skip
    q, k, v = (x @ parts[n][0].T + parts[n][1] for n in ("queries", "keys", "values"))
    length = len(x)
    decay = np.exp(-beta * np.abs(np.subtract.outer(np.arange(length), np.arange(length))) / length)
    effect = alpha * decay if form == "basic" else alpha * (1 + gamma * decay) / (1 + gamma)
    logits = q @ k.T / np.sqrt(x.shape[1]) * effect / temperature
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return weights @ v @ parts["out"][0].T + parts["out"][1], weights


@pytest.mark.parametrize("form", ("basic", "enhanced"))
@pytest.mark.parametrize("temperature", (1.0, 0.25))
def test_it_is_the_formula(form, temperature):
    torch.manual_seed(0)
    layer = position_aware_attention(6, form=form, alpha=1.5, beta=2.0, gamma=0.75, temperature=temperature).double()
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    out, weights = layer(x, return_weights=True)
    want, want_weights = by_hand(layer, x[0].numpy(), form, 1.5, 2.0, 0.75, temperature)
    np.testing.assert_allclose(weights[0, 0].detach().numpy(), want_weights, rtol=1e-12)
    np.testing.assert_allclose(out[0].detach().numpy(), want, rtol=1e-11)


def test_each_head_learns_its_own_parameters():
    layer = position_aware_attention(8, 2, learnable=True)
    layer(torch.randn(2, 5, 8)).square().sum().backward()
    effect = [layer.position.alpha.raw, layer.position.beta.raw, layer.position.gamma.raw]
    assert all(p.shape == (2, 1) and (p.grad != 0).all() for p in effect)


def test_usage_errors():
    with pytest.raises(WhenceError, match=r"form.*odd.*basic.*enhanced"):
        position_aware_attention(8, form="odd")
