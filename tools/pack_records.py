"""Pack folders of JSON records into one compressed file each, and verify that every value reads back equal.

    python tools/pack_records.py papers/src/whence_papers/results      # every folder of records below it
    python tools/pack_records.py papers/src/whence_papers/claims/records
    unzip -d FOLDER FOLDER.zip                                        # any unzip unpacks it again

The folder ``NAME`` becomes ``NAME.zip`` beside it; records that are packed already are kept, and files in the folder replace
those of the same name. The bytes depend on the records alone: names are sorted, and times and permissions are fixed.

Each record with an environment gets one field more, ``provenance``: whether the hash of the sources that ran is the hash of
``src`` at the commit that the record names, computed from git history (``source_matches_commit``; null if the commit is
unknown). What was recorded is never changed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from whence.records import RecordFolder, replace_file
from whence.records.files import parse_record

ROOT = Path(__file__).resolve().parents[1]
TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that the format knows
Records = dict[str, dict[str, Any]]


def pack_folder(folder: Path, describe: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Path:
    """Pack the records of a folder, verify the packed file, and remove the loose files that are in it.

    A record that a running study writes or replaces meanwhile stays.
    """
    store = RecordFolder(folder)
    loose = {path: path.read_bytes() for path in store.path.glob("*.json")}
    records = {name: store.read(name) for name in store.names() if store.path / name not in loose}
    records |= {path.name: parse_record(content, str(path), f"delete {path}") for path, content in loose.items()}
    for record in records.values():
        provenance = describe(record)
        if provenance is not None and "provenance" not in record:
            record["provenance"] = provenance
    with replace_file(store.packed_path) as part:
        write_packed(part, records)
        require_equal(read_packed(part), records, store.packed_path)
    for path, content in loose.items():
        if path.exists() and path.read_bytes() == content:
            path.unlink()
    with contextlib.suppress(OSError):  # the folder stays if it holds anything else
        store.path.rmdir()
    return store.packed_path


def write_packed(path: Path, records: Records) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name in sorted(records):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # the same on every system
            text = json.dumps(records[name], separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            packed.writestr(entry, text.encode("utf-8"), compresslevel=9)


def read_packed(path: Path) -> Records:
    with zipfile.ZipFile(path) as packed:
        return {name: json.loads(packed.read(name)) for name in packed.namelist()}


def require_equal(found: Records, expected: Records, path: Path) -> None:
    """Compare texts: 1 and 1.0, or True and 1, are equal values in Python and different records."""
    for name in sorted(found.keys() | expected.keys()):
        if json.dumps(found.get(name)) != json.dumps(expected.get(name)):
            sys.exit(f"{path}: {name} does not read back as it was; nothing was packed")


def describe_provenance(record: dict[str, Any]) -> dict[str, Any] | None:
    """Whether the sources that made a record are those of its commit; None for a record without an environment."""
    environment = record.get("environment")
    if not isinstance(environment, dict):
        return None
    expected = hash_at(environment.get("commit") or "")
    found = environment.get("source_hash")
    return {"source_matches_commit": None if expected is None or not found else found == expected}


@cache
def hash_at(commit: str) -> str | None:
    """``whence.records.source_hash`` of ``src`` at a commit; None if the commit is unknown here."""
    if (
        not commit
        or subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True).returncode
    ):
        return None
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=True).stdout
    total = hashlib.sha256()
    with tarfile.open(fileobj=io.BytesIO(archive)) as sources:
        files = {PurePosixPath(entry.name): entry for entry in sources if entry.name.endswith(".py")}
        for name in sorted(files):
            content = sources.extractfile(files[name])
            assert content is not None
            total.update(name.relative_to("src").as_posix().encode() + b"\0" + content.read() + b"\0")
    return total.hexdigest()


def folders_below(base: Path) -> list[Path]:
    """The folder itself and those below it that hold JSON files."""
    return sorted({path.parent for path in base.rglob("*.json")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="folder of records, or of folders of records")
    for base in parser.parse_args().folder:
        folders = folders_below(base)
        if not folders:
            sys.exit(f"{base} holds no JSON files")
        for folder in folders:
            before = sum(path.stat().st_size for path in folder.glob("*.json"))
            packed = pack_folder(folder, describe_provenance)
            print(f"{packed}: {before} bytes in loose files, {packed.stat().st_size} packed")


if __name__ == "__main__":
    main()
