"""A study that trains in seconds, its results, and their comparison."""

import dataclasses
import json

import pytest

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study

ARMS = (parse_arm("none"), parse_arm("alibi"), Arm("EPAR", "Epar(learnable=True)"))


def build_study(**changes):
    instance = Study(
        name="small",
        question="does it run",
        task="retrieval",
        task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 16},
        model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16},
        arms=ARMS,
        seeds=(0, 1),
        budget=Budget(steps=6, batch_size=8, evaluate_every=2),
        decision=Decision(baseline="none"),
    )
    return dataclasses.replace(instance, **changes)


def load_results(folder):
    return {
        path.name: json.loads(path.read_text())["result"] for path in sorted(folder.glob("*seed*.json"))
    }  # fmt: skip


def almost_equal(a, b):
    """Whether counts and steps are equal, and floats within 1e-5.

    The last digits of a sum may depend on the memory layout, which differs in a process that has run other tests.
    """
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(almost_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(almost_equal, a, b))
    return a == pytest.approx(b, rel=1e-5) if isinstance(a, float) else a == b


def build_execute(log, number=None):
    """Train like ``execute_run``, with a checkpoint after every step. A signal meets seed 0 at its third step, once.

    A function inside a function is sent by value: workers cannot import this file.
    """

    def execute(run, folder, on_progress):
        import functools
        import os

        from whence.lab import run_execution, training

        mark, original = log / "mark", training.train

        def report(progress):
            with (log / run.file_name).open("a") as file:
                file.write(f"{progress.step} ")
            on_progress(progress)
            if number and run.seed == 0 and progress.step == 3 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), number)

        training.train = functools.partial(original, save_every=0.0)
        try:
            return run_execution.execute_run(run, folder, report)
        finally:
            training.train = original

    return execute
