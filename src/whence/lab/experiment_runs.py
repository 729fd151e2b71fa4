"""``compute_experiments``: the records of the experiments of a study file, in several processes at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path

from whence import records
from whence.errors import Terminated, WhenceError
from whence.lab.experiment import Experiment, load_or_compute
from whence.lab.study_files import load_study_file
from whence.lab.workers import end_with_parent
from whence.user_code import ErrorInWorker


def compute_experiments(
    experiments: Sequence[Experiment],
    source: Path,
    scale: str | None,
    options: Mapping[str, str],
    out: Path,
    *,
    quick: bool = False,
    jobs: int,
) -> None:
    """Compute the records that do not exist, ``jobs`` at a time, each after those that it needs.

    With one job or one record it does nothing: ``run_experiment`` computes it. A process loads the study file ``source`` itself, with
    ``scale`` and ``options``, because the functions of an experiment need not be picklable. After an error the running
    experiments end, no other begins, and the first error is raised.
    """
    waiting = [one for one in list_with_needs(experiments) if not records.exists(one.record_path(out, quick))]
    processes = min(jobs, len(waiting))
    if processes < 2:
        return
    before = active_children()
    errors: list[BaseException] = []
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=end_with_parent)
    active: dict[Future[Exception | None], Experiment] = {}
    try:
        while waiting or active:
            missing = [*waiting, *active.values()]
            ready = [one for one in waiting if not any(need in missing for need in one.needs)]
            for one in ready[: processes - len(active)]:
                waiting.remove(one)
                path = one.record_path(out, quick)
                active[pool.submit(_compute_record, source, scale, dict(options), path, out, quick)] = one
            for future in wait(active, return_when=FIRST_COMPLETED).done:
                del active[future]
                if error := future.exception() or future.result():
                    errors.append(error)
                    waiting.clear()
    except BrokenProcessPool as error:  # of submit: a process was killed after the last look
        errors.append(error)
    except BaseException:  # such as Ctrl-C
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            if process not in before:
                process.terminate()
        raise
    pool.shutdown()
    if any(isinstance(error, BrokenProcessPool) for error in errors):
        raise WhenceError(
            f"whence run: one of {processes} processes was killed, perhaps for lack of memory, so all ended; run the command again "
            f"with --jobs {processes // 2}, and finished records stay."
        )
    if errors:
        raise errors[0]


def list_with_needs(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The experiments and all that they need, each once and after its needs."""

    def visit(one: Experiment) -> Iterator[Experiment]:
        for need in one.needs:
            yield from visit(need)
        yield one

    found: list[Experiment] = []
    for one in (one for experiment in experiments for one in visit(experiment)):
        if one not in found:
            found.append(one)
    return found


def _compute_record(
    source: Path, scale: str | None, options: Mapping[str, str], path: Path, out: Path, quick: bool
) -> Exception | None:
    """None, or the error as one that can be pickled: a class of the user's file cannot, and its traceback would be lost."""
    try:
        loaded = [one for one in load_study_file(source, scale, options) if isinstance(one, Experiment)]
        experiment = next(one for one in list_with_needs(loaded) if one.record_path(out, quick) == path)
        load_or_compute(experiment, out, quick, lambda line: print(line, file=sys.stderr, flush=True))
    except Terminated:
        raise
    except WhenceError as error:
        return WhenceError(str(error))
    except Exception as error:
        return ErrorInWorker.of(error)
    return None
