"""Compare every value of the committed records with those of an earlier commit, and write a summary.

    python tools/compare_records.py d25c626 --out papers/src/whence_papers/results/comparison.json

Records were renamed with the project: folders and files, the names of settings, and the texts and hashes that hold them.
The summary counts each kind of difference. Anything else, above all another number, makes the command fail.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from whence.records import RecordFolder, write

ROOT = Path(__file__).resolve().parents[1]
NEW = ROOT / "papers" / "src" / "whence_papers"
FOLDERS = ("results", "claims/records")
HASH = re.compile(r"[0-9a-f]{12}")
Folder = dict[str, dict[str, Any]]


def load_old(commit: str) -> dict[str, Folder]:
    """The records of a commit by folder, ``results/...`` or ``claims/records``, and name."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit, *FOLDERS], capture_output=True, check=True).stdout
    folders: dict[str, Folder] = defaultdict(dict)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for entry in files:
            path = PurePosixPath(entry.name)
            if path.suffix == ".json":
                content = files.extractfile(entry)
                assert content is not None
                folders[path.parent.as_posix()][path.name] = json.loads(content.read())
    return dict(folders)


def load_new() -> dict[str, Folder]:
    """The same of the files in this checkout, packed or not."""
    paths = {path for base in FOLDERS for path in (NEW / base).rglob("*.zip")}
    paths |= {path.parent for base in FOLDERS for path in (NEW / base).rglob("*.json")} | {NEW / "claims" / "records"}
    stores = {RecordFolder(path).path: RecordFolder(path) for path in paths}
    folders = {
        path.relative_to(NEW).as_posix(): {name: store.read(name) for name in store.names() if is_record(path, name)}
        for path, store in stores.items()
    }
    return {path: folder for path, folder in folders.items() if folder}


def is_record(folder: Path, name: str) -> bool:
    return folder != NEW / "results"  # which holds no records of its own


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no dict or list, with its path; an empty one counts as a value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


def numbers(record: dict[str, Any]) -> Counter[str]:
    """How often each number occurs in a record, which renaming does not change."""
    return Counter(json.dumps(value) for _, value in leaves(record) if isinstance(value, int | float))


def match(old: dict[str, Any], new: dict[str, Any], overlap: Any) -> dict[str, str]:
    """Old names to new ones: the same name, or the one of the rest that shares most."""
    pairs = {name: name for name in old if name in new}
    rest = [(overlap(old[a], new[b]), a, b) for a in old.keys() - pairs.keys() for b in new.keys() - pairs.values()]
    taken: set[str] = set()
    for score, a, b in sorted(rest, key=lambda row: (-row[0], row[1], row[2])):
        if score > 0 and a not in pairs and b not in taken:
            pairs[a] = b
            taken.add(b)
    return pairs


def shared_numbers(old: dict[str, Any], new: dict[str, Any]) -> float:
    same_run = all(old.get(key) == new.get(key) for key in ("arm", "seed", "where"))
    return (1000 if same_run else 0) + sum((numbers(old) & numbers(new)).values()) / 1e6 if same_run else 0


def shared_names(name: str, other: str, old: Folder, new: Folder) -> int:
    plain = [HASH.sub("", text) for text in (name, other)]
    return 1000 * (plain[0] == plain[1]) + len(old.keys() & new.keys()) if plain[0] == plain[1] else 0


class Comparison:
    """Counts of equal values and of differences by kind."""

    def __init__(self) -> None:
        self.equal = 0
        self.kinds: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def compare(self, old: Any, new: Any, where: str) -> None:
        if isinstance(old, dict) and isinstance(new, dict) and (old or new):
            self._compare_dicts(old, new, where)
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) > 0:
            for index, (a, b) in enumerate(zip(old, new, strict=True)):
                self.compare(a, b, f"{where}[{index}]")
        elif json.dumps(old) == json.dumps(new):
            self.equal += 1
        else:
            self._differ(old, new, where)

    def _compare_dicts(self, old: dict[str, Any], new: dict[str, Any], where: str) -> None:
        gone, added = [key for key in old if key not in new], [key for key in new if key not in old]
        for key in old:
            if key in new:
                self.compare(old[key], new[key], f"{where}.{key}")
        for key in gone:  # a renamed key has the same value, or one that differs by names itself
            same = [other for other in added if json.dumps(old[key]) == json.dumps(new[other])]
            like = [other for other in added if numbers({"": old[key]}) == numbers({"": new[other]})]
            if not (same or like):
                self.unexpected.append(f"{where}: {key} is missing")
                continue
            other = (same or like)[0] if RENAMED.get(key) not in added else RENAMED[key]
            added.remove(other)
            self.kinds[f"name {key} -> {other}"] += 1
            self.compare(old[key], new[other], f"{where}.{other}")
        for key in added:
            self.kinds[f"added: {key}"] += 1
            if key != "provenance":
                self.unexpected.append(f"{where}: {key} was added")

    def _differ(self, old: Any, new: Any, where: str) -> None:
        if not (isinstance(old, str) and isinstance(new, str)):
            self.unexpected.append(f"{where}: {json.dumps(old)[:60]} became {json.dumps(new)[:60]}")
        elif HASH.fullmatch(old) and HASH.fullmatch(new):
            self.kinds["hash of a renamed specification"] += 1
        elif rename_text(old) == new:
            self.kinds["text with renamed settings"] += 1
        else:
            self.kinds[f"text {old[:60]!r} -> {new[:60]!r}"] += 1
            self.unexpected.append(f"{where}: {old[:80]!r} became {new[:80]!r}")


#: settings that several keys could have become
RENAMED: dict[str, str] = {}


def rename_text(text: str) -> str:
    return re.sub(r"\blearn=", "learnable=", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="whose results/ and claims/records/ are compared with")
    parser.add_argument("--out", type=Path, help="file for the summary")
    given = parser.parse_args()
    old, new = load_old(given.commit), load_new()
    found = Comparison()
    files = renamed_files = 0
    folders = match(
        {name: (name, folder) for name, folder in old.items()},
        {name: (name, folder) for name, folder in new.items()},
        lambda a, b: shared_names(a[0], b[0], a[1], b[1]),
    )
    for name, folder in old.items():
        if name not in folders:
            found.unexpected.append(f"{name} is missing")
            continue
        there = new[folders[name]]
        pairs = match(folder, there, shared_numbers)
        for file, record in folder.items():
            if file not in pairs:
                found.unexpected.append(f"{name}/{file} is missing")
                continue
            files += 1
            renamed_files += pairs[file] != file
            found.compare(record, there[pairs[file]], f"{name}/{file}")
        found.unexpected += [f"{folders[name]}/{extra} was added" for extra in there.keys() - set(pairs.values())]
    summary = {
        "about": "Every value of the records at an earlier commit, compared with the committed ones.",
        "command": f"python tools/compare_records.py {given.commit}",
        "commit": given.commit,
        "files": files,
        "files_renamed": renamed_files,
        "folders": len(old),
        "folders_renamed": sum(a != b for a, b in folders.items()),
        "values_equal": found.equal,
        "differences": dict(sorted(found.kinds.items())),
        "unexpected": found.unexpected,
    }
    if given.out:
        write(given.out, summary)
    print(json.dumps(summary, indent=1)[:6000])
    sys.exit(bool(found.unexpected))


if __name__ == "__main__":
    main()
