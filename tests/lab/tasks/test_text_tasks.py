"""Tasks on Python's own text: targets in their places, nothing of the test part in training."""

import pytest
import torch

from whence import WhenceError
from whence.lab.data import python_texts
from whence.lab.data.tokenizers import ByteTokenizer, WordTokenizer
from whence.lab.tasks import IGNORE_INDEX, load
from whence.lab.tasks.classification import SOURCES
from whence.lab.tasks.language_modelling import LanguageModelling


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def topics():
    return load("topics")


@pytest.fixture(scope="module")
def sources():
    return load("sources")


@pytest.fixture(scope="module")
def library():
    return python_texts.library("test")


class Counting(LanguageModelling):
    """A stream in which every token says where it stands."""

    name = "counting"

    def __init__(self, train=1000, test=1000, context=8, blocks=5):
        units = WordTokenizer([str(number) for number in range(2000)])
        super().__init__(torch.arange(train), torch.arange(test), units, context, blocks, {})


def test_topics_train_targets_are_the_next_tokens(topics):
    for batch in (topics.train_batch(16, seeded(0)), next(topics.epoch(16, seeded(0)))):
        assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:])
    task = Counting()
    batch = task.train_batch(500, seeded(0))
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert batch.tokens.min() == 0 and batch.targets.max() == 999


@pytest.mark.parametrize("task", [Counting(), Counting(test=100, blocks=1000), Counting(test=65, blocks=3)])
def test_the_same_tokens_are_scored_at_every_length(task):
    scored = {}
    for split, length in task.splits().items():
        batches = task.evaluation(split)
        for batch in batches:
            is_target = batch.targets != IGNORE_INDEX
            assert (is_target.sum(1) == task.context).all()
            assert is_target[:, -task.context :].all()
            assert torch.equal(batch.targets[is_target], batch.tokens[is_target] + 1)
            # a longer input is the same text with more before it, and nothing missing in between
            assert torch.equal(batch.tokens, batch.tokens[:, :1] + torch.arange(length))
        scored[split] = torch.cat([batch.targets[batch.targets != IGNORE_INDEX] for batch in batches]).tolist()
    assert scored["test"] == scored["2x"] == scored["4x"] == scored["8x"]
    assert len(set(scored["test"])) == len(scored["test"])  # no token twice


def test_topics_scores_the_same_tokens_too(topics):
    scored = [
        torch.cat([batch.targets[:, -topics.context :] for batch in topics.evaluation(split)])
        for split in topics.splits()
    ]
    assert all(torch.equal(scored[0], other) for other in scored[1:])
    assert scored[0].shape == (128, 64)


def test_an_epoch_reads_everything_once():
    task = Counting(train=103)
    for seed in range(5):
        batches = list(task.epoch(5, seeded(seed)))
        read = sorted(torch.cat([batch.tokens.flatten() for batch in batches]).tolist())
        assert read == list(range(read[0], read[-1] + 1))
        assert read[0] < task.context and read[-1] >= 102 - task.context
    assert [len(batch.tokens) for batch in batches][:2] == [5, 5]


def test_topics_share_no_topic_and_no_paragraph():
    parts = python_texts.topics("test")
    assert not parts.train.keys() & parts.test.keys()
    train, test = (
        [bare for text in side.values() for bare, _ in python_texts.paragraphs(text)]
        for side in (parts.train, parts.test)
    )
    assert not set(train) & set(test)
    assert len(set(train)) == len(train) and len(set(test)) == len(test)
    share = sum(map(len, parts.test.values())) / sum(map(len, [*parts.train.values(), *parts.test.values()]))
    assert 0.1 < share < 0.4


def test_topics_in_words():
    task = load("topics", units="words", words=500, context=16, blocks=8)
    assert task.vocab_size == 500
    assert task.splits() == {"test": 16, "2x": 32, "4x": 64, "8x": 128}
    train = task.train.bincount(minlength=500)
    assert train[0] == 0  # nothing is padded
    assert (train[2:] > 0).all()  # the vocabulary is the training part's, the most frequent first
    assert train[2:].tolist() == sorted(train[2:].tolist(), reverse=True)
    assert "<unk>" in task.decode(task.test)


def test_bytes_come_back():
    text = "naïve “quotes”\n\tend"
    tokens = ByteTokenizer().encode(text)
    assert bytes(tokens.tolist()).decode() == text
    assert ByteTokenizer().decode([65, 10, 9, 0xE2]) == ["A", "\\n", "\\t", "\\xe2"]
    assert len(ByteTokenizer().encode("")) == 0


def test_sources_files_are_on_one_side(library):
    code, docstrings = library
    for part in library:
        assert not part.train.keys() & part.test.keys()
    assert code.train.keys() == docstrings.train.keys() and code.test.keys() == docstrings.test.keys()
    assert "Bisection algorithms" in {**docstrings.train, **docstrings.test}["bisect.py"]
    assert "Bisection algorithms" not in {**code.train, **code.test}["bisect.py"]
    assert "def bisect_left(" in {**code.train, **code.test}["bisect.py"]


def test_sources_are_balanced_and_whole(sources):
    assert sources.num_classes == len(SOURCES) == 3
    for labels in (sources.train.labels, *(items.labels for items in sources.tests.values())):
        assert len(set(labels.bincount().tolist())) == 1
    assert len(sources.train.labels) == sources.settings["train_items"] > 1500
    assert len(sources.tests["test"].labels) == sources.settings["test_items"] == 600
    assert (sources.train.tokens != 0).all()
    assert sources.train_batch(4, seeded(0)).key_mask is None


def test_sources_longer_inputs_read_on(sources):
    short, middle, long = (
        torch.cat([batch.tokens for batch in sources.evaluation(split)]) for split in ("test", "2x", "4x")
    )
    assert torch.equal(long[:, :64], middle) and torch.equal(middle[:, :32], short)


def test_sources_share_almost_no_snippet(sources):
    # no file is shared; what is left would be boilerplate that files have in common
    train = set(map(tuple, sources.train.tokens.tolist()))
    shared = sum(tuple(row) in train for row in sources.tests["test"].tokens.tolist())
    assert shared <= 0.01 * len(sources.tests["test"].labels)


def test_word_counts_separate_the_sources(sources):
    """Naive Bayes on single words: far better than chance, so the labels belong to the texts."""
    counts = torch.ones(3, sources.vocab_size)
    for label in range(3):
        counts[label] += (
            sources.train.tokens[sources.train.labels == label].flatten().bincount(minlength=sources.vocab_size)
        )
    logs = (counts / counts.sum(1, keepdim=True)).log()
    right = [(logs[:, batch.tokens].sum(2).argmax(0) == batch.targets).float() for batch in sources.evaluation("test")]
    assert torch.cat(right).mean() > 0.7


def test_an_epoch_of_sources_is_the_training_set(sources):
    rows = torch.cat([batch.tokens for batch in sources.epoch(64, seeded(1))])
    assert sorted(rows.tolist()) == sorted(sources.train.tokens.tolist())


@pytest.mark.parametrize(
    "build, text",
    [
        (
            lambda: load("topics", units="letters"),
            "task 'topics' got units='letters', but it is one of 'bytes', 'words'; give one of them.",
        ),
        (
            lambda: load("topics", context=100_000),
            "task 'topics' got {test} tokens of test text, but a context of 100000 needs 800001; "
            "give a smaller context or more text.",
        ),
        (lambda: Counting(train=8), "task 'counting' got 8 tokens of training text, but a context of 8 needs 9; "
         "give a smaller context or more text."),
        (
            lambda: load("sources", context=50_000),
            "task 'sources' got context=50000, but every source needs a text 8 times as long; give a smaller one.",
        ),
    ],
)  # fmt: skip
def test_settings_that_make_no_task(topics, build, text):
    with pytest.raises(WhenceError) as error:
        build()
    assert str(error.value).partition(", but ")[0] == text.format(test=len(topics.test)).partition(", but ")[0]
