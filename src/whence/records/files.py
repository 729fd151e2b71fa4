"""Atomic writing and checked reading of single files.

Every file that whence writes goes through ``replace_file``: it is written under a temporary name in the same folder and
renamed, so that a reader sees the old file or the new one, and a killed writer leaves the old one.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which becomes ``path`` in one step; if the body raises, ``path`` is unchanged.

    The file gets the permissions of any new file (0666 minus the umask), whatever the writer of its content sets.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")  # threads share a process id, and so may two hosts
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # otherwise a power failure after the rename can leave an empty file
        os.replace(part, path)
    except WhenceError:
        raise
    except Exception as error:
        write_error = _explain_write_error(path, error)
        if write_error is None:
            raise
        raise write_error from error
    finally:
        _remove_quietly(part)


def remove_partial_files(path: Path) -> None:
    """Delete the temporary files and folders that killed writers of ``path`` left. No other process may be writing it."""
    for part in path.parent.glob(f"{glob.escape(path.name)}.*.part"):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, unless it exists. The error for one that cannot be created names it and the remedy."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain_write_error(path, error) or error from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with replace_file(path) as part:
        part.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, atomically. NaN and infinity are not JSON and raise ``ValueError``."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a record from its own file; the error for a file that is missing, unreadable, empty or corrupt names it and the remedy."""
    remedy = f"delete {path} and run the command that makes it again, or restore it from git"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise usage_error(
            "reading a record", f"no file {path}", "a record is written by the command that makes it", "run it first"
        ) from None
    except OSError as error:
        got = f"{path}, which cannot be read ({error.strerror})"
        raise usage_error("reading a record", got, "a record is a readable file", "correct its permissions") from None
    return parse_record(content, str(path), remedy)


def parse_record(content: bytes, name: str, remedy: str) -> dict[str, Any]:
    """Parse the content of a record; ``name`` and ``remedy`` are for the error."""
    rule = "a record is a JSON object in UTF-8"
    if not content.strip():
        raise usage_error("reading a record", f"{name}, which is empty", rule, remedy)
    try:
        record = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise usage_error("reading a record", f"{name}, which is not UTF-8", rule, remedy) from None
    except json.JSONDecodeError as error:
        raise usage_error("reading a record", f"{name}, corrupt at line {error.lineno}", rule, remedy) from None
    if not isinstance(record, dict):
        raise usage_error("reading a record", f"{name} with a {type(record).__name__}", rule, remedy)
    return record


def require_output_folder(option: str, path: Path) -> None:
    """Raise if the folder that an option names for output is a file. It does not have to exist."""
    if path.exists() and not path.is_dir():
        raise usage_error(option, f"the file {path}", "records are written to a folder", "name a folder")


def require_folder(option: str, path: Path, content: str) -> None:
    """Raise if the folder that an option names does not exist or is empty. ``content`` says what belongs there."""
    if not path.is_dir() or next(path.iterdir(), None) is None:
        got = f"the empty folder {path}" if path.is_dir() else f"no folder {path}"
        raise usage_error(option, got, f"it must be a folder with {content}", "check the path")


def _explain_write_error(path: Path, error: Exception) -> WhenceError | None:
    """The error for a path that cannot be written, such as one on a full disk; None if the cause is something else."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (
        code := re.search(r"os error (\d+)", str(error))
    ):  # safetensors puts the number into its text
        number = int(code.group(1))
    elif not isinstance(error, OSError) or not _concerns(path, error):
        return None
    if number in _FULL:
        return usage_error(
            "writing a file",
            f"{path} on a full disk",
            "the file needs free space",
            "free some and run the command again; finished records are kept",
        )
    if number in _FORBIDDEN:
        return usage_error(
            "writing a file",
            f"{path}, which cannot be written ({os.strerror(number or 0)})",
            "its folder must be writable",
            "choose another folder, such as --out build",
        )
    return usage_error(
        "writing a file",
        f"{path} ({error if number is None else os.strerror(number)})",
        "it must be possible to create it there",
        "choose another path, such as --out build",
    )


def _concerns(path: Path, error: OSError) -> bool:
    """Whether an error is about ``path``, its temporary file or a folder above; the body may have read other files."""
    if not isinstance(error.filename, str | os.PathLike):
        return True
    name = Path(error.filename)
    return name == path or name in path.parents or (name.parent == path.parent and name.suffix == ".part")


def _remove_quietly(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:  # on a read-only disk; the error that led here says more
        return
