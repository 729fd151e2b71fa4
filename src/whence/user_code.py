"""Errors in the user's own code, such as a hook or a task, as one line with the file and the line.

With the environment variable ``WHENCE_TRACEBACK=1`` commands show the whole traceback instead.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from whence.plugins import is_installed

TRACEBACK = "WHENCE_TRACEBACK"


class ErrorInWorker(Exception):
    """An error of another process: its one line, None for an error of whence, and its traceback as text."""

    def __init__(self, line: str | None, traceback_text: str) -> None:
        super().__init__(line, traceback_text)
        self.line, self.traceback_text = line, traceback_text

    @classmethod
    def of(cls, error: Exception) -> ErrorInWorker:
        """In the process of the error, where its frames are known."""
        return cls(describe_user_error(error), "".join(traceback.format_exception(error)))

    def __str__(self) -> str:
        return self.line or self.traceback_text


def show_tracebacks() -> bool:
    """Whether the user wants whole tracebacks."""
    return os.environ.get(TRACEBACK, "0") not in ("", "0")


def describe_user_error(error: Exception) -> str | None:
    """File, line, function, and the first line of an error of the user's code; None for an error of whence."""
    if isinstance(error, ErrorInWorker):
        return error.line
    frame = find_user_frame(error)
    if frame is None:
        return None
    message = next(iter(str(error).strip().splitlines()), "")
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{_format_frame(frame)}: {text} ({TRACEBACK}=1 shows the traceback)"


def locate_error(error: Exception) -> str | None:
    """File, line and function of an error: in the user's code or, for an error of whence, in whence. None without a traceback."""
    frame = find_user_frame(error)
    if frame is None:
        package = Path(__file__).parent
        own = [one for one in traceback.extract_tb(error.__traceback__) if package in Path(one.filename).parents]
        frame = own[-1] if own else None
    return None if frame is None else _format_frame(frame)


def _format_frame(frame: traceback.FrameSummary) -> str:
    path, package = Path(frame.filename), Path(__file__).parent
    if package in path.parents:
        path = path.relative_to(package.parent)
    elif path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}, line {frame.lineno}, in {frame.name}"


def find_user_frame(error: Exception) -> traceback.FrameSummary | None:
    """The frame of the user's code that raised an error, directly or in a library it called; None for an error of whence.

    The innermost frame outside Python's library and installed packages decides. A frame of whence may lie inside one of
    the user's, as in the body of an intervention's context manager; the error is then one of whence.
    """
    package = Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if package in path.parents:
            return None
        if path.is_file() and not is_installed(path):  # generated code has no file
            return frame
    return None
