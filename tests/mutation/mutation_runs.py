"""Forked runs of pytest on a copy of the sources, several at a time, for ``mutation.py`` and ``mutants.py``."""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

TEST_FOLDER = Path(__file__).resolve().parents[1]
ROOT = TEST_FOLDER.parent
SOURCES = ROOT / "src" / "whence"
QUICK = ["-x", "-q", "--tb=no", "-o", "addopts=", "-pno:cacheprovider", "-pno:unraisableexception"]
QUICK += ["--doctest-modules", "--import-mode=prepend"]


def preload(*more):
    """Import the packages that tests import, once for all children; never whence itself."""
    os.environ["TRITON_INTERPRET"] = "1"  # triton decides while it is imported; conftest.py does the same
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    names = ["numpy", "torch", "torch._dynamo", "hypothesis", "scipy.stats", "safetensors.torch"]
    for name in [*names, "triton.language", *more]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del os.environ["TRITON_INTERPRET"]
    sys.modules["torch"].set_num_threads(1)  # threads do not survive a fork
    assert "whence" not in sys.modules


class Lines:
    """Which lines of the copied sources are executed, from here on."""

    def __init__(self, folder):
        self.folder, self.seen, self.calls = str(folder), {}, {}

    def start(self):
        if sys.version_info >= (3, 12):
            events, tool = sys.monitoring, sys.monitoring.COVERAGE_ID
            events.use_tool_id(tool, "lines")
            events.register_callback(tool, events.events.LINE, self.line)
            events.set_events(tool, events.events.LINE)
        else:
            sys.settrace(self.trace)

    def line(self, code, number):
        self.note(code.co_filename, number)
        return sys.monitoring.DISABLE

    def trace(self, frame, event, argument):
        code = frame.f_code
        name = code.co_filename
        if not name.startswith(self.folder):
            return None
        if event == "call":  # tracing is slow before Python 3.12, and after many calls there is little left to see
            self.calls[code] = self.calls.get(code, 0) + 1
            if self.calls[code] > 200:
                return None
        self.note(name, frame.f_lineno)
        return self.trace

    def note(self, name, number):
        if name.startswith(self.folder):
            self.seen.setdefault(name[len(self.folder) + 1 :], set()).add(number)


class FirstFailure:
    name = None

    def pytest_runtest_logreport(self, report):
        if report.failed and self.name is None:
            self.name = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed and self.name is None:
            self.name = f"{report.nodeid or 'collection'} (import)"


def copied(mutant=None):
    folder = Path(tempfile.mkdtemp(prefix="mutation-"))
    shutil.copytree(SOURCES, folder / "whence", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = folder / "whence" / mutant.file
        path.write_text(mutant.applied(path.read_text()))
    return folder


def child(folder, tests, result, traced):
    """In a forked process: run tests on the copied sources; what was found goes into a file."""
    os.setpgid(0, 0)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.chdir(ROOT)
    lines, failure = Lines(folder / "whence"), FirstFailure()
    if traced:
        lines.start()
    code = int(pytest.main([*QUICK, *map(str, tests)], plugins=[failure]))
    sys.settrace(None)
    seen = {name: sorted(numbers) for name, numbers in lines.seen.items()}
    result.write_text(json.dumps({"exit": code, "by": failure.name, "lines": seen}))
    os._exit(0)


class Job:
    """One forked run of pytest."""

    def __init__(self, mutant, tests, limit, traced=False):
        self.folder = copied(mutant)
        self.result = self.folder / "result.json"
        named = [
            self.folder / "whence" / t.removeprefix("src:") if t.startswith("src:") else TEST_FOLDER / t for t in tests
        ]
        self.began, self.limit, self.timed_out = time.monotonic(), limit, False
        self.pid = os.fork()
        if self.pid == 0:
            try:
                child(self.folder, named, self.result, traced)
            finally:
                os._exit(3)

    def ended(self):
        """The outcome, or None while it runs. The process group goes with it: tests start processes of their own."""
        if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() - self.began < self.limit:
                return None
            self.timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.timed_out:
            os.waitpid(self.pid, 0)
        crashed = {"exit": 3, "by": "the process ended", "lines": {}}
        actual = json.loads(self.result.read_text()) if self.result.exists() else crashed
        if self.timed_out:
            actual = {"exit": 2, "by": f"no end after {self.limit:.0f} s", "lines": {}}
        shutil.rmtree(self.folder, ignore_errors=True)
        return actual | {"seconds": round(time.monotonic() - self.began, 1)}


def in_parallel(tasks, jobs):
    """Each task is a generator that yields jobs and receives their outcomes."""
    waiting, running = list(tasks), []
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.pop(0)
            with contextlib.suppress(StopIteration):
                running.append((task, next(task)))
        time.sleep(0.05)
        for entry in list(running):
            task, job = entry
            outcome = job.ended()
            if outcome is not None:
                running.remove(entry)
                with contextlib.suppress(StopIteration):
                    running.append((task, task.send(outcome)))
