"""Documents of any source become a token folder: complete or absent, identified by content, with every fault named."""

import gzip
import importlib
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest

from whence.errors import WhenceError
from whence.lab.data import documents as source_module
from whence.lab.data import hub, prepare
from whence.lab.data.documents import DocumentOptions, TextLimit, read_documents, stream_dataset
from whence.lab.data.prepare import PrepareSettings, prepare_tokens
from whence.lab.data.token_folder import TokenFolder, is_token_folder

pytest.importorskip("tokenizers")
TEXTS = [f"Document {n} says: {'words and more ' * (n % 7 + 1)}\nand ends with ünï {n}." for n in range(40)]
SMALL = PrepareSettings(vocab_size=300)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "pages.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(TEXTS)))
    return path


@pytest.fixture(scope="module")
def tokens(rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "tokens"
    prepare_tokens([str(rows)], out, SMALL)
    return out


def documents_of(folder):
    """The texts of each part, decoded from the tokens."""
    texts = {}
    for name in folder.parts:
        part = folder.part(name)
        offsets = part.offsets.tolist()
        pieces = [part.tokens[a:b].tolist() for a, b in pairwise(offsets)]
        assert all(piece[-1] == folder.manifest["end_token"] for piece in pieces)
        texts[name] = [folder.tokenizer.decode_text(piece[:-1]) for piece in pieces]
    return texts


def test_every_document_is_restored_exactly_and_is_in_one_part(tokens):
    texts = documents_of(TokenFolder(tokens))
    assert sorted(text for own in texts.values() for text in own) == sorted(TEXTS)
    assert all(texts.values())
    assert texts["train"] == [text for text in TEXTS if text in texts["train"]]  # in their order
    assert TokenFolder(tokens).manifest["dtype"] == "uint16"


def test_the_same_documents_give_the_same_bytes_from_a_file_a_table_and_a_dataset(tokens, rows, tmp_path):
    datasets = pytest.importorskip("datasets")
    parquet = tmp_path / "pages.parquet"
    saved = tmp_path / "saved"
    table = datasets.Dataset.from_list([{"text": text} for text in TEXTS])
    table.to_parquet(str(parquet))
    table.save_to_disk(str(saved))
    compressed = tmp_path / "pages.jsonl.gz"
    compressed.write_bytes(gzip.compress(rows.read_bytes()))
    first = TokenFolder(tokens)
    for number, source in enumerate((str(parquet), f"hf:{saved}", str(compressed))):
        other = prepare_tokens([source], tmp_path / str(number), SMALL)
        assert other.identity == first.identity and other.manifest["files"] == first.manifest["files"]


def test_a_stream_is_read_only_as_far_as_it_is_needed():
    datasets = pytest.importorskip("datasets")

    def generate():
        yield from ({"text": "x" * 100} for _ in range(3))
        raise AssertionError("read too far")

    rows = datasets.IterableDataset.from_generator(generate)
    texts = [document.text for document in stream_dataset({"train": rows}, "text", "stream", limit=TextLimit(250))]
    assert [len(text) for text in texts] == [100, 100, 50]


def test_rows_of_wikitext_become_articles():
    rows = [{"text": text} for text in ("", " = One = \n", " body\n", " = = Part = = \n", " = Two = \n", " end\n")]
    found = list(stream_dataset({"train": rows, "test": rows[:3]}, "text", "w", source_module.ARTICLE_START))
    train = [document.text for document in found if document.part == "train" and document.text]
    assert train == [" = One = \n body\n = = Part = = \n", " = Two = \n end\n"]
    assert found[-1].part == "test"


def test_a_stream_without_a_network_says_so():
    def rows():
        raise ConnectionError("no route")
        yield

    with pytest.raises(WhenceError, match=r"hf:some/web .*no route.* needs a network .*save_to_disk"):
        list(stream_dataset({"train": rows()}, "text", "hf:some/web"))


@pytest.mark.parametrize("reason", [None, "the hub cannot be reached"])
@pytest.mark.parametrize("read", [hub.read_hub_table, hub.stream_splits])
def test_no_request_is_repeated_if_the_hub_cannot_be_reached(read, reason, monkeypatch):
    import huggingface_hub.constants

    datasets = pytest.importorskip("datasets")
    switches, seen = (huggingface_hub.constants, datasets.config), []
    for module in switches:
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)

    def load(*arguments, **options):
        seen.extend(module.HF_HUB_OFFLINE for module in switches)
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(importlib.import_module("whence.hf.load"), "why_hub_offline", lambda: reason)
    with pytest.raises(WhenceError, match=f"hf:some/web.*{reason or 'no route'}.*check the path.*hf:FOLDER"):
        read("hf:some/web")
    assert seen == [reason is not None] * 2 and not any(module.HF_HUB_OFFLINE for module in switches)


def test_files_are_documents_unless_a_pattern_marks_their_first_lines(tmp_path):
    (tmp_path / "a.txt").write_text("# one\nx\n# two\ny\n")
    (tmp_path / "b.md").write_text("# three\n")
    (tmp_path / "c.png").write_bytes(b"\0")
    whole = [document.text for document in read_documents(str(tmp_path))]
    parts = [document.text for document in read_documents(str(tmp_path), DocumentOptions(document_start="# "))]
    assert whole == ["# one\nx\n# two\ny\n", "# three\n"]
    assert parts == ["# one\nx\n", "# two\ny\n", "# three\n"]


def test_parts_that_file_names_say_stay(tmp_path):
    for name, text in {"train.txt": "to learn", "valid.txt": "to choose", "test.txt": "to judge"}.items():
        (tmp_path / name).write_text(text)
    folder = prepare_tokens([str(tmp_path)], tmp_path / "tokens", SMALL)
    assert documents_of(folder) == {"train": ["to learn"], "validation": ["to choose"], "test": ["to judge"]}


def test_the_end_of_a_single_document_is_held_out_and_the_tokenizer_never_sees_it(tmp_path):
    text = "abc " * 200 + "qqqq" * 50
    (tmp_path / "one.txt").write_text(text)
    folder = prepare_tokens([str(tmp_path / "one.txt")], tmp_path / "tokens", PrepareSettings(300, held_out=0.1))
    texts = documents_of(folder)
    assert "".join(own[0] for own in texts.values()) == text and len(texts["test"][0]) == 100
    assert "qq" not in folder.tokenizer.tokenizer.get_vocab()


def test_equal_documents_are_in_one_part_and_another_seed_holds_out_others(tmp_path):
    path = tmp_path / "twice.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 2))
    parts = [
        documents_of(prepare_tokens([str(path)], tmp_path / str(seed), PrepareSettings(300, split_seed=seed)))
        for seed in (0, 1)
    ]
    for own in parts:
        sets = [set(texts) for texts in own.values()]
        assert sum(map(len, sets)) == len(TEXTS)  # no text in two parts
    assert parts[0]["test"] != parts[1]["test"]


def test_end_of_text_in_a_document_is_text(tmp_path):
    path = tmp_path / "spoof.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n} <|endoftext|> more"}) + "\n" for n in range(12)))
    folder = prepare_tokens([str(path)], tmp_path / "tokens", SMALL)
    part = folder.part("train")
    assert int((part.tokens.long() == folder.manifest["end_token"]).sum()) == len(part.offsets) - 1


def test_a_given_tokenizer_is_used(tokens, rows, tmp_path):
    given = tokens / "tokenizer.json"
    folder = prepare_tokens([str(rows)], tmp_path / "tokens", PrepareSettings(tokenizer=str(given)))
    assert folder.manifest["files"]["tokens.bin"] == TokenFolder(tokens).manifest["files"]["tokens.bin"]
    assert folder.manifest["settings"]["tokenizer"] == "tokenizer.json"


def test_a_folder_is_left_as_it_is_and_other_settings_are_refused(tokens, rows, tmp_path):
    before = (tokens / "tokens.json").stat().st_mtime_ns
    prepare_tokens([str(rows)], tokens, SMALL)
    assert (tokens / "tokens.json").stat().st_mtime_ns == before
    with pytest.raises(WhenceError, match=r"--out.*other documents or settings; name another folder"):
        prepare_tokens([str(rows)], tokens, PrepareSettings(vocab_size=301))
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(WhenceError, match=r"--out.*other files.*name another folder"):
        prepare_tokens([str(rows)], tmp_path, SMALL)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "tokenizer.json"])
def test_a_corrupt_or_missing_file_is_named(tokens, tmp_path, name):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(tokens, copy)
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(WhenceError, match=rf"{name}, whose content changed.*delete .* whence tokenize"):
        TokenFolder(copy)
    (copy / name).write_bytes(content[:-3])
    with pytest.raises(WhenceError, match=rf"{name} with .* bytes instead of"):
        TokenFolder(copy)
    (copy / name).unlink()
    with pytest.raises(WhenceError, match=rf"no .*{name}"):
        TokenFolder(copy)


def test_a_folder_that_does_not_exist_is_not_to_be_deleted(tmp_path):
    with pytest.raises(WhenceError, match=r"no folder .*/none, .*run whence tokenize --out .*/none\.") as error:
        TokenFolder(tmp_path / "none")
    assert "delete" not in str(error.value)


def test_a_folder_without_its_manifest_is_incomplete(tokens, rows, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(tokens, copy)
    (copy / "tokens.json").unlink()
    assert is_token_folder(copy)
    with pytest.raises(WhenceError, match=r"without tokens.json.*incomplete.*whence tokenize"):
        TokenFolder(copy)
    assert prepare_tokens([str(rows)], copy, SMALL).identity == TokenFolder(tokens).identity  # made again


KILLED = """
import sys
from pathlib import Path
from whence.lab.data import hub, prepare

def stop(phase, done, total):
    if phase == prepare.TOKENISE:
        print("tokenising", flush=True)
        sys.stdin.read()

prepare.BATCH_BYTES = 500
prepare.prepare_tokens([sys.argv[1]], Path(sys.argv[2]), prepare.PrepareSettings(vocab_size=300), on_progress=stop)
"""


def test_a_killed_preparation_leaves_nothing_that_can_be_read_and_the_next_one_completes_it(tokens, rows, tmp_path):
    out = tmp_path / "tokens"
    command = [sys.executable, "-c", KILLED, str(rows), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "tokenising\n"
        with pytest.raises(WhenceError, match=r"--out.*another process writes it"):
            prepare_tokens([str(rows)], out, SMALL)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert any(out.glob("*.part"))
    with pytest.raises(WhenceError, match="incomplete"):
        TokenFolder(out)
    assert prepare_tokens([str(rows)], out, SMALL).manifest["files"] == TokenFolder(tokens).manifest["files"]
    assert not any(out.glob("*.part"))


def test_progress_reports_every_phase(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "BATCH_BYTES", 500)
    seen = []
    prepare_tokens([str(rows)], tmp_path / "tokens", SMALL, on_progress=lambda *step: seen.append(step))
    assert [*dict.fromkeys(phase for phase, _, _ in seen)] == [prepare.READ, prepare.TRAIN, prepare.TOKENISE]
    done = [step[1:] for step in seen if step[0] == prepare.TOKENISE]
    assert len(done) > 3 and done[-1][0] == done[-1][1]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("bad.txt", b"caf\xe9 au lait", r"bad.txt.*not UTF-8.*iconv"),
        ("bad.jsonl", b'{"text": "x"}\n{"text": \n', r"bad.jsonl line 2.*correct or remove"),
        ("bad.txt.gz", b"no gzip", r"bad.txt.gz.*damaged.*compress it again"),
        ("bad.parquet", b"no parquet", r"bad.parquet.*write it again"),
        ("bad.txt", b"a\0b", r"bad.txt.*binary"),
        ("bad.pdf", b"x", r"bad.pdf.*formats are"),
        ("bad.txt", b" \n", r"bad.txt without a text"),
    ],
)
def test_a_bad_source_is_named_and_leaves_no_folder(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WhenceError, match=message):
        prepare_tokens([str(tmp_path / name)], tmp_path / "tokens", SMALL)
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda: PrepareSettings(vocab_size=100), r"--vocab-size got 100.*257.*8192"),
        (lambda: PrepareSettings(held_out=0.6), r"--held-out got 0.6.*0.05"),
        (lambda: PrepareSettings(characters=0), r"--characters got 0.*leave it out"),
        (lambda: DocumentOptions(document_start="("), r"--document-start got '\('.*regular expression"),
        (lambda: prepare_tokens(["nowhere.txt"], None), r"no file nowhere.txt.*topics, books.*check the path"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(change, message):
    with pytest.raises(WhenceError, match=message):
        change()


def test_the_command_prints_the_parts_and_compare_takes_the_folder(tmp_path, rows, capsys):
    from whence.cli.app import app
    from whence.lab.data_options import file_task

    out = tmp_path / "tokens"
    app(["tokenize", str(rows), "--vocab-size", "300", "--out", str(out), "--json"], standalone_mode=False)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["parts"]["train"]["documents"] == 36 and found["folder"] == str(out) and found["vocab_size"] == 300
    assert found["identity"] == TokenFolder(out).identity
    assert "train: 36 documents" in printed.err and f"tokens: {out}" in printed.err
    assert "tokenise" in printed.err
    task, settings = file_task(str(out))
    assert task == "packed_text" and settings["sha256"] == TokenFolder(out).identity
    with pytest.raises(WhenceError, match=r"--tokens.*packed documents.*leave it out"):
        file_task(str(out), tokens="words")
