"""A table made by the query or by the layer input: Inkling's code, the formula by hand, and a rotation beside it."""

from dataclasses import replace

import pytest
import torch

from whence import (
    Attention,
    CoordinateTable,
    DistanceTable,
    KVCache,
    Position,
    QueryTable,
    Rotary,
    Rows,
    WhenceError,
    attend,
)
from whence.attention import PointerAttention
from whence.position import distance_table


def rows_of(q, at_q, at_k):
    k = torch.zeros(*q.shape[:2], at_k.shape[-1], q.shape[-1], dtype=q.dtype)
    visible = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
    return Rows(q, k, q @ k.mT, at_q, at_k, visible, 1.0)


@pytest.mark.parametrize("products", [False, True], ids=["by index", "by products"])
def test_the_numbers_of_the_formula(products, monkeypatch):
    """By hand: there is no paper. Width 1, P = 3, 2, 1 and r = 2 at position 4."""
    monkeypatch.setattr(distance_table, "uses_one_hot", lambda x, entries: products)  # what a GPU does, here
    table = QueryTable(1, 1, rank=1, extent=3)
    torch.nn.init.ones_(table.projection)
    table.profiles.data = torch.tensor([[3.0, 2.0, 1.0]])
    rows = rows_of(torch.full((1, 1, 1, 1), 2.0), torch.tensor([[4]]), torch.arange(6)[None])
    assert table.content_bias(rows).flatten().tolist() == [0, 0, 2, 4, 6, 0]


def test_inkling_in_transformers():
    """The layer input makes the table, as in their attention: r_proj without a bias, heads before ranks."""
    inkling = pytest.importorskip("transformers.models.inkling.modeling_inkling")
    torch.manual_seed(0)
    theirs, r_proj = inkling.InklingRelativeLogits(4, 5), torch.nn.Linear(12, 3 * 4, bias=False)
    table = QueryTable(3, 8, source="input", embed_dim=12, rank=4, extent=5)
    table.projection.data = r_proj.weight.unflatten(0, (3, 4)).transpose(1, 2)
    table.profiles.data = torch.nn.init.normal_(theirs.proj).data
    x, at_q, at_k = torch.randn(2, 4, 12), torch.arange(6, 10), torch.arange(10)
    expected = theirs(r_proj(x).view(2, 4, 3, -1), at_q, at_k)
    rows = replace(rows_of(torch.randn(2, 3, 4, 8), at_q[None], at_k[None]), q_input=x)
    torch.testing.assert_close(table.content_bias(rows), expected)
    by_query = QueryTable(3, 8, rank=4, extent=5)  # the same r, as a projection of the query
    by_query.profiles.data, q = table.profiles.data, torch.randn(2, 3, 4, 8)
    table.projection.data = torch.stack(
        [torch.nn.functional.pad(p, (0, 0, 8 * h, 16 - 8 * h)) for h, p in enumerate(by_query.projection.data)]
    )
    rows = replace(rows_of(q, at_q[None], at_k[None]), q_input=q.transpose(1, 2).flatten(2))
    torch.testing.assert_close(table.content_bias(rows), by_query.content_bias(rows))


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_the_query_before_rotation_makes_the_table(backend):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    table, at = QueryTable(2, 8, rank=3, extent=4, std=1.0), torch.arange(9)[None]
    wanted = attend(q, k, v, position=Rotary(), attn_mask=table.content_bias(rows_of(q, at, at)), causal=True)
    torch.testing.assert_close(attend(q, k, v, position=Rotary() + table, causal=True, backend=backend), wanted)


@torch.no_grad()
def test_decoding_in_a_window_of_the_extent_equals_one_pass():
    tables = QueryTable(4, 4, rank=3, extent=6, std=1.0) + QueryTable(4, 4, source="input", embed_dim=16, std=1.0)
    layer = Attention(16, 4, tables, causal=True, window=6, num_kv_heads=2)
    x, cache = torch.randn(2, 15, 16), KVCache(window=6)
    steps = [layer(x[:, n : n + 3], cache=cache) for n in range(0, 15, 3)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x), rtol=1e-5, atol=1e-5)


def test_it_trains_within_the_extent_alone():
    table, x = QueryTable(1, 4, rank=2, extent=8, std=1.0), torch.randn(1, 1, 5, 4)
    attend(x, x, x, position=table, causal=True).square().sum().backward()
    assert (table.profiles.grad[:, :5] != 0).all() and not table.profiles.grad[:, 5:].any()
    assert table.projection.grad.any()


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_gradients_reach_the_layer_input(backend, small_tiles):
    torch.manual_seed(0)
    table = QueryTable(2, 4, source="input", embed_dim=6, rank=2, extent=4, std=1.0).requires_grad_(False)
    q, x = torch.randn(1, 2, 7, 4), torch.randn(1, 7, 6, requires_grad=True)
    distance = torch.arange(7)[:, None] - torch.arange(7)
    mixed = x[:, None] @ table.projection @ table.profiles
    bias = mixed.gather(-1, distance.clamp(0, 3).expand(1, 2, 7, 7)) * (distance < 4)
    wanted = attend(q, q, q, attn_mask=bias, causal=True, backend="reference")
    out = attend(q, q, q, position=table, q_input=x, causal=True, backend=backend)
    torch.testing.assert_close(out, wanted)
    gradients = (torch.autograd.grad(one.square().sum(), x, retain_graph=True)[0] for one in (out, wanted))
    torch.testing.assert_close(*gradients)


def test_a_pointer_passes_its_last_item():
    torch.manual_seed(0)
    table, x = QueryTable(1, 4, source="input", embed_dim=4, rank=2, extent=9, std=1.0), torch.randn(2, 5, 4)
    pointer = PointerAttention(4, position=table)
    with torch.no_grad():
        by_hand = pointer.queries(x[:, -1:]) @ pointer.keys(x).mT / 2
        by_hand = by_hand + (x[:, -1:] @ table.projection[0] @ table.profiles[:, :5]).flip(-1)
        torch.testing.assert_close(pointer(x), by_hand[:, 0].log_softmax(-1))


def test_what_it_refuses():
    q, table = torch.randn(1, 2, 3, 4), QueryTable(2, 4, source="input", embed_dim=6)
    with pytest.raises(WhenceError, match=r"embed_dim=.*None.*dimension of the layer input"):
        QueryTable(2, 4, source="input")
    for given, words in {None: "no q_input.*q_input=x", 8: r"\[1, 3, 6\].*embed_dim=8"}.items():
        with pytest.raises(WhenceError, match=words):
            attend(q, q, q, position=table, q_input=None if given is None else torch.randn(1, 3, given))
    with pytest.raises(WhenceError, match=r"\[1, 2, 6\].*\[1, 3, 6\].*of the queries"):
        attend(q, q, q, position=table, q_input=torch.randn(1, 2, 6))
    with pytest.raises(WhenceError, match=r"position=Rotary, q_input.*leave q_input out"):
        attend(q, q, q, position=Rotary(), q_input=torch.randn(1, 3, 6))
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


def test_tables_of_one_term_replace_each_other_and_are_not_combined():
    class Near(Position):
        def content_bias_table(self, q, unrotated_q, scale):
            return DistanceTable(q.sum(-1, keepdim=True), 0, clipped=True)

    class Grid(Near):
        def coordinate_bias_table(self, dtype):
            return CoordinateTable(torch.arange(9.0)[None], (2, 2))

    rows = rows_of(torch.ones(1, 1, 1, 2), torch.tensor([[0]]), torch.arange(4)[None])
    assert Grid().content_bias(rows).tolist() == [[[[4.0, 3.0, 1.0, 0.0]]]]  # not the table of its parent
    with pytest.raises(WhenceError, match="content_bias_table alone, or two classes"):

        class Both(Grid):
            content_bias_table = Near.content_bias_table
            coordinate_bias_table = Grid.coordinate_bias_table


def test_the_hook_of_a_class_that_reads_the_input_takes_it():
    class Reader(Position):
        reads_input = True

        def content_bias_table(self, q, unrotated_q, scale, q_input):
            return DistanceTable(q_input.sum(-1)[:, None, :, None].expand(-1, q.shape[1], -1, -1), 0, clipped=False)

    rows = rows_of(torch.ones(1, 1, 1, 2), torch.tensor([[1]]), torch.arange(3)[None])
    assert Reader().content_bias(replace(rows, q_input=torch.full((1, 1, 3), 2.0))).tolist() == [[[[0.0, 6.0, 0.0]]]]
    with pytest.raises(WhenceError, match=r"write def content_bias_table\(self, q, unrotated_q, scale, q_input\)"):

        class Without(Position):
            reads_input = True

            def content_bias_table(self, q, unrotated_q, scale):
                return None


@pytest.mark.parametrize("hook, table, words", [
    ("content_bias_table", torch.zeros(1, 2, 3, 4), "type Tensor.*return DistanceTable"),
    ("content_bias_table", DistanceTable(torch.zeros(1, 2, 1, 4), 0, True), r"shape \[1, 2, 1, 4\].*1, 2, 3"),
    ("content_bias_table", DistanceTable(torch.zeros(1, 2, 3, 4), 0.5, True), "0.5.*such as 0"),
    ("value_bias_table", DistanceTable(torch.zeros(3, 5, 4), 0, True), r"shape \[3, 5, 4\].*2 heads"),
    ("coordinate_bias_table", torch.zeros(2, 9), "type Tensor.*return CoordinateTable"),
    ("coordinate_bias_table", CoordinateTable(torch.zeros(2, 12), (3, 4)), r"\[2, 12\].*\[2, 35\].*2 \* 4 - 1"),
])  # fmt: skip
def test_a_wrong_table_is_refused(hook, table, words):
    mechanism = type("Mine", (Position,), {hook: lambda self, *arguments: table})()
    with pytest.raises(WhenceError, match=rf"Mine\.{hook}.*{words}"):
        attend(*(torch.randn(1, 2, 3, 4),) * 3, position=mechanism)
