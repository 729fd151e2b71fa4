"""Packing loses nothing, is deterministic, and keeps what is packed already."""

import json
import subprocess

import pytest

import pack_records
from whence import records

RECORDS = {
    "b.json": {
        "whole": 1,
        "float": 1.0,
        "small": 5e-324,
        "long": 0.1 + 0.2,
        "none": None,
        "yes": True,
        "text": "ä\u2028",
    },
    "a.json": {"nested": {"list": [[], {}, [0.1]]}},
}


def write_all(folder, some):
    for name, record in some.items():
        records.write(folder / name, record)


def loaded(folder):
    store = records.RecordFolder(folder)
    return {name: store.read(name) for name in store.names()}


def unknown(record):
    return None


def test_every_value_reads_back_and_the_loose_files_go(tmp_path):
    write_all(tmp_path / "study", RECORDS)
    packed = pack_records.pack_folder(tmp_path / "study", unknown)
    assert packed == tmp_path / "study.zip" and not (tmp_path / "study").exists()
    assert json.dumps(loaded(tmp_path / "study"), sort_keys=True) == json.dumps(RECORDS, sort_keys=True)


def test_the_bytes_depend_on_the_records_alone(tmp_path):
    write_all(tmp_path / "one", RECORDS)
    write_all(tmp_path / "two", dict(reversed(RECORDS.items())))
    first, second = (pack_records.pack_folder(tmp_path / name, unknown) for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


def test_packing_again_adds_and_replaces(tmp_path):
    folder = tmp_path / "study"
    write_all(folder, RECORDS)
    pack_records.pack_folder(folder, unknown)
    write_all(folder, {"a.json": {"n": 2}, "c.json": {"n": 3}})
    pack_records.pack_folder(folder, unknown)
    assert loaded(folder) == {"a.json": {"n": 2}, "b.json": RECORDS["b.json"], "c.json": {"n": 3}}


def test_files_that_are_no_records_stay(tmp_path):
    write_all(tmp_path / "study", RECORDS)
    records.write_bytes(tmp_path / "study" / "weights" / "a.safetensors", b"0")
    pack_records.pack_folder(tmp_path / "study", unknown)
    assert (tmp_path / "study/weights/a.safetensors").exists()


def test_records_that_are_written_meanwhile_stay(tmp_path):
    folder = tmp_path / "study"
    write_all(folder, RECORDS)

    def write_meanwhile(record):
        write_all(folder, {"a.json": {"n": 2}, "c.json": {"n": 3}})

    pack_records.pack_folder(folder, write_meanwhile)
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "c.json"]
    assert loaded(folder) == {"a.json": {"n": 2}, "b.json": RECORDS["b.json"], "c.json": {"n": 3}}


def test_a_packed_file_with_another_value_is_refused():
    with pytest.raises(SystemExit, match=r"study\.zip: a\.json does not read back"):
        pack_records.require_equal({"a.json": {"n": 1.0}}, {"a.json": {"n": 1}}, "study.zip")


def test_provenance_compares_the_recorded_hash_with_that_of_the_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_records, "ROOT", tmp_path)
    pack_records.hash_at.cache_clear()

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    for name in ("a/z.py", "a/b/c.py", "a.py", "a/notes.txt"):
        records.write_text(tmp_path / "src" / "whence" / name, name)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    commit, monkey = git("rev-parse", "HEAD"), records.environment
    monkeypatch.setattr(monkey, "_location", lambda package: tmp_path / "src" / "whence")
    good = {"commit": commit, "source_hash": records.source_hash()}
    answers = [
        pack_records.describe_provenance({"environment": environment})
        for environment in (good, good | {"source_hash": "0"}, good | {"commit": "0" * 40}, {"commit": commit}, {})
    ]
    assert [answer["source_matches_commit"] for answer in answers] == [True, False, None, None, None]
    assert pack_records.describe_provenance({"hash": "0"}) is None
    pack_records.hash_at.cache_clear()
