"""xPos: the paper's numbers, x-transformers' code, and a score free of the reference position."""

import math

import pytest
import torch

from whence import Attention, KVCache, LearnedRotary, Rotary, WhenceError, XPos, attend


def score(position, q, k, i, j):
    q, k = (torch.tensor(x, dtype=torch.float64)[None, None, None] for x in (q, k))
    q, k = position.rotate(q, k, torch.tensor([[i]]), torch.tensor([[j]]))
    return float((q * k).sum())


def test_the_numbers_of_the_formula():
    """D = 4: zeta = 0.2857, 0.6429. The first pair turns by 1 a position."""
    zeta = 0.4 / 1.4, 0.9 / 1.4
    assert score(XPos(), [1, 0, 0, 0], [1, 0, 0, 0], 2, 0) == pytest.approx(math.cos(2) * zeta[0] ** (2 / 512))
    assert score(XPos(), [1, 0, 0, 0], [1, 0, 0, 0], 2, 0) == pytest.approx(-0.4141, abs=5e-5)
    assert score(XPos(), [0, 0, 1, 0], [0, 0, 1, 0], 9, 4) == pytest.approx(math.cos(0.05) * zeta[1] ** (5 / 512))


def test_scores_depend_on_distance_alone():
    q, k = torch.randn(2, 4, dtype=torch.float64).tolist()
    wanted = score(XPos(), q, k, 700, 0)
    for shift in (1, 300, 20_000):
        assert score(XPos(), q, k, 700 + shift, shift) == pytest.approx(wanted, rel=1e-9)
        assert score(XPos(center=shift), q, k, 700, 0) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("length", [7, 40])
def test_x_transformers_scores_the_same(length):
    xt = pytest.importorskip("x_transformers.x_transformers")
    theirs, at = xt.RotaryEmbedding(8, use_xpos=True), torch.arange(length)
    frequencies, scale = theirs(at)
    q, k = torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)
    expected = xt.apply_rotary_pos_emb(q, frequencies, scale) @ xt.apply_rotary_pos_emb(k, frequencies, scale**-1).mT
    rotated_q, rotated_k = XPos().rotate(q, k, at[None], at[None])
    torch.testing.assert_close(rotated_q @ rotated_k.mT, expected, rtol=1e-4, atol=1e-4)


def test_without_decay_it_is_rotary():
    q, at = torch.randn(1, 2, 9, 8, dtype=torch.float64), torch.arange(9)[None]
    actual, _ = XPos(scale_base=1e10, layout="half").rotate(q, q, at, at)
    torch.testing.assert_close(actual, Rotary().rotate(q, q, at, at)[0])


def test_the_error_of_an_overflow_names_the_center():
    q = torch.ones(1, 1, 2, 16, dtype=torch.float16)
    far = torch.tensor([0, 8000])
    with pytest.raises(WhenceError, match=r"XPos\.rotate.*overflow far from the position center.*XPos\(center="):
        attend(q, q, q, position=XPos(), causal=True, q_positions=far, k_positions=far)
    assert attend(q, q, q, position=XPos(center=4000), causal=True, q_positions=far, k_positions=far).isfinite().all()


@torch.no_grad()
def test_far_keys_decode_as_in_one_pass_in_half_precision():
    """The authors' center would move with each token. Far from a center of 0, a factor would overflow."""
    torch.manual_seed(0)
    layer = Attention(8, 2, XPos(center=4006), causal=True).to(torch.float16)
    x, cache = torch.randn(1, 24, 8).to(torch.float16), KVCache()
    far = torch.cat([torch.arange(12), torch.arange(8000, 8012)])
    whole = layer(x, positions=far)
    parts = [layer(x[:, n : n + 4], positions=far[n : n + 4], cache=cache) for n in range(0, 24, 4)]
    assert whole.isfinite().all()
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=4e-3)


def test_it_exports_and_so_do_learned_frequencies():
    """The export to ONNX in tests/attention leaves both out."""
    layer = torch.nn.Sequential(Attention(8, 2, XPos(), causal=True), Attention(8, 2, LearnedRotary(4), causal=True))
    layer, x = layer.eval().requires_grad_(False), torch.randn(1, 6, 8)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_what_it_says_of_itself_and_refuses():
    assert repr(XPos()) == "XPos(base=10000, layout='interleaved', gamma=0.4, scale_base=512, center=0)"
    x = torch.randn(1, 2, 4, 6)
    with pytest.raises(WhenceError, match=r"causal=False.*pass causal=True"):
        attend(x, x, x, position=XPos())
    with pytest.raises(WhenceError, match=r"head_dim 5.*use an even head_dim"):
        attend(x[..., :5], x[..., :5], x, position=XPos(), causal=True)
    for wrong in ({"gamma": 0.0}, {"scale_base": 0.5}, {"layout": "third"}):
        with pytest.raises(WhenceError, match=next(iter(wrong))):
            XPos(**wrong)
