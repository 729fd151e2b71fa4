"""``compare``: the command ``whence compare`` from Python.

The command runs in a process of its own. So the comparison does not depend on the state of the session (seeds, dtypes, modules that
were edited after their import), it changes none of it, and its records name the command that makes them again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.lab.tasks import Task
from whence.position.base import Position
from whence.validation import format_value


@dataclass(frozen=True, repr=False)
class Comparison:
    """What ``compare`` found. ``print`` shows the verdicts.

    Attributes:
        folder: the folder of the records.
        report: the HTML report of all tasks, of the records that there are; None before the end of a sweep.
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
            ``"./bell.py:Bell(width=3)"`` or ``"alibi; lr=1e-3"``, or classes of a module. Without any, six mechanisms.
        options: the options of ``whence compare``, with ``_`` for ``-``: ``whence compare --help`` lists them. A list is an option
            several times, a dictionary are values by name, and ``True`` is an option without a value.

    Raises:
        WhenceError: the command ends with an error. Runs that fail are in ``problems``.

    Example::

        found = whence.compare("rotary", "alibi", "./bell.py:Bell", task="retrieval", seeds=5, set={"layers": 4})
        print(found)
    """
    words = [word for one in positions for word in ("--position", name_code("compare(*positions)", one, Position))]
    words += [word for name, value in options.items() for word in to_words(name, value)]
    return run_command(["compare", *words])


def run_command(words: list[str]) -> Comparison:
    """Run a command in a process of its own, which finds the modules that this one finds. Its lines are shown as they come."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as document:  # a pipe would be full while lines are read
        process = subprocess.Popen(
            [sys.executable, "-m", "whence", *words, "--json"], env=environment, text=True, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=document, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line.rstrip("\n"))
                print(lines[-1], file=sys.stderr, flush=True)
            code = process.wait()
        except BaseException:  # such as Ctrl-C: runs save a checkpoint
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
        document.seek(0)
        text = document.read()
    if not text:
        begins = [number for number, line in enumerate(lines) if line.startswith("Traceback")] or [len(lines) - 1]
        raise WhenceError("\n".join(lines[begins[-1] :]) or f"whence {words[0]} ended with exit code {code}.")
    found = json.loads(text)
    report, pages = found.get("report"), found.get("study_reports", ())
    return Comparison(
        Path(found["folder"]), None if report is None else Path(report), [Path(page) for page in pages],
        found.get("studies", []), found.get("notes", []), found.get("problems", []), found.get("unfinished_runs", 0),
    )  # fmt: skip


def to_words(name: str, value: object) -> Iterable[str]:
    """An option of a command as its words.

    >>> [*to_words("text_column", "body"), *to_words("seeds", 3), *to_words("pairs", True), *to_words("until", None)]
    ['--text-column', 'body', '--seeds', '3', '--pairs']
    >>> [*to_words("set", {"schedule": "cosine"}), *to_words("sweep", {"lr": [0.001, 0.003]})]
    ['--set', 'schedule=cosine', '--sweep', 'lr=0.001,0.003']
    """
    option, subject = f"--{name.replace('_', '-')}", f"compare({name}=...)"
    if value is None or value is False:
        return
    if value is True:
        yield option
    elif isinstance(value, Mapping):
        for key, one in value.items():
            several = isinstance(one, Sequence) and not isinstance(one, str)
            yield from (option, f"{key}={','.join(map(str, one)) if several else one}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from to_words(name, one)
    elif isinstance(value, str | int | float | Path):
        yield from (option, str(value))
    else:
        yield from (option, name_code(subject, value, Task if name == "task" else Position))


def name_code(subject: str, value: object, kind: type) -> str:
    """The text of a class of an importable module, which is ``module:Class``; a text as it is."""
    if isinstance(value, str):
        return value
    got, remedy = format_value(value), "pass a text such as './mine.py:Name(width=3)'"
    if isinstance(value, type) and issubclass(value, kind):
        if value.__module__.startswith("whence.position."):
            return value.__name__
        if value.__module__ != "__main__" and "." not in value.__qualname__:
            return f"{value.__module__}:{value.__name__}"
        got = f"the class {value.__qualname__}"
        remedy = f"write it into a file of its own and pass a text such as './mine.py:{value.__name__}'"
    elif isinstance(value, Position) and type(value).__module__.startswith("whence.position."):
        remedy = f"pass a text such as '{type(value).__name__}(...)'; the sizes of the model are filled in"
    rule = "a record names the code that made it, so it takes texts and the classes of a module"
    raise usage_error(subject, got, rule, remedy)
