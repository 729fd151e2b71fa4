"""GRAPE-A: the numbers of the formula, its columns in half precision, and a rotation beside it."""

import math

import pytest
import torch

from whence import Alibi, Attention, Dape, GrapeA, KVCache, Pope, QueryTable, Rotary, Rows, WhenceError, attend
from whence.position.alibi import slopes


def rows_of(q, k):
    """The last queries of ``[B, H, T, D]`` against keys ``[B, H, S, D]``."""
    at = torch.arange(k.shape[2])[None]
    visible = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
    return Rows(q, k, q @ k.mT, at[:, -q.shape[2] :], at, visible, 1.0)


@pytest.mark.parametrize("gate, expected", [("key", -1.3863), ("query", -1.3863), ("query and key", -2.7726)])
def test_the_numbers_of_the_formula(gate, expected):
    """m = 0.5, d = 4 and content of 0."""
    grape, zero = GrapeA(8, 4, gate=gate), torch.zeros(1, 8, 5, 4)
    assert slopes(8)[0] == 0.5
    assert grape.content_bias(rows_of(zero, zero))[0, 0, 4, 0].item() == pytest.approx(expected, abs=5e-5)


def test_a_pair_by_hand():
    torch.manual_seed(1)
    grape = GrapeA(2, 3).double()
    with torch.no_grad():
        grape.omega.raw.copy_(torch.tensor([[0.3], [-1.0]]))
    q, k = torch.randn(1, 2, 1, 3, dtype=torch.float64), torch.randn(1, 2, 6, 3, dtype=torch.float64)
    for head, omega in enumerate([math.log1p(math.exp(0.3)), math.log1p(math.exp(-1.0))]):
        v, u = (x[head].detach() / x[head].detach().norm() for x in (grape.v, grape.u))
        gates = [math.log1p(math.exp(float(a @ b) / math.sqrt(3))) for a, b in ((v, q[0, head, 0]), (u, k[0, head, 2]))]
        wanted = -3 * omega * slopes(2)[head] * sum(gates)
        assert grape.content_bias(rows_of(q, k))[0, head, 0, 2].item() == pytest.approx(wanted, rel=1e-6)


def test_constant_gates_are_alibi():
    """Without content every gate is log 2, so omega = 1 / (2 log 2) gives ALiBi."""
    x = torch.zeros(1, 4, 7, 8)
    v = torch.randn(1, 4, 7, 8)
    grape = GrapeA(4, 8)
    torch.nn.init.constant_(grape.omega.raw, math.log(math.expm1(1 / (2 * math.log(2)))))
    wanted = attend(x, x, v, position=Alibi(4), causal=True)
    torch.testing.assert_close(attend(x, x, v, position=grape, causal=True), wanted)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("groups", [4, 2])
def test_gates_read_queries_and_keys_before_rotation(backend, groups):
    """The rotation acts on the scores alone: the same term as a mask beside Rotary."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 9, 8), torch.randn(2, groups, 9, 8)
    v, grape = torch.randn(2, groups, 9, 5), GrapeA(4, 8)
    term = grape.content_bias(rows_of(q, k.repeat_interleave(4 // groups, 1)))
    wanted = attend(q, k, v, position=Rotary(), attn_mask=term, causal=True)
    both = Rotary() + grape
    assert both.relative  # a shift changes the rotated queries and not their gates
    torch.testing.assert_close(attend(q, k, v, position=both, causal=True, backend=backend), wanted)


@torch.no_grad()
def test_decoding_far_from_0_in_half_precision():
    """As columns of q and k, positions beyond 256 would be rounded in bfloat16."""
    layer = Attention(16, 2, Rotary() + GrapeA(2, 8), causal=True).to(torch.bfloat16)
    x, cache, at = torch.randn(1, 12, 16).bfloat16(), KVCache(), torch.arange(5000, 5012)
    whole = layer(x, positions=at)
    parts = [layer(x[:, n : n + 3], positions=at[n : n + 3], cache=cache) for n in range(0, 12, 3)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-2)
    torch.testing.assert_close(layer.float()(x.float(), positions=at), whole.float(), rtol=0, atol=4e-2)


def test_it_exports_and_so_do_other_mechanisms_by_content():
    """The export to ONNX in tests/attention leaves these out."""
    positions = Rotary() + GrapeA(2, 4), Dape(2), QueryTable(2, 4, extent=3), Pope(4)
    layer = torch.nn.Sequential(*(Attention(8, 2, position, causal=True) for position in positions))
    layer, x = layer.eval().requires_grad_(False), torch.randn(1, 6, 8)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_what_it_says_of_itself_and_refuses():
    assert repr(GrapeA(2, 4)) == "GrapeA(heads=2, head_dim=4, gate='query and key', learnable)"
    x = torch.randn(1, 2, 4, 4)
    with pytest.raises(WhenceError, match=r"causal=False.*pass causal=True"):
        attend(x, x, x, position=GrapeA(2, 4))
    with pytest.raises(WhenceError, match=r"gate.*'value'.*'query'"):
        GrapeA(2, 4, gate="value")
