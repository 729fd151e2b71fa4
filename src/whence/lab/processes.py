"""Several processes: those that ``accelerate launch`` or ``torchrun`` started to share a run, and runs side by side."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from whence.lab.study import Run
from whence.lab.training import Progress

Notify = Callable[[Run, Progress], None]
Work = Callable[[Run, Path, Callable[[Progress], None]], dict[str, Any]]

#: seconds between two words of a run about itself
BETWEEN_WORDS = 0.5


def count() -> int:
    """How many train one model together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this one among them; the first writes and speaks for all."""
    return int(os.environ.get("RANK", "0"))


def side_by_side(
    work: Work, runs: list[Run], folder: Path, jobs: int, notify: Notify
) -> Iterator[tuple[Run, dict[str, Any] | Exception]]:
    """Each run with what came of it, as they end; what they say meanwhile is passed on."""
    context = get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_belong_to_the_parent)
    words = manager.Queue()
    with manager, ProcessPoolExecutor(jobs, mp_context=context, initializer=_belong_to_the_parent) as pool:
        waiting = {pool.submit(_one, work, runs[i], folder, i, words): i for i in range(len(runs))}
        try:
            while waiting:
                done, _ = wait(waiting, timeout=BETWEEN_WORDS, return_when=FIRST_COMPLETED)
                _pass_on(words, runs, notify)
                for future in done:
                    run = runs[waiting.pop(future)]
                    error = future.exception()
                    yield run, error if isinstance(error, Exception) else future.result()
        except BaseException:  # Ctrl-C above all: a run in the middle is gone on from its checkpoint
            for child in active_children():
                child.terminate()
            raise


def _belong_to_the_parent() -> None:
    """Leave interrupts to the parent, and end where it ends: after kill -9 nobody else would stop a child, and the same
    command, given again, would find it at work on the same run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _one(work: Work, run: Run, folder: Path, number: int, words: Any) -> dict[str, Any]:
    last = [0.0]

    def say(progress: Progress) -> None:
        if time.monotonic() - last[0] > BETWEEN_WORDS or progress.step == progress.steps:
            last[0] = time.monotonic()
            words.put((number, progress))

    return work(run, folder, say)


def _pass_on(words: Any, runs: list[Run], notify: Notify) -> None:
    while True:
        try:
            number, progress = words.get_nowait()
        except queue.Empty:
            return
        notify(runs[number], progress)
