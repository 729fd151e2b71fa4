"""Missing data says what is missing, where it was looked for and what to run; so do missing packages and downloads."""

import functools
import lzma
import sys
import threading
import types
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from whence import MissingExtra, WhenceError
from whence.lab.data import downloads
from whence.lab.data.corpora import is_held_out
from whence.lab.tasks import TASKS, load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    return tmp_path


def refused(call, *arguments, **settings):
    with pytest.raises(WhenceError) as error:
        call(*arguments, **settings)
    return str(error.value)


@pytest.mark.parametrize("name", [name for name, entry in TASKS.items() if not entry.is_bundled])
def test_without_the_variable(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.delenv("WHENCE_DATA", raising=False)
    said = refused(load, name)
    assert said.startswith(f"task '{name}'") and "set WHENCE_DATA to a folder" in said
    assert ("run: python -m " in said) is (name not in ("squad", "qmsum", "arxiv")) and "fill it" not in said


@pytest.mark.parametrize("name", ["qmsum", "squad", "wikitext2"])
def test_a_folder_that_does_not_exist_is_said(monkeypatch, tmp_path, name):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path / "none"))
    said = refused(load, name)
    assert f"WHENCE_DATA={tmp_path / 'none'}, but there is no such folder; correct WHENCE_DATA, or create" in said


@pytest.mark.parametrize(
    "name, path, mend",
    [
        ("sst2", "glue/SST-2/train_full.tsv", "run: python -m whence.lab.data.downloads sst2"),
        (
            "wikitext2",
            "wikitext2/train.txt",
            'run: python -m whence.lab.data.downloads wikitext2, or load("wikitext2", train_part="valid")',
        ),
        (
            "wikitext103",
            "wikitext103/train.txt",
            'run: python -m whence.lab.data.downloads wikitext103, or load("wikitext103", train_part="valid")',
        ),
        ("books", "books/train.txt.xz", "python -m whence.lab.data.downloads books"),
    ],
)
def test_an_empty_folder(folder, monkeypatch, name, path, mend):
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    said = refused(load, name)
    assert said.startswith(f"task '{name}'") and path in said and str(folder) in said and said.endswith(f"{mend}.")


@pytest.mark.parametrize("name, package", [("wikitext103", "datasets"), ("sst2", "pooch")])
def test_downloads_without_their_package_or_network(folder, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as error:
        downloads.fetch(name)
    assert package in str(error.value) and 'pip install "whence[lab]"' in str(error.value)

    def offline(*arguments, **settings):
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(load_dataset=offline, retrieve=offline))
    said = refused(downloads.fetch, name)
    assert f'fetch("{name}")' in said and "ConnectionError" in said and "network" in said
    assert not list(folder.rglob("*.*"))


@pytest.fixture
def server(tmp_path_factory):
    """A real server of files on this machine: its folder and its address."""
    served = tmp_path_factory.mktemp("served")
    handler = functools.partial(QuietHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        yield served, f"http://127.0.0.1:{answering.server_port}"
        answering.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_downloads_take_the_file_of_the_checksum_and_no_other(folder, server, monkeypatch):
    served, address = server
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch.core, "os_cache", lambda name: served / "cache")
    files = {}
    for name in ("first.txt", "second.txt"):
        (served / name).write_text(f"the text of {name}")
        files[name] = (f"{address}/{name}", f"sha256:{pooch.file_hash(str(served / name))}")
    sets = {"texts": lambda subject, place: downloads.download_files(subject, place / "texts", files)}
    (served / "second.txt").write_text("another text")
    assert "checksum" in refused(downloads.fetch, "texts", sets)
    assert not list(folder.rglob("*"))  # all of a set or nothing
    (served / "second.txt").write_text("the text of second.txt")
    written = downloads.fetch("texts", sets)
    assert sorted(path.name for path in written) == sorted(files)
    assert all(path.read_text() == f"the text of {path.name}" for path in written)
    assert downloads.fetch("texts", sets) == []  # existing files are not changed


def test_downloads_through_datasets_are_written_as_parts(folder, monkeypatch):
    rows = {"train": ["", " a \n", "", " b \n"], "validation": [" c \n"], "test": [" d \n"]}
    asked = []

    def load_dataset(name, part, split, revision):
        asked.append((name, part, split, len(revision)))
        return {"text": rows[split]}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert [path.read_text() for path in downloads.fetch("wikitext2")] == [
        " \n a \n \n b \n",
        " c \n",
        " d \n",
    ]
    assert asked[0] == ("Salesforce/wikitext", "wikitext-2-v1", "train", 40)  # one commit, not whatever is newest


def test_downloads_need_a_known_name():
    said = refused(downloads.fetch, "everything")
    assert "everything" in said and "wikitext2, wikitext103, sst2" in said


def test_a_downloaded_wikitext_is_a_task(folder, monkeypatch):
    lines = ["", " = Title = \n", *(f" word{number % 7} <unk> the end . \n" for number in range(300))]
    asked = []

    def load_dataset(path, configuration, split, revision):
        asked.append((path, configuration, split))
        return {"text": lines}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    (folder / "wikitext103").mkdir()
    (folder / "wikitext103" / "test.txt").write_text(" \n" + "".join(lines))
    written = downloads.fetch("wikitext103")
    assert [path.name for path in written] == ["train.txt", "valid.txt"]  # what was there stays
    assert asked == [("Salesforce/wikitext", "wikitext-103-v1", split) for split in ("train", "validation")]
    assert downloads.fetch("wikitext103") == []
    task = load("wikitext103", context=8)
    assert task.vocab_size == 2 + 3 + 3 + 7  # padding, unknown; the, end, full stop; newline, =, Title; word0 to word6
    assert task.settings["train_part"] == "train"
    texts = task.decode(task.train[:8])
    assert texts[:4] == ["\\n", "=", "Title", "="]


def test_a_downloaded_sst2_is_a_task(folder, monkeypatch, tmp_path_factory):
    archive = tmp_path_factory.mktemp("server") / "SST-2.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("SST-2/train.tsv", "sentence\tlabel\ngood film \t1\nbad \t0\n")
        packed.writestr("SST-2/dev.tsv", "sentence\tlabel\ngood , good , good \t1\n")

    def retrieve(url, known_hash, progressbar):
        assert url.startswith("https://") and known_hash.startswith("md5:")
        return str(archive)

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    assert len(downloads.fetch("sst2")) == 2 and downloads.fetch("sst2") == []
    task = load("sst2", context=4)
    assert task.splits() == {"dev": 4}  # no labelled test part, so no such split
    batch = task.evaluation("dev")[0]
    assert task.decode(batch.tokens) == ["good", "<unk>", "good", "<unk>"]
    assert batch.targets.tolist() == [1]
    rows = next(task.epoch(2, torch.Generator().manual_seed(0)))
    assert rows.key_mask.sum(1).tolist() == [2 if label else 1 for label in rows.targets.tolist()]
    assert load("sst2", mask_padding="none").evaluation("dev")[0].key_mask is None
    said = refused(load, "sst2", mask_padding="all")
    assert "mask_padding='all'" in said and "'none', 'keys'" in said


def test_downloaded_books_are_a_task_and_documents(folder, monkeypatch, tmp_path_factory):
    from whence.lab.data.documents import read_documents

    archive = tmp_path_factory.mktemp("server") / "gutenberg.zip"
    names = ["austen-emma.txt", "austen-persuasion.txt", "chesterton-brown.txt", "melville-moby_dick.txt"]
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("gutenberg/README", "about")
        for name in names:
            packed.writestr(f"gutenberg/{name}", f"[{name}]\r\n\r\nCaf\xe9 {name} ".encode("latin-1") * 200)

    def retrieve(url, known_hash, progressbar):
        assert "/gutenberg.zip" in url and known_hash == "md5:48c9c8605cd70b0230687557ee543633"
        return str(archive)

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    assert len(downloads.fetch("books")) == 3 and downloads.fetch("books") == []
    assert load("books", context=64).context == 64
    documents = list(read_documents("books"))
    assert [one.part for one in documents] == ["train", "train", "validation", "test"]
    assert documents[3].text.startswith("# Title: chesterton-brown\n\n[chesterton-brown.txt]\n\nCaf\xe9")
    (folder / "books" / "valid.txt.xz").unlink()
    said = refused(downloads.fetch, "books")
    assert "without valid.txt.xz" in said and "restore" in said


def test_broken_files_are_named(folder):
    (folder / "glue" / "SST-2").mkdir(parents=True)
    (folder / "glue" / "SST-2" / "train_full.tsv").write_text("sentence\tlabel\na sentence without a label\n")
    said = refused(load, "sst2")
    assert "line 2 of train_full.tsv" in said and "'hout a label'" in said
    (folder / "books").mkdir()
    packed = lzma.compress(b"many words " * 1000)
    for part in ("train", "test"):
        (folder / "books" / f"{part}.txt.xz").write_bytes(packed[: len(packed) // 2])
    assert "train.txt.xz" in refused(load, "books")


def test_the_test_part_is_a_matter_of_names():
    names = [f"module{number}.py" for number in range(1000)]
    assert 150 < sum(is_held_out(name) for name in names) < 250
