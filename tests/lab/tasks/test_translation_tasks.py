"""Pairs of texts with a decoder and with an encoder-decoder: batches, translations, BLEU and chrF, and parallel text from files."""

import gzip
import json
import random
import sys
import types

import pytest
import torch

from whence import WhenceError
from whence.lab import study_task, training
from whence.lab.arms import parse_arm
from whence.lab.data import downloads
from whence.lab.data.tokenizers import PAD, ByteTokenizer, ReservedTokenizer, TokenizerFile, build_tokenizer
from whence.lab.study import Budget, Decision, Study
from whence.lab.tasks import IGNORE_INDEX, load
from whence.lab.tasks.pairs import arrange_sequences, arrange_sides
from whence.lab.tasks.translation_scores import score_translations

WORDS = dict(zip(["one", "two", "three", "four", "five"], ["eins", "zwei", "drei", "vier", "fünf"], strict=True))
MODEL = {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 32, "dropout": 0.0}


def toy_pairs(count, seed=0):
    """Number words, translated one by one, in reversed order."""
    drawn = random.Random(seed)
    for _ in range(count):
        words = [drawn.choice([*WORDS]) for _ in range(drawn.randint(4, 6))]
        yield " ".join(words), " ".join(WORDS[word] for word in reversed(words))


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"en": source, "de": target}) for source, target in toy_pairs(400)))
    return path


def load_pairs(path, **settings):
    return load("pairs_file", path=str(path), source_column="en", target_column="de", context=16, **settings)


@pytest.fixture(scope="module", params=["decoder", "encoder-decoder"])
def trained(request, pairs_file):
    """A task and a model after some steps."""
    task = load_pairs(pairs_file, architecture=request.param, translations=12)
    model = task.build_model(MODEL, parse_arm("sinusoidal"), 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = training.evaluate_split(task, model, "test", torch.device("cpu"))
    for step in range(40):
        batch = task.train_batch(32, torch.Generator().manual_seed(step))
        training.compute_loss(task, model, batch, training.count_targets(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return task, model, before


def test_old_settings_of_pairs_are_unchanged(pairs_file):
    """Records are compared by these, so the usual values of newer settings are left out."""
    names = ["task", "context", "file", "tokens", "words", "split_seed", "split_column", "bad_rows", "data_hash"]
    assert list(load_pairs(pairs_file).settings) == names
    changed = load_pairs(pairs_file, architecture="encoder-decoder", cross_position="same", translations=2, num_beams=3)
    assert {name: value for name, value in changed.settings.items() if name not in names} == {
        "architecture": "encoder-decoder", "cross_position": "same", "translations": 2, "num_beams": 3,
    }  # fmt: skip


def test_an_encoder_reads_the_source_and_a_decoder_the_target(pairs_file):
    task = load_pairs(pairs_file, architecture="encoder-decoder")
    for batch in (*task.evaluation("test"), *task.epoch(7, torch.Generator())):
        for source, tokens, targets in zip(batch.extras["source"], batch.tokens, batch.targets, strict=True):
            words = [word for word in task.decode(source) if word != PAD]
            scored = targets != IGNORE_INDEX
            answer = task.decode(targets[scored])
            assert answer == [WORDS[word] for word in reversed(words)] + ["<end>"]
            assert task.decode(tokens[: len(answer)]) == ["<sep>", *answer[:-1]]
            assert not tokens[len(answer) :].any() and not scored[len(answer) :].any()
    assert task.describe_data()["items"] == {"train": 320, "test": 40, "validation": 40}


def test_cut_pairs():
    long = [([7] * 9, [9] * 9)]
    tokens, targets, sources = arrange_sequences(long, 6)
    assert targets.tolist() == [
        [IGNORE_INDEX, IGNORE_INDEX, 9, 9, 9, IGNORE_INDEX]
    ]  # no end, and nothing after the cut
    assert sources.tolist() == [[7] * 5] and tokens.tolist() == [[7, 7, 1, 9, 9, 9]]
    assert arrange_sides(long, 6)[1].tolist() == [[9] * 6]


def test_translation_is_learned_and_scored(trained):
    task, model, before = trained
    after = training.evaluate_split(task, model, "test", torch.device("cpu"))
    assert after["cross_entropy"] < before["cross_entropy"] and after["bleu"] > before["bleu"] + 10
    assert {"value", "num_targets", "correct", "cross_entropy", "bleu", "chrf"} == after.keys()
    sources, references = zip(*task.parts["test"].texts[:12], strict=True)
    translated = task.translate(model, task.parts["test"].sources[:12])
    assert score_translations(translated, references).values == {"bleu": after["bleu"], "chrf": after["chrf"]}
    copied = task.baselines()["copy of the source"]["splits"]["test"]
    assert copied == score_translations(sources, references).values
    notes = task.notes(model)
    assert [one["source"] for one in notes["translations"]] == list(sources[:5])
    assert "tok:13a" in notes["signatures"]["bleu"] and notes["translations"][0]["translation"] == translated[0]
    (panel,) = type(task).panels({"sinusoidal": [{"notes": notes}]}, {})
    assert panel["rows"][:3] == [["source", sources[0]], ["reference", references[0]], ["sinusoidal", translated[0]]]
    assert type(task).panels({"sinusoidal": [{"notes": {}}], "none": []}, {}) == []


@pytest.mark.parametrize("beams", [1, 3])
def test_a_translation_does_not_depend_on_the_others_in_its_batch(trained, beams, monkeypatch):
    task, model, _ = trained
    monkeypatch.setattr(task, "num_beams", beams)
    sources = task.parts["test"].sources[:6]
    assert len({int((row != 0).sum()) for row in sources}) > 1  # of different lengths
    alone = [task.translate(model, row[None])[0] for row in sources]
    assert task.translate(model, sources) == alone


def test_scores_are_those_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    translations, references = ["the cat sat on the mat", "a dog"], ["the cat is on the mat", "a dog barks loudly"]
    found = score_translations(translations, references)
    assert found.values["bleu"] == sacrebleu.corpus_bleu(translations, [references]).score
    assert found.values["chrf"] == sacrebleu.corpus_chrf(translations, [references]).score


def test_decoded_texts(tmp_path):
    text = "Ein Mann im T-Shirt (rot), größer als 2."
    for tokens, expected in (("words", text), ("characters", text), ("bytes", text)):
        tokenizer = build_tokenizer(tokens, [text])
        assert tokenizer.decode_text(tokenizer.encode(text).tolist()) == expected
    assert ByteTokenizer().decode_text([195]) == "\ufffd"  # half of a letter
    reserved = ReservedTokenizer(ByteTokenizer(), [PAD, "<end>"])
    assert reserved.decode_text([0, *reserved.encode("ab").tolist(), 1]) == "ab"
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([text] * 3, vocab_size=300)
    trained.save(str(tmp_path / "tokenizer.json"))
    read = TokenizerFile(str(tmp_path / "tokenizer.json"))
    assert read.decode_text(read.encode(text).tolist()) == text


def build_study(path, metric, **settings):
    return Study(
        name="s", question="?", task="pairs_file", arms=(parse_arm("none"),), seeds=(0,), budget=Budget(steps=1),
        decision=Decision(baseline="none", metric=metric), task_settings={"path": str(path), "source_column": "en", "target_column": "de"} | settings,
    )  # fmt: skip


def test_bleu_decides_where_there_are_translations(pairs_file):
    task = study_task.load_task(build_study(pairs_file, "bleu", translations=3))
    assert task.metric == "bleu" and task.higher_is_better and task.facts()["metric"] == "bleu"
    model = task.build_model(MODEL, parse_arm("none"), 0)
    row = training.evaluate_split(task, model, "test", torch.device("cpu"))
    assert row["value"] == row["bleu"]
    for study, remedy in (
        (build_study(pairs_file, "bleu"), "--translations"),
        (build_study(pairs_file, "macro_f1", translations=3), "choose accuracy or perplexity"),
    ):
        with pytest.raises(WhenceError) as caught:
            study_task.load_task(study)
        assert study.decision.metric in str(caught.value) and remedy in str(caught.value)


@pytest.mark.parametrize(
    "settings, got",
    [
        ({"architecture": "encoder"}, "architecture='encoder'"),
        ({"cross_position": "same"}, "cross_position='same'"),  # a decoder has no cross-attention
        ({"architecture": "encoder-decoder", "cross_position": "other"}, "cross_position='other'"),
        ({"translations": -1}, "translations=-1"),
        ({"num_beams": 0}, "num_beams=0"),
    ],
)
def test_wrong_settings(pairs_file, settings, got):
    with pytest.raises(WhenceError, match=got):
        load_pairs(pairs_file, **settings)


def test_positions_of_an_encoder_decoder(pairs_file):
    """A causal form in the decoder, a symmetric one in the encoder, and one in cross-attention only if it is asked for."""
    for cross, expected in (("none", ["symmetric", "causal"]), ("same", ["symmetric", "causal", "symmetric"])):
        task = load_pairs(pairs_file, architecture="encoder-decoder", cross_position=cross)
        model = task.build_model(MODEL | {"head_dim": 6}, parse_arm("Alibi() + Shaw()"), 0)
        assert [module.form for module in model.modules() if type(module).__name__ == "Alibi"] == expected


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small data set of the format of Multi30k."""
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    for number, stem in enumerate(("train", "val", "test_2016_flickr")):
        pairs = list(toy_pairs(30, seed=number))
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            write_lines(tmp_path / f"multi30k/{stem}.{language}.gz", side)
    return tmp_path


def write_lines(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def test_parallel_text(folder):
    task = load("multi30k", context=12, pairs=20, test_pairs=5)
    assert task.describe_data()["items"] == {"train": 20, "test": 5, "validation": 5}
    assert task.parts["test"].texts == tuple(toy_pairs(5, seed=2)) and task.splits() == {"test": 12, "validation": 12}
    turned = load("multi30k", source="de")
    assert (
        turned.parts["train"].texts[0] == tuple(reversed(next(toy_pairs(1)))) and len(turned.parts["train"].texts) == 30
    )
    assert task.settings["data_hash"] != turned.settings["data_hash"]
    assert task.settings["architecture"] == "encoder-decoder"


def test_faulty_parallel_text(folder):
    write_lines(folder / "multi30k/val.de.gz", ["eins"])
    with pytest.raises(WhenceError, match=r"30 sentences in val.en.gz and 1 in val.de.gz.*download both again"):
        load("multi30k")
    (folder / "multi30k/train.en.gz").write_bytes(b"no gzip")
    with pytest.raises(WhenceError, match=r"damaged train.en.gz.*download it again"):
        load("multi30k")
    with pytest.raises(WhenceError, match=r"wmt14/train.en.gz.*downloads wmt14"):
        load("wmt14")


def test_downloads_of_parallel_text(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        pairs = [{"en": source, "de": f"{target}\r\nzwei"} for source, target in toy_pairs(3)]
        return [{"translation": pair} for pair in pairs] if "wmt" in name else pairs

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    for name in ("multi30k", "wmt14"):
        written = downloads.fetch(name)
        assert len(written) == 6 and downloads.fetch(name) == []
        assert load(name).parts["test"].texts[0][1].endswith(" zwei")  # one line
    assert ("wmt/wmt14", "de-en", "validation") in asked and len(asked) == 6
