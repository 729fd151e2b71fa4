"""CoPE against loops over its definition, against x-transformers, and with keys stored out of order."""

import math

import pytest
import torch
from x_transformers.x_transformers import CoPE as ExternalCope

from whence.errors import WhenceError
from whence.position.cope import Cope
from whence.position.hook_types import Rows

B, H, T, S, D = 2, 3, 5, 7, 4


def make_rows(seed=0, *, dtype=torch.float64, order=None, batch_positions=False):
    """T queries at the end of S keys; with ``order`` the keys are stored in that order."""
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(B, H, n, D, generator=g, dtype=torch.float64).to(dtype) for n in (T, S))
    k_positions = torch.arange(S).expand(B if batch_positions else 1, S)
    q_positions = k_positions[:, S - T :]
    if order is not None:
        k, k_positions = k[:, :, order], k_positions[:, order]
    visible = (q_positions[:, :, None] >= k_positions[:, None, :])[:, None]
    return Rows(q, k, D**-0.5 * q @ k.mT, q_positions, k_positions, visible, D**-0.5)


def by_hand(rows, e, positions):
    out = torch.zeros_like(rows.scores)
    for b in range(B):
        for h in range(H):
            table = e if e.dim() == 2 else e[h]
            for t in range(T):
                vb = b if len(rows.k_positions) > 1 else 0
                for s in range(S):
                    p = 0.0
                    for u in range(S):
                        if rows.visible[vb, 0, t, u] and rows.k_positions[vb, u] >= rows.k_positions[vb, s]:
                            p += 1 / (1 + math.exp(-rows.scores[b, h, t, u].item()))
                    p = min(p, positions - 1)
                    row = (p - math.floor(p)) * table[math.ceil(p)] + (1 - p + math.floor(p)) * table[math.floor(p)]
                    out[b, h, t, s] = sum(x * y for x, y in zip(rows.q[b, h, t].tolist(), row.tolist(), strict=True))
    return out


@pytest.mark.parametrize("heads", (None, H))
@pytest.mark.parametrize("positions", (3, 64))
@pytest.mark.parametrize("batch_positions", (False, True))
def test_loops(heads, positions, batch_positions):
    cope = Cope(D, positions=positions, heads=heads).double()
    rows = make_rows(batch_positions=batch_positions)
    got = cope.content_bias(rows)
    assert got.shape == (B, H, T, S) and got.dtype == torch.float64
    torch.testing.assert_close(got, by_hand(rows, cope.e.detach(), positions), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("positions", (3, 64))
def test_against_x_transformers(positions):
    cope, external = Cope(D, positions=positions).double(), ExternalCope(dim=D, heads=H, max_pos=positions).double()
    rows = make_rows(3)
    with torch.no_grad():
        external.pos_emb.copy_(cope.e)
    theirs = external(rows.q, rows.scores.masked_fill(~rows.visible, -torch.finfo(torch.float64).max))
    torch.testing.assert_close(cope.content_bias(rows), theirs, rtol=1e-12, atol=1e-13)


def test_the_order_of_storage_does_not_matter():
    cope = Cope(D, positions=5).double()
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    torch.testing.assert_close(cope.content_bias(make_rows(order=order)), cope.content_bias(make_rows())[..., order])


def test_each_sequence_may_have_positions_of_its_own():
    """Two sequences in one batch, stored in different orders, get what each gets alone."""
    cope = Cope(D, positions=5).double()
    a, b = make_rows(batch_positions=True), make_rows(batch_positions=True, order=torch.tensor([6, 5, 4, 3, 2, 1, 0]))

    def mixed(name):
        x, y = getattr(a, name), getattr(b, name)
        return torch.stack([x[0], y[1]])

    names = ("q", "k", "scores", "q_positions", "k_positions", "visible")
    both = cope.content_bias(Rows(*(mixed(n) for n in names), a.scale))
    torch.testing.assert_close(both[0], cope.content_bias(a)[0])
    torch.testing.assert_close(both[1], cope.content_bias(b)[1])


def test_invisible_keys_are_not_counted():
    rows = make_rows()
    visible = rows.visible.clone()
    visible[..., 2] = False  # padding in the middle
    hidden = Rows(rows.q, rows.k, rows.scores, rows.q_positions, rows.k_positions, visible, rows.scale)
    cope = Cope(D).double()
    torch.testing.assert_close(cope.content_bias(hidden), by_hand(hidden, cope.e.detach(), 64), rtol=1e-12, atol=1e-13)
    assert not torch.allclose(cope.content_bias(hidden)[..., 0], cope.content_bias(rows)[..., 0])


def test_nothing_is_counted_for_rows_that_see_nothing():
    rows = make_rows()
    blind = Rows(rows.q, rows.k, rows.scores, rows.q_positions, rows.k_positions, torch.zeros_like(rows.visible), 1.0)
    cope = Cope(D).double()
    assert (cope.contextual_positions(blind) == 0).all()
    torch.testing.assert_close(cope.content_bias(blind), (rows.q @ cope.e[0])[..., None].expand(B, H, T, S))


def test_gradients_reach_the_table_and_the_gates():
    cope = Cope(D, positions=64).double()
    rows = make_rows()
    scores = rows.scores.requires_grad_()
    cope.content_bias(
        Rows(rows.q, rows.k, scores, rows.q_positions, rows.k_positions, rows.visible, rows.scale)
    ).sum().backward()
    assert cope.e.grad.abs().sum() > 0
    seen = rows.visible.expand_as(scores)
    assert (scores.grad[seen].abs() > 0).all() and (scores.grad[~seen] == 0).all()


def test_counts_of_half_precision_scores_are_summed_in_single():
    q = torch.zeros(1, 1, 1, D, dtype=torch.bfloat16)
    k = torch.zeros(1, 1, 1001, D, dtype=torch.bfloat16)
    at = torch.arange(1001)[None]
    rows = Rows(q, k, q @ k.mT, at[:, -1:], at, torch.ones(1, 1, 1, 1001, dtype=torch.bool), 1.0)
    cope = Cope(D, positions=1024).bfloat16()
    assert cope.contextual_positions(rows)[0, 0, 0, 0].item() == 500.5  # bfloat16 would stop at 128
    assert cope.content_bias(rows).dtype == torch.bfloat16


class Hook(torch.nn.Module):
    def __init__(self, cope):
        super().__init__()
        self.cope = cope

    def forward(self, q, k, scores, q_positions, k_positions, visible):
        return self.cope.content_bias(Rows(q, k, scores, q_positions, k_positions, visible, 1.0))


@pytest.mark.parametrize("heads", (None, H))
def test_state_dict_round_trip_compile_and_export(heads):
    cope, other, rows = Cope(D, heads=heads), Cope(D, heads=heads), make_rows(dtype=torch.float32)
    want = cope.content_bias(rows)
    other.load_state_dict(cope.state_dict())
    assert torch.equal(other.content_bias(rows), want)
    inputs = (rows.q, rows.k, rows.scores, rows.q_positions, rows.k_positions, rows.visible)
    torch.testing.assert_close(torch.compile(Hook(cope), backend="eager", fullgraph=True)(*inputs), want)
    torch.testing.assert_close(torch.export.export(Hook(cope), inputs).module()(*inputs), want)


def test_what_it_says_of_itself():
    cope = Cope(8, positions=16)
    assert repr(cope) == "Cope(head_dim=8, positions=16, learnable)"
    assert cope.effects == {"content_bias"} and cope.causal_only and cope.relative and cope.head_dim == 8
    assert cope.e.shape == (16, 8) and Cope(8, positions=16, heads=2).e.shape == (2, 16, 8)


@pytest.mark.parametrize(
    "arguments, text",
    (
        (
            {"head_dim": 0},
            r"Cope\(head_dim=...\) got 0, but .*; pass the dimension of a query head\.",
        ),
        (
            {"head_dim": 4, "positions": 1},
            r"Cope\(positions=...\) got 1, but .*; try positions=64\.",
        ),
        ({"head_dim": 4, "heads": 0}, r"Cope\(heads=...\) got 0"),
    ),
)
def test_errors(arguments, text):
    with pytest.raises(WhenceError, match=text):
        Cope(**arguments)
