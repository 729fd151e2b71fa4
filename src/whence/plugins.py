"""Find objects that a user or another package provides: by entry point, by module or by file.

Names take these forms:

    epar                         a built-in name, or one that an installed package registers as an entry point
    my_module:Bell               an object of a module that can be imported
    ./bell.py:Bell(heads=4)      an object of a file, with keyword arguments
    ./bell.py                    the only mechanism or task of a file

Arguments are Python literals. They are parsed and never evaluated. Code runs only when a module or a file is named.

A built-in name wins over an entry point of the same name. A name that two packages register is an error.
"""

from __future__ import annotations

import ast
import cmath
import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.plugin_sources import find_sibling_modules

#: entry-point groups
COMMANDS = "whence.commands"
EXECUTORS = "whence.executors"
INTERVENTIONS = "whence.interventions"
POSITIONS = "whence.positions"
PROBE_TASKS = "whence.probe_tasks"
STUDIES = "whence.studies"
TASKS = "whence.tasks"

#: a path at the start of a text; one that begins with ./ ../ / or ~ may contain spaces, + and parentheses
_FILE = re.compile(r"\s*(?P<file>(?:(?:\.{1,2}/|/|~)[^:]*?|[\w./-]+?)\.py)\s*(?=$|[:+(])")
_REFERENCE = re.compile(r"(?P<module>[^()]+):(?P<name>[A-Za-z_]\w*)\s*(?P<arguments>\(.*\))?", re.DOTALL)
_ARGUMENTS = "arguments are keyword arguments with literal values, as in (words=3, kind='short')"


#: modules that were loaded from a file have this prefix
FILE_MODULE = "whence_file_"


@dataclass(frozen=True)
class PluginReference:
    """An object by module or file, with literal keyword arguments."""

    module: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points that installed packages register in a group, by name. ``require_unique`` finds duplicates."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


def require_unique(group: str, name: str, subject: str) -> None:
    """Raise if two packages register a name for different objects."""
    values = sorted({point.value for point in importlib.metadata.entry_points(group=group) if point.name == name})
    if len(values) > 1:
        uninstall = "uninstall one of the packages"
        raise usage_error(
            subject,
            f"the name {name}, which stands for {' and '.join(values)}",
            f"two installed packages register it in the group {group}",
            uninstall if group in (COMMANDS, STUDIES) else f"write {values[0]} instead of the name, or {uninstall}",
        )


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy for an unknown name: the most similar known one up to case, if there is one.

    >>> did_you_mean("retreival", ["retrieval", "copy"], "choose one"), did_you_mean("x", ["copy"], "choose one")
    ('did you mean retrieval?', 'choose one')
    >>> did_you_mean("yarn", ["Linear", "Yarn"], "choose one")
    'did you mean Yarn?'
    >>> did_you_mean("--tasks", ["--data"], "choose one")  # the dashes alone are alike
    'choose one'
    """
    spellings = {
        one.lower().lstrip("-"): one for one in reversed(list(known))
    }  # of those that differ in case, the first
    close = difflib.get_close_matches(name.lower().lstrip("-"), spellings, n=1)
    return f"did you mean {spellings[close[0]]}?" if close else otherwise


def require_known_settings(subject: str, factory: Any, settings: Mapping[str, Any], given: str = "") -> None:
    """Refuse settings that are no parameters of a function or class. One without a signature, or that takes any keyword, is not checked.

    ``given``: a parameter that is not a setting.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    known = [name for name in parameters if name != given]
    for name, value in settings.items():
        if name not in known:
            rule = f"the settings are {', '.join(known)}" if known else "it has no settings"
            raise usage_error(
                subject, f"the setting {name}={value!r}", rule, did_you_mean(name, known, "remove or rename it")
            )


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


def load_registered(group: str, name: str, subject: str) -> Any:
    """The object that an installed package registers in a group; None if there is none. ``subject`` begins the error texts.

    >>> load_registered(TASKS, "nonesuch", "") is None
    True
    """
    point = entry_points(group).get(name)
    if point is None:
        return None
    require_unique(group, name, subject)
    return load_entry_point(point, subject)


def is_reference(text: str) -> bool:
    """Whether a text names an object by module or file.

    >>> is_reference("./mine.py:Mine(words=3)"), is_reference("needle"), is_reference("Needle(words={1: 2})")
    (True, False, False)
    >>> is_reference("./mine.py"), is_reference("./a (1).py:Mine")
    (True, True)
    """
    return _FILE.match(text) is not None or ":" in text.partition("(")[0]


def split_file(text: str) -> tuple[str, str] | None:
    """The path of a Python file at the start of a text, and the rest; None for a text that begins otherwise.

    >>> split_file("./a+b (1).py:Bell(heads=4) + rotary"), split_file("rotary + ./bell.py:Bell")
    (('./a+b (1).py', ':Bell(heads=4) + rotary'), None)
    """
    match = _FILE.match(text)
    return None if match is None else (match["file"], text[match.end() :])


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
    file = split_file(text)
    path, rest = file or ("", text)
    match = _REFERENCE.fullmatch(f"_{rest}".strip() if file else rest.strip())
    if match is None:
        raise usage_error(
            f"{option} {text}".strip(),
            "no name after the colon",
            "an object of your own is written my_module:Name or ./file.py:Name(size=3)",
            "name the class or function",
        )
    return path or match["module"], match["name"], match["arguments"]


def load_reference(reference: PluginReference, subject: str) -> Any:
    """The object that a reference names; it is not called. ``subject`` begins the error texts."""
    module = load_module(reference.module, subject)
    try:
        return getattr(module, reference.name)
    except AttributeError:
        own = [name for name, value in vars(module).items() if _is_defined_in(module, value)]
        raise usage_error(
            subject,
            f"no {reference.name} in {reference.module}",
            f"it defines {', '.join(own) or 'no class or function'}",
            did_you_mean(reference.name, own, "check both names"),
        ) from None


def complete_reference(text: str, subject: str, kind: type, what: str) -> str:
    """A text that names a file alone, with the name of the only class of a kind in it; other texts as they are.

    ``what`` names the kind in error texts.
    """
    file = split_file(text)
    if file is None or file[1].lstrip().startswith(":"):
        return text
    path, arguments = file
    module = load_module(path, subject)
    names = [
        name
        for name, value in vars(module).items()
        if _is_defined_in(module, value) and inspect.isclass(value) and issubclass(value, kind)
    ]
    if len(names) == 1:
        return f"{path}:{names[0]}{arguments}"
    got = f"{path} with {' and '.join(names) if names else 'none'}"
    remedy = f"write {path}:{names[0] if names else 'Name'}"
    raise usage_error(subject, got, f"a file without a name after it must define one {what}", remedy)


def rebase_file(text: str, folder: Path) -> str:
    """A reference with its relative path resolved against a folder; other texts as they are.

    >>> rebase_file("./bell.py:Bell", Path("/studies")), rebase_file("rotary", Path("/studies"))
    ('/studies/bell.py:Bell', 'rotary')
    """
    file = split_file(text)
    if file is None or Path(file[0]).expanduser().is_absolute() or folder.resolve() == Path.cwd():
        return text
    return f"{(folder / file[0]).resolve()}{file[1]}"


def display_name(definition: Any) -> str:
    """The module and name of a class or function for tables and records; for one from a file, the file's name.

    >>> display_name(PluginReference)
    'whence.plugins.PluginReference'
    """
    module = definition.__module__
    if module.startswith(FILE_MODULE):
        return f"{Path(sys.modules[module].__file__ or '').name}:{definition.__qualname__}"
    return f"{module}.{definition.__qualname__}"


def _is_defined_in(module: ModuleType, value: Any) -> bool:
    is_definition = inspect.isclass(value) or inspect.isfunction(value)
    return is_definition and value.__module__ == module.__name__ and not value.__name__.startswith("_")


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
            return _load_file(path.resolve(), subject) if is_file else importlib.import_module(module)
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


def _load_file(path: Path, subject: str) -> ModuleType:
    """Run a file as a module, once for each path and content, so that its classes are the same at every load."""
    source = path.read_bytes()
    digest = hashlib.sha256(str(path).encode() + b"\0" + source).hexdigest()[:16]
    name = f"{FILE_MODULE}{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    _require_own_siblings(path, subject)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and isinstance(spec.loader, SourceFileLoader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        # cached bytecode belongs to a size and a second, and may be that of the text before
        exec(spec.loader.source_to_code(source, path), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _require_own_siblings(path: Path, subject: str) -> None:
    """Raise if a file imports a module beside it, and a module of the same name from another folder is already loaded.

    The file would get that other module, because a process has one module of a name. Installed modules are excepted: a name
    such as ``random`` means the installed one.
    """
    if (path.parent / "__init__.py").is_file():  # its modules have the package's name before their own
        return
    for sibling in find_sibling_modules(path):
        name = sibling.relative_to(path.parent).with_suffix("").parts[0]
        loaded_file = getattr(sys.modules.get(name), "__file__", None)
        if loaded_file is None or is_installed(loaded := Path(loaded_file).resolve()):
            continue
        if path.parent not in loaded.parents:
            raise usage_error(
                subject,
                f"{path.name}, which imports {name} from {sibling}",
                f"{loaded} is already loaded as {name}, and a process has one module of a name",
                f"rename one of the two {name} modules",
            )


def is_installed(path: Path) -> bool:
    """Whether a file belongs to Python's library or to an installed package."""
    library = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    return bool({"site-packages", "dist-packages"} & set(path.parts) or library & set(path.parents))
