"""The tasks ``places`` and ``votes``: an independent solver agrees with every target, and batches are reproducible."""

import json

import pytest
import torch

from whence.lab.tasks import IGNORE_INDEX, load
from whence_papers.epar.places import Places
from whence_papers.epar.votes import Votes


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def all_batches(task):
    yield task.context, task.train_batch(32, seeded(1))
    for split, length in task.splits().items():
        for batch in task.evaluation(split):
            yield length, batch


@pytest.mark.parametrize(("name", "make"), [("places", Places), ("votes", Votes)])
def test_task_follows_the_interface(name, make):
    task = load(name)  # by the entry point of this package
    assert type(task) is make and task.name == name
    assert (task.kind, task.metric, task.higher_is_better, task.num_classes) == ("retrieve", "accuracy", True, None)
    assert list(task.splits())[:3] == ["test", "2x", "4x"] and task.splits()["test"] == task.context
    assert json.loads(json.dumps(task.settings, allow_nan=False)) == task.settings
    assert task.settings["task"] == name and len(task.settings["data_hash"]) == 16
    for length, batch in all_batches(task):
        assert batch.tokens.dtype == batch.targets.dtype == torch.int64
        assert batch.tokens.shape == batch.targets.shape == (len(batch.tokens), length)
        assert batch.tokens.min() >= 0 and batch.tokens.max() < task.vocab_size
        targets = batch.targets[batch.targets != IGNORE_INDEX]
        assert len(targets) and targets.min() >= 0 and targets.max() < task.vocab_size
    test_rows = {tuple(row) for batch in task.evaluation("test") for row in batch.tokens.tolist()}
    for example in task.examples(3):
        assert tuple(example.tokens[0].tolist()) in test_rows
        texts = task.decode(example.tokens[0])
        assert len(texts) == task.context and all(text and "\n" not in text for text in texts)


@pytest.mark.parametrize("name", ["places", "votes"])
def test_batches_follow_the_generator(name):
    task, generator = load(name), seeded(3)
    first, second = task.train_batch(8, generator), task.train_batch(8, generator)
    assert torch.equal(first.tokens, task.train_batch(8, seeded(3)).tokens)
    assert not torch.equal(first.tokens, second.tokens)
    torch.manual_seed(0)  # the global generator has no influence
    assert torch.equal(first.targets, task.train_batch(8, seeded(3)).targets)


@pytest.mark.parametrize(("name", "data_hash"), [("places", "0fae4658471c6f6d"), ("votes", "c32e6d826f68fda3")])
def test_every_process_generates_the_same_data(name, data_hash):
    assert load(name).settings["data_hash"] == data_hash  # computed once, in another process


def solve_places(row, symbols):
    """Read the cue, then take the last symbol, the marked one or the first."""
    cue, *symbols_in_row, asking = row
    assert asking == 2 * symbols + 3
    marked = [token - symbols for token in symbols_in_row if token >= symbols]
    assert len(marked) == 1 and all(token < 2 * symbols for token in symbols_in_row)
    return (symbols_in_row[-1] % symbols, marked[0], symbols_in_row[0] % symbols)[cue - 2 * symbols]


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
        task = load("places", count=16, symbols=4, items=32, kind="anywhere", band=band, longest=1)
        assert list(task.splits()) == ["test"]
        batch = task.train_batch(500, seeded(3))
        assert (task.kinds(batch.tokens) == 1).all()
        assert [solve_places(row, 4) for row in batch.tokens.tolist()] == batch.targets[:, -1].tolist()
        places = task.marked(batch.tokens).nonzero()[:, 1] - 1  # behind the cue
        assert set(places.tolist()) == set(range(first, last + 1))


def solve_votes(row, weights):
    """Add up by hand."""
    total = sum(weight * {"+": 1, "-": -1}.get(sign, 0) for sign, weight in zip(row, weights, strict=True))
    return "+" if total > 0 else "-"


@pytest.mark.parametrize("structure", ["near", "waves", "blocks", "random", "flat"])
def test_the_heavier_side_wins(structure):
    task = load("votes", length=24, votes=5, structure=structure, items=64)
    for length, batch in all_batches(task):
        weights = task.weights(length - 1).tolist()
        assert batch.tokens.shape == (len(batch.tokens), length) and (batch.targets[:, :-1] == IGNORE_INDEX).all()
        for tokens, target in zip(batch.tokens, batch.targets[:, -1:], strict=True):
            *row, question = task.decode(tokens)
            assert question == "?" and len(row) - row.count(".") == 5
            if target != IGNORE_INDEX:  # both sides weigh the same
                assert [solve_votes(row, weights)] == task.decode(target)
    targets = task.train_batch(2000, seeded(1)).targets[:, -1]
    sides = targets[targets != IGNORE_INDEX].bincount()[2:]
    assert sides.sum() > 1950 and (sides - 1000).abs().max() < 120  # no side is the better guess


def test_the_weights_are_what_they_are_called():
    places = {
        name: load("votes", length=32, structure=name).weights(32) for name in ("near", "blocks", "flat", "waves")
    }
    assert (places["near"].diff() > 0).all()  # the last place is the nearest to the question
    assert len(places["blocks"].unique()) == 8 and (places["flat"] == 1).all()
    assert 0 < places["waves"].argmin() < 31


def test_every_question_is_about_the_positions_before_it():
    task = load("votes", length=26, votes=5, run=3, questions=4, longest=2, items=64)
    assert list(task.splits()) == ["test", "2x"]
    for length, batch in all_batches(task):
        by_distance = task.weights(length - 1).flip(0).tolist()
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            row = task.decode(tokens)
            question_positions = [place for place, sign in enumerate(row) if sign == "?"]
            assert (
                len(question_positions) == 4
                and question_positions[-1] == length - 1
                and question_positions[0] >= (length - 1) // 2
            )
            answered = [place for place, target in enumerate(targets) if target != IGNORE_INDEX]
            assert set(answered) <= set(question_positions) and len(answered) >= 3  # few have no vote before them
            for place in answered:
                before = row[:place][::-1]
                assert solve_votes(before, by_distance[:place]) == task.decode([targets[place]])[0]


def test_a_vote_fills_every_position_of_its_run():
    task = load("votes", length=26, votes=5, run=3, items=64)
    for tokens in task.evaluation("test")[0].tokens:
        *row, question = task.decode(tokens)
        runs = ["".join(row[place : place + 3]) for place in range(0, 24, 3)]
        assert question == "?" and row[24:] == [".", "."]
        assert len([run for run in runs if run != "..."]) == 5 and set(runs) <= {"...", "+++", "---"}


def test_a_question_without_votes_has_no_target():
    task = load("votes", length=16, votes=1, questions=8, structure="flat")
    batch = task.train_batch(200, seeded(4))
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        for place in range(8, 17):
            row = task.decode(tokens[: place + 1])
            if row[-1] == "?":
                empty = not {"+", "-"} & set(row)
                assert (targets[place] == IGNORE_INDEX) == empty


def test_shuffled_and_flipped_votes_are_not_determined_by_the_weights():
    for settings, low, high in (
        ({"order": "shuffled"}, 0.55, 0.95),
        ({"noise": 0.3}, 0.55, 0.95),
        ({"noise": 0.5}, 0.4, 0.6),
    ):
        task = load("votes", length=24, votes=5, **settings)
        batch = task.train_batch(1000, seeded(3))
        weights = task.weights(24).tolist()
        rows = [task.decode(tokens)[:-1] for tokens in batch.tokens]
        right = [
            solve_votes(row, weights) == task.decode([t])[0] for row, t in zip(rows, batch.targets[:, -1], strict=True)
        ]
        assert low < sum(right) / 1000 < high
