"""Blockwise never forms a matrix over all pairs: the largest tensor it makes grows with the length, not its square."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import whence
from whence.attention import blockwise, blockwise_kernel
from whence.attention.toeplitz import Span

HEADS, WIDTH = 2, 4


class Largest(TorchDispatchMode):
    """Remembers the most numbers in any tensor that an operation made anew."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def of_tables(length):
    """The tiled operator, called without its registration so that its inside can be watched."""
    q, k, v, grad = (torch.randn(1, HEADS, length, WIDTH) for _ in range(4))
    span = Span(length, length, 0, True, None)
    table = torch.rand(HEADS, 2 * length - 1)
    tables = blockwise_kernel.Tables(table, table, *[None] * 6)
    settings = blockwise_kernel.Settings(0.5, 1.0, 0.0, 0)
    with Largest() as seen:
        out, tops, totals = blockwise_kernel.forward(q, k, v, span, tables, settings)
        blockwise_kernel.backward(grad, out, tops, totals, q, k, v, span, tables, settings, [True] * 5)
    return seen.numbers


def of_rows(length):
    position = whence.Epar(HEADS, learnable=True, length="query")
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    with Largest() as seen:
        out = whence.attend(q, k, v, position=position, causal=True, backend="blockwise")
        out.sum().backward()
    return seen.numbers


@pytest.mark.parametrize("way", [of_tables, of_rows])
def test_the_largest_tensor_is_linear_in_length(way, monkeypatch):
    monkeypatch.setattr(blockwise_kernel, "BLOCK", 16)
    monkeypatch.setattr(blockwise_kernel, "TILE", 1 << 12)
    monkeypatch.setattr(blockwise, "SCORES", 1 << 12)
    small, large = way(128), way(512)
    assert large <= 4.2 * small
    assert large < 512**2 // 8


def test_the_reference_would_be_caught():
    q = torch.randn(1, HEADS, 256, WIDTH)
    with Largest() as seen:
        whence.attend(q, q, q, position=whence.Alibi(HEADS, learnable=True), causal=True, backend="reference")
    assert seen.numbers >= HEADS * 256**2


def test_tiles_are_as_wide_as_the_window_and_rows_are_formed_on_request(monkeypatch):
    q = torch.zeros(1, 1, 512, 4)
    plan = blockwise_kernel.BlockPlan(q, q, Span(512, 512, 0, True, 8))
    assert plan.scores <= blockwise_kernel.BLOCK * (blockwise_kernel.BLOCK + 8)
    monkeypatch.setattr(blockwise, "Rows", None)
    position = whence.Epar(1, length="query")
    assert whence.attend(q, q, q, position=position, causal=True, backend="blockwise").shape == q.shape
