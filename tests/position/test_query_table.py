"""A table made by the query: Inkling's code, the numbers of the formula, and a rotation beside it."""

import pytest
import torch

from whence import Attention, DistanceTable, KVCache, Position, QueryTable, Rotary, Rows, WhenceError, attend
from whence.position import distance_table


def rows_of(q, at_q, at_k):
    k = torch.zeros(*q.shape[:2], at_k.shape[-1], q.shape[-1], dtype=q.dtype)
    visible = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
    return Rows(q, k, q @ k.mT, at_q, at_k, visible, 1.0)


@pytest.mark.parametrize("products", [False, True], ids=["by index", "by products"])
def test_the_numbers_of_the_formula(products, monkeypatch):
    """Width 1, P = 3, 2, 1 and r = 2 at position 4."""
    monkeypatch.setattr(distance_table, "uses_one_hot", lambda x, entries: products)  # what a GPU does, here
    table = QueryTable(1, 1, rank=1, extent=3)
    torch.nn.init.ones_(table.projection)
    table.profiles.data = torch.tensor([[3.0, 2.0, 1.0]])
    rows = rows_of(torch.full((1, 1, 1, 1), 2.0), torch.tensor([[4]]), torch.arange(6)[None])
    assert table.content_bias(rows).flatten().tolist() == [0, 0, 2, 4, 6, 0]


def test_inkling_in_transformers():
    """The same r, made from the query here and from the layer input there."""
    inkling = pytest.importorskip("transformers.models.inkling.modeling_inkling")
    torch.manual_seed(0)
    table, theirs = QueryTable(3, 8, rank=4, extent=5, std=1.0), inkling.InklingRelativeLogits(4, 5)
    theirs.proj.data = table.profiles.data
    q, at_q, at_k = torch.randn(2, 3, 4, 8), torch.arange(6, 10), torch.arange(10)
    r = torch.einsum("bhtd,hdr->bthr", q, table.projection)
    expected = theirs(r, at_q, at_k)
    torch.testing.assert_close(table.content_bias(rows_of(q, at_q[None], at_k[None])), expected)


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_the_query_before_rotation_makes_the_table(backend):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    table, at = QueryTable(2, 8, rank=3, extent=4, std=1.0), torch.arange(9)[None]
    wanted = attend(q, k, v, position=Rotary(), attn_mask=table.content_bias(rows_of(q, at, at)), causal=True)
    torch.testing.assert_close(attend(q, k, v, position=Rotary() + table, causal=True, backend=backend), wanted)


@torch.no_grad()
def test_decoding_in_a_window_of_the_extent_equals_one_pass():
    layer = Attention(16, 4, QueryTable(4, 4, rank=3, extent=6, std=1.0), causal=True, window=6, num_kv_heads=2)
    x, cache = torch.randn(2, 15, 16), KVCache(window=6)
    steps = [layer(x[:, n : n + 3], cache=cache) for n in range(0, 15, 3)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=1e-5, atol=1e-5)


def test_it_trains_within_the_extent_alone():
    table, x = QueryTable(1, 4, rank=2, extent=8, std=1.0), torch.randn(1, 1, 5, 4)
    attend(x, x, x, position=table, causal=True).square().sum().backward()
    assert (table.profiles.grad[:, :5] != 0).all() and not table.profiles.grad[:, 5:].any()
    assert table.projection.grad.any()


def test_what_it_refuses():
    with pytest.raises(WhenceError, match=r"extent.*0.*use 1024"):
        QueryTable(2, 4, extent=0)
    with pytest.raises(WhenceError, match=r"head_dim 4 with 8.*head_dim=8"):
        attend(*(torch.randn(1, 2, 3, 8),) * 3, position=QueryTable(2, 4))


def test_a_table_hook_and_its_plain_hook_replace_each_other():
    rows = rows_of(torch.ones(1, 1, 1, 2), torch.tensor([[2]]), torch.arange(4)[None])

    class Near(Position):
        def content_bias_table(self, q, unrotated_q, scale):
            return DistanceTable(q.sum(-1, keepdim=True) * torch.tensor([1.0, 3.0]), 0, clipped=True)

    class Other(Near):
        def content_bias(self, rows):
            return rows.scores + 9

    assert Near().effects == Other().effects == {"content_bias"}
    assert Near().content_bias(rows).tolist() == [[[[6.0, 6.0, 2.0, 2.0]]]]
    assert Other().content_bias(rows).tolist() == [[[[9.0] * 4]]]
    assert Other().content_bias_table(rows.q, rows.q, 1.0) is None  # it is not the table of the new hook
    with pytest.raises(WhenceError, match="write content_bias_table alone"):

        class Both(Position):
            def content_bias(self, rows):
                return rows.scores

            def content_bias_table(self, q, unrotated_q, scale):
                return None
