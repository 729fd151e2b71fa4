"""Progress on stderr: bars with the time left on a terminal, one plain line for each finished piece of work elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from whence.lab.processes import Notify
from whence.lab.study import Run, Study


@contextmanager
def watching(study: Study, already: int) -> Iterator[Notify]:
    """Give a function to call with each run's progress."""
    if sys.stderr.isatty():
        with _bars(study, already) as notify:
            yield notify
    else:
        yield _lines(study, already)


@contextmanager
def _bars(study: Study, already: int) -> Iterator[Notify]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        whole = progress.add_task(study.name, total=len(study.runs()), completed=already)
        bars: dict[str, Any] = {}  # by file name: a spec holds plain dicts, so a run has no hash

        def notify(run: Run, at: Any) -> None:
            name = run.file_name
            if name not in bars:
                bars[name] = progress.add_task(f"  {run.arm.name}, seed {run.seed}", total=at.steps)
            progress.update(bars[name], completed=at.step)
            if at.step >= at.steps:
                progress.remove_task(bars[name])
                progress.advance(whole)

        yield notify


def _lines(study: Study, already: int) -> Notify:
    began, total = time.monotonic(), len(study.runs())
    done = [already]

    def notify(run: Run, at: Any) -> None:
        if at.step < at.steps:
            return
        done[0] += 1
        left = (time.monotonic() - began) / max(1, done[0] - already) * (total - done[0])
        print(
            f"{study.name}: {done[0]} of {total}, {run.arm.name}, seed {run.seed}; about {left:.0f} s left",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    return notify


class OutOfTime(Exception):
    """Raised after a record was written, when the minutes are over."""


@contextmanager
def probe_progress(minutes: float | None = None) -> Iterator[Callable[[int, int, str, bool], None]]:
    """Give a function to call after each piece of a probe: how many are done, of how many, its name, whether it was read.

    When the minutes are over, the call after the next piece raises ``OutOfTime``.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    began, clock, console = time.monotonic(), Clock(time.monotonic()), Console(stderr=True)

    def told(done: int, total: int, read: bool) -> str:
        left = time_left(clock.left(done, total, time.monotonic(), read))
        return "already measured" if read else left

    def require_time(done: int, total: int) -> None:
        if minutes is not None and done < total and time.monotonic() - began > 60 * minutes:
            raise OutOfTime

    if console.is_terminal:
        # rich's own column would take records that are read for fast work
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=console) as bars:
            bar = bars.add_task("probe", total=None, left="")

            def notify(done: int, total: int, words: str, read: bool) -> None:
                bars.update(bar, total=total, completed=done, description=words, left=told(done, total, read))
                require_time(done, total)

            yield notify
        return

    def say(done: int, total: int, words: str, read: bool) -> None:
        left = told(done, total, read)
        print(f"{done} of {total}, {words}" + (f"; {left}" if left else ""), file=sys.stderr, flush=True)
        require_time(done, total)

    yield say


class Clock:
    """How long the rest takes, from the pieces that were made in this run. Those read from their records do not count.

    >>> clock = Clock(0.0)
    >>> clock.left(1, 4, 0.01, True), clock.left(2, 4, 10.01, False), clock.left(3, 4, 14.01, False)
    (None, 20.0, 7.0)
    """

    def __init__(self, now: float) -> None:
        self.last, self.taken, self.made = now, 0.0, 0

    def left(self, done: int, total: int, now: float, read: bool) -> float | None:
        """Seconds; None before a first piece was made."""
        if done == 1:  # another kind of work begins
            self.taken, self.made = 0.0, 0
        if not read:
            self.taken, self.made = self.taken + now - self.last, self.made + 1
        self.last = now
        return round(self.taken / self.made * (total - done), 6) if self.made else None


def time_left(seconds: float | None) -> str:
    """
    >>> time_left(None), time_left(0.0), time_left(42.4), time_left(600.0)
    ('', '', 'about 42 s left', 'about 10 min left')
    """
    if not seconds:
        return ""
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"
