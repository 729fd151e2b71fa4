"""Find objects that a user or another package brings: by entry point, by module or by file.

Names take three forms:

    epar                         a built-in name, or one that an installed package registers as an entry point
    my_module:Bell               an object of a module that can be imported
    ./bell.py:Bell(width=2)      an object of a file, with keyword arguments

Arguments are Python literals. They are parsed and never evaluated. Code runs only when a module or a file is named.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from whence.errors import WhenceError, usage_error

COMMANDS = "whence.commands"
TASKS = "whence.tasks"
STUDIES = "whence.studies"

_REFERENCE = re.compile(r"(?P<module>.+):(?P<name>[A-Za-z_]\w*)\s*(?P<arguments>\(.*\))?", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """An object by module or file, with literal keyword arguments."""

    module: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points that installed packages register in a group, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


def is_reference(text: str) -> bool:
    """Whether a text names an object by module or file.

    >>> is_reference("./mine.py:Mine(words=3)"), is_reference("needle")
    (True, False)
    """
    return ":" in text


def parse_reference(text: str, option: str = "") -> Reference:
    """The module or file, the name in it, and the literal arguments. ``option`` is named in errors.

    >>> parse_reference("./mine.py:Mine(words=3, names=['a'])")
    Reference(module='./mine.py', name='Mine', arguments={'words': 3, 'names': ['a']})
    """
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise usage_error(
            f"{option} {text}".strip(),
            "no name after the colon",
            "an object of your own is my_module:Name or ./file.py:Name(size=3)",
            "name the class or function",
        )
    return Reference(match["module"], match["name"], parse_arguments(match["arguments"], f"{option} {text}".strip()))


def load_reference(reference: Reference, asked: str) -> Any:
    """The object that a reference names; it is not called. ``asked`` begins the error texts."""
    module = load_module(reference.module, asked)
    try:
        return getattr(module, reference.name)
    except AttributeError:
        raise usage_error(
            asked,
            f"no {reference.name} in {reference.module}",
            "it is a class or a function there",
            "check both names",
        ) from None


def parse_arguments(text: str | None, asked: str) -> dict[str, Any]:
    """Keyword arguments in parentheses, as literals.

    >>> parse_arguments("(words=3)", "")
    {'words': 3}
    """
    if not text:
        return {}
    rule = "arguments are named and literal, like (words=3, kind='short')"
    try:
        call = ast.parse(f"_{text}", mode="eval").body
    except (SyntaxError, ValueError):
        raise usage_error(asked, f"arguments {text}", rule, "correct them") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise usage_error(asked, f"arguments {text}", rule, "name each of them")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise usage_error(asked, f"arguments {text}", rule, "name each of them once")
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            raise usage_error(
                asked, f"{keyword.arg}={ast.unparse(keyword.value)}", rule, "write the value itself"
            ) from None
    return arguments


def load_module(module: str, asked: str) -> ModuleType:
    """Import a module by name or by file. Modules of the working directory are found too."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        return _load_file(Path(module), asked) if module.endswith(".py") else importlib.import_module(module)
    except WhenceError:
        raise
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise usage_error(
                asked, f"{module}, which needs {error.name}", "it can be imported", f"install {error.name}"
            ) from error
        raise usage_error(
            asked, f"no module {module}", "it can be imported from here", "check the name, or give a file.py"
        ) from None
    except Exception as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise usage_error(
            asked, f"{module}{line}: {type(error).__name__}: {error}", "it is imported without an error", "correct it"
        ) from error
    finally:
        sys.path.remove(here)


def _load_file(path: Path, asked: str) -> ModuleType:
    path = path.expanduser()
    if not path.is_file():
        raise usage_error(asked, f"no file {path}", "a path leads to a Python file", "check the path")
    name = f"whence_file_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
