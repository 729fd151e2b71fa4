"""Files of benchmarks: found in the data folder, plain or compressed, read as text, with a checksum."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from pathlib import Path

from whence.errors import WhenceError, usage_error
from whence.lab.data.corpora import VARIABLE, data_folder

SUFFIXES = ("", ".xz", ".gz")
DESCRIPTION = "docs/benchmarks.md"


def benchmark_folder(data: Path | None) -> Path:
    """The folder with the files: the one of ``--data``, or the one that WHENCE_DATA names."""
    if data is None:
        return data_folder("whence bench", f"put the files of the benchmark there ({DESCRIPTION}), or pass --data")
    if not data.is_dir():
        raise usage_error("whence bench --data", f"no folder {data}", "it must contain the files", "check the path")
    return data


def find_file(folder: Path, name: str) -> Path | None:
    """A file of the folder by its uncompressed name: itself, or with .xz or .gz; None if there is none."""
    return next((path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)


def missing_file(subject: str, folder: Path, name: str) -> WhenceError:
    """The error for a file that is not in the folder."""
    return usage_error(
        subject,
        f"no {name}, {name}.xz or {name}.gz in {folder}",
        f"benchmarks are read from the folder of {VARIABLE} or --data",
        f"add the file; {DESCRIPTION} describes its format",
    )


def read_text(path: Path) -> str:
    """The text of a plain or compressed file."""
    try:
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        elif path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8")
    except (lzma.LZMAError, EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise usage_error(
            "whence bench",
            f"{path}, which cannot be read ({error})",
            "it must be a complete UTF-8 file",
            "copy it again",
        ) from None


def read_lines(path: Path) -> list[str]:
    """The lines of a file, of which an empty last one does not count. Only a line break ends a line."""
    return [line.rstrip("\r") for line in read_text(path).removesuffix("\n").split("\n")]


def file_checksum(path: Path) -> str:
    """SHA-256 of the uncompressed content, so that a compressed copy is the same data."""
    return hashlib.sha256(read_text(path).encode()).hexdigest()
