"""Atomic writing and checked reading: permissions, full and read-only disks, and files that are no records."""

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from whence import WhenceError, records
from whence.lab import checkpoints


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "record.json"
    records.write(path, {"values": [1.5, None, "ä"], "n": 3})
    assert records.read(path) == {"values": [1.5, None, "ä"], "n": 3}
    assert os.listdir(path.parent) == ["record.json"]


def test_nan_is_refused_and_leaves_the_old_record(tmp_path):
    path = tmp_path / "record.json"
    records.write(path, {"n": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write(path, {"n": float("nan")})
    assert records.read(path) == {"n": 1}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_all_files_have_the_permissions_of_new_files(tmp_path, umask):
    before = os.umask(umask)
    try:
        records.write(tmp_path / "record.json", {})
        records.write_text(tmp_path / "page.html", "")
        checkpoints.save_weights(tmp_path / "weights.safetensors", torch.nn.Linear(2, 2))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


def failing_writer(path, error, expected, message):
    def write():
        with records.replace_file(path) as part:
            part.write_text("half of the new")
            raise error

    with pytest.raises(expected, match=message):
        write()


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    records.write_text(path, "old")
    failing_writer(path, KeyError("half"), KeyError, "half")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_a_remedy(tmp_path, number):
    path = tmp_path / "record.json"
    message = r"record\.json on a full disk.*free some.*run the command again"
    failing_writer(path, OSError(number, os.strerror(number)), WhenceError, message)
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_known_from_the_text_of_safetensors(tmp_path):
    class SafetensorError(Exception):
        pass

    error = SafetensorError("I/O error: No space left on device (os error 28)")
    failing_writer(tmp_path / "weights.safetensors", error, WhenceError, "full disk")


def test_a_read_only_folder_is_named_with_a_remedy(tmp_path):
    for number in (errno.EROFS, errno.EACCES):
        message = r"page\.html, which cannot be written.*--out"
        failing_writer(tmp_path / "page.html", OSError(number, os.strerror(number)), WhenceError, message)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(WhenceError, match=r"taken/record\.json.*choose another path"):
        records.write(tmp_path / "taken" / "record.json", {})
    for folder in (tmp_path / "taken", tmp_path / "taken" / "study"):
        with pytest.raises(WhenceError, match=rf"{folder}.*choose another path"):
            records.make_folder(folder)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO, errno.ENAMETOOLONG, errno.ESTALE])
def test_every_error_of_the_disk_names_the_file_and_a_remedy(tmp_path, number):
    message = rf"page\.html \({os.strerror(number)}\).*--out"
    failing_writer(tmp_path / "page.html", OSError(number, os.strerror(number)), WhenceError, message)


def test_an_error_about_another_file_stays_as_it_is(tmp_path):
    error = FileNotFoundError(errno.ENOENT, "missing", str(tmp_path / "input.csv"))
    failing_writer(tmp_path / "page.html", error, FileNotFoundError, r"input\.csv")


def test_threads_write_the_same_file(tmp_path):
    path = tmp_path / "record.json"

    def write_often(thread):
        for step in range(100):
            records.write(path, {"thread": thread, "step": step})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_often, range(4)))
    assert records.read(path)["step"] == 99 and os.listdir(tmp_path) == ["record.json"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a": 1', "corrupt at line 1"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[1]", "with a list"),
    ],
)
def test_what_is_no_record_is_named_and_the_remedy_works(tmp_path, content, kind):
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(WhenceError, match=rf"record\.json.*{kind}.*delete .*record\.json and run the command"):
        records.read(path)


def test_a_missing_record_is_named(tmp_path):
    with pytest.raises(WhenceError, match=r"no file .*record\.json.*run it first"):
        records.read(tmp_path / "record.json")
