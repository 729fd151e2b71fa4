"""Progress on stderr: what is running, how much is done and the time left, for studies, probes and papers.

On a terminal these are bars; elsewhere one line for each finished piece of work. Pieces whose records exist already do not
count towards the time left, and neither does the part of a run that was done before it was resumed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from whence.cli.fitted_table import NARROW

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn, TaskID


GRACE = 0.25  # the share of the time limit that a piece of work may take beyond it


class OutOfTime(Exception):
    """Raised after a piece of work was finished, when the time limit is over, or in a piece that exceeds it by far."""


class ProgressBars:
    """The progress of a number of pieces of work. Use ``show_progress``.

    Args:
        bars: of rich, if stderr is a terminal.
        minutes: the time limit; the first finished piece after it raises ``OutOfTime``.
        existing: how many pieces were done before.
    """

    def __init__(self, bars: Bars | None = None, minutes: float | None = None, existing: int = 0) -> None:
        self._bars, self._minutes = bars, minutes
        self._began = time.monotonic()
        self._estimate = TimeEstimate(self._began, existing)
        self._whole: TaskID | None = None
        self._parts: dict[str, TaskID | None] = {}
        self._fractions: dict[str, float] = {}

    def finish(self, done: int, total: int, description: str, *, existing: bool = False) -> None:
        """Report a finished piece: how many are done now, of how many, which it was, and whether its record existed."""
        part = self._parts.pop(description, None)
        self._fractions.pop(description, None)
        left = self._estimate.update(time.monotonic(), done + sum(self._fractions.values()), total, existing)
        words = "already measured" if existing else format_time_left(left)
        if self._bars is None:
            print(f"{done} of {total}, {description}" + (f"; {words}" if words else ""), file=sys.stderr, flush=True)
        else:
            if part is not None:
                self._bars.remove_task(part)
            self._show(done, total, description, words)
        if self._minutes is not None and done < total and time.monotonic() - self._began > 60 * self._minutes:
            raise OutOfTime

    def begin(self, description: str) -> None:
        """Report a phase whose pieces follow, or have no number."""
        if self._bars is None:
            print(description, file=sys.stderr, flush=True)
        elif self._whole is None:
            self._whole = self._bars.add_task(description, total=None, count="", left="")
        else:
            self._bars.update(self._whole, description=description, total=None, completed=0, count="", left="")

    def advance(self, done: int, total: int, description: str, step: int, steps: int) -> None:
        """Report how far a running piece has come. Several may run at once; each has a bar of its own."""
        resumed = description not in self._fractions
        self._fractions[description] = step / steps
        work = done + sum(self._fractions.values())
        left = self._estimate.update(time.monotonic(), work, total, existing=resumed and step > 1)
        if self._bars is None:
            return
        if description not in self._parts:
            self._parts[description] = self._bars.add_task(f"  {description}", total=steps, count="", left="")
        part = self._parts[description]
        assert part is not None
        self._bars.update(part, completed=step, count=f"{step}/{steps}")
        self._show(done, total, None, format_time_left(left))

    def _show(self, done: int, total: int, description: str | None, words: str) -> None:
        assert self._bars is not None
        if self._bars.console.width < NARROW:
            words = words.removeprefix("about ")
        if self._whole is None:
            self._whole = self._bars.add_task(description or "", total=total, count="", left="")
        fields: dict[str, Any] = {} if description is None else {"description": description}
        self._bars.update(self._whole, total=total, completed=done, count=f"{done}/{total}", left=words, **fields)


@contextmanager
def show_progress(minutes: float | None = None, existing: int = 0) -> Iterator[ProgressBars]:
    """Show progress while the body runs."""
    try:
        from rich.console import Console
    except ImportError:  # lines need nothing
        yield ProgressBars(None, minutes, existing)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressBars(None, minutes, existing)
        return
    with make_bars(console) as bars:
        yield ProgressBars(bars, minutes, existing)


def make_bars(console: Console) -> Bars:
    """Rich's progress display for a terminal. Where it is narrow, there is no bar, and descriptions are cut before numbers."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    description = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    numbers, left = Column(no_wrap=True, justify="right"), Column(no_wrap=True)
    # not rich's own column of the time left: it takes records that are read for fast work
    columns: list[ProgressColumn] = [TextColumn("{task.description}", table_column=description, markup=False)]
    if console.width >= NARROW:
        columns.append(BarColumn(bar_width=min(24, console.width // 5)))
    columns += [
        # not rich's own column of the count: it writes 0/? for a phase without a number
        TextColumn(
            "{task.fields[count]}", table_column=numbers, justify="right", style="progress.download", markup=False
        ),
        TextColumn("{task.fields[left]}", table_column=left, markup=False),
    ]
    return Bars(*columns, console=console, expand=True)


@contextmanager
def probe_progress(minutes: float | None = None) -> Iterator[Callable[[int, int, str, bool], None]]:
    """Yield a function to call after each piece of a probe: how many are done, of how many, its name, whether it was read."""
    with show_progress(minutes) as progress:
        yield lambda done, total, description, read: progress.finish(done, total, description, existing=read)


@contextmanager
def phase_progress(pieces: int = 10) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to call with a phase of the work, the bytes that are done, and the bytes in all, 0 if unknown.

    Where there are no bars, a phase has a line, and after it one for each of ``pieces`` if its size is known.
    """
    phase, last = "", 0
    with show_progress() as progress:

        def update(name: str, done: int, total: int) -> None:
            nonlocal phase, last
            if name != phase:
                phase, last = name, 0
                progress.begin(name)
            if total and done and (done * pieces // total > last or done >= total):
                last = done * pieces // total
                unit, size = ("MB", 10**6) if total >= 10**7 else ("kB", 1000)
                progress.finish(round(done / size), max(1, round(total / size)), f"{name} ({unit})")

        yield update


@contextmanager
def stop_forward_passes(model: Any, minutes: float) -> Iterator[None]:
    """Raise ``OutOfTime`` in the first forward pass of a model after the time limit and a quarter of it.

    The limit itself is checked between pieces of work, so that a piece in progress is not lost. This bounds a long one.
    """
    stop = time.monotonic() + 60 * minutes * (1 + GRACE)

    def check(module: Any, args: Any) -> None:
        if time.monotonic() > stop:
            raise OutOfTime

    hook = model.get_input_embeddings().register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


class TimeEstimate:
    """The time left, from the work that was done in this process; what existed before does not count.

    >>> estimate = TimeEstimate(0.0)
    >>> estimate.update(0.01, 1, 4, True), estimate.update(10.01, 2, 4, False), estimate.update(14.01, 3, 4, False)
    (None, 20.0, 7.0)
    """

    def __init__(self, now: float, existing: int = 0) -> None:
        self._last, self._done = now, float(existing)
        self._seconds = self._work = 0.0

    def update(self, now: float, done: float, total: float, existing: bool) -> float | None:
        """Seconds left when ``done`` of ``total`` pieces are done, fractions included; None as long as nothing is known.

        ``existing``: the pieces since the last call existed before.
        """
        if done < self._done:  # another kind of work begins
            self._done = self._seconds = self._work = 0.0
        if not existing:
            self._seconds += now - self._last
            self._work += done - self._done
        self._last, self._done = now, done
        return round(self._seconds / self._work * (total - done), 6) if self._work > 0 else None


def format_time_left(seconds: float | None) -> str:
    """
    >>> format_time_left(None), format_time_left(0.0), format_time_left(42.4), format_time_left(600.0)
    ('', '', 'about 42 s left', 'about 10 min left')
    """
    if not seconds:
        return ""
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"
