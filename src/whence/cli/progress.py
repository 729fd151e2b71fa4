"""A display of runs in progress: bars with a time left on a terminal, one plain line a run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
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
