"""``compare``: the command ``whence compare`` from Python.

The command runs in a process of its own. So the comparison does not depend on the state of the session (seeds, dtypes, modules that
were edited after their import) and changes none of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from os import environ
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.lab.tasks import Task
from whence.plugins import FILE_MODULE
from whence.position.base import Position
from whence.validation import format_value

#: options of the command that may occur several times, and those that take a list as one text
REPEATED, JOINED = ("position", "task", "set", "sweep"), ("lengths",)
#: options that take classes, and those that a shell would complete from ~
CODE, FILES = {"position": Position, "baseline": Position, "task": Task}, ("out", "config")
#: what notebooks set for the colours of a terminal; a table would be drawn again for each of its changes
TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
#: the process: first the search path of this one, then the command
PROGRAM = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from whence.cli.child_process import main; main()"


@dataclass(frozen=True, repr=False)
class Comparison:
    """What ``compare`` found. ``print`` shows the verdicts.

    Attributes:
        folder: the folder of the records.
        report: the HTML report of all tasks, of the records that there are; None before the end of a sweep, and for a shard that
            does not end last.
        study_reports: the report of each task.
        studies: one dictionary for each task, as ``whence compare --json`` prints it. ``verdict`` is a sentence; ``arms`` lists for
            each position its ``name``, ``values`` (by split and seed), ``summary`` (mean and interval on the deciding ``split``,
            None without values), ``diverged`` and ``failed`` seeds; ``comparison`` has the corrected intervals and verdicts.
        notes: what was left out, and whether the seeds can decide.
        problems: runs that failed or diverged, and records that cannot be read.
        unfinished_runs: runs for which the time did not suffice. The same call resumes them.
    """

    folder: Path
    report: Path | None
    study_reports: Sequence[Path]
    studies: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    problems: Sequence[str]
    unfinished_runs: int

    def __str__(self) -> str:
        lines = [f"{study['name']}: {study['verdict']}" for study in self.studies]
        lines += [*(f"note: {note}" for note in self.notes), *self.problems]
        if self.unfinished_runs:
            lines.append(f"unfinished runs: {self.unfinished_runs}; the same call resumes them")
        return "\n".join([*lines, f"report: {self.report}"])

    __repr__ = __str__


def compare(*positions: str | type[Position], **options: Any) -> Comparison:
    """Train one small model with several positions on the same tasks and seeds: ``whence compare`` from Python.

    It shows progress and writes the report. Records are kept: the same call resumes, and a larger one trains what is missing.

    Args:
        positions: texts as after ``--position``, such as ``"alibi"``, ``"Rotary() + Epar(learnable=True)"``,
            ``"./bell.py:Bell(width=3)"`` or ``"alibi; lr=1e-3"``, or classes of a module. Six mechanisms if there are none.
        options: the options of ``whence compare`` by name, with ``_`` for ``-``; ``whence compare --help`` lists them.
            ``--task`` and ``--lengths`` may be lists, ``--set`` and ``--sweep`` are dictionaries, and options without a value
            are ``True``. A time limit is a text: ``budget="20m"``.

    Raises:
        WhenceError: the command ends with an error. Runs that fail are in ``problems``.

    Example::

        found = whence.compare("rotary", "alibi", "./bell.py:Bell", task="retrieval", seeds=5, set={"layers": 4})
        print(found)
    """
    words = [word for one in positions for word in ("--position", name_code("compare(*positions)", one, Position))]
    words += [word for name, value in options.items() for word in to_words(name, value)]
    return run_compare(["--json", *words])


def run_compare(words: list[str]) -> Comparison:
    """Run the command in a process of its own, which finds the modules that this one finds. Its lines are shown as they come."""
    environment = {name: value for name, value in environ.items() if name not in TERMINAL}
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as document:  # a pipe would be full while lines are read
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, path, "compare", *words], stdin=subprocess.PIPE, stdout=document,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace", start_new_session=True,
            env=environment | {"PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        with process:
            lines: list[str] = []
            try:
                show_lines(process, lines)
            except BaseException:  # such as Ctrl-C: runs save a checkpoint; a second one ends them at once
                assert process.stdin is not None
                process.stdin.close()
                try:
                    show_lines(process, lines)
                except BaseException:
                    process.kill()
                raise
            code = process.wait()
        document.seek(0)
        text = document.read()
    try:
        found = json.loads(text)
    except ValueError:
        raise WhenceError(describe_end(code, lines, text)) from None
    if "error" in found:
        raise WhenceError(found["error"])
    report, pages = found.get("report"), found.get("study_reports", ())
    return Comparison(
        Path(found["folder"]), None if report is None else Path(report), [Path(page) for page in pages],
        found.get("studies", []), found.get("notes", []), found.get("problems", []), found.get("unfinished_runs", 0),
    )  # fmt: skip


def show_lines(process: subprocess.Popen[str], lines: list[str]) -> None:
    """Print the lines of a process until it ends, and add them to a list."""
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        print(lines[-1], file=sys.stderr, flush=True)


def describe_end(code: int, lines: Sequence[str], text: str) -> str:
    """How the command ended if it printed no document."""
    if code < 0:
        return f"whence compare was ended by signal {-code} ({signal.strsignal(-code)}); the same call resumes it."
    return text or "\n".join([*lines[-1:], f"whence compare ended with exit code {code}; the same call resumes it."])


def to_words(name: str, value: Any) -> Iterator[str]:
    """An option of the command as its words.

    >>> [*to_words("text_column", "body"), *to_words("seeds", 3), *to_words("pairs", True), *to_words("until", None)]
    ['--text-column', 'body', '--seeds', '3', '--pairs']
    >>> [*to_words("task", ["copy", "recall"]), *to_words("lengths", [1, 4])]
    ['--task', 'copy', '--task', 'recall', '--lengths', '1,4']
    >>> [*to_words("set", {"schedule": "cosine"}), *to_words("sweep", {"lr": [0.001, 0.003]})]
    ['--set', 'schedule=cosine', '--sweep', 'lr=0.001,0.003']
    """
    option, subject = f"--{name.replace('_', '-')}", f"compare({name}=...)"
    value = value.tolist() if hasattr(value, "tolist") else value  # of an array
    if value is None or value is False:
        return
    if value is True:
        yield option
    elif isinstance(value, Mapping) and name in REPEATED:
        for key, one in value.items():
            yield from (option, f"{key}={_join(one)}")
    elif isinstance(value, list | tuple | range) and name in JOINED:
        yield from (option, _join(value))
    elif isinstance(value, list | tuple) and name in REPEATED:
        for one in value:
            yield from to_words(name, one)
    elif isinstance(value, Mapping | list | tuple):
        raise usage_error(subject, format_value(value), f"{option} takes one value", "pass one")
    elif isinstance(value, str | Real | Path):
        is_home = name in FILES and str(value).startswith("~")
        yield from (option, str(Path(str(value)).expanduser() if is_home else value))
    elif name in CODE:
        yield from (option, name_code(subject, value, CODE[name]))
    else:
        raise usage_error(subject, format_value(value), f"{option} takes a text or a number", "pass one")


def _join(value: Any) -> str:
    value = value.tolist() if hasattr(value, "tolist") else value
    return ",".join(map(str, value)) if isinstance(value, list | tuple | range) else str(value)


def is_importable(kind: type) -> bool:
    """Whether another process finds a class by its module and name: one of a session or of a file that was named by its path is not."""
    return (
        kind.__module__ != "__main__" and not kind.__module__.startswith(FILE_MODULE) and "." not in kind.__qualname__
    )


def name_code(subject: str, value: object, kind: type) -> str:
    """The text of a class of an importable module, which is ``module:Class``; a text as it is."""
    if isinstance(value, str):
        return value
    got, remedy = format_value(value), "pass a text such as './mine.py:Name(width=3)'"
    own = value if isinstance(value, type) else type(value)
    if isinstance(value, list | tuple):
        remedy = "pass them one by one, as in compare(*positions)"
    elif issubclass(own, kind) and is_importable(own):
        text = own.__name__ if own.__module__.startswith("whence.position.") else f"{own.__module__}:{own.__name__}"
        if own is value:
            return text
        remedy = f"pass its text, such as '{'Rotary() + Epar()' if text == 'Sum' else f'{text}(...)'}'"
    elif issubclass(own, kind):
        got = f"the class {own.__qualname__}"
        remedy = f"write it into a file of its own and pass a text such as './mine.py:{own.__name__}'"
    rule = "a record names the code that made it, so it takes texts and the classes of a module"
    raise usage_error(subject, got, rule, remedy)
