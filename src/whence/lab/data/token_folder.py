"""A folder with tokenised documents: memory-mapped tokens, the offsets of documents, the tokenizer, and a manifest.

    tokens.bin       the tokens of all documents, uint16 or uint32, each document with its end-of-text token
    documents.bin    the offset of each document in tokens.bin and the end of the last one, int64
    tokenizer.json   of the package tokenizers
    tokens.json      the manifest: parts, sources, settings, and the checksum of every file

The manifest is written last. A folder without one is incomplete and is not read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.errors import require_package, usage_error
from whence.lab.data.tokenizers import TokenizerFile
from whence.records import read

FORMAT = 1
MANIFEST, TOKENS, DOCUMENTS, TOKENIZER = "tokens.json", "tokens.bin", "documents.bin", "tokenizer.json"
#: parts in the order in which they are stored
PARTS = ("train", "validation", "test")
_KEYS = ("format", "identity", "dtype", "vocab_size", "end_token", "parts", "files")


@dataclass(frozen=True)
class TokenPart:
    """The documents of a part.

    Args:
        tokens: ``[N]``, memory-mapped.
        offsets: ``[documents + 1]``, where each document begins in ``tokens``, and the end of the last one.
    """

    tokens: Tensor
    offsets: Tensor

    def document_of(self, index: Tensor) -> Tensor:
        """The number of the document of each token; ``index`` has any shape."""
        return torch.searchsorted(self.offsets, index, right=True) - 1


class TokenFolder:
    """A complete folder. Opening it verifies the checksum of every file.

    Args:
        path: the folder that ``whence tokenize`` wrote.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        for name, facts in self.manifest["files"].items():
            _verify_file(path / name, facts)
        self._tokens = _map_file(path / TOKENS, self.manifest["dtype"])
        self._offsets = _map_file(path / DOCUMENTS, "int64")

    @property
    def identity(self) -> str:
        return self.manifest["identity"]

    @cached_property
    def tokenizer(self) -> TokenizerFile:
        return TokenizerFile(str(self.path / TOKENIZER))

    @property
    def parts(self) -> Mapping[str, Mapping[str, int]]:
        """Documents, tokens and bytes of text of each part."""
        return self.manifest["parts"]

    def part(self, name: str) -> TokenPart | None:
        """The documents of a part; None if it has none."""
        first = 0
        for part in PARTS:
            count = self.parts[part]["documents"]
            if part == name and count:
                offsets = self._offsets[first : first + count + 1]
                return TokenPart(self._tokens[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
            first += count
        return None


def is_token_folder(path: Path) -> bool:
    """Whether a path is a folder of ``whence tokenize``, complete or not."""
    return path.is_dir() and ((path / MANIFEST).is_file() or (path / TOKENS).is_file())


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder, with all its keys."""
    if not path.is_dir():
        rule = "it is a folder that whence tokenize wrote"
        raise usage_error(
            "a token folder", f"no folder {path}", rule, f"correct the path, or run whence tokenize --out {path}"
        )
    if not (path / MANIFEST).is_file():
        got = f"{path} without {MANIFEST}"
        raise usage_error("a token folder", got, "it is written last, so the folder is incomplete", _remedy(path))
    manifest = read(path / MANIFEST)
    missing = [key for key in _KEYS if key not in manifest]
    if missing or manifest["format"] != FORMAT:
        got = f"{path / MANIFEST} " + (
            f"without {', '.join(missing)}" if missing else f"of format {manifest['format']}"
        )
        raise usage_error("a token folder", got, f"this version reads format {FORMAT}", _remedy(path))
    return manifest


def describe_file(path: Path) -> dict[str, Any]:
    """The size and the checksum of a file, for the manifest."""
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify_file(path: Path, facts: Mapping[str, Any]) -> None:
    if not path.is_file():
        got = f"no {path}"
    elif (size := path.stat().st_size) != facts["bytes"]:
        got = f"{path} with {size:,} bytes instead of {facts['bytes']:,}"
    elif hash_file(path) != facts["sha256"]:
        got = f"{path}, whose content changed (SHA-256)"
    else:
        return
    raise usage_error("a token folder", got, f"{MANIFEST} has its size and checksum", _remedy(path.parent))


def _remedy(path: Path) -> str:
    return f"delete {path} and run whence tokenize again"


def _map_file(path: Path, dtype: str) -> Tensor:
    numpy = require_package("numpy", "a token folder", "lab")
    # copy-on-write: torch warns about read-only memory, and the file cannot change
    return torch.from_numpy(numpy.memmap(path, dtype=dtype, mode="c"))
