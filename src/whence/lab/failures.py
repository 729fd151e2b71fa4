"""Runs that end with an error: one small file each beside the records of their study, until a later try succeeds."""

from __future__ import annotations

import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import WhenceError
from whence.lab.study import Run
from whence.lab.study_labels import label_study, label_task
from whence.user_code import TRACEBACK, find_user_frame, locate_error, show_tracebacks


@dataclass(frozen=True)
class Failure:
    """Why a run has no record."""

    study: str  # study and task as the user knows them
    task: str
    arm: str
    seed: int
    error: str  # one line
    place: str | None = None  # file, line and function, if known
    time: float = 0.0  # seconds since 1970

    def reason(self) -> str:
        """The place and the error."""
        return f"{self.place}: {self.error}" if self.place else self.error

    def describe(self) -> str:
        """One line with arm, seed and study."""
        return f"{self.arm}, seed {self.seed} of {self.study} failed: {self.reason()}"


class RunFailed(Exception):
    """A run ended with an error. It has the failure and the traceback as text, which survive the way between processes."""

    def __init__(self, failure: Failure, trace: str = "", is_user_code: bool = False) -> None:
        super().__init__(failure, trace, is_user_code)
        self.failure, self.trace, self.is_user_code = failure, trace, is_user_code

    def __str__(self) -> str:
        return self.failure.describe()

    @property
    def run_id(self) -> tuple[str, int]:
        """The arm and the seed of the run."""
        return self.failure.arm, self.failure.seed

    def describe(self) -> str:
        """For a terminal: one line, or the traceback if the user wants it."""
        if self.trace and show_tracebacks():
            return f"{self.failure.arm}, seed {self.failure.seed} of {self.failure.study} failed: {self.trace}"
        return f"{self}{f' ({TRACEBACK}=1 shows the traceback)' if self.is_user_code else ''}"


def describe_error(run: Run, error: Exception) -> RunFailed:
    """The failure of a run. Call it in the process that raised the error: the traceback does not leave it."""
    user_code = not isinstance(error, WhenceError) and find_user_frame(error) is not None
    message = next(iter(str(error).strip().splitlines()), "")
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    failure = Failure(
        **_identify(run),
        error=str(error) if isinstance(error, WhenceError) else text,
        place=None if isinstance(error, WhenceError) else locate_error(error),
        time=time.time(),
    )  # fmt: skip
    return RunFailed(failure, "".join(traceback.format_exception(error)).rstrip(), user_code)


def failure_path(run: Run, folder: Path) -> Path:
    """The file of a run's failure in the folder of its study."""
    return folder / f"{run.file_name.removesuffix('.json')}.failure.json"


def write_failure(run: Run, folder: Path, failure: Failure) -> None:
    """Store a failure. On a full disk, which may be its reason, nothing is stored."""
    with suppress(WhenceError):
        records.write(failure_path(run, folder), {"hash": run.study.hash, "failure": asdict(failure)})


def remove_failure(run: Run, folder: Path) -> None:
    """Remove the stored failure of a run that has a record by now."""
    failure_path(run, folder).unlink(missing_ok=True)


def load_failure(run: Run, folder: Path, reader: records.RecordReader | None = None) -> Failure | None:
    """The stored failure of a run without a record; None if there is none."""
    reader, path = reader or records.RecordReader(), failure_path(run, folder)
    if reader.exists(folder / run.file_name) or not reader.exists(path):
        return None
    try:
        stored: dict[str, Any] = reader.read(path)
        return Failure(**stored["failure"])
    except (WhenceError, KeyError, TypeError) as error:
        return Failure(**_identify(run), error=f"{path.name} cannot be read: {error}")


def find_recent_failure(run: Run, folder: Path, began: float) -> Failure | None:
    """The failure of a run that a process stored since ``began``, a ``time.time()``; None if there is none."""
    failure = load_failure(run, folder)
    return failure if failure is not None and failure.time >= began else None


def _identify(run: Run) -> dict[str, Any]:
    task = label_task(run.study.task, run.study.task_settings)
    return {"study": label_study(run.study), "task": task, "arm": run.arm.name, "seed": run.seed}
