"""PoPE: the numbers of the formula, x-transformers' code, and twice as many columns in every backend and cache."""

import math

import pytest
import torch

from whence import Alibi, Attention, GrapeA, KVCache, Pope, Rotary, WhenceError, attend, explain

LOG2 = math.log(2)


@pytest.mark.parametrize("distance, expected", [(0, 0.4805), (1, 0.2596)])
def test_the_numbers_of_the_formula(distance, expected):
    """D = 1 and content of 0."""
    x = torch.zeros(1, 1, 1, 1)
    q, k = Pope(1).rotate(x, x, torch.tensor([[distance + 3]]), torch.tensor([[3]]))
    assert (q @ k.mT).item() == pytest.approx(expected, abs=5e-5)
    assert (q @ k.mT).item() == pytest.approx(LOG2**2 * math.cos(distance), rel=1e-6)


def test_a_score_by_hand():
    torch.manual_seed(0)
    pope = Pope(3, base=50.0, phase="uniform").double()
    q, k = torch.randn(2, 3, dtype=torch.float64).unbind()
    wanted = sum(
        math.log1p(math.exp(q[c])) * math.log1p(math.exp(k[c])) * math.cos(5 * 50 ** (-c / 3) - pope.delta[0, c].item())
        for c in range(3)
    )
    at = torch.tensor([[9]]), torch.tensor([[4]])
    rotated_q, rotated_k = pope.rotate(q.reshape(1, 1, 1, 3), k.reshape(1, 1, 1, 3), *at)
    assert (rotated_q * rotated_k).sum().item() == pytest.approx(wanted, rel=1e-9)


def test_x_transformers_scores_the_same():
    xt = pytest.importorskip("x_transformers.x_transformers")
    torch.manual_seed(0)
    theirs, pope, at = xt.PolarEmbedding(8, 2), Pope(8, num_kv_heads=2, phase="uniform"), torch.arange(20)
    theirs.learned_bias.data = pope.delta.data[:, None]
    frequencies, bias = theirs(at)
    q, k = torch.randn(2, 2, 20, 8), torch.randn(2, 2, 20, 8)
    expected = xt.apply_polar_pos_emb(q, frequencies) @ xt.apply_polar_pos_emb(k, frequencies + bias).mT
    rotated_q, rotated_k = pope.rotate(q, k, at[None], at[None])
    torch.testing.assert_close(rotated_q @ rotated_k.mT, expected, rtol=1e-4, atol=1e-5)


def test_content_cannot_move_the_preferred_distance():
    """For any content, a column is largest where its cosine is."""
    pope, at = Pope(1, base=10000.0), torch.arange(7)[None]
    torch.nn.init.constant_(pope.delta, -4.0)  # cos(d + 4) is largest at d = 2
    for content in (-3.0, 0.0, 5.0):
        q, k = (torch.full((1, 1, 7, 1), content) for _ in range(2))
        q, k = pope.rotate(q, k, at, at)
        assert (q @ k.mT)[0, 0, 6].argmax() == 4  # distance 2


@torch.no_grad()
@pytest.mark.parametrize("cache", [KVCache(), KVCache(capacity=16), KVCache(window=6)], ids=repr)
def test_caches_hold_the_projected_columns(cache):
    layer = Attention(16, 4, Pope(4, num_kv_heads=2, phase="uniform"), causal=True, num_kv_heads=2, window=6)
    x = torch.randn(2, 12, 16)
    steps = [layer(x[:, n : n + 3], cache=cache) for n in range(0, 12, 3)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=1e-5, atol=1e-5)
    assert cache.entries().k.shape[-1] == 4


def test_with_other_terms_and_an_explicit_scale():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    pope, grape, at = Pope(4, phase="uniform"), GrapeA(2, 4), torch.arange(6)[None]
    wide_q, wide_k = pope.rotate(q, k, at, at)
    alone = attend(q, k, v, position=grape, scale=0.0, causal=True, return_weights=True)[1]
    term = alone.log().nan_to_num(neginf=-1e4)
    wanted = attend(wide_q, wide_k, v, position=Alibi(2), scale=0.3, attn_mask=term, causal=True)
    out = attend(q, k, v, position=pope + grape + Alibi(2), scale=0.3, causal=True)
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


def test_the_fused_kernels_say_when_the_columns_are_too_many():
    x = torch.zeros(1, 1, 4, 160)
    kernels = dict(explain(x, x, x, position=Pope(160), causal=True).others)["triton"]
    assert "CUDA" in kernels or "320" in kernels


def test_a_call_of_the_fused_kernels_has_twice_the_columns(interpreted):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    position = Pope(8, phase="uniform") + Alibi(2)
    wanted = attend(q, k, v, position=position, causal=True, backend="reference")
    torch.testing.assert_close(
        attend(q, k, v, position=position, causal=True, backend="triton"), wanted, atol=1e-5, rtol=1e-4
    )


def test_what_it_says_of_itself_and_refuses():
    assert repr(Pope(4)) == "Pope(head_dim=4, base=10000, learnable)"
    with pytest.raises(WhenceError, match=r"Rotary beside Pope.*scores or distances"):
        Rotary() + Pope(4)
    with pytest.raises(WhenceError, match=r"phase.*'random'.*'uniform'"):
        Pope(4, phase="random")
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(WhenceError, match=r"num_kv_heads=4.*keys with 2 heads"):
        attend(x, x, x, position=Pope(4, num_kv_heads=4))
