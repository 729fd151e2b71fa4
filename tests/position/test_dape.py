"""DAPE: a network over heads at each pair, over the published base biases."""

import pytest
import torch

from whence import Alibi, Attention, Dape, Fire, Kerple, KVCache, Rotary, WhenceError, attend


def without_network(dape):
    torch.nn.init.zeros_(dape.network[2].weight)
    torch.nn.init.zeros_(dape.network[2].bias)
    return dape


@pytest.mark.parametrize("base, make", [("alibi", Alibi), ("kerple", Kerple), ("fire", Fire)])
def test_a_last_layer_of_0_leaves_the_base(base, make):
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    dape, alone = without_network(Dape(4, base=base)), make(4)
    alone.load_state_dict(dape.base_bias.state_dict())
    wanted = attend(q, k, v, position=alone, causal=True)
    torch.testing.assert_close(attend(q, k, v, position=dape, causal=True), wanted)


def test_the_network_of_the_authors():
    """z + b + MLP([z; b]) with torch's own layers, as in the authors' code: scores first, then biases."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 7, 8, dtype=torch.float64) for _ in range(3))
    dape = Dape(4, base="alibi").double()
    z = q @ k.mT * 8**-0.5
    distance = torch.arange(7)[:, None] - torch.arange(7)
    b = -dape.base_bias.slope()[:, :, None] * distance.tril()
    term = dape.network(torch.cat([z, b.expand_as(z)], 1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    weights = torch.softmax((z + b + term).masked_fill(distance < 0, -torch.inf), -1)
    for backend in ("reference", "blockwise"):
        torch.testing.assert_close(attend(q, k, v, position=dape, causal=True, backend=backend), weights @ v)


def test_scores_alone_are_those_after_a_rotation():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    dape, at = Dape(2, base="none", hidden_dim=5), torch.arange(6)[None]
    assert dape.network[0].in_features == 2 and (Rotary() + dape).relative
    rotated_q, rotated_k = Rotary().rotate(q, k, at, at)
    wanted = attend(rotated_q, rotated_k, v, position=dape, causal=True)
    torch.testing.assert_close(attend(q, k, v, position=Rotary() + dape, causal=True), wanted)


def test_heads_meet():
    """A query of one head changes the weights of another."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    changed = q.clone()
    changed[:, 0] += 1
    before, after = (attend(x, k, v, position=Dape(2), causal=True) for x in (q, changed))
    assert not torch.allclose(before[:, 1], after[:, 1], atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("base", ["kerple", "fire"])
def test_decoding_equals_one_pass(base):
    layer = Attention(16, 4, Dape(4, base=base), causal=True)
    x, cache = torch.randn(2, 9, 16), KVCache()
    steps = [layer(x[:, n : n + 1], cache=cache) for n in range(9)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=1e-5, atol=1e-5)


def test_what_it_says_of_itself_and_refuses():
    assert Dape(2).relative and not Dape(2).causal_only
    assert Dape(2, base="alibi").causal_only and not Dape(2, base="fire").relative
    with pytest.raises(WhenceError, match=r"base.*'t5'.*'kerple'"):
        Dape(2, base="t5")
    x = torch.randn(1, 4, 3, 2)
    with pytest.raises(WhenceError, match=r"2 heads with 4.*heads=4"):
        attend(x, x, x, position=Dape(2))
