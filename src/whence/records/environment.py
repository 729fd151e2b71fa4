"""Where a record comes from: the package and its hash, versions, machine, the git commit, and the command to rerun."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: names a copy of this project whose history is elsewhere, as ``git describe --always --dirty`` prints it
COMMIT_VARIABLE = "WHENCE_COMMIT"


def describe_environment(
    packages: Sequence[str] = ("torch", "numpy"), *, accelerator: str | None = None, sources: Sequence[str] = ()
) -> dict[str, Any]:
    """Describe the machine, the versions and the source code that make a record.

    Git facts are recorded only if the imported package lies in a checkout of this project; otherwise they are None. The
    environment variable ``WHENCE_COMMIT`` overrides them on machines that have the sources without their history.

    Args:
        packages: distributions whose versions are recorded, if installed, beside that of whence.
        accelerator: the name of the GPU, if one is used.
        sources: modules outside whence that take part, such as a task's ``__module__``: the top-level package of each is
            hashed as well.
    """
    others = sorted({name.partition(".")[0] for name in sources} - {"whence"})
    return {
        "machine": describe_machine(accelerator),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": _versions(("whence", *others, *packages)),
        **_git_facts(),
        "source_hash": source_hash(),
        **({"other_source_hashes": {name: source_hash(name) for name in others}} if others else {}),
    }


def describe_machine(accelerator: str | None = None) -> dict[str, Any]:
    """Processor, architecture and cores of this machine, with the name of the GPU, if one is used."""
    machine = {"processor": _processor(), "architecture": platform.machine(), "cores": os.cpu_count()}
    return machine if accelerator is None else machine | {"accelerator": accelerator}


def rerun_command(command: str | None = None) -> str | None:
    """The command that makes a record again: the one given, or the ``whence`` command that is running, or None.

    >>> rerun_command("python benchmarks/cpu.py")
    'python benchmarks/cpu.py'
    """
    if command is not None:
        return command
    program = Path(sys.argv[0])
    running = program.stem == "whence" or (program.name == "__main__.py" and program.parent.name == "whence")
    # a document for scripts changes nothing in a record
    return shlex.join(["whence", *(word for word in sys.argv[1:] if word != "--json")]) if running else None


def source_hash(package: str = "whence") -> str | None:
    """SHA-256 over the names and contents of the Python files of an importable package or module.

    Names are relative to the folder that holds the package, so that a checkout and an installed copy agree.
    """
    place = _location(package)
    if place is None:
        return None
    total = hashlib.sha256()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        total.update(path.relative_to(place.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def _location(package: str) -> Path | None:
    """The folder of a package or the file of a module; None for one without a file, such as an interactive session."""
    module = sys.modules.get(package)
    if module is None:
        spec = importlib.util.find_spec(package)
        folders, file = (spec.submodule_search_locations, spec.origin) if spec else (None, None)
    else:  # a module that was loaded from a path cannot be found by name
        folders, file = getattr(module, "__path__", None), getattr(module, "__file__", None)
    if folders:
        return Path(next(iter(folders)))
    return Path(file) if file and Path(file).is_file() else None


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name.replace("_", "-"))
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _git_facts() -> dict[str, Any]:
    override = os.environ.get(COMMIT_VARIABLE)
    if override:
        return {"commit": override.removesuffix("-dirty"), "uncommitted_changes": override.endswith("-dirty")}
    root = checkout_of(_location("whence"))
    commit = None if root is None else _git(root, "rev-parse", "HEAD")
    if root is None or commit is None:
        return {"commit": None, "uncommitted_changes": None}
    # of the papers only the code: their folder holds records, which a run adds to
    changes = _git(root, "status", "--porcelain", "--", "src", "benchmarks", "papers/src/*.py")
    return {"commit": commit, "uncommitted_changes": None if changes is None else bool(changes)}


def checkout_of(package: Path | None) -> Path | None:
    """The root of the checkout of this project that a package folder lies in, or None.

    An environment inside another repository is no such checkout, and neither are unpacked sources inside one: the git
    repository's own root must hold this project.
    """
    if package is None or package.parent.name != "src":
        return None
    root = package.resolve().parent.parent
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    if project.get("project", {}).get("name") != package.name:
        return None
    top = _git(root, "rev-parse", "--show-toplevel")
    return root if top is not None and Path(top).resolve() == root else None


def _processor() -> str:
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model name")]
    return models[0] if models else platform.processor()


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
