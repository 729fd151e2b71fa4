"""Study files: Python files that define studies or experiments for ``whence run``.

A file defines one of two functions. ``studies()`` returns a list of ``whence.lab.study.Study``: arms to train and compare.
It may take a ``scale``, one of the file's ``SCALES``, and other arguments of its own: ``studies(visits=None)`` gives
``whence run`` the option ``--visits TEXT`` for this file. ``experiments()`` returns a list of
``whence.lab.experiment.Experiment``: results to compute into a record each, and figures to draw from it.
"""

from __future__ import annotations

import importlib.util
import inspect
import runpy
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whence.errors import WhenceError, usage_error
from whence.lab.experiment import Experiment
from whence.lab.study import Study
from whence.plugins import STUDIES, did_you_mean, entry_points, require_unique
from whence.validation import format_value

#: where study files are looked for by name
STUDIES_FOLDER = Path("studies")
#: options of ``whence run`` that every study file has, for suggestions
COMMON_OPTIONS = ("jobs", "out", "folder", "quick", "only", "scale", "executor", "shard", "help")


@dataclass(frozen=True)
class StudyFile:
    """What a study file defines: its docstring, its function ``studies()`` or ``experiments()``, and the scales it takes."""

    about: str
    function: Callable[..., list[Study | Experiment]]
    scales: tuple[str, ...]

    @property
    def default_scale(self) -> str | None:
        return inspect.signature(self.function).parameters["scale"].default if self.scales else None

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ``whence run`` that the file adds, as they are written."""
        return tuple(_option_name(name) for name in inspect.signature(self.function).parameters if name != "scale")


def list_study_files(folder: Path) -> dict[str, Path]:
    """Study files by name: those of installed packages (entry point group ``whence.studies``) and those in a folder."""
    files: dict[str, Path] = {}
    for point in entry_points(STUDIES).values():
        require_unique(STUDIES, point.name, "whence studies")
        try:
            spec = importlib.util.find_spec(point.value)
        except ImportError as error:  # one broken package must not hide the studies of the others
            warnings.warn(
                f"the studies of {point.value} are ignored: {error}; reinstall or correct the package that registers "
                f"the entry point {point.name!r} in the group {STUDIES}",
                stacklevel=2,
            )
            continue
        for location in (spec.submodule_search_locations if spec else None) or ():
            found = _files_below(Path(location))
            for name in found.keys() & files.keys():
                raise usage_error(
                    "whence studies",
                    f"the study {name}, which is {files[name]} and {found[name]}",
                    "two installed packages have a study file of that name",
                    "run one of them by its path, or uninstall one of the packages",
                )
            files |= found
    return files | _files_below(folder)


def find_study_file(name: str, folder: Path, subject: str = "whence run") -> Path:
    """A study file by name or path. ``subject`` begins the error."""
    if name.endswith(".py") and Path(name).exists():
        return Path(name)
    known = list_study_files(folder)
    path = None if name.endswith(".py") else known.get(name)
    if path is None or not path.exists():
        names = ", ".join(known) or "none; the package whence-papers has some"
        raise usage_error(
            subject,
            f"no file {name}" if name.endswith(".py") else f"no study {name}",
            f"the studies are: {names}",
            did_you_mean(name, known, "choose one of them, or name a file.py"),
        )
    return path


def parse_options(arguments: Sequence[str]) -> dict[str, str]:
    """Options of a study file from the rest of a command line.

    >>> parse_options(["--visits", "my.csv", "--top-k=3"])
    {'visits': 'my.csv', 'top_k': '3'}
    """
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") or (not equals and not rest):
            rule = "the options of a study file have the form --name value"
            raise usage_error("whence run", name, rule, "correct it, or leave it out")
        options[name[2:].replace("-", "_")] = value if equals else rest.pop(0)
    return options


def load_study_file(
    path: Path, scale: str | None = None, options: Mapping[str, str] | None = None
) -> list[Study | Experiment]:
    """The studies or experiments of a file.

    Args:
        scale: one of the file's SCALES.
        options: further arguments of its function, as texts.
    """
    file = read_study_file(path)
    scales, own, options = file.scales, file.options, dict(options or {})
    unknown = [option for name in options if (option := _option_name(name)) not in own]
    if unknown:
        rule = f"the options of {path.name} are {', '.join(own)}" if own else f"{path.name} has no options of its own"
        known = [*own, *map(_option_name, COMMON_OPTIONS)]
        raise usage_error("whence run", unknown[0], rule, did_you_mean(unknown[0], known, "leave it out"))
    if scale is not None and scale not in scales:
        got = f"{scale!r} for {path.name}"
        rule = f"its scales are {', '.join(scales)}" if scales else "it has no scales"
        raise usage_error("whence run --scale", got, rule, "choose one of them" if scales else "leave out --scale")
    with _explain_errors(path):
        loaded = list(file.function(**options) if scale is None else file.function(scale, **options))
    wrong = [one for one in loaded if not isinstance(one, Study | Experiment)]
    if wrong or not loaded:
        got = f"{path.name}, whose {file.function.__name__}() returns {format_value(wrong[0]) if wrong else 'nothing'}"
        rule = "it returns a list of at least one Study or Experiment"
        raise usage_error("whence run", got, rule, "return such a list")
    return loaded


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _files_below(folder: Path) -> dict[str, Path]:
    paths = [path for path in sorted(folder.rglob("*.py")) if path.name != "__init__.py"]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def read_study_file(path: Path) -> StudyFile:
    """Run a study file, without building its studies."""
    with _explain_errors(path):
        names = runpy.run_path(str(path))
    functions = [names[name] for name in ("studies", "experiments") if callable(names.get(name))]
    if len(functions) != 1:
        got = f"{path.name} with {len(functions)} of studies() and experiments()"
        raise usage_error("whence run", got, "a study file defines exactly one of them", "define one")
    takes_scale = "scale" in inspect.signature(functions[0]).parameters
    scales = tuple(names["SCALES"]) if takes_scale else ()
    return StudyFile(inspect.cleandoc(names["__doc__"] or ""), functions[0], scales)


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn an error in a user's file into one sentence with its line."""
    try:
        yield
    except WhenceError:
        raise
    except SyntaxError as error:
        got = f"{path.name}, line {error.lineno}: {error.msg}"
        raise usage_error("whence run", got, "a study file must be valid Python", "correct that line") from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        got = f"{path.name}{f', line {lines[-1]}' if lines else ''}: {type(error).__name__}: {error}"
        raise usage_error("whence run", got, "a study file must run without errors", "correct it") from error
