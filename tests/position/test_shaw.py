"""Shaw against loops over the paper's two formulas."""

from __future__ import annotations

import pytest
import torch

from whence.errors import WhenceError
from whence.position import distance_table as module
from whence.position.hook_types import Rows
from whence.position.shaw import Shaw


def make_rows(at_q: torch.Tensor, at_k: torch.Tensor, *, batch: int = 2, heads: int = 3, width: int = 4) -> Rows:
    t, s = at_q.shape[-1], at_k.shape[-1]
    q = torch.randn(batch, heads, t, width, dtype=torch.float64)
    k = torch.randn(batch, heads, s, width, dtype=torch.float64)
    visible = (at_q[:, None, :, None] >= at_k[:, None, None, :]).expand(-1, 1, t, s)
    return Rows(q, k, 0.5 * q @ k.mT, at_q, at_k, visible, 0.5)


def offset(rows: Rows, b: int, t: int, s: int, clip: int) -> int:
    at_q, at_k = rows.q_positions[b % len(rows.q_positions), t], rows.k_positions[b % len(rows.k_positions), s]
    return int(max(-clip, min(clip, round(float(at_k - at_q)))))


POSITIONS = {
    "shared": (torch.arange(5)[None], torch.arange(5)[None]),
    "own": (torch.tensor([[4, 5], [0, 9]]), torch.tensor([[0, 1, 2, 3, 4, 5], [-2, -1, 0, 3, 8, 9]])),
    "mixed": (torch.arange(3)[None], torch.tensor([[0, 1, 2, 9], [5, 3, 1, 0]])),
    "float": (torch.arange(5.0)[None], torch.arange(5.0)[None]),
}


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS.keys())
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("clip", [1, 16])
@pytest.mark.parametrize("products", [False, True], ids=["by index", "by products"])
def test_the_papers_two_sums_in_float64(
    positions: tuple[torch.Tensor, torch.Tensor], heads: int | None, clip: int, products: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "uses_one_hot", lambda x, entries: products)  # what a GPU does, here
    rows = make_rows(*positions)
    shaw = Shaw(4, clip=clip, heads=heads, value_dim=6, std=1.0).to(torch.float64)
    weights = torch.softmax(rows.scores.masked_fill(~rows.visible, -1e9), dim=-1)
    content, values = shaw.content_bias(rows), shaw.value_bias(weights, rows)
    assert content is not None
    assert values is not None
    assert content.dtype == values.dtype == torch.float64
    assert content.shape == rows.scores.shape
    assert values.shape == (*rows.q.shape[:3], 6)
    want_content, want_values = torch.zeros_like(content), torch.zeros_like(values)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in rows.q.shape[:3])).tolist():
        key_table = shaw.key_table if heads is None else shaw.key_table[h]
        value_table = shaw.value_table if heads is None else shaw.value_table[h]
        for s in range(rows.k.shape[2]):
            row = offset(rows, b, t, s, clip) + clip
            want_content[b, h, t, s] = 0.5 * rows.q[b, h, t] @ key_table[row]
            want_values[b, h, t] += weights[b, h, t, s] * value_table[row]
    torch.testing.assert_close(content, want_content, rtol=0, atol=1e-12)
    torch.testing.assert_close(values, want_values, rtol=0, atol=1e-12)


def test_with_the_values_it_is_attention_to_shifted_keys_and_values() -> None:
    """The paper's equations 3 and 4: keys k_j + aK_ij and values v_j + aV_ij, for a single head in full."""
    rows = make_rows(torch.arange(4)[None], torch.arange(4)[None], batch=1, heads=1)
    shaw = Shaw(4, clip=2, std=1.0).to(torch.float64)
    v = torch.randn(4, 4, dtype=torch.float64)
    weights = torch.softmax(rows.scores + shaw.content_bias(rows), dim=-1)
    got = (weights @ v + shaw.value_bias(weights, rows))[0, 0]
    for i in range(4):
        table_row = [max(-2, min(2, j - i)) + 2 for j in range(4)]
        logits = torch.stack([rows.q[0, 0, i] @ (rows.k[0, 0, j] + shaw.key_table[table_row[j]]) for j in range(4)])
        share = torch.softmax(0.5 * logits, dim=0)
        want = sum(share[j] * (v[j] + shaw.value_table[table_row[j]]) for j in range(4))
        torch.testing.assert_close(got[i], want, rtol=0, atol=1e-12)


def test_acts_on_names_its_effects_and_its_tables() -> None:
    rows = make_rows(torch.arange(3)[None], torch.arange(3)[None])
    keys, values = Shaw(4, acts_on="keys").double(), Shaw(4, acts_on="values").double()
    assert keys.effects == {"content_bias"}
    assert values.effects == {"value_bias"}
    assert Shaw(4).effects == {"content_bias", "value_bias"}
    assert list(keys.state_dict()) == ["key_table"]
    assert list(values.state_dict()) == ["value_table"]
    assert keys.value_bias(rows.scores, rows) is None
    assert values.content_bias(rows) is None
    assert keys.content_bias(rows) is not None
    assert values.value_bias(rows.scores, rows) is not None


def test_gradients_reach_queries_weights_and_tables() -> None:
    rows = make_rows(torch.arange(3)[None], torch.arange(3)[None])
    shaw = Shaw(4, clip=1, std=1.0).double()
    weights = torch.rand_like(rows.scores).requires_grad_()
    (shaw.content_bias(rows).square().sum() + shaw.value_bias(weights, rows).square().sum()).backward()
    assert weights.grad is not None
    assert bool(weights.grad.abs().min() > 0)
    assert bool((shaw.key_table.grad != 0).all())
    assert bool((shaw.value_table.grad != 0).all())


def test_low_precision_queries_meet_float32_tables() -> None:
    rows = make_rows(torch.arange(3)[None], torch.arange(3)[None])
    low = Rows(
        rows.q.bfloat16(),
        rows.k.bfloat16(),
        rows.scores.bfloat16(),
        rows.q_positions,
        rows.k_positions,
        rows.visible,
        0.5,
    )
    shaw = Shaw(4)
    assert shaw.content_bias(low).dtype == torch.bfloat16
    assert shaw.value_bias(low.scores, low).dtype == torch.bfloat16


def test_state_dict_round_trip_and_repr() -> None:
    rows = make_rows(torch.arange(3)[None], torch.arange(3)[None])
    one, other = Shaw(4, heads=3).double(), Shaw(4, heads=3).double()
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.content_bias(rows), other.content_bias(rows))
    assert repr(one) == "Shaw(heads=3, head_dim=4, clip=16, acts_on='keys and values', learnable)"
    wide = Shaw(4, acts_on="values", value_dim=6)
    assert repr(wide) == "Shaw(head_dim=4, clip=16, acts_on='values', value_dim=6, learnable)"
    assert "value_dim" not in repr(Shaw(4, acts_on="keys", value_dim=6))


def test_errors() -> None:
    with pytest.raises(
        WhenceError,
        match=r"^Shaw\(acts_on=\.\.\.\) got 'both', but .*; choose one of them\.$",
    ):
        Shaw(4, acts_on="both")
    with pytest.raises(
        WhenceError,
        match=r"^Shaw\(clip=\.\.\.\) got 0, but .*; pass such an integer\.$",
    ):
        Shaw(4, clip=0)
    with pytest.raises(
        WhenceError,
        match=r"^Shaw\(8\) got queries of dimension 4, but .*; build it with head_dim=4\.$",
    ):
        Shaw(8).double().content_bias(make_rows(torch.arange(3)[None], torch.arange(3)[None]))


def test_gradients_are_the_same_by_index_and_uses_one_hot(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = []
    for products in (False, True):
        monkeypatch.setattr(module, "uses_one_hot", lambda x, entries, products=products: products)
        torch.manual_seed(3)
        rows, shaw = make_rows(*POSITIONS["own"]), Shaw(4, clip=2, std=1.0).to(torch.float64)
        weights = torch.softmax(torch.randn_like(rows.scores), -1).requires_grad_()
        content, values = shaw.content_bias(rows), shaw.value_bias(weights, rows)
        assert content is not None and values is not None
        (content.square().sum() + values.square().sum()).backward()
        actual.append([shaw.key_table.grad, shaw.value_table.grad, weights.grad])
    for by_index, by_product in zip(*actual, strict=True):
        assert by_index is not None
        torch.testing.assert_close(by_product, by_index, rtol=1e-12, atol=1e-12)
