"""When does EPAR help? One question under many conditions, each changed alone: length, importance, order, noise, distance.

Votes weigh by their place (see the task); retrieval asks for a value at any distance. EPAR is held against no position,
rotary, ALiBi and T5's free table under the lab's statistics, five seeds each.
"""

from typing import Any

from whence.lab.arms import Arm, arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4)
ARMS = (Arm("EPAR", "Epar(learn=True)"), arm("none"), arm("rotary"), arm("alibi"), arm("t5"))
MODEL = {"width": 32, "heads": 2, "layers": 2, "hidden": 64, "dropout": 0.0}
USUAL = {"length": 64, "structure": "near", "order": "kept", "noise": 0.0, "longest": 1}

#: what is asked, and what of the usual is changed
CONDITIONS: dict[str, dict[str, Any]] = {
    "length 64, importance falls with distance": {},
    "length 256": {"length": 256},
    "length 1024": {"length": 1024},
    "length 4096": {"length": 4096},
    "importance in waves": {"structure": "waves"},
    "importance in blocks": {"structure": "blocks"},
    "importance at random": {"structure": "random"},
    "all places alike": {"structure": "flat"},
    "order shuffled": {"order": "shuffled"},
    "a tenth of the votes wrong": {"noise": 0.1},
    "three tenths of the votes wrong": {"noise": 0.3},
}


def studies() -> list[Study]:
    return [_votes(number, name, changed) for number, (name, changed) in enumerate(CONDITIONS.items())]


def _votes(number: int, name: str, changed: dict[str, Any]) -> Study:
    settings = USUAL | changed
    steps = 400 if settings["length"] <= 1024 else 200
    return Study(
        name=f"epar-when-{number:02}",
        question=name,
        task="votes",
        task_settings=settings,
        model=MODEL,
        arms=ARMS,
        seeds=SEEDS,
        budget=Budget(steps=steps, batch=32, rate=3e-3, evaluate_every=steps // 4),
        decision=Decision(baseline="EPAR"),
    )
