"""A folder of JSON records, or one packed file with the same content, read alike.

While a study runs, each record is a file ``NAME.json`` in the folder. What is committed is packed: the folder
``copy-0123456789ab`` becomes ``copy-0123456789ab.zip`` beside it (``tools/pack_records.py``; any unzip opens it).
A record has the path ``copy-0123456789ab/NAME.json`` in both cases. Writing always goes to the folder; a record there takes
precedence over a packed one of the same name.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.records.files import parse_record, read_json, write

SUFFIX = ".zip"


class RecordFolder:
    """The records of one study, probe or group of experiments.

    Args:
        path: the folder, or its packed file. Neither has to exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_suffix("") if path.suffix == SUFFIX else path
        self.packed_path = Path(f"{self.path if self.path.name else self.path.resolve()}{SUFFIX}")
        self._archive: zipfile.ZipFile | None = None  # content of the packed file, as it was at _version
        self._packed: frozenset[str] = frozenset()  # names in it
        self._version: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        return f"RecordFolder({self.path.as_posix()!r})"

    def names(self) -> list[str]:
        """The file names of all records, sorted."""
        loose = {path.name for path in self.path.glob("*.json")}
        return sorted(loose | self._packed_names())

    def exists(self, name: str) -> bool:
        """Whether there is a record of this file name."""
        return (self.path / name).exists() or name in self._packed_names()

    def read(self, name: str) -> dict[str, Any]:
        """Read a record by its file name."""
        if (self.path / name).exists() or name not in self._packed_names():
            return read_json(self.path / name)
        assert self._archive is not None
        try:
            content = self._archive.read(name)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
            raise self._corrupt(error) from None
        return parse_record(content, self.location(name), self._remedy())

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Write a record into the folder, atomically."""
        write(self.path / name, record)

    def location(self, name: str) -> str:
        """Where a record is, for messages: its path, or the packed file with the name inside."""
        if (self.path / name).exists() or name not in self._packed_names():
            return (self.path / name).as_posix()
        return f"{self.packed_path.as_posix()}/{name}"

    def _packed_names(self) -> frozenset[str]:
        """The names in the packed file. It is read once, and again when it changes: packing may happen at any time."""
        if not self.packed_path.is_file():
            return frozenset()
        status = self.packed_path.stat()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._version:
            self._archive = self._open()
            self._packed = frozenset(name for name in self._archive.namelist() if name.endswith(".json"))
            self._version = version
        return self._packed

    def _open(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(io.BytesIO(self.packed_path.read_bytes()))  # in memory: no file stays open
        except (zipfile.BadZipFile, OSError) as error:
            raise self._corrupt(error) from None

    def _corrupt(self, error: Exception) -> Exception:
        got = f"{self.packed_path}, which cannot be read ({error})"
        return usage_error("reading records", got, "packed records are one zip file", self._remedy())

    def _remedy(self) -> str:
        return f"restore {self.packed_path.name} from git"


class RecordReader:
    """Reads records by path, packed or not, and opens each packed file once. Use one reader for a command that reads many.

    Changes of the files are noticed, so a reader never returns an old record.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, RecordFolder] = {}

    def folder(self, path: Path) -> RecordFolder:
        """The records of a folder or of its packed file."""
        if path not in self._folders:
            self._folders[path] = RecordFolder(path)
        return self._folders[path]

    def read(self, path: Path) -> dict[str, Any]:
        """Read a record by its path."""
        return self.folder(path.parent).read(path.name)

    def exists(self, path: Path) -> bool:
        """Whether there is a record of this path."""
        return self.folder(path.parent).exists(path.name)

    def find_folders(self, base: Path, name: str, *, deep: bool = False) -> list[Path]:
        """The folders that hold a record of this name: ``base`` itself, or those in it, sorted.

        A packed file in ``base`` that cannot be read is left out with a warning; the others are still found.

        Args:
            name: such as ``study.json`` or ``plan.json``.
            deep: also look in folders of folders.
        """
        if self.folder(base).exists(name):
            return [self.folder(base).path]
        start = "**/" if deep else ""
        folders = {path.parent for path in base.glob(f"{start}*/{name}")}
        for path in sorted(base.glob(f"{start}*{SUFFIX}")):
            folder = self.folder(path.with_suffix(""))
            try:
                if folder.exists(name):
                    folders.add(folder.path)
            except WhenceError as error:
                warnings.warn(str(error), stacklevel=2)
        return sorted(folders)


def read(path: Path) -> dict[str, Any]:
    """Read a record by its path, packed or not. For many records, ``RecordReader`` is faster."""
    return RecordReader().read(path)


def exists(path: Path) -> bool:
    """Whether there is a record of this path, packed or not."""
    return RecordReader().exists(path)


def find_folders(base: Path, name: str, *, deep: bool = False) -> list[Path]:
    """The folders that hold a record of this name, packed or not; see ``RecordReader.find_folders``."""
    return RecordReader().find_folders(base, name, deep=deep)
