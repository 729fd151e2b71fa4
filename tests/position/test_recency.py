"""Recency against the pointer's own index, position from the end."""

import pytest
import torch

from whence.errors import WhenceError
from whence.position.recency import Recency


class Hook(torch.nn.Module):
    def __init__(self, position):
        super().__init__()
        self.position = position

    def forward(self, distance):
        return self.position.bias(distance, None)


def numbered(max_length, heads=None):
    """A table whose entry says its own index (plus 100 for each head)."""
    recency = Recency(max_length, heads=heads)
    index = torch.arange(float(max_length))
    with torch.no_grad():
        recency.table.copy_(index if heads is None else index + 100 * torch.arange(heads)[:, None])
    return recency


@pytest.mark.parametrize("length", (1, 4, 9))
@pytest.mark.parametrize("max_length", (2, 6, 32))
def test_index_is_position_from_the_end(length, max_length):
    """clamp(length - position, 0, max - 1), as the pointer's source has it, for a history padded to 9."""
    positions = torch.arange(9.0)
    distance = (length - 1) - positions  # the query is the last valid position
    want = [float(min(max(length - p, 0), max_length - 1)) for p in range(9)]
    assert numbered(max_length).bias(distance, None).tolist() == want


def test_the_last_item_has_index_1_and_the_future_index_0():
    recency = numbered(8)
    assert recency.bias(torch.tensor([0.0, -1.0, -50.0, 6.0, 7.0, 1e6]), None).tolist() == [1, 0, 0, 7, 7, 7]


def test_one_table_a_head():
    bias = numbered(4, heads=3).bias(torch.tensor([0.0, 5.0]), None)
    assert bias.tolist() == [[1, 3], [101, 103], [201, 203]]


def test_starts_at_zero_and_learns_only_what_was_seen():
    recency = Recency(5).double()
    out = recency.bias(torch.tensor([0.0, 1.0, 1.0, 40.0], dtype=torch.float64), None)
    assert out.dtype == torch.float64 and (out == 0).all()
    out.sum().backward()
    assert recency.table.grad.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("heads", (None, 2))
def test_state_dict_round_trip_compile_and_export(heads):
    recency, other = numbered(6, heads), Recency(6, heads=heads)
    d = torch.arange(-3.0, 9.0)
    want = recency.bias(d, None)
    other.load_state_dict(recency.state_dict())
    assert torch.equal(other.bias(d, None), want)
    torch.testing.assert_close(torch.compile(Hook(recency), backend="eager", fullgraph=True)(d), want)
    torch.testing.assert_close(torch.export.export(Hook(recency), (d,)).module()(d), want)


def test_what_it_says_of_itself():
    assert repr(Recency(50)) == "Recency(max_length=50, learnable)"
    assert repr(Recency(50, heads=2)) == "Recency(heads=2, max_length=50, learnable)"
    assert Recency(50).effects == {"bias"} and Recency(50).relative and not Recency(50).causal_only


@pytest.mark.parametrize("max_length", (0, 1, 2.5, None))
def test_errors(max_length):
    text = r"Recency\(max_length=...\) got .*, but .*; pass the longest history \+ 1\."
    with pytest.raises(WhenceError, match=text):
        Recency(max_length)
