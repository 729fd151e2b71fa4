"""Made-up tasks can be solved by hand with every answer right, at every length."""

import pytest
import torch

from whence import WhenceError
from whence.lab.tasks import IGNORE_INDEX, load


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def all_batches(task):
    yield task.context, task.train_batch(32, seeded(1))
    for split, length in task.splits().items():
        for batch in task.evaluation(split):
            yield length, batch


def solve_retrieval(row):
    """Look the last token up among the keys, which stand at even places."""
    *pairs, asked = row
    keys, values = pairs[0::2], pairs[1::2]
    assert len(set(keys)) == len(keys)
    return values[keys.index(asked)]


def test_retrieval_has_one_right_answer_at_the_last_place():
    task = load("retrieval", pairs=6, keys=48, values=5, items=64)
    for length, batch in all_batches(task):
        assert batch.tokens.shape == batch.targets.shape == (len(batch.tokens), length)
        assert batch.key_mask is None
        assert (batch.targets[:, :-1] == IGNORE_INDEX).all()
        assert [solve_retrieval(row) for row in batch.tokens.tolist()] == batch.targets[:, -1].tolist()


def test_retrieval_asks_at_every_depth_and_for_every_value():
    batch = load("retrieval", pairs=4, keys=32, values=4).train_batch(2000, seeded(2))
    places = (batch.tokens[:, :-1] == batch.tokens[:, -1:]).nonzero()[:, 1]
    for actual, expected in ((places.bincount()[0::2], 500), (batch.targets[:, -1].bincount()[32:], 500)):
        assert len(actual) == 4
        assert (actual - expected).abs().max() < 100  # five standard deviations


def test_copy_asks_for_the_string_from_the_separator_on():
    task = load("copy", string=5, symbols=3, items=40)
    for length, batch in all_batches(task):
        half = length // 2
        assert batch.tokens.shape == batch.targets.shape == (len(batch.tokens), length)
        assert (batch.targets[:, :half] == IGNORE_INDEX).all()
        assert torch.equal(batch.targets[:, half:], batch.tokens[:, :half])
        assert (batch.tokens[:, half] == task.vocab_size - 1).all()
        # what is asked at a place is what stands at the next: a next-token model without a shift of its own
        assert torch.equal(batch.targets[:, half:-1], batch.tokens[:, half + 1 :])


def solve_recall(row, symbols):
    """The latest mark so far at each unmarked token."""
    latest, answers = None, []
    for token in row:
        latest = token - symbols if token >= symbols else latest
        answers.append(IGNORE_INDEX if token >= symbols else latest)
    return answers


def test_recall_asks_for_the_latest_mark_in_the_last_tokens():
    task = load("recall", tokens=6, symbols=3, interval=3, items=40)
    for length, batch in all_batches(task):
        assert batch.tokens.shape == batch.targets.shape == (len(batch.tokens), length)
        assert (batch.targets[:, : length - 6] == IGNORE_INDEX).all()
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            assert tokens[0] >= 3 > tokens[-1]  # there is a mark, and a token that asks for it
            assert targets[-6:] == solve_recall(tokens, 3)[-6:]


def test_recall_marks_one_token_in_interval():
    batch = load("recall", tokens=32, symbols=8, interval=4).train_batch(400, seeded(2))
    share = (batch.tokens[:, 1:-1] >= 8).double().mean()
    assert abs(share - 0.25) < 0.02  # five standard deviations


def test_every_item_is_scored():
    for name in ("retrieval", "copy", "recall"):
        task = load(name, items=300)
        assert {sum(len(batch.tokens) for batch in task.evaluation(split)) for split in task.splits()} == {300}


def test_another_seed_makes_another_evaluation():
    first, second = load("copy", seed=0), load("copy", seed=1)
    assert first.settings["data_hash"] != second.settings["data_hash"]
    assert not torch.equal(first.evaluation("2x")[0].tokens, second.evaluation("2x")[0].tokens)


def test_tokens_by_name():
    task = load("retrieval", pairs=1, keys=8, values=2)
    assert task.decode([0, 8, 7, 9]) == ["k0", "v0", "k7", "v1"]
    assert load("copy", symbols=2).decode(torch.tensor([0, 1, 2])) == ["s0", "s1", "|"]
    assert load("recall", symbols=2).decode(torch.tensor([0, 3])) == ["s0", "[s1]"]


@pytest.mark.parametrize(
    "name, settings, parts",
    [
        ("retrieval", {"pairs": 8, "keys": 32}, ("keys=32", "pairs=8", "keys=64")),
        ("retrieval", {"pairs": 0}, ("pairs=0", "at least 1")),
        ("copy", {"symbols": 1}, ("symbols=1", "at least 2")),
    ],
)
def test_settings_that_make_no_task(name, settings, parts):
    with pytest.raises(WhenceError) as error:
        load(name, **settings)
    assert all(part in str(error.value) for part in (f"task '{name}'", *parts))


def test_generated_tasks_have_no_epochs():
    with pytest.raises(WhenceError) as error:
        load("copy").epoch(4, seeded(0))
    assert "copy.epoch" in str(error.value) and "train_batch" in str(error.value)
