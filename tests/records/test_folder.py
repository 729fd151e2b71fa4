"""Records in a folder and in one packed file are read alike; writing goes to the folder."""

import zipfile
from pathlib import Path

import pytest

from whence import WhenceError, records
from whence.records import RecordFolder, RecordReader, find_folders

RECORDS = {"a.json": {"n": 1}, "b.json": {"n": 2, "text": "ä"}, "study.json": {"hash": "0"}}


@pytest.fixture(params=["folder", "packed"])
def place(request, tmp_path):
    """The path of a folder of records, as a folder or packed."""
    path = tmp_path / "group" / "small-1.5b-0123"
    for name, record in RECORDS.items():
        records.write(path / name, record)
    if request.param == "packed":
        pack(path)
    return path


def pack(path):
    with zipfile.ZipFile(f"{path}.zip", "w") as packed:
        for file in sorted(path.glob("*.json")):
            packed.write(file, file.name)
            file.unlink()
    path.rmdir()


def test_names_existence_and_content_are_the_same(place):
    folder = RecordFolder(place)
    assert folder.names() == sorted(RECORDS) and {name: folder.read(name) for name in folder.names()} == RECORDS
    assert folder.exists("a.json") and not folder.exists("c.json")
    assert records.exists(place / "b.json") and not records.exists(place / "c.json")
    assert records.read(place / "b.json") == RECORDS["b.json"]
    with pytest.raises(WhenceError, match=r"no file .*small-1\.5b-0123/c\.json"):
        folder.read("c.json")


def test_folders_are_found(place):
    assert find_folders(place.parent, "study.json") == [place] == find_folders(place, "study.json")
    assert find_folders(place.parent.parent, "study.json", deep=True) == [place]
    assert find_folders(place.parent, "plan.json") == []


def test_writing_goes_to_the_folder_and_takes_precedence(place):
    folder = RecordFolder(place)
    folder.write("a.json", {"n": 9})
    folder.write("c.json", {"n": 3})
    assert (place / "a.json").is_file() and folder.names() == ["a.json", "b.json", "c.json", "study.json"]
    assert folder.read("a.json") == {"n": 9} and records.read(place / "c.json") == {"n": 3}
    assert find_folders(place.parent, "study.json") == [place]  # once, though both are there
    assert folder.location("a.json") == (place / "a.json").as_posix()


def test_the_working_directory_is_a_folder_too(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    assert [folder.name for folder in find_folders(Path(), "study.json")] == [place.name]
    if place.is_dir():
        monkeypatch.chdir(place)
        assert RecordFolder(Path()).names() == sorted(RECORDS) and records.exists(Path("a.json"))


def test_a_packed_file_can_be_named_itself(tmp_path):
    path = tmp_path / "study-0"
    records.write(path / "a.json", {"n": 1})
    pack(path)
    folder = RecordFolder(tmp_path / "study-0.zip")
    assert folder.path == path and folder.read("a.json") == {"n": 1}
    assert folder.location("a.json").endswith("study-0.zip/a.json")


def test_a_corrupt_packed_file_is_named_with_a_remedy(tmp_path):
    path = tmp_path / "study-0"
    (tmp_path / "study-0.zip").write_bytes(b"no zip")
    with pytest.raises(WhenceError, match=r"study-0\.zip.*cannot be read.*restore study-0\.zip from git"):
        RecordFolder(path).names()
    with zipfile.ZipFile(tmp_path / "study-0.zip", "w") as packed:
        packed.writestr("a.json", '{"n": 1')
    with pytest.raises(WhenceError, match=r"study-0\.zip/a\.json, corrupt.*restore study-0\.zip from git"):
        RecordFolder(path).read("a.json")


def test_a_corrupt_packed_file_does_not_hide_the_others(tmp_path):
    records.write(tmp_path / "good-0" / "study.json", {})
    pack(tmp_path / "good-0")
    (tmp_path / "bad-0.zip").write_bytes(b"no zip")
    with pytest.warns(UserWarning, match=r"bad-0\.zip.*restore bad-0\.zip"):
        assert find_folders(tmp_path, "study.json") == [tmp_path / "good-0"]
    with pytest.raises(WhenceError, match=r"bad-0\.zip"):
        find_folders(tmp_path / "bad-0", "study.json")


def test_a_folder_that_is_packed_later_is_read_from_the_packed_file(tmp_path):
    path = tmp_path / "study-0"
    folder = RecordFolder(path)
    assert not folder.exists("a.json")
    for number in (1, 2):
        folder.write("a.json", {"n": number})
        folder.write(f"{number}.json", {})
        pack(path)
        assert folder.read("a.json") == {"n": number} and folder.names() == [f"{number}.json", "a.json"]


def test_a_reader_opens_a_packed_file_once_and_again_when_it_changes(tmp_path, monkeypatch):
    path, opened = tmp_path / "study-0", []
    open_packed = RecordFolder._open
    monkeypatch.setattr(RecordFolder, "_open", lambda folder: opened.append(folder.path) or open_packed(folder))
    records.write(path / "a.json", {"n": 1})
    records.write(path / "b.json", {"n": 2})
    pack(path)
    reader = RecordReader()
    for _ in range(3):
        assert [reader.read(path / f"{name}.json")["n"] for name in "ab"] == [1, 2]
        assert reader.exists(path / "a.json") and not reader.exists(path / "c.json")
        assert reader.find_folders(tmp_path, "a.json") == [path]
    assert opened == [path]
    records.write(path / "a.json", {"n": 3})
    assert reader.read(path / "a.json") == {"n": 3} and opened == [path]  # a loose record takes precedence
    pack(path)
    assert reader.read(path / "a.json") == {"n": 3} and opened == [path, path]
