"""What a worker process needs before it works: the folder, the variables and the code of the main process, and its end."""

from __future__ import annotations

import os
import platform
import signal
import threading
from dataclasses import dataclass, field
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import usage_error

#: prefixes of environment variables that workers get, beside PYTHONPATH
PREFIXES = ("WHENCE_", "HF_")


def end_with_parent() -> None:
    """Leave interrupts to the parent of this process, and end with it.

    After kill -9 of the parent nothing else would stop a worker, and a second command would meet it at the same run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(parent_process(),), daemon=True).start()


def _exit_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def list_variables() -> dict[str, str]:
    """The environment variables that workers need, such as ``WHENCE_DATA``. Relative paths in PYTHONPATH become absolute."""
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    folders = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return variables | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})


@dataclass(frozen=True)
class WorkerSetup:
    """The working directory and the code of the main process. Call ``apply`` in a worker."""

    directory: str = field(default_factory=os.getcwd)
    source_hash: str | None = field(default_factory=records.source_hash)

    def apply(self, subject: str) -> None:
        """Enter the working directory, in which relative paths of the user's files start, and compare the code."""
        machine = platform.node() or "a worker"
        if not Path(self.directory).is_dir():
            raise usage_error(
                subject,
                f"no folder {self.directory} on {machine}",
                "workers use the files of the main process",
                "start the command in a folder that all machines share",
            )
        os.chdir(self.directory)
        if records.source_hash() != self.source_hash:
            raise usage_error(
                subject,
                f"another version of whence on {machine}",
                "all runs of a study use the same code",
                "install the same version there, or share its folder and set PYTHONPATH",
            )
