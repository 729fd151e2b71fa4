"""The files published with Liu et al. 2023 (arXiv 2307.03172), recognised by their content and not by their names."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from whence.errors import usage_error

#: SHA-256 of what is inside the published archives
CONTENT = {
    "key-value-75": "a0b62bcf5c33d41acd002250633c41f4890071bd05716849513b14a69473cd60",
    "documents": "315fb590f71f7556c49152e72c3479d070c5b6a83f37025fe9b1f631d3ebbdcf",
}


def read_rows(path: Path, name: str) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a file, and whether it is the published one."""
    try:
        raw = gzip.decompress(path.read_bytes())
        rows = [json.loads(line) for line in raw.split(b"\n") if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise usage_error(
            f"the task {name}", f"{path.name}: {error}", "it is lines of JSON, compressed with gzip", "restore the file"
        ) from None
    return rows, hashlib.sha256(raw).hexdigest() == CONTENT[name]
