"""Pack folders of JSON records into one compressed file each, and verify that every value reads back equal.

    python tools/pack_records.py papers/src/whence_papers/results      # every folder of records below it
    python tools/pack_records.py papers/src/whence_papers/claims/records
    python tools/pack_records.py --again papers/src/whence_papers/results   # also those that are packed, to add facts
    unzip -d FOLDER FOLDER.zip                                        # any unzip unpacks it again

The folder ``NAME`` becomes ``NAME.zip`` beside it; records that are packed already are kept, and files in the folder replace
those of the same name. The bytes depend on the records alone: names are sorted, and times and permissions are fixed.

Records get what ``record_facts.py`` can say about them. ``provenance.source_matches_commit``: whether the hash of the sources
that ran is the hash of ``src`` at the commit that the record names (null if the commit is unknown);
``provenance.sources``: if it is not, the commits that have these sources. A record without ``command`` gets the command that
makes it again, and ``provenance.command`` says so. What was recorded is never changed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record_facts import add_commands, describe_provenance
from whence.records import RecordFolder, replace_file
from whence.records.files import parse_record

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
        if provenance is not None:
            record["provenance"] = provenance | (record.get("provenance") or {})
    add_commands(records, store.path)
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


def folders_below(base: Path, packed: bool) -> list[Path]:
    """The folder itself and those below it that hold JSON files, and with ``packed`` also those that are packed."""
    folders = {path.parent for path in base.rglob("*.json")}
    return sorted(folders | ({path.with_suffix("") for path in base.rglob("*.zip")} if packed else set()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="folder of records, or of folders of records")
    parser.add_argument("--again", action="store_true", help="pack again what is packed, with the facts it lacks")
    options = parser.parse_args()
    for base in options.folder:
        folders = folders_below(base, options.again)
        if not folders:
            sys.exit(f"{base} holds no JSON files")
        for folder in folders:
            before = sum(path.stat().st_size for path in folder.glob("*.json"))
            packed = pack_folder(folder, describe_provenance)
            print(f"{packed}: {before} bytes in loose files, {packed.stat().st_size} packed")


if __name__ == "__main__":
    main()
