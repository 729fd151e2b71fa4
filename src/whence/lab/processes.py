"""Several processes: those that ``accelerate launch`` or ``torchrun`` started to share a run, and runs side by side."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import active_children, get_context
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
    words = context.Manager().Queue()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interrupts_to_the_parent) as pool:
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


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
