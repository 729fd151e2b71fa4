"""Packing loses nothing, is deterministic, and keeps what is packed already."""

import json
import subprocess

import pytest

import pack_records
import record_facts
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


def test_a_record_without_a_command_gets_that_of_its_study(tmp_path):
    study = {"spec": {"name": "copy"}, "command": "whence run copying"}
    folder = tmp_path / "copy-0123456789ab"
    write_all(folder, {"study.json": study, "a.json": {"n": 1}, "b.json": {"n": 2, "command": "whence run other"}})
    pack_records.pack_folder(folder, unknown)
    found = loaded(folder)
    assert found["a.json"]["command"] == "whence run copying --only copy"
    assert "did not store it" in found["a.json"]["provenance"]["command"]
    assert found["b.json"] == {"n": 2, "command": "whence run other"} and found["study.json"] == study
    write_all(tmp_path / "epar", {"x.json": {"experiment": "x"}})
    pack_records.pack_folder(tmp_path / "epar", unknown)
    assert loaded(tmp_path / "epar")["x.json"]["command"] == "whence run epar/x"


def test_provenance_finds_the_commit_of_the_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(record_facts, "ROOT", tmp_path)
    monkeypatch.setattr(records.environment, "_location", lambda package: tmp_path / "src" / "whence")
    cached = (record_facts.hash_at, record_facts.find_sources, record_facts.read_blob)

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(**texts):
        for name, text in texts.items():
            records.write_text(tmp_path / "src" / "whence" / "a" / f"{name}.py", text)
        git("add", ".")
        git("commit", "-qm", "all")
        return git("rev-parse", "HEAD"), records.source_hash()

    for name in ("a/b/c.py", "a.py", "a/notes.txt"):
        records.write_text(tmp_path / "src" / "whence" / name, name)
    git("init", "-q")
    (first, one), (second, two) = commit(y="1", z="1"), commit(y="2", z="2")
    records.write_text(tmp_path / "src" / "whence" / "a" / "y.py", "1")
    mixed = records.source_hash()  # z of the second commit
    for function in cached:
        function.cache_clear()
    expected = [
        ({"commit": first, "source_hash": one}, {"source_matches_commit": True}),
        ({"commit": first, "source_hash": two}, {"source_matches_commit": False, "sources": {"commit": second}}),
        ({"commit": first, "source_hash": mixed}, {"source_matches_commit": False, "sources": {"commit": first, "files": {"src/whence/a/z.py": second}}}),
        ({"commit": second, "source_hash": "0"}, {"source_matches_commit": False}),
        ({"commit": "0" * 40, "source_hash": one}, {"source_matches_commit": None}),
        ({"commit": first}, {"source_matches_commit": None}),
        ({}, {"source_matches_commit": None}),
    ]  # fmt: skip
    for environment, facts in expected:
        assert record_facts.describe_provenance({"environment": environment}) == facts
    assert record_facts.describe_provenance({"hash": "0"}) is None
    for function in cached:
        function.cache_clear()
