"""The order in which the programs of a kernel take their blocks: each once, and long blocks of a causal call first."""

from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl

from whence.attention.fused.packing import next_power_of_two
from whence.attention.fused.tile_ops import RESIDENT_NUMBERS, place_of

pytestmark = pytest.mark.usefixtures("interpreted")


def order_kernel(
    PLACES, programs, blocks, tokens, COLUMNS: tl.constexpr, GROUP: tl.constexpr, LONGEST_FIRST: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """The places of all programs."""
    program = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    rank, place = place_of(program, programs, blocks, tokens, COLUMNS, GROUP, LONGEST_FIRST)
    tl.store(PLACES + program * 2, rank, mask=program < programs)
    tl.store(PLACES + program * 2 + 1, place, mask=program < programs)


def compute_places(blocks, ranks, tokens, group, longest_first):
    programs = blocks * ranks
    places = torch.full((programs, 2), -1)
    kernel = triton.jit(order_kernel)  # interpreted, as the fixture says
    size = min(next_power_of_two(programs), 2**20)
    grid = (triton.cdiv(programs, size),)
    kernel[grid](places, programs, blocks, tokens, COLUMNS=128, GROUP=group, LONGEST_FIRST=longest_first, SIZE=size)
    return places


def order(*about):
    return [tuple(x) for x in compute_places(*about).tolist()]


@pytest.mark.parametrize(
    "blocks, ranks, tokens, group",
    [(1, 1, 1, 1), (5, 6, 7, 3), (300, 14, 30_000, 2), (400, 7, 2**30, 1), (401, 6, 2**30, 3)],
)
def test_every_block_once(blocks, ranks, tokens, group):
    for longest_first in (False, True):
        places = order(blocks, ranks, tokens, group, longest_first)
        assert sorted(places) == [(rank, block) for rank in range(ranks) for block in range(blocks)]


def test_many_short_sequences():
    """With sections as small as the cache would have them, groups times sections would exceed 32 bits."""
    ranks = 2**21
    places = compute_places(1, ranks, 64, 1, True)
    assert torch.equal(places[:, 0].sort().values, torch.arange(ranks)) and not places[:, 1].any()


def count_sections(places):
    """How often the order begins again with the first block."""
    return 1 + sum(later < earlier for (_, earlier), (_, later) in pairwise(places))


def test_long_blocks_first():
    """Over all ranks where the cache holds what they read, or where there are few programs; else over a part of them."""
    assert [block for _, block in order(3, 4, 10, 1, True)] == [0] * 4 + [1] * 4 + [2] * 4
    assert [rank for rank, _ in order(3, 2, 10, 1, False)] == [0] * 3 + [1] * 3
    tokens = RESIDENT_NUMBERS.value // 128 // 2  # of two ranks, or of two groups of them
    assert count_sections(order(1024, 6, tokens, 1, True)) == 3
    assert count_sections(order(1024, 6, tokens, 3, True)) == 1
    assert count_sections(order(512, 6, 100 * tokens, 1, True)) == 3  # 1024 programs each
    assert count_sections(order(79, 8, tokens, 1, True)) == 1  # two ranks would not fill a GPU
