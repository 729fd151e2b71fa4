"""Regions: distances of the papers, one softmax over all regions, the identity settings, caches and refusals."""

import pytest
import torch

from whence import (
    Alibi,
    AxialRotary,
    DualChunkRotary,
    KVCache,
    LogTemperature,
    Pope,
    Rotary,
    SelfExtendRotary,
    StringRotary,
    WhenceError,
    attend,
)
from whence.position.regions import pair_distances

MECHANISMS = {
    "self-extend": SelfExtendRotary(group=2, window=4),
    "dual-chunk": DualChunkRotary(chunk=8, window=2),
    "string": StringRotary(shift=5, window=2),
}
T = 14


def qkv(groups=4):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, T, 8), (2, groups, T, 8), (2, groups, T, 5)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def rotated_distances(position, i, length):
    """The distance to which the query at i and each key are rotated."""
    found = torch.full((length,), -1)
    for region in position.regions(torch.tensor([[i]]), torch.arange(length)[None]):
        own = pair_distances(region.q_positions, region.k_positions)[0, 0]
        found = torch.where(region.where[0, 0], own, found)
    return found.tolist()


@pytest.mark.parametrize(
    "position, i, wanted",
    [
        (SelfExtendRotary(group=4, window=8), 20, {20: 0, 13: 7, 12: 8, 11: 9, 8: 9, 0: 11}),
        (DualChunkRotary(chunk=8, window=2), 13, dict(enumerate([8, 7, 6, 5, 4, 3, 7, 6, 5, 4, 3, 2, 1, 0]))),
        (DualChunkRotary(chunk=8, window=2), 8, {j: 8 - j for j in range(9)}),
        (StringRotary(shift=5, window=2), 9, dict(enumerate([6, 5, 4, 3, 2, 4, 3, 2, 1, 0]))),
    ],
)
def test_the_distances_of_the_papers(position, i, wanted):
    found = rotated_distances(position, i, i + 1)
    assert {j: found[j] for j in wanted} == wanted


@pytest.mark.parametrize("name", MECHANISMS)
def test_one_softmax_equals_attention_per_region_merged_by_log_sum_exp(name):
    position = MECHANISMS[name]
    q, k, v = qkv()
    at, outs, totals = torch.arange(T)[None], [], []
    for region in position.regions(at, at):
        turned = Rotary().rotate(q, k, region.q_positions, region.k_positions)
        scores = (turned[0] @ turned[1].mT * 8**-0.5).masked_fill(~region.where, -torch.inf)
        totals.append(scores.logsumexp(-1, keepdim=True))
        outs.append(torch.softmax(scores, -1).nan_to_num() @ v)
    shares = torch.softmax(torch.stack(totals), 0)
    merged = (shares * torch.stack(outs)).sum(0)
    for backend in ("reference", "blockwise"):
        torch.testing.assert_close(attend(q, k, v, position=position, causal=True, backend=backend), merged)
    cache = KVCache()
    steps = [
        attend(*(x[:, :, t : t + 1] for x in (q, k, v)), position=position, causal=True, cache=cache) for t in range(T)
    ]
    torch.testing.assert_close(torch.cat(steps, 2), merged)


@pytest.mark.parametrize(
    "position",
    [SelfExtendRotary(group=1, window=3), DualChunkRotary(chunk=T, window=2), StringRotary(shift=4, window=4)],
)
def test_the_identity_setting_is_rotary(position):
    q, k, v = qkv(groups=2)
    wanted = attend(q, k, v, position=Rotary() + Alibi(4), causal=True)
    torch.testing.assert_close(attend(q, k, v, position=position + Alibi(4), causal=True), wanted)


@pytest.mark.parametrize("other", [Rotary(), AxialRotary((2, 7)), Pope(8), SelfExtendRotary(group=2, window=4)])
def test_a_second_rotation_is_refused(other):
    for total in (lambda: MECHANISMS["string"] + other, lambda: other + MECHANISMS["string"]):
        with pytest.raises(WhenceError, match=r"StringRotary.* beside .*(must rotate once|replaces the columns).*"):
            total()
    q, k, v = qkv()  # a part that only scales queries rotates nothing
    attend(q, k, v, position=MECHANISMS["string"] + LogTemperature(original=4), causal=True)


def test_the_fused_kernel_and_wrong_sizes_are_refused():
    q, k, v = (x.float() for x in qkv())
    with pytest.raises(WhenceError, match=r"triton.*content_bias.*use backend"):
        attend(q, k, v, position=MECHANISMS["string"], causal=True, backend="triton")
    with pytest.raises(WhenceError, match=r"SelfExtendRotary\(window=\.\.\.\) got 5 with group=2.*pass window=4"):
        SelfExtendRotary(group=2, window=5)
    with pytest.raises(WhenceError, match=r"DualChunkRotary\(window=\.\.\.\) got 8 with chunk=8.*below 8"):
        DualChunkRotary(chunk=8, window=8)
    with pytest.raises(WhenceError, match=r"StringRotary\(window=\.\.\.\) got 6 with shift=5.*at most 5"):
        StringRotary(shift=5, window=6)
