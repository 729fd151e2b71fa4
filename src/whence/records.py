"""Evidence on disk: a result together with where it came from, written whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from whence.errors import usage_error


def environment(
    root: Path, packages: tuple[str, ...] = ("torch", "numpy"), device: str | None = None
) -> dict[str, Any]:
    """The machine (with its accelerator, if one is named), the versions, the commit and a hash of the sources."""
    handed = os.environ.get("WHENCE_COMMIT")
    changes = _git(root, "status", "--porcelain", "--", "src", "benchmarks")
    if handed:  # as `git describe --always --dirty` says it
        changes = "changed" if handed.endswith("-dirty") else ""
    machine = {"processor": _processor(), "architecture": platform.machine(), "cores": os.cpu_count()}
    return {
        "machine": machine if device is None else machine | {"accelerator": device},
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        # a lent machine has the sources but not their history, or an older one: there the commit is handed over
        "commit": handed.removesuffix("-dirty") if handed else _git(root, "rev-parse", "HEAD"),
        "uncommitted_changes": None if changes is None else bool(changes),
        "source_hash": source_hash(root / "src"),
    }


def source_hash(folder: Path) -> str:
    """One hash over the names and contents of all Python files below a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    write_text(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a record, a report or a page in one step: readers see the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """A record from disk; a file that is missing or corrupt is named."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise usage_error(
            "read", f"no file {path.name}", "a record is made by the command that measures it", "run it first"
        ) from None
    except UnicodeDecodeError:
        raise usage_error(
            "read", f"{path.name}, which is not UTF-8", "a record is whole JSON", "restore it from git or measure again"
        ) from None
    except json.JSONDecodeError as error:
        raise usage_error(
            "read",
            f"{path.name}, broken at line {error.lineno}",
            "a record is whole JSON",
            "restore it from git or measure again",
        ) from None
    if not isinstance(record, dict):
        raise usage_error(
            "read",
            f"{path.name} holding a {type(record).__name__}",
            "a record is a JSON object",
            "restore it from git or measure again",
        )
    return record


def _processor() -> str:
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        named = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model name")]
        return named[0] if named else platform.processor()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
