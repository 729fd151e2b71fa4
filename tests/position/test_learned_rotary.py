"""Rotary with learned frequencies: RoPE at the start, another rotation for each key head, gradients."""

import pytest
import torch

from whence import Attention, LearnedRotary, Rotary, WhenceError
from whence.checks import CHECKS
from whence.checks.fixture import Fixture
from whence.parallel import select_heads


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("num_kv_heads", [None, 2])
def test_it_starts_as_rotary(layout, num_kv_heads):
    q, k = torch.randn(2, 4, 6, 8, dtype=torch.float64), torch.randn(2, 2, 6, 8, dtype=torch.float64)
    at = torch.arange(6)[None] + 100
    ours = LearnedRotary(8, num_kv_heads=num_kv_heads, base=500.0, layout=layout).double()
    wanted = Rotary(base=500.0, layout=layout).rotate(q, k, at, at)
    for actual, expected in zip(ours.rotate(q, k, at, at), wanted, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)  # float32 parameters, angles of 100


def test_a_sixteenth_of_a_step_reaches_the_logarithm_of_the_frequency():
    position = LearnedRotary(4)
    with torch.no_grad():
        position.log_frequency.add_(16.0)
    torch.testing.assert_close(position.frequencies(4).detach(), torch.e * torch.tensor([1.0, 0.01]))


def test_each_key_head_has_its_own_frequencies_and_its_queries_share_them():
    torch.manual_seed(0)
    q, k = torch.randn(1, 4, 5, 2, dtype=torch.float64), torch.randn(1, 2, 5, 2, dtype=torch.float64)
    position = LearnedRotary(2, num_kv_heads=2).double()
    with torch.no_grad():
        position.log_frequency.copy_(torch.tensor([[0.0], [16.0]]) * torch.tensor(0.5).log())  # frequencies 1 and 1/2
    at = torch.arange(5)[None]
    rotated_q, rotated_k = position.rotate(q, k, at, at)
    for head in range(4):
        angle = torch.arange(5) * (1.0, 0.5)[head // 2]
        for x, rotated in ((q[0, head], rotated_q[0, head]), (k[0, head // 2], rotated_k[0, head // 2])):
            wanted = torch.view_as_complex(x) * torch.polar(torch.ones(5).double(), angle.double())
            torch.testing.assert_close(torch.view_as_complex(rotated), wanted)


def test_the_checks_group_queries_by_its_key_heads():
    fixture = Fixture(LearnedRotary(8, num_kv_heads=3))
    assert fixture.heads == 6
    CHECKS["grouped-query attention"].function(fixture)


def test_a_process_with_some_heads_does_not_use_the_frequencies_of_others():
    with pytest.raises(
        WhenceError, match=r"select_heads\(LearnedRotary\) got num_kv_heads=4.*key heads of this process"
    ):
        select_heads(LearnedRotary(4, num_kv_heads=4), 2, 4)
    shared = LearnedRotary(4)
    assert select_heads(shared, 2, 4) is shared


def test_what_it_says_of_itself_and_refuses():
    assert (
        repr(LearnedRotary(8, num_kv_heads=2))
        == "LearnedRotary(head_dim=8, num_kv_heads=2, base=10000, layout='half', learnable)"
    )
    with pytest.raises(WhenceError, match=r"head_dim.*got 3"):
        LearnedRotary(3)
    with pytest.raises(WhenceError, match=r"num_kv_heads.*got 0.*number of key heads"):
        LearnedRotary(4, num_kv_heads=0)
    layer = Attention(16, 4, LearnedRotary(4, num_kv_heads=4), num_kv_heads=2)
    with pytest.raises(WhenceError, match=r"num_kv_heads=4.*keys with 2 heads.*leave num_kv_heads out"):
        layer(torch.randn(1, 3, 16))
