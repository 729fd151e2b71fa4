"""Claims on runs: several processes or machines on one folder share the work, and each run is trained by one of them.

A claim is a lock on a file. The operating system releases it when its process ends, however it ends, so a killed worker
never blocks a run. On a network file system the locks must work across machines, as they do on NFS 4 and on Lustre with the
mount option ``flock``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from whence import records
from whence.errors import usage_error
from whence.lab.study import Run

#: seconds between two looks at a run that another process trains
POLL_INTERVAL = 1.0


class RunInProgress(Exception):
    """Another process trains this run."""


@contextmanager
def claim_run(run: Run, folder: Path) -> Iterator[None]:
    """Hold the claim on a run while the body runs. Raises ``RunInProgress`` if another process holds it."""
    try:
        lock = _acquire(folder, run.file_name.removesuffix(".json"), timeout=0)
    except Timeout:
        raise RunInProgress(f"{run.file_name} is in progress in another process") from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def claim_study(folder: Path) -> Iterator[None]:
    """Hold the claim on the files that all runs of a study share while the body runs. Waits for other processes."""
    lock = _acquire(folder, "study", timeout=-1)
    try:
        yield
    finally:
        lock.release()


def is_claimed(run: Run, folder: Path) -> bool:
    """Whether another process trains a run at this moment."""
    try:
        with claim_run(run, folder):
            return False
    except RunInProgress:
        return True


def wait_for_run(run: Run, folder: Path, deadline: float | None = None) -> bool:
    """Wait while another process trains a run, until a ``time.time()`` at most. Returns whether its record exists.

    The record may exist before: a run can be trained again for its weights.
    """
    while True:
        try:
            with claim_run(run, folder):
                return records.exists(folder / run.file_name)
        except RunInProgress:
            if deadline is not None and time.time() >= deadline:
                return False
            time.sleep(POLL_INTERVAL)


def _acquire(folder: Path, name: str, timeout: float) -> BaseFileLock:
    path = folder / "checkpoints" / f"{name}.lock"
    records.make_folder(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except NotImplementedError:
        raise usage_error(
            "--out", str(folder), "its file system must support file locks (flock)", "choose another folder for --out"
        ) from None
    return lock
