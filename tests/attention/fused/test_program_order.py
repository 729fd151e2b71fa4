"""The order in which the programs of a kernel take their blocks: each once, and long blocks of a causal call first."""

import pytest
import torch
import triton
import triton.language as tl

from whence.attention.fused.tile_ops import RESIDENT_NUMBERS, place_program

pytestmark = pytest.mark.usefixtures("interpreted")


def order_kernel(PLACES, blocks, tokens, COLUMNS: tl.constexpr, GROUP: tl.constexpr, LONGEST_FIRST: tl.constexpr):
    rank, place = place_program(blocks, tokens, COLUMNS, GROUP, LONGEST_FIRST)
    tl.store(PLACES + tl.program_id(0) * 2, rank)
    tl.store(PLACES + tl.program_id(0) * 2 + 1, place)


def order(blocks, ranks, tokens, group, longest_first):
    places = torch.full((blocks * ranks, 2), -1)
    kernel = triton.jit(order_kernel)  # interpreted, as the fixture says
    kernel[(blocks * ranks,)](places, blocks, tokens, 128, group, longest_first)
    return [tuple(x) for x in places.tolist()]


@pytest.mark.parametrize(
    "blocks, ranks, tokens, group", [(1, 1, 1, 1), (5, 6, 7, 3), (4, 9, 30_000, 2), (3, 7, 2**30, 1)]
)
def test_every_block_once(blocks, ranks, tokens, group):
    for longest_first in (False, True):
        places = order(blocks, ranks, tokens, group, longest_first)
        assert sorted(places) == [(rank, block) for rank in range(ranks) for block in range(blocks)]


def test_long_blocks_first():
    """Over all ranks where the cache holds what they read, else over as many as it holds."""
    assert [block for _, block in order(3, 4, 10, 1, True)] == [0] * 4 + [1] * 4 + [2] * 4
    tokens = RESIDENT_NUMBERS.value // 128 // 2  # of two ranks, or of two groups of them
    assert [block for _, block in order(3, 4, tokens, 1, True)] == [0, 0, 1, 1, 2, 2] * 2
    assert [block for _, block in order(3, 4, tokens, 2, True)] == [0] * 4 + [1] * 4 + [2] * 4
    assert [rank for rank, _ in order(3, 2, 10, 1, False)] == [0] * 3 + [1] * 3
