"""Tasks on real files, where a data folder is given."""

import json
import os
from pathlib import Path

import pytest
import torch

from whence.lab.tasks import load

pytestmark = pytest.mark.skipif(
    "WHENCE_DATA" not in os.environ, reason="WHENCE_DATA is not set: no real data to test on"
)


def present(path):
    if not (Path(os.environ["WHENCE_DATA"]) / path).exists():
        pytest.skip(f"no {path} in the folder of WHENCE_DATA")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_wikitext2_on_its_validation_part():
    present("wikitext2/valid.txt")
    task = load("wikitext2", train_part="valid", blocks=32)
    assert len(task.train) == 217_646  # the published count of the validation part, ends of lines included
    assert len(task.test) == 245_569
    assert task.decode([1]) == ["<unk>"]
    check(task)


def test_books():
    present("books/train.txt.xz")
    task = load("books", characters=200_000, context=32, blocks=16)
    assert task.vocab_size == 256 and len(task.train) >= 200_000
    check(task)


def test_sst2():
    present("glue/SST-2/train_full.tsv")
    task = load("sst2")
    assert len(task.train.labels) == 67349 and task.vocab_size == 10_000
    assert len(torch.cat([batch.targets for batch in task.evaluation("dev")])) == 872
    check(task)


def check(task):
    """Bounds, shapes, shift and settings."""
    json.dumps(task.settings, allow_nan=False)
    batch = task.train_batch(4, seeded(0))
    assert torch.equal(batch.tokens, task.train_batch(4, seeded(0)).tokens)
    if task.kind == "lm":
        assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:])
    for split, length in task.splits().items():
        for batch in task.evaluation(split):
            assert batch.tokens.shape[1] == length
            assert batch.tokens.min() >= 0 and batch.tokens.max() < task.vocab_size
    assert len(task.decode(task.examples(2)[0].tokens)) == task.context
