"""Whether the sources that made the records of a claim are those of the commit that the records name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from whence.records import RecordFolder


def add_provenance(rows: list[dict[str, Any]]) -> None:
    """Add ``sources`` to claims, a sentence about their records; claims that share records share it."""
    sentences: dict[str, str] = {}
    for row in rows:
        record = row["record"]
        if record not in sentences:
            sentences[record] = describe_sources(record)
        row["sources"] = sentences[record]


def describe_sources(record: str) -> str:
    """A sentence about the records that a claim names: paths of folders or files, separated by commas or "and"."""
    matches = []
    for text in re.split(r", | and ", record) if record else ():
        path = Path(text)
        folder, names = (
            (RecordFolder(path.parent), [path.name]) if path.suffix == ".json" else (RecordFolder(path), None)
        )
        for name in folder.names() if names is None else filter(folder.exists, names):
            matches.append((folder.read(name).get("provenance") or {}).get("source_matches_commit"))
    known = [match for match in matches if match is not None]
    if not known:
        return ""
    if all(known):
        return "made by the sources of the commit that the record names"
    return f"{known.count(False)} of {len(known)} records were made by other sources than those of the commit they name"
