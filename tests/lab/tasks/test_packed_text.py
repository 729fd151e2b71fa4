"""Packed documents: segments, targets, epochs, evaluation blocks, and a model that never sees another document."""

import json

import pytest
import torch

from whence.errors import WhenceError
from whence.lab.arms import Arm
from whence.lab.data.prepare import PrepareSettings, prepare_tokens
from whence.lab.tasks import IGNORE_INDEX, load
from whence.lab.tasks.packed_text import SEGMENTS
from whence.lab.training import seed_generator

pytest.importorskip("tokenizers")
CONTEXT = 16
MODEL = {"embed_dim": 8, "heads": 2, "layers": 1, "ffn_dim": 8, "dropout": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("packed")
    path = base / "pages.jsonl"
    texts = [f"{n}: " + "some words of this page, " * (n % 4 + 1) for n in range(60)]
    texts += [f"long {n}: " + "many more words than others have " * 60 for n in range(20)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare_tokens([str(path)], base / "tokens", PrepareSettings(vocab_size=300, held_out=0.1))
    return base / "tokens"


@pytest.fixture(scope="module")
def task(folder):
    return load("packed_text", path=str(folder), context=CONTEXT, blocks=8)


def all_batches(task):
    return [
        task.train_batch(32, seed_generator(0, 0)),
        *task.epoch(8, seed_generator(0, 0)),
        *task.evaluation("validation"),
    ]


def test_segments_change_after_each_end_of_text_and_nothing_is_predicted_across(task):
    end = task.folder.manifest["end_token"]
    crossings = 0
    for batch in all_batches(task):
        segments = batch.extras[SEGMENTS]
        at_end = batch.tokens == end
        assert torch.equal(segments[:, 1:] - segments[:, :-1], at_end[:, :-1].long())
        assert (segments[:, 0] == 0).all()
        assert torch.equal(batch.targets == IGNORE_INDEX, at_end)
        inside = batch.targets[:, :-1] != IGNORE_INDEX
        assert torch.equal(batch.targets[:, :-1][inside], batch.tokens[:, 1:][inside])
        crossings += int(at_end.sum())
    assert crossings > 20


def test_an_epoch_has_every_training_token_once_in_another_order_each_time(task):
    first, again, other = (
        torch.cat([batch.tokens for batch in task.epoch(8, seed_generator(seed, 0))]) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    counts = first.flatten().bincount(minlength=task.vocab_size)
    all_counts = task.train.long().bincount(minlength=task.vocab_size)
    assert first.numel() > len(task.train) - 2 * CONTEXT
    assert (counts <= all_counts).all() and int((all_counts - counts).sum()) <= 2 * CONTEXT


def test_batches_depend_on_the_seed_alone_so_arms_share_them(task, folder):
    other = load("packed_text", path=str(folder), context=CONTEXT, blocks=8)
    pair = [one.train_batch(4, seed_generator(3, 7)) for one in (task, other)]
    assert torch.equal(pair[0].tokens, pair[1].tokens) and torch.equal(pair[0].targets, pair[1].targets)
    assert not torch.equal(pair[0].tokens, task.train_batch(4, seed_generator(4, 7)).tokens)


def test_a_document_is_computed_as_if_it_were_alone(task):
    model = task.build_model(MODEL, Arm("rotary", "Rotary()"), 0).eval()
    batch = task.train_batch(32, seed_generator(0, 0))
    segments = batch.extras[SEGMENTS]
    row = int((segments[:, -1] == 1).nonzero()[0])
    second = segments[row] == 1
    with torch.no_grad():
        packed = task.logits(model, batch)[row, second]
        alone = model(batch.tokens[row : row + 1, second])[0]
    torch.testing.assert_close(packed, alone)


def test_without_the_mask_a_document_sees_the_one_before(folder):
    task = load("packed_text", path=str(folder), context=CONTEXT, blocks=8, mask_documents=False)
    batch = task.train_batch(4, seed_generator(0, 0))
    assert not batch.extras and (batch.targets == IGNORE_INDEX).sum() == (batch.tokens == 0).sum()


def test_the_same_tokens_are_scored_at_every_length_inside_one_document(task):
    assert task.splits() == {"test": 16, "2x": 32, "4x": 64, "8x": 128, "validation": 16}
    end, scored = task.folder.manifest["end_token"], []
    for split in ("test", "2x", "8x"):
        batches = task.evaluation(split)
        targets = torch.cat([batch.targets[:, -CONTEXT:] for batch in batches])
        scored.append(targets)
        assert all((batch.targets[:, :-CONTEXT] == IGNORE_INDEX).all() for batch in batches)
        assert not any((batch.tokens == end).any() for batch in batches)
    assert torch.equal(scored[0], scored[1]) and torch.equal(scored[0], scored[2])


def test_documents_that_are_too_short_for_a_length_are_an_error(folder):
    with pytest.raises(WhenceError, match=r"documents of at most .* tokens.*8x a context of 64 .*--lengths 1x"):
        load("packed_text", path=str(folder), context=64, blocks=8)


def test_changed_tokens_belong_to_another_study(folder):
    with pytest.raises(WhenceError, match=r"--data.*changed since the study was built"):
        load("packed_text", path=str(folder), context=CONTEXT, sha256="0" * 64)


def test_validation_held_out_of_training_is_not_trained_on(folder):
    task = load("packed_text", path=str(folder), context=CONTEXT, blocks=8)
    before = len(task.train)
    task.hold_out_validation()
    parts = task.parts
    assert int(parts["train"].offsets[-1]) == len(task.train) < before
    assert int(parts["validation"].offsets[-1]) == before - len(task.train)
    tokens = sum(batch.tokens.numel() for batch in task.epoch(8, seed_generator(0, 0)))
    assert tokens <= len(task.train)
    assert task.evaluation("validation")[0].tokens.shape[1] == CONTEXT


def test_baselines_and_facts_are_those_of_the_documents(task):
    assert 1 < task.baselines()["bigram"]["splits"]["test"]["perplexity"] < task.vocab_size
    facts = task.describe_data()
    assert facts["items"]["train"] == len(task.train) and "byte-level BPE" in facts["tokens"]


def test_a_comparison_trains_on_the_folder(folder, tmp_path, capsys):
    from whence.cli.app import app

    words = ["compare", "--data", str(folder), "--context", "16", "--lengths", "1x,2x", "--position", "none"]
    words += ["--position", "rotary", "--seeds", "2", "--steps", "2", "--batch-size", "4", "--layers", "1"]
    words += ["--embed-dim", "8", "--heads", "2", "--ffn-dim", "8", "--jobs", "1", "--out", str(tmp_path)]
    app(words, standalone_mode=False)
    assert (tmp_path / "report.html").exists() and "report:" in capsys.readouterr().out
