"""Claims on runs: several processes or machines on one folder share the work, and each run is trained by one of them.

A claim is a lock on a file. The operating system releases it when its process ends, however it ends, so a killed worker
never blocks a run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from whence import records
from whence.lab.study import Run

#: seconds between two looks at a run that another process trains
POLL_INTERVAL = 1.0


class RunInProgress(Exception):
    """Another process trains this run."""


@contextmanager
def claim_run(run: Run, folder: Path) -> Iterator[None]:
    """Hold the claim on a run while the body runs. Raises ``RunInProgress`` if another process holds it."""
    lock = _lock(run, folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunInProgress(f"{run.file_name} is in progress in another process") from None
    try:
        yield
    finally:
        lock.release()


def wait_for_run(run: Run, folder: Path) -> bool:
    """Wait while another process trains a run. Returns whether its record exists; False if that process ended without it."""
    while not records.exists(folder / run.file_name):
        try:
            with claim_run(run, folder):
                return records.exists(folder / run.file_name)
        except RunInProgress:
            time.sleep(POLL_INTERVAL)
    return True


def _lock(run: Run, folder: Path) -> FileLock:
    path = folder / "checkpoints" / f"{run.file_name.removesuffix('.json')}.lock"
    records.make_folder(path.parent)
    return FileLock(path)
