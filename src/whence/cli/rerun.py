"""How studies are run again: the command whose spec has their hash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whence.cli.run import all_files, maker_in
from whence.lab import comparing
from whence.lab.study import Study


def commands(made: Sequence[Study], folder: Path = Path("studies")) -> list[str]:
    """The commands that run these studies, each once; a study that no command makes any more has none."""
    compared = [study for study in made if study.name == f"compare-{study.task}"]
    together = comparing.command(compared) if compared else None
    found = [together] if together else [comparing.command([study]) for study in compared]
    wanted = {study.hash for study in made} - {study.hash for study in compared}
    for name, path in all_files(folder).items() if wanted else ():
        for option, hashes in _hashes(path).items():
            if wanted & hashes:
                wanted -= hashes
                found.append(f"whence run {name}{option}")
    return [command for command in dict.fromkeys(found) if command]


def _hashes(path: Path) -> dict[str, set[str]]:
    """The hashes of the studies in a file, by the option that makes them. A file that fails makes none."""
    try:
        make, sizes = maker_in(path)
        made = {"": make()} | {f" --scale {scale}": make(scale) for scale in sizes}
        return {option: {one.hash for one in some if isinstance(one, Study)} for option, some in made.items()}
    except Exception:  # whatever someone is writing there is no reason to write no report
        return {}
