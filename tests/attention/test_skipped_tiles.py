"""Tiles of blockwise leave out the keys that padding and packed segments hide from all their rows."""

import pytest
import torch

from whence import Alibi, Epar, Sink, attend
from whence.attention import blockwise_kernel
from whence.attention.toeplitz import Span

B, H, G, T, D = 2, 2, 1, 70, 4
ROW = torch.arange(T)
MASKS = {
    "segments": {"segment_ids": torch.stack([ROW // 20, ROW // 33])},
    "the same segments in every sequence": {"segment_ids": (5 - ROW // 20)},
    "left padding, and a row of padding": {"key_mask": torch.tensor([[41], [T]]) <= ROW},
    "lengths": {"lengths": torch.tensor([17, 50])},
    "segments and padding": {"segment_ids": ROW // 35, "key_mask": (ROW > 3) & (ROW % 35 < 20) & torch.ones(B, 1, dtype=bool)},
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "options", [{"causal": True}, {}, {"causal": True, "window": 11}], ids=["causal", "both", "window"]
)
def test_output_and_gradients_are_those_of_the_reference(mask, options, monkeypatch):
    monkeypatch.setattr(blockwise_kernel, "BLOCK", 16)
    monkeypatch.setattr(blockwise_kernel, "TILE", 1)  # each sequence has tiles of its own
    torch.manual_seed(0)
    position = (Alibi(H, form="symmetric", learnable=True) + Epar(H, learnable=True) + Sink(H)).double()
    leaves = [torch.randn(B, heads, T, D, dtype=torch.float64, requires_grad=True) for heads in (H, G, G)]
    results, parameters = {}, list(position.parameters())
    for backend in ("reference", "blockwise"):
        out = attend(*leaves, position=position, backend=backend, **options, **MASKS[mask])
        results[backend] = [out, *torch.autograd.grad(out.square().sum(), [*leaves, *parameters])]
    for got, exact in zip(results["blockwise"], results["reference"], strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("tile", [1, 1 << 21])
def test_the_work_shrinks(tile, monkeypatch):
    monkeypatch.setattr(blockwise_kernel, "TILE", tile)
    q, k = torch.zeros(B, H, 512, D), torch.zeros(B, G, 512, D)
    span, at = Span(512, 512, 0, True, None), torch.arange(512)

    def area(**about):
        names = ("score_scale", "bias", "sink", "q_clock", "k_clock", "real", "q_segment_ids", "k_segment_ids")
        plan = blockwise_kernel.BlockPlan(q, k, span, blockwise_kernel.Tables(**dict.fromkeys(names) | about))
        tiles = [tile for groups in plan.head_groups() for tile in plan.tiles(groups)]
        sizes = ((x.batch, x.rows, x.keys) for x in tiles)
        return sum((b.stop - b.start) * (r.stop - r.start) * (s.stop - s.start) for b, r, s in sizes)

    ids = (at // 128)[None]
    whole = B * 128 * (128 + 256 + 384 + 512)
    assert area() == whole
    assert area(q_segment_ids=ids, k_segment_ids=ids) == B * 512 * 128
    assert area(real=(at >= 384).expand(B, -1)) == B * 128 * 128  # three of four blocks of rows see padding only
    assert area(real=torch.zeros(B, 512, dtype=torch.bool)) == 0
