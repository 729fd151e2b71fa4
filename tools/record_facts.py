"""What git history and the study files say about a record: the sources that made it, and the command that makes it again.

``tools/pack_records.py`` adds these facts to the records that it packs, and ``tools/papers_table.py`` counts them.
"""

from __future__ import annotations

import hashlib
import itertools
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from whence.cli.probe_options import rerun_command
from whence.probe.run_folder import load_plan
from whence.records import RecordFolder

ROOT = Path(__file__).resolve().parents[1]
DERIVED = "derived from the study's name or the plan; the run did not store it"
EXPERIMENTS = {"epar": "epar/"}  # folder of records -> folder of study files
MIXED_FILES = 4  # so many changed files are tried in every combination of two versions
Record = dict[str, Any]


def describe_provenance(record: Record) -> Record | None:
    """Whether the sources that made a record are those of its commit; None for a record without an environment.

    Where they are not, ``sources`` names the later commit that has them, or the commits whose files together are them, if
    history has any.
    """
    environment = record.get("environment")
    if not isinstance(environment, dict):
        return None
    commit, found = environment.get("commit") or "", environment.get("source_hash")
    expected = hash_at(commit)
    matches = None if expected is None or not found else found == expected
    sources = find_sources(commit, found) if matches is False and found else None
    return {"source_matches_commit": matches, **({"sources": sources} if sources else {})}


@cache
def hash_at(commit: str) -> str | None:
    """``whence.records.source_hash`` of ``src`` at a commit; None if the commit is unknown here."""
    blobs = list_sources(commit)
    return None if blobs is None else hash_blobs(blobs)


@cache
def find_sources(commit: str, source_hash: str) -> Record | None:
    """The commit after ``commit`` whose ``src`` has this hash, or ``commit`` with files of the next commit; None if neither."""
    later = _git("rev-list", "--reverse", "--ancestry-path", f"{commit}..HEAD").decode().split()
    match = next((one for one in later if hash_at(one) == source_hash), None)
    if match is not None:
        return {"commit": match}
    before, after = list_sources(commit), list_sources(later[0]) if later else None
    if before is None or after is None:
        return None
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if len(changed) > MIXED_FILES:
        return None
    for size in range(1, len(changed)):
        for names in itertools.combinations(changed, size):
            mixed = before | {name: after[name] for name in names if name in after}
            for name in names:
                if name not in after:
                    del mixed[name]
            if hash_blobs(mixed) == source_hash:
                return {"commit": commit, "files": dict.fromkeys(names, later[0])}
    return None


def list_sources(commit: str) -> dict[str, str] | None:
    """The Python files of ``src`` at a commit, each with its git object; None if the commit is unknown here."""
    if not commit or not _git("cat-file", "-t", f"{commit}^{{commit}}"):
        return None
    lines = _git("ls-tree", "-r", "-z", commit, "src").decode().split("\0")
    entries = [line.split("\t") for line in lines if line.endswith(".py")]
    return {name: about.split()[2] for about, name in entries}


def hash_blobs(blobs: dict[str, str]) -> str:
    """``whence.records.source_hash`` of files that are given by their git objects."""
    total = hashlib.sha256()
    for name in sorted(blobs, key=Path):
        total.update(name.removeprefix("src/").encode() + b"\0" + read_blob(blobs[name]) + b"\0")
    return total.hexdigest()


@cache
def read_blob(name: str) -> bytes:
    return _git("cat-file", "blob", name)


def _git(*arguments: str) -> bytes:
    """The output of a git command; empty if it fails."""
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True).stdout


def add_commands(records: dict[str, Record], folder: Path) -> None:
    """Add the command that makes each record again to those that store none, and say so in ``provenance``."""
    for name, record in records.items():
        if record.get("command"):
            continue
        command = derive_command(name, records, folder)
        if command:
            record["command"] = command
            record["provenance"] = (record.get("provenance") or {}) | {"command": DERIVED}


def derive_command(name: str, records: dict[str, Record], folder: Path) -> str | None:
    """The command of a record that stores none, from its folder and the other records there; None if nothing says it."""
    if name.startswith("hypothesis-"):
        return "whence hypotheses smollm2 --full --device cuda"
    if "study.json" in records:
        command, study = str(records["study.json"].get("command") or ""), records["study.json"]["spec"]["name"]
        only = "" if "--only" in command or not command.startswith("whence run") else f" --only {shlex.quote(study)}"
        return command + only if command else None
    if "plan.json" in records and "tasks" in records["plan.json"]:  # a probe
        device = "cuda" if any(_uses_gpu(record) for record in records.values()) else "cpu"
        return records["plan.json"].get("command") or rerun_command(load_plan(folder)[0], device) or None
    if "experiment" in records[name]:
        return f"whence run {EXPERIMENTS.get(folder.name, '')}{records[name]['experiment']}"
    return next((str(record["command"]) for record in records.values() if record.get("command")), None)


def provenance_table(base: Path) -> str:
    """One row per packed file of records: whose sources made them, and whether they have a command."""
    head = ("folder", "records", "with an environment", "sources are those of the commit", "of another commit", "not found", "command stored by the run", "command added later", "no command")  # fmt: skip
    rows: list[list[Any]] = []
    for path in [base / "claims" / "records.zip", *sorted((base / "results").rglob("*.zip"))]:
        store = RecordFolder(path)
        records = [store.read(name) for name in store.names()]
        facts = [record.get("provenance") or {} for record in records]
        made = sum("environment" in record for record in records)
        matches = sum(one.get("source_matches_commit") is True for one in facts)
        others = sum("sources" in one for one in facts)
        added = sum("command" in one for one in facts)
        known = sum(bool(record.get("command")) for record in records)
        counts = [
            len(records),
            made,
            matches,
            others,
            made - matches - others,
            known - added,
            added,
            len(records) - known,
        ]
        rows.append([store.path.relative_to(base).as_posix(), *counts])
    rows.append(["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])])
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, ["---"] * len(head), *rows))


def _uses_gpu(record: Record) -> bool:
    machine = (record.get("environment") or {}).get("machine") or {}
    return bool(machine.get("accelerator"))
