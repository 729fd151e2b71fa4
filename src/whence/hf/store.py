"""The cache of converted models: folders that are whole or not there, with the checksum of every file.

``WHENCE_CACHE`` names it; otherwise it is the folder ``whence`` in the user's cache (``XDG_CACHE_HOME``, ``~/.cache``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whence import records
from whence.errors import usage_error

SUMS = "checksums.json"


def cache_folder() -> Path:
    """Where converted models are kept."""
    named = os.environ.get("WHENCE_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "whence"


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``folder`` in one step when all went well, and vanishes otherwise."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield part
        sums = {path.relative_to(part).as_posix(): checksum(path) for path in sorted(part.rglob("*")) if path.is_file()}
        records.write(part / SUMS, {"sha256": sums})
        part.chmod(0o755)  # a temporary folder is for its owner alone
        try:
            os.replace(part, folder)
        except OSError:
            if not folder.exists():  # otherwise another process was quicker
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def require_whole(asked: str, folder: Path, mend: str) -> None:
    """Refuse a folder in which a file is missing or not what was written; the file is named."""
    for name, wanted in records.read(folder / SUMS)["sha256"].items():
        path = folder / name
        if not path.is_file() or checksum(path) != wanted:
            state = "changed" if path.is_file() else "missing"
            raise usage_error(
                asked, f"{path}, which is {state}", "a converted model is as it was written", f"delete {folder}; {mend}"
            )
