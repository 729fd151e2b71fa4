"""FoPE: rotary embedding where nothing is mixed, the paper's numbers of kept frequencies, and what two codes do otherwise."""

import math

import pytest
import torch

from whence import Attention, Fope, KVCache, Rotary, WhenceError


def turn(position, x, at):
    return position.rotate(x, x, at, at)[0]


@pytest.mark.parametrize("context, kept", [(512, 16), (4096, 23)])
def test_frequencies_with_a_full_period_in_training(context, kept):
    frequencies = Fope(64, context=context).frequencies()
    assert len(frequencies) == kept
    assert frequencies[-1] > 2 * math.pi / context >= 10000 ** (-2 * kept / 64)


def test_without_noise_it_is_rotary_on_the_kept_frequencies():
    """D = 16 and L = 512: frequencies 1, 0.316, 0.1 and 0.0316 are kept; D/4 is as many."""
    x, at = torch.randn(2, 3, 7, 16, dtype=torch.float64), torch.arange(7)[None] + 100
    fope = Fope(16, context=512, gain=0.0).double()
    assert fope.planes == 4 and len(fope.frequencies()) == 4
    rotary, out = turn(Rotary(), x, at), turn(fope, x, at)
    still = [c for c in range(16) if c % 8 >= 4]
    torch.testing.assert_close(out[..., :4], rotary[..., :4])
    torch.testing.assert_close(out[..., 8:12], rotary[..., 8:12])
    assert torch.equal(out[..., still], x[..., still])


def test_the_published_padding_doubles_scores():
    """Where sin is 1 beside cos 1, each plane turns by 45 degrees and grows by the root of 2."""
    x, at = torch.randn(1, 1, 5, 16, dtype=torch.float64), torch.arange(5)[None]
    still = [c for c in range(16) if c % 8 >= 4]
    ours, theirs = (turn(Fope(16, gain=0.0, compat=compat), x, at)[..., still] for compat in (False, True))
    torch.testing.assert_close(theirs @ theirs.mT, 2 * ours @ ours.mT)


def test_a_mixture_by_hand():
    """With fewer planes than frequencies, the identity has a stride."""
    torch.manual_seed(0)
    fope = Fope(8, context=2000, base=100.0, planes=2, gain=0.5).double()
    assert fope.cos_mixture.shape == (1, 4, 2)
    x = torch.randn(8, dtype=torch.float64)
    out = turn(fope, x.reshape(1, 1, 1, 8), torch.tensor([[9]])).flatten()
    for plane in range(2):
        cos, sin = (
            sum(float(mixture[0, c, plane]) * wave(9 * 100 ** (-c / 4)) for c in range(4))
            for mixture, wave in ((fope.cos_mixture, math.cos), (fope.sin_mixture, math.sin))
        )
        assert out[plane].item() == pytest.approx(float(x[plane]) * cos - float(x[plane + 4]) * sin)
        assert out[plane + 4].item() == pytest.approx(float(x[plane + 4]) * cos + float(x[plane]) * sin)
    still = Fope(8, context=2000, base=100.0, planes=2, gain=0.0).cos_mixture
    assert still.nonzero().tolist() == [[0, 0, 0], [0, 2, 1]]


def test_noise_is_xavier_and_each_key_head_has_its_own():
    torch.manual_seed(0)
    fope = Fope(128, context=10**6, num_kv_heads=8, planes=64, gain=0.4)
    noise = fope.sin_mixture - torch.eye(64)
    assert noise.std().item() == pytest.approx(0.4 * math.sqrt(2 / 128), rel=0.02)
    assert not torch.equal(fope.cos_mixture[0], fope.cos_mixture[1]) and not fope.trainable
    assert {name for name, _ in Fope(8, learnable=True).named_parameters()} == {"cos_mixture", "sin_mixture"}


@torch.no_grad()
def test_decoding_equals_one_pass_with_grouped_heads():
    layer = Attention(16, 4, Fope(8, num_kv_heads=2, context=64), causal=True, num_kv_heads=2, head_dim=8)
    x, cache = torch.randn(2, 9, 16), KVCache()
    steps = [layer(x[:, n : n + 3], cache=cache) for n in range(0, 9, 3)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=1e-5, atol=1e-5)


def test_what_it_refuses():
    with pytest.raises(WhenceError, match=r"context.*6.*training"):
        Fope(8, context=6)
    with pytest.raises(WhenceError, match=r"planes.*4.*context=7 keeps 1.*planes=1"):
        Fope(8, context=7, planes=4)
    with pytest.raises(WhenceError, match=r"head_dim.*7.*pairs"):
        Fope(7)
