"""Processes of this trial, each with a time limit, so that one that fails or never ends leaves the others."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def report(**row: Any) -> None:
    """A line for the parent process."""
    print("ROW " + json.dumps(row), flush=True)


def run_workers(
    tasks: dict[str, list[str]], seconds: float, at_once: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows that processes of this folder print, and how those processes ended that failed or ran out of time."""
    rows: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    waiting, running = list(tasks.items()), []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, arguments = waiting.pop(0)
                log = Path(folder) / f"{len(tasks) - len(waiting)}.txt"
                with log.open("w") as file:
                    command = [sys.executable, str(Path(__file__).resolve().parent), *arguments]
                    process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
                running.append((name, process, log, time.monotonic()))
            time.sleep(0.2)
            for item in list(running):
                name, process, log, start = item
                late = time.monotonic() - start > seconds
                if process.poll() is None and not late:
                    continue
                if process.poll() is None:
                    process.kill()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                running.remove(item)
                lines = log.read_text(errors="replace").splitlines()
                rows += [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]
                if late or process.returncode != 0:
                    last = [line for line in lines if line and not line.startswith("ROW ")][-3:]
                    failures[name] = ("no end within its time: " if late else "failed: ") + " | ".join(last)[-400:]
    return rows, failures
