"""The source files of a user's objects: their hash, for records, and the modules beside a file that it imports."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def hash_source_file(definition: Any) -> str | None:
    """SHA-256 of the file that defines a class or function; None where there is no such file.

    Modules in the same folder or below that the file imports, directly or through such a module, are part of the hash.

    >>> len(hash_source_file(find_sibling_modules))
    64
    """
    try:
        file = inspect.getsourcefile(definition)
    except TypeError:
        return None
    if file is None or not Path(file).is_file():
        return None
    path = Path(file).resolve()
    total = hashlib.sha256(path.read_bytes())
    for sibling in find_sibling_modules(path):
        total.update(b"\0" + sibling.relative_to(path.parent).as_posix().encode() + b"\0" + sibling.read_bytes())
    return total.hexdigest()


def find_sibling_modules(path: Path) -> list[Path]:
    """The modules below a file's folder that it imports, directly or through each other, in order of name.

    Import statements are read, not run.
    """
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for module in _imported_files(waiting.pop()):
            if path.parent in module.parents and module != path and module not in found:
                found.add(module)
                waiting.append(module)
    return sorted(found)


def _imported_files(path: Path) -> Iterator[Path]:
    """The files of modules beside a file, or in the packages around it, that its import statements can mean."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    roots = [path.parent]
    while (roots[-1] / "__init__.py").is_file():
        roots.append(roots[-1].parent)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, bases = [alias.name for alias in node.names], roots
        elif isinstance(node, ast.ImportFrom):
            names = [
                ".".join(filter(None, (node.module, name))) for name in ("", *(alias.name for alias in node.names))
            ]
            bases = [path.parents[node.level - 1]] if node.level else roots
        else:
            continue
        for base in bases:
            for name in filter(None, names):
                parts = name.split(".")
                stems = [base.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
                candidates = [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
                yield from (file.resolve() for file in candidates if file.is_file())
