"""The speeches, as the study they come from had them. Needs the data folder."""

import os
import sys
from pathlib import Path

import pytest
import torch

from whence import MissingExtra, WhenceError
from whence_papers.speeches import data
from whence_papers.speeches.tasks import SpeechesClassify, SpeechesLm

pytestmark = pytest.mark.skipif(
    "WHENCE_DATA" not in os.environ, reason="WHENCE_DATA is not set: no real data to test on"
)


def present(path):
    if not (Path(os.environ["WHENCE_DATA"]) / path).exists():
        pytest.skip(f"no {path} in the folder of WHENCE_DATA")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_missing_nltk_names_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(MissingExtra, match=r"speeches.*no package nltk.*pip install whence-papers"):
        data.load_tokenizer("load('speeches')")


@pytest.fixture(scope="module")
def classify():
    pytest.importorskip("nltk")
    present("speeches/train_CLS.tsv")
    return SpeechesClassify()


@pytest.fixture(scope="module")
def lm():
    pytest.importorskip("nltk")
    present("speeches/train_LM.txt")
    return SpeechesLm()


def as_in_the_study(task):
    """Only nltk up to 3.9.2 makes the study's tokens."""
    version = tuple(int(part) for part in task.settings["nltk"].split(".")[:3])
    if version > (3, 9, 2):
        pytest.skip(f"nltk {task.settings['nltk']} tokenises otherwise; the study's numbers need 3.9.2 or older")


def test_speeches_vocabulary_is_the_studys(classify, lm):
    as_in_the_study(lm)
    assert lm.vocab_size == classify.vocab_size == 5755
    assert [len(lm.train), *(len(stream) for stream in lm.files.values())] == [32071, 5534, 4780, 4728]
    assert lm.decode([0, 1]) == ["<pad>", "<unk>"]


def test_speeches_classify_as_in_the_study(classify):
    assert len(classify.train.labels) == 2092
    assert classify.train.labels.bincount().tolist() == [934, 539, 619]
    test = classify.evaluation("test")
    assert torch.cat([batch.targets for batch in test]).bincount().tolist() == [250, 250, 250]
    assert classify.context == 32 and classify.num_classes == 3
    batches = list(classify.epoch(16, seeded(0)))
    assert len(batches) == 131 and batches[0].tokens.shape == (16, 32)
    assert all(batch.key_mask is None for batch in [*batches, *test])
    assert min(batch.tokens.min() for batch in test) == 0  # padded all the same
    first = test[0].tokens[0]
    assert classify.decode(first)[:5] == ["This", "afternoon", ",", "I", "spoke"]
    assert classify.decode(first)[-1] == "<pad>"


def test_speeches_most_test_sentences_are_in_training(classify):
    """551 of 750: a fact about the published files, and the reason for the split "unseen"."""
    train = set(map(tuple, classify.train.tokens.tolist()))
    unseen = torch.cat([batch.tokens for batch in classify.evaluation("unseen")])
    assert len(unseen) == classify.settings["unseen"] == 199
    assert not any(tuple(row) in train for row in unseen.tolist())
    test = torch.cat([batch.tokens for batch in classify.evaluation("test")])
    assert sum(tuple(row) in train for row in test.tolist()) == 551


def test_speeches_with_marked_padding(classify):
    masked = SpeechesClassify(mask_padding="keys")
    for plain, marked in zip(classify.evaluation("test"), masked.evaluation("test"), strict=True):
        assert torch.equal(plain.tokens, marked.tokens)
        assert torch.equal(marked.key_mask, plain.tokens != 0)
        assert marked.key_mask[:, 0].all()
        assert (marked.key_mask.int().diff(dim=1) <= 0).all()  # padding is on the right


def test_speeches_lm_blocks_overlap_as_in_the_study(lm):
    assert lm.splits() == {"obama": 32, "wbush": 32, "hbush": 32}
    batches = list(lm.epoch(16, seeded(0)))
    assert sum(len(batch.tokens) for batch in batches) == len(lm.train) - 32
    assert torch.equal(batches[0].targets[:, :-1], batches[0].tokens[:, 1:])
    for president in lm.splits():
        blocks = lm.evaluation(president)
        assert len(blocks) == 200 and {batch.tokens.shape for batch in blocks} == {(16, 32)}
        tokens = torch.cat([batch.tokens for batch in blocks])
        assert torch.equal(tokens[1:, :-1], tokens[:-1, 1:])  # each begins one token after the one before


def test_speeches_lm_side_by_side_scores_every_token_once(lm):
    task = SpeechesLm(stride=32, evaluation_batches=None)
    for president, stream in lm.files.items():
        targets = torch.cat([batch.targets.flatten() for batch in task.evaluation(president)])
        assert torch.equal(targets, stream[1 : 1 + len(targets)].long())
        assert len(stream) - 1 - len(targets) < 32


def test_speeches_training_scores_are_a_split_and_a_running_mean(classify, lm):
    tracked = SpeechesClassify(training_scores=True)
    assert tracked.tracks_training and list(tracked.splits()) == ["test", "unseen", "train"]
    assert torch.equal(torch.cat([batch.tokens for batch in tracked.evaluation("train")]).int(), classify.train.tokens)
    assert not classify.tracks_training and "training_scores" not in classify.settings
    words = SpeechesLm(training_scores=True)
    assert words.tracks_training and "train" not in lm.splits()
    blocks = words.evaluation("train")
    assert len(blocks) == 200 and {batch.tokens.shape for batch in blocks} == {(16, 32)}
    starts = torch.cat([batch.tokens[:, 0] for batch in blocks])
    assert torch.equal(starts[:4].int(), lm.train[[0, 10, 20, 30]].int())  # over the whole text, not its beginning


def test_speeches_refuse_a_broken_line(tmp_path, monkeypatch):
    (tmp_path / "speeches").mkdir()
    (tmp_path / "speeches" / "train_CLS.tsv").write_text("0\tfine\n3\tnobody\n")
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(WhenceError) as error:
        data.read_labelled("load", "train_CLS.tsv")
    assert "line 2 of train_CLS.tsv" in str(error.value) and "nobody" in str(error.value)
