"""The pictures of docs/lengths-and-caches.md show what the page says."""

import pytest
import torch

import length_figures as figures
import whence


def test_padding_and_packing_give_each_text_its_own_distances():
    (alone,) = figures.record([3])
    (left,) = figures.record([5], key_mask=torch.tensor([[False, False, True, True, True]]))
    (right,) = figures.record([5], lengths=torch.tensor([3]))
    (packed,) = figures.record([5], segment_ids=torch.tensor([0, 0, 0, 1, 1]))
    for seen, rows in ((left, slice(2, 5)), (right, slice(0, 3)), (packed, slice(0, 3))):
        assert torch.equal(seen.distance[rows, rows], alone.distance)
        assert torch.equal(seen.visible[rows, rows], alone.visible) and seen.visible[rows].sum() == 6
    assert packed.k_positions.tolist() == [0, 1, 2, 0, 1]


def test_a_cache_gives_the_distances_of_one_pass():
    (whole,) = figures.record([5])
    calls = figures.record([3, 1, 1], whence.KVCache())
    assert [len(seen.k_positions) for seen in calls] == [3, 4, 5]
    for seen, (start, end) in zip(calls, ((0, 3), (3, 4), (4, 5)), strict=True):
        assert torch.equal(seen.distance, whole.distance[start:end, :end])
    sliding = figures.record([3, 1, 1], whence.KVCache(window=3), window=3)
    assert sliding[-1].k_positions[sliding[-1].visible[0]].tolist() == [2, 3, 4]


@pytest.mark.parametrize("kind, grows", [("context", False), ("query", False), ("sequence", True)])
def test_only_the_length_of_the_sequence_changes_earlier_weights(kind, grows):
    short, *longer = (figures.weights_of_query(kind, tokens) for tokens in figures.TEXTS)
    assert [torch.allclose(short, other) for other in longer] == [not grows, not grows]
    if grows:
        x = torch.zeros(1, 1, 2, 2)
        with pytest.raises(whence.WhenceError, match=r"sequence.*context"):
            whence.attend(x, x, x, position=figures.Share(length=kind), causal=True, cache=whence.KVCache())


def test_pictures_are_written(tmp_path, no_layout):
    figures.draw(tmp_path)
    pictures = {path.name for path in tmp_path.iterdir() if path.stat().st_size > 10_000}
    assert pictures == {"length-cases.png", "length-cache.png", "lengths.png"}
