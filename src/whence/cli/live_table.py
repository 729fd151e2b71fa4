"""The table of arms that ``whence compare`` and ``whence run`` show while they train.

On a terminal it is updated in place: each arm with its seeds, mean, interval and state. Elsewhere there is one line for each
finished run and one for each look.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from whence import records
from whence.cli.fitted_table import fit_table
from whence.cli.progress import TimeEstimate, format_time_left
from whence.errors import WhenceError
from whence.lab.study_labels import label_study

if TYPE_CHECKING:
    from pathlib import Path

    from whence.lab.study import Run, Study
    from whence.statistics import PairedComparison


class ArmTable:
    """The state of every arm of some studies. Call its methods ``on_...``; ``render`` returns a rich table."""

    def __init__(self, studies: Sequence[Study], seconds: float | None = None) -> None:
        self.studies, self.seconds, self.began = studies, seconds, time.monotonic()
        self.done = self.total = 0
        self.estimate = TimeEstimate(self.began)
        self.left: float | None = None  # seconds
        self.counted: set[tuple[str, str, int]] = set()
        self.values: dict[tuple[str, str], dict[int, float]] = {}
        self.fractions: dict[tuple[str, str, int], float] = {}
        self.ended: set[tuple[str, str, int]] = set()
        self.failures: dict[tuple[str, str], dict[int, str]] = {}  # seeds that failed or diverged, with this word
        self.verdicts: dict[tuple[str, str], str] = {}

    def on_round(self, runs: Sequence[Run], folder: Path) -> None:
        """Count the runs of a round. Those with a record already take no time."""
        for run in runs:
            key = (run.study.name, run.arm.name, run.seed)
            if key in self.counted:
                continue
            self.counted.add(key)
            self.total += 1
            if records.exists(folder / run.file_name):
                self.done += 1
                self.ended.add(key)
                value = read_value(folder / run.file_name, run.study.decision.split)
                if is_diverged(folder / run.file_name):
                    self.failures.setdefault(key[:2], {})[run.seed] = "diverged"
                elif value is not None:
                    self.values.setdefault(key[:2], {})[run.seed] = value
        self._update(existing=True)

    def on_progress(self, run: Run, at: Any) -> str | None:
        """Take a message of a run; returns a line if the run is done."""
        key = (run.study.name, run.arm.name, run.seed)
        if at.step < at.steps:
            resumed = key not in self.fractions and at.step > 1
            self.fractions[key] = at.step / at.steps
            self._update(existing=resumed)
            return None
        self._end(key)
        if at.values and run.study.decision.split in at.values:
            self.values.setdefault(key[:2], {})[run.seed] = at.values[run.study.decision.split]
        self._update()
        return self._describe_end(run)

    def on_failure(self, run: Run, state: str) -> str:
        """Take a run that failed or diverged, as ``state`` says; returns a line."""
        key = (run.study.name, run.arm.name, run.seed)
        self._end(key)
        self.failures.setdefault(key[:2], {})[run.seed] = state
        self._update()
        return self._describe_end(run, f" {state}")

    def on_look(self, study: Study, comparison: PairedComparison | None) -> str:
        """Take the comparison of a look; returns a line about it."""
        if comparison is None:
            return f"{label_study(study)}: not enough records for a comparison"
        for contrast in comparison.contrasts:  # of all pairs, those with the baseline
            if study.decision.baseline in (contrast.first, contrast.second):
                own = contrast if contrast.second == study.decision.baseline else contrast.reversed()
                self.verdicts[(study.name, own.first)] = own.verdict
        decided = sum(contrast.verdict != "undecided" for contrast in comparison.contrasts)
        count, seeds = len(comparison.contrasts), len(comparison.seeds)
        return f"{label_study(study)}: {decided} of {count} comparisons decided with {seeds} seeds"

    def render(self, width: int) -> Any:
        """A rich table of all arms for a terminal: seeds, mean, interval of the mean, and state."""
        groups = []
        for study in self.studies:
            labels = [label_study(study), f"on {study.decision.split}"]
            rows = []
            for index, arm in enumerate(study.arms):
                values = list(self.values.get((study.name, arm.name), {}).values())
                mean, interval = describe_values(values, study.decision.metric)
                label = labels[index] if index < len(labels) else ""
                rows.append((label, arm.name, str(len(values)), mean, interval, self._state(study, arm.name)))
            groups.append(rows)
        columns = ("task", "arm", "seeds", "mean", "95 % interval", "state")
        return fit_table(self._title(), columns, groups, width, ("95 % interval", "task", "seeds"))

    def _end(self, key: tuple[str, str, int]) -> None:
        self.fractions.pop(key, None)
        self.done += key not in self.ended  # an executor may report the last step of a run that diverged
        self.ended.add(key)

    def _describe_end(self, run: Run, state: str = "") -> str:
        left = format_time_left(self.left)
        end = f"{self.done} of {self.total}, {label_study(run.study)}, {run.arm.name}, seed {run.seed}{state}"
        return f"{end}; {left}" if left else end

    def _title(self) -> str:
        left = format_time_left(self.left)
        spent = f"{time.monotonic() - self.began:.0f} s"
        limit = f" of {self.seconds:.0f} s" if self.seconds is not None else ""
        return f"{self.done} of {self.total} runs, {spent}{limit}" + (f"; {left}" if left else "")

    def _update(self, existing: bool = False) -> None:
        work = self.done + sum(self.fractions.values())
        self.left = self.estimate.update(time.monotonic(), work, self.total, existing)

    def _state(self, study: Study, arm: str) -> str:
        """The seed that runs, or the verdict so far; then the seeds that failed or diverged."""
        running = [key for key in self.fractions if key[:2] == (study.name, arm)]
        if running:
            state = f"seed {running[0][2]}, {100 * self.fractions[running[0]]:.0f} %"
        elif arm == study.decision.baseline:
            state = "baseline"
        else:
            state = self.verdicts.get((study.name, arm), "")
        failures = [f"seed {seed} {word}" for seed, word in self.failures.get((study.name, arm), {}).items()]
        return "; ".join(filter(None, [state, *failures]))


def describe_values(values: list[float], metric: str) -> tuple[str, str]:
    """The mean and its 95 % interval as texts. Accuracies are in percent; a metric without a name is one if it fits.

    >>> describe_values([0.5, 0.52, 0.54], "accuracy"), describe_values([12.0], "perplexity"), describe_values([], "")
    (('52.0 %', '47.0 to 57.0'), ('12.0', ''), ('', ''))
    """
    from whence.lab.study import PERCENT_METRICS
    from whence.statistics import summary

    if not values:
        return "", ""
    percent = metric in PERCENT_METRICS or (not metric and all(0 <= value <= 1 for value in values))
    found = summary([(100 if percent else 1) * value for value in values])
    interval = found.interval
    return (
        f"{found.mean:.1f}{' %' if percent else ''}",
        f"{interval.low:.1f} to {interval.high:.1f}" if interval else "",
    )


def read_value(path: Path, split: str) -> float | None:
    """The value of a record on a split; None for a diverged run or a record that cannot be read."""
    try:
        return records.read(path)["result"]["evaluations"][-1]["splits"][split]["value"]
    except (WhenceError, KeyError, IndexError, TypeError):
        return None


def is_diverged(path: Path) -> bool:
    """Whether a record is that of a diverged run."""
    try:
        return bool(records.read(path)["result"]["status"] == "diverged")
    except (WhenceError, KeyError, TypeError):
        return False


@contextmanager
def show_arms(
    studies: Sequence[Study], seconds: float | None = None, table_class: type[ArmTable] = ArmTable
) -> Iterator[dict[str, Any]]:
    """Yield the functions that ``run_until_decided`` calls with rounds, progress, looks and failures."""
    table = table_class(studies, seconds)
    try:
        from rich.console import Console
        from rich.live import Live

        console: Any = Console(stderr=True)
    except ImportError:
        console = None
    if console is None or not console.is_terminal:

        def report(run: Run, at: Any) -> None:
            line = table.on_progress(run, at)
            if line:
                print(line, file=sys.stderr, flush=True)

        def report_look(study: Study, comparison: PairedComparison | None) -> None:
            print(table.on_look(study, comparison), file=sys.stderr, flush=True)

        def report_failure(run: Run, state: str) -> None:
            print(table.on_failure(run, state), file=sys.stderr, flush=True)

        yield {
            "on_round": table.on_round,
            "on_progress": report,
            "on_look": report_look,
            "on_failure": report_failure,
        }
        return
    with Live(table.render(console.width), console=console, refresh_per_second=4) as live:  # its last state stays

        def redraw_after(take: Callable[..., Any]) -> Callable[..., None]:
            def handle(*arguments: Any) -> None:
                take(*arguments)
                live.update(table.render(console.width))

            return handle

        methods = (table.on_round, table.on_progress, table.on_look, table.on_failure)
        yield {method.__name__: redraw_after(method) for method in methods}
