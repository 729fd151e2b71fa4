"""The mixture of near, anywhere and far can be solved by hand, and only the cue tells the three apart."""

import torch

from whence.lab.tasks import IGNORE_INDEX, load


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def all_batches(task):
    yield task.context, task.train_batch(32, seeded(1))
    for split, length in task.splits().items():
        for batch in task.evaluation(split):
            yield length, batch


def solve_places(row, symbols):
    """Read the cue, then take the last symbol, the marked one or the first."""
    cue, *shown, asking = row
    assert asking == 2 * symbols + 3
    marked = [token - symbols for token in shown if token >= symbols]
    assert len(marked) == 1 and all(token < 2 * symbols for token in shown)
    return (shown[-1] % symbols, marked[0], shown[0] % symbols)[cue - 2 * symbols]


def test_places_has_one_right_answer_that_the_cue_decides():
    task = load("places", count=5, symbols=4, items=64)
    for length, batch in all_batches(task):
        assert batch.tokens.shape == batch.targets.shape == (len(batch.tokens), length)
        assert (batch.targets[:, :-1] == IGNORE_INDEX).all()
        assert [solve_places(row, 4) for row in batch.tokens.tolist()] == batch.targets[:, -1].tolist()
    batch = task.train_batch(3000, seeded(3))
    kinds = task.kinds(batch.tokens)
    assert (kinds.bincount() - 1000).abs().max() < 130  # five standard deviations
    for kind in range(3):  # nothing but the cue tells the kinds apart
        marks = task.marked(batch.tokens[kinds == kind]).float().mean(0)
        assert marks[0] == marks[-1] == 0 and (marks[1:-1] - 0.2).abs().max() < 0.07
    assert task.decode([0, 5, 8, 9, 10, 11]) == ["s0", "S1", "near", "anywhere", "far", "?"]


def test_the_mark_stands_in_its_band():
    for band, first, last in (("any", 0, 15), ("near", 12, 15), ("middle", 6, 9), ("far", 0, 3)):
        task = load("places", count=16, symbols=4, items=32, asked="anywhere", band=band, longest=1)
        assert list(task.splits()) == ["test"]
        batch = task.train_batch(500, seeded(3))
        assert (task.kinds(batch.tokens) == 1).all()
        assert [solve_places(row, 4) for row in batch.tokens.tolist()] == batch.targets[:, -1].tolist()
        places = task.marked(batch.tokens).nonzero()[:, 1] - 1  # behind the cue
        assert set(places.tolist()) == set(range(first, last + 1))
