"""Find objects that a user or another package provides: by entry point, by module or by file.

Names take three forms:

    epar                         a built-in name, or one that an installed package registers as an entry point
    my_module:Bell               an object of a module that can be imported
    ./bell.py:Bell(heads=4)      an object of a file, with keyword arguments

Arguments are Python literals. They are parsed and never evaluated. Code runs only when a module or a file is named.
"""

from __future__ import annotations

import ast
import cmath
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from whence.errors import WhenceError, usage_error

#: entry-point groups
COMMANDS = "whence.commands"
EXECUTORS = "whence.executors"
INTERVENTIONS = "whence.interventions"
POSITIONS = "whence.positions"
PROBE_TASKS = "whence.probe_tasks"
STUDIES = "whence.studies"
TASKS = "whence.tasks"

_REFERENCE = re.compile(r"(?P<module>[^()]+):(?P<name>[A-Za-z_]\w*)\s*(?P<arguments>\(.*\))?", re.DOTALL)
_ARGUMENTS = "arguments are keyword arguments with literal values, as in (words=3, kind='short')"


@dataclass(frozen=True)
class PluginReference:
    """An object by module or file, with literal keyword arguments."""

    module: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points that installed packages register in a group, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


def load_entry_point(point: importlib.metadata.EntryPoint, subject: str) -> Any:
    """The object that an entry point names. An import error becomes a usage error that names the package."""
    try:
        return point.load()
    except Exception as error:
        raise usage_error(
            subject,
            f"{point.value}: {type(error).__name__}: {error}",
            f"the entry point {point.name!r} must be importable",
            "reinstall or correct the package that registers it",
        ) from error


def is_reference(text: str) -> bool:
    """Whether a text names an object by module or file.

    >>> is_reference("./mine.py:Mine(words=3)"), is_reference("needle"), is_reference("Needle(words={1: 2})")
    (True, False, False)
    """
    return ":" in text.partition("(")[0]


def parse_reference(text: str, option: str = "") -> PluginReference:
    """Split a text into module or file, the name in it, and the literal arguments. ``option`` begins the error texts.

    >>> parse_reference("./mine.py:Mine(words=3, names=['a'])")
    PluginReference(module='./mine.py', name='Mine', arguments={'words': 3, 'names': ['a']})
    """
    module, name, arguments = split_reference(text, option)
    return PluginReference(module, name, parse_arguments(arguments, f"{option} {text}".strip()))


def split_reference(text: str, option: str = "") -> tuple[str, str, str | None]:
    """The module or file, the name in it, and the text of the arguments with its parentheses.

    >>> split_reference("./mine.py:Mine(words=3)")
    ('./mine.py', 'Mine', '(words=3)')
    """
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise usage_error(
            f"{option} {text}".strip(),
            "no name after the colon",
            "an object of your own is written my_module:Name or ./file.py:Name(size=3)",
            "name the class or function",
        )
    return match["module"], match["name"], match["arguments"]


def load_reference(reference: PluginReference, subject: str) -> Any:
    """The object that a reference names; it is not called. ``subject`` begins the error texts."""
    module = load_module(reference.module, subject)
    try:
        return getattr(module, reference.name)
    except AttributeError:
        raise usage_error(
            subject,
            f"no {reference.name} in {reference.module}",
            "the module must define the class or function",
            "check both names",
        ) from None


def parse_arguments(
    text: str | None, subject: str, parse_call: Callable[[ast.Call], Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments in parentheses, as literals. ``parse_call`` handles values that are calls, if they are allowed.

    >>> parse_arguments("(words=3)", "")
    {'words': 3}
    """
    if not text:
        return {}
    try:
        call = ast.parse(f"_{text}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise usage_error(subject, f"arguments {text}", _ARGUMENTS, "correct the syntax") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise usage_error(subject, f"arguments {text}", _ARGUMENTS, "correct the syntax")
    return parse_keywords(call, subject, parse_call)


def parse_keywords(call: ast.Call, subject: str, parse_call: Callable[[ast.Call], Any] | None = None) -> dict[str, Any]:
    """The keyword arguments of a parsed call, as literals."""
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise usage_error(subject, f"arguments ({_unparse_arguments(call)})", _ARGUMENTS, "name each of them")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        name = str(keyword.arg)
        if name in arguments:
            raise usage_error(subject, f"the argument {name} twice", _ARGUMENTS, f"keep one {name}=")
        if isinstance(keyword.value, ast.Call) and parse_call is not None:
            arguments[name] = parse_call(keyword.value)
            continue
        try:
            arguments[name] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise usage_error(
                subject,
                f"{name}={ast.unparse(keyword.value)}",
                _ARGUMENTS,
                "write a number, a string in quotes, True, False, None, or a list of these",
            ) from None
        if any(isinstance(node, ast.Constant) and _overflows(node.value) for node in ast.walk(keyword.value)):
            raise usage_error(
                subject, f"{name}={arguments[name]!r}", "numbers must be finite", f"write a smaller {name}"
            )
    return arguments


def _overflows(value: Any) -> bool:
    """Whether a literal is a number such as 1e999, which Python reads as infinity."""
    return isinstance(value, float | complex) and not cmath.isfinite(value)


def _unparse_arguments(call: ast.Call) -> str:
    keywords = (f"{word.arg or '**'}={ast.unparse(word.value)}" for word in call.keywords)
    return ", ".join([*(ast.unparse(value) for value in call.args), *keywords])


def load_module(module: str, subject: str) -> ModuleType:
    """Import a module by name or by file. Modules of the working directory, or of the file's folder, are found too."""
    path = Path(module).expanduser()
    is_file = module.endswith(".py")
    if is_file and not path.is_file():
        raise usage_error(subject, f"no file {path}", "the path must lead to a Python file", "check the path")
    with _import_path(path.resolve().parent if is_file else Path.cwd()):
        try:
            return _load_file(path.resolve()) if is_file else importlib.import_module(module)
        except WhenceError:
            raise
        except ModuleNotFoundError as error:
            if is_file or (error.name != module.split(".")[0] and error.name != module):
                raise usage_error(
                    subject, f"{module}, which needs {error.name}", "it must be importable", f"install {error.name}"
                ) from error
            raise usage_error(
                subject, f"no module {module}", "it must be importable from here", "check the name, or give a file.py"
            ) from None
        except Exception as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise usage_error(
                subject, f"{module}{line}: {type(error).__name__}: {error}", "it must be importable", "correct it"
            ) from error


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """Let imports find the modules of a folder, after all others."""
    added = str(folder) not in sys.path
    if added:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    try:
        yield
    finally:
        if added:
            sys.path.remove(str(folder))


def _load_file(path: Path) -> ModuleType:
    """Run a file as a module, once for each path and content, so that its classes are the same at every load."""
    digest = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:16]
    name = f"whence_file_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def hash_source_file(definition: Any) -> str | None:
    """SHA-256 of the file that defines a class or function; None where there is no such file.

    >>> len(hash_source_file(PluginReference))
    64
    """
    try:
        file = inspect.getsourcefile(definition)
    except TypeError:
        return None
    if file is None or not Path(file).is_file():
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
