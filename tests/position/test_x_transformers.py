"""Comparison with x-transformers. Rotary, ALiBi and CoPE are compared in their own test files."""

import pytest
import torch

import whence
from whence.position.sinusoidal import sinusoid

xt = pytest.importorskip("x_transformers.x_transformers")
attend_module = pytest.importorskip("x_transformers.attend")


@pytest.mark.parametrize("form", ["causal", "bidirectional"])
def test_t5(form):
    torch.manual_seed(0)
    theirs = xt.RelativePositionBias(scale=1.0, causal=form == "causal", num_buckets=16, max_distance=50, heads=3)
    ours = whence.T5Bias(3, form=form, buckets=16, max_distance=50)
    with torch.no_grad():
        ours.table.copy_(theirs.relative_attention_bias.weight)
    length = 90
    here = torch.arange(length)
    distance = (here[:, None] - here[None, :]).flatten().float()
    actual = ours.bias(distance, None).view(3, length, length)
    expected = theirs(length, length)
    if form == "causal":  # what a mask hides may differ
        past = torch.ones(length, length, dtype=torch.bool).tril()
        actual, expected = actual * past, expected * past
    torch.testing.assert_close(actual, expected)


def test_sinusoids():
    theirs = xt.ScaledSinusoidalEmbedding(32)
    expected = theirs(torch.zeros(1, 40, 32)) / theirs.scale
    actual = sinusoid(torch.arange(40.0), 32, 10000.0, "concatenated")
    torch.testing.assert_close(actual, expected.reshape(40, 32), rtol=1e-4, atol=1e-5)


def test_learned():
    torch.manual_seed(0)
    theirs, ours = xt.AbsolutePositionalEmbedding(16, 20), whence.Learned(16, 20)
    with torch.no_grad():
        next(ours.parameters()).copy_(theirs.emb.weight * theirs.scale)
    x = torch.randn(2, 9, 16)
    torch.testing.assert_close(ours.embed(x, torch.arange(9)[None]), x + theirs(x))


def test_sink():
    torch.manual_seed(0)
    theirs = attend_module.Attend(heads=2, causal=True, head_learned_sink=True, flash=False)
    values = torch.tensor([0.7, -0.4])
    with torch.no_grad():
        theirs.head_attn_sink.copy_(values)
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    expected = theirs(q, k, v)[0]
    actual = whence.attend(q, k, v, position=whence.Sink(2, value=values.tolist()), causal=True)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
